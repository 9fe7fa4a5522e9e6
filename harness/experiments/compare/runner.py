"""Pairs of runs that are made for a comparison: interleaved, one after another, A B, B A, A B, ...

Both runs of a pair send the same schedule, that of the pair's seed. A pair unlike the others is made again once, and
the second attempt counts, whatever it shows: which ones is decided without looking at who was slower. Order, interim
analyses and repeated runs are logged in the folder of the comparison, which a second call resumes.

One process at a time, with Ctrl-C handed on to it: a run that is interrupted still ends in order.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias

from msgspec import structs

from harness import termination
from harness.data.folder import read_info
from harness.data.run_json import Ending
from harness.data.storage import locked
from harness.errors import CRASHED, INTERRUPTED, BackendError, Crashed, Interrupted, NotValid, UsageError
from harness.experiments import answers, imports
from harness.experiments.capacity.capacity_json import CapacityAnswer
from harness.experiments.compare import verdict
from harness.experiments.compare.compare_json import ComparedPair
from harness.experiments.compare.pair_log import SIDES, Command, PairLog
from harness.experiments.sweep.execute import duration
from harness.experiments.sweep.sweep_json import SweepAnswer
from harness.stats.paired import ALPHA, LEAST_PAIRS
from harness.validity.checks import LATENESS, failed_checks

Folders: TypeAlias = "list[tuple[Path, Path]]"
ANSWERS = ("capacity.json", "sweep.json")
State = Literal["good", "late", "invalid", "failed", "wrong", "crashed", "interrupted"]

_FAILED, _NOT_VALID = 3, 4
_ENDED: Mapping[int, State] = {2: "wrong", CRASHED: "crashed", INTERRUPTED: "interrupted"}
_JUDGED = (0, 1, 5)
"""Exit codes of bench commands that measured well, whatever the result."""


Wanted = int | Literal["auto"] | None
"""How many pairs; `auto` has interim analyses; None is one pair for a virtual clock, and `auto` for the wall's."""
OPEN = "inconclusive"
ATTEMPTS, INVALID = 2, 5
"""How often a pair is tried before the comparison ends without it: one that failed, and one that was not valid, as on a
machine that is busy for a while. Once where nothing is left to chance."""
_UNUSABLE = ("late", "invalid")
"""States of a run that ended, and may be valid when it is made again."""
_GUARD = (
    "import ctypes, os, signal, sys\n"
    "ctypes.CDLL(None).prctl(1, signal.SIGTERM)\n"  # PR_SET_PDEATHSIG of <linux/prctl.h>; it outlives exec
    "os.execvp(sys.argv[1], sys.argv[1:])"
)
"""Has the kernel end a process when the one that started it dies, however it dies."""

Judge: TypeAlias = "Callable[[Sequence[tuple[Path, Path]], float], Judgement]"
"""(Results of base and head of the valid pairs, alpha) -> judgement."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict on the pairs so far, of which `inconclusive` asks for more; and the places of unusual ones.

    `valid` is whether all of them count: one whose requests left late does where that decides nothing.
    """

    verdict: str
    unusual: Sequence[int] = ()
    valid: bool = True


@dataclass(frozen=True, slots=True)
class Made:
    """The pairs of a folder. `folders` are base and head of the valid ones; `attempts` are all.

    `alpha` is the one-sided chance of a wrong call at this analysis, the last of `interim`. `exit_code` is 3 or 4 where
    a pair failed twice, which ends the comparison; else None. `same` where base was compared with itself.
    """

    out: Path
    folders: Folders
    attempts: list[ComparedPair]
    interim: list[int]
    alpha: float
    notes: list[str]
    exit_code: int | None = None
    same: bool = False


def run_pairs(
    sides: tuple[Command, Command],
    wanted: Wanted,
    out: Path,
    judge: Judge,
    say: Callable[[str], None],
    *,
    first_seed: int = 0,
    alpha: float = ALPHA,
) -> Made:
    """Make the pairs that are still missing in `out`; `say` gets a line for each run.

    All interim analyses together have `alpha`.

    Raises UsageError for a command that cannot run, and for a folder of something else; NotValid where the two sides
    send different requests; BackendError or NotValid where no pair could be made; Interrupted before the first one.
    """
    log = PairLog.opened(out, sides, first_seed)
    with locked(out, "comparison"), Watched() as watched, tempfile.TemporaryDirectory() as folder:
        shared = Path(folder, "probe.json")
        pairs = _Pairs(sides, wanted, log, judge, say, watched, shared, first_seed, alpha)
        code = pairs.make()
    return _made(log, pairs, code, same=sides[0].words == sides[1].words)


def check_enough(wanted: Wanted, *, exact: bool) -> None:
    """Raises NotValid for a number of pairs that could never decide anything."""
    if isinstance(wanted, int) and wanted < LEAST_PAIRS and not exact:
        raise NotValid(
            f"--pairs {wanted} proves nothing in real time, where runs differ by chance; give {LEAST_PAIRS} or more, "
            "or auto."
        )


@dataclass(slots=True)
class _Pairs:
    """The loop over pairs."""

    sides: tuple[Command, Command]
    wanted: Wanted
    log: PairLog
    judge: Judge
    say: Callable[[str], None]
    watched: Watched
    shared: Path
    first_seed: int
    alpha: float

    def make(self) -> int | None:
        """Make pairs until there are enough; the exit code of what ended it early, else None."""
        in_vain = 0
        while (pair := self._next()) is not None:
            repeated = any(row.pair == pair for row in self.log.complete)
            row, outcome = self._attempt(pair)
            if row is None:
                return None
            check_enough(self.wanted, exact=bool(row.exact))
            in_vain = 0 if row.valid or repeated else in_vain + 1
            invalid = outcome.state in _UNUSABLE
            if in_vain and (outcome.exact or in_vain >= (INVALID if invalid else ATTEMPTS)):
                return _NOT_VALID if invalid else _FAILED
        return None

    @property
    def open_ended(self) -> bool:
        """Whether the number of pairs depends on interim analyses."""
        exact = all(row.exact for row in self.log.complete)
        return self.wanted == "auto" or (self.wanted is None and not exact)

    def _next(self) -> int | None:
        """The number of the pair to make, or to make again; None where there are enough."""
        done = len(self.log.complete)
        if self.watched.interruptions:
            return None
        if isinstance(self.wanted, int):
            return done + 1 if done < self.wanted else self._unusual(self._judged(self.alpha))
        if not done:
            return 1
        if not self.open_ended:
            return None
        if done not in verdict.INTERIM:
            return done + 1 if done < verdict.INTERIM[-1] else None
        judged = self._judged(verdict.alpha(verdict.INTERIM, self.alpha))
        if (pair := self._unusual(judged)) is not None:
            return pair
        self.log.add_analysis(done)
        self.say(f"interim analysis after {count(done)}: {judged.verdict}")
        return done + 1 if judged.verdict == OPEN and done < verdict.INTERIM[-1] else None

    def _judged(self, alpha: float) -> Judgement:
        exact = all(row.exact for row in self.log.complete)
        return Judgement(OPEN) if exact else self.judge(_folders(self.log), alpha)

    def _unusual(self, found: Judgement) -> int | None:
        """The number of the first pair unlike the others that was not made again yet."""
        pairs = (self.log.complete[place].pair for place in found.unusual)
        return next((pair for pair in pairs if not self.log.was_made_again(pair)), None)

    def _attempt(self, pair: int) -> tuple[ComparedPair | None, RunOutcome]:
        """Both runs of a pair, entered in the log; None where it was interrupted, and then nothing is entered."""
        seed, repeated = self.first_seed + pair - 1, bool(self.log.attempts(pair))
        folder = self.log.folder(pair, seed)
        order = (0, 1) if pair % 2 else (1, 0)
        outcomes: dict[int, RunOutcome] = {}
        took_s = [0.0, 0.0]
        for place, side in enumerate(order):
            if self.watched.interruptions:
                return None, RunOutcome(folder, "interrupted")
            self._announce(pair, seed, side, place, again=repeated)
            begun_s = time.monotonic()
            outcomes[side] = self._run(side, seed, folder)
            took_s[side] = time.monotonic() - begun_s
            if (state := outcomes[side].state) in ("wrong", "crashed"):
                error = UsageError if state == "wrong" else Crashed
                raise error(f"{SIDES[side]}, '{self.sides[side].text}': {outcomes[side].why}")
            if self.watched.interruptions or outcomes[side].state == "interrupted":
                self.watched.interruptions = max(1, self.watched.interruptions)
                return None, outcomes[side]
            if outcomes[side].state not in ("good", "late"):
                break
        states = {run.state for run in outcomes.values()}
        late = "late" in states and states <= {"good", "late"}
        if late and self.judge([(outcomes[0].path, outcomes[1].path)], self.alpha).valid:
            outcomes = {side: replace(run, state="good") for side, run in outcomes.items()}
        return self._entered(pair, seed, order, outcomes, took_s, folder)

    def _run(self, side: int, seed: int, folder: Path) -> RunOutcome:
        """One run of a side, in a process of its own: each begins in the same state."""
        command, path = self.sides[side], folder / SIDES[side]
        out, err = log_file(path, "out"), log_file(path, "err")
        try:
            code = self.watched.call(command.at(seed, path, self.shared), command.variables, out, err)
        except OSError as error:
            raise UsageError(f"'{command.text}' cannot be started: {error.strerror}.") from None
        return outcome_of(path, code, err, ours=command.ours)

    def _entered(
        self,
        pair: int,
        seed: int,
        order: tuple[int, int],
        found: dict[int, RunOutcome],
        took_s: list[float],
        folder: Path,
    ) -> tuple[ComparedPair, RunOutcome]:
        """The row of an attempt, now in the log, and the run that decided it."""
        bad = next((side for side in order if side in found and found[side].state != "good"), None)
        paths = [found[side].path if side in found else folder / SIDES[side] for side in (0, 1)]
        row = ComparedPair(
            pair=pair,
            seed=seed,
            order="AB" if order == (0, 1) else "BA",
            base_run=str(paths[0].relative_to(self.log.out)),
            head_run=str(paths[1].relative_to(self.log.out)),
            schedule_hash=_schedule(pair, seed, found),
            valid=bad is None,
            repeated=bool(self.log.attempts(pair)),
            why=None if bad is None else f"{SIDES[bad]}: {found[bad].why}",
            exact=all(run.exact for run in found.values()),
            base_s=round(took_s[0], 3),
            head_s=round(took_s[1], 3),
        )
        self.log.add(row)
        last = found[order[1] if bad is None else bad]
        self._remark(row, found, last)
        return row, last

    def _remark(self, row: ComparedPair, found: dict[int, RunOutcome], last: RunOutcome) -> None:
        """Notes on a pair that its numbers do not show."""
        if not row.valid:
            most = INVALID if last.state in _UNUSABLE else ATTEMPTS
            retry = "" if last.exact or len(self.log.attempts(row.pair)) >= most else "; the pair is made again"
            self.say(f"pair {row.pair} cannot be used, {row.why}{retry}")
        elif not row.exact and (shared := _shared(found)) is not None:
            self._note(shared)
        for side, run in found.items():
            if not (self.sides[side].seeded or run.exact or run.many_seeds):
                self._note(f"{SIDES[side]} has no {{seed}}, so all pairs may be of one schedule, and show no other.")
            if run.given_up:
                self._note(
                    f"pair {row.pair}, {SIDES[side]}: {run.given_up:,} requests were given up, and the server may have "
                    "worked on them during the next run; raise --drain."
                )

    def _note(self, sentence: str) -> None:
        if self.log.note(sentence):
            self.say(f"warning: {sentence}")

    def _announce(self, pair: int, seed: int, side: int, place: int, *, again: bool) -> None:
        target = "auto" if self.wanted is None and self.log.rows and self.open_ended else self.wanted
        total = "" if target is None else f" of up to {verdict.INTERIM[-1]}" if target == "auto" else f" of {target}"
        last = self.wanted if isinstance(self.wanted, int) else verdict.INTERIM[-1]
        remaining = _left_text(2 * (last - pair + 1) - place, self.log.seconds(), target)
        self.say(f"pair {pair}{total}{', again' if again else ''}, seed {seed}: {SIDES[side]}{remaining}")


def _made(log: PairLog, pairs: _Pairs, code: int | None, *, same: bool) -> Made:
    """The result; raises where no pair can be used."""
    complete = len(log.complete)
    exact = all(row.exact for row in log.complete)
    broken = next((row.why for row in reversed(log.rows) if not row.valid), None)
    if code is not None and not complete:
        raise (NotValid if code == _NOT_VALID else BackendError)(f"no pair could be made; {broken}.")
    notes = [*log.notes]
    if code is not None:
        attempts = len(log.attempts(complete + 1))
        notes.append(f"pair {complete + 1} could not be made in {attempts} attempts; {broken}.")
    if pairs.watched.interruptions:
        notes.append(f"interrupted after {count(complete)}; rerun the command with --out {log.out} to resume.")
        if not complete or (not exact and complete < LEAST_PAIRS):
            raise Interrupted(notes[-1])
    log.add_analysis(complete)
    if repeated := sorted({row.pair for row in log.rows if row.unusual}):
        sole = len(repeated) == 1
        numbers = ", ".join(map(str, repeated))
        notes.append(
            f"pair{'' if sole else 's'} {numbers} {'was' if sole else 'were'} unlike the others and made again once, "
            "whichever side was slower; the second attempt counts."
        )
    alpha = min(verdict.alpha(plan, pairs.alpha) for plan in (log.interim, verdict.INTERIM if pairs.open_ended else ()))
    if alpha < pairs.alpha:
        notes.append(
            f"each of the interim analyses (after {', '.join(map(str, sorted(log.interim)))} pairs) has alpha "
            f"{100 * alpha:.3g}%, so that all of them together have {100 * pairs.alpha:.3g}%."
        )
    return Made(
        out=log.out,
        folders=_folders(log),
        attempts=[
            structs.replace(row, base_run=str(log.out / row.base_run), head_run=str(log.out / row.head_run))
            for row in log.rows
        ],
        interim=sorted(log.interim),
        alpha=alpha,
        notes=notes,
        exit_code=code,
        same=same,
    )


def count(pairs: int) -> str:
    """So many pairs, in words."""
    return "1 pair" if pairs == 1 else f"{pairs} pairs"


def _folders(log: PairLog) -> Folders:
    return [(log.out / row.base_run, log.out / row.head_run) for row in log.complete]


def _schedule(pair: int, seed: int, found: Mapping[int, RunOutcome]) -> str | None:
    """The hash of what both sides sent, None where none is known. Raises NotValid where there are two."""
    hashes = {one.schedule_sha256: None for one in found.values() if one.schedule_sha256 is not None}
    if len(hashes) > 1:
        first, second = (str(one)[:12] for one in hashes)
        raise NotValid(
            f"base and head did not send the same requests in pair {pair} (seed {seed}: schedules {first} and "
            f"{second}); give both the same workload, rate, lengths and number of requests."
        )
    return next(iter(hashes), None)


def _shared(found: Mapping[int, RunOutcome]) -> str | None:
    """A warning where both sides send equal prompts to one server, whose prefix cache then helps the second one."""
    base, head = found[0], found[1]
    if base.address is None or base.address != head.address or base.salt != head.salt:
        return None
    return (
        f"base and head share the server at {base.address} and the salt of their prompts, so its prefix cache favours "
        "the run that comes second; leave salt=auto."
    )


def _left_text(runs: int, seconds: float | None, wanted: Wanted) -> str:
    """How long it will still take, from the runs so far."""
    if seconds is None or wanted is None:
        return ""
    return f" ({'at most' if wanted == 'auto' else 'about'} {duration(runs * seconds)} left)"


class Watched:
    """Starts processes and waits for them; what interrupts this process is handed on, and remembered.

    The third interruption kills the process that is going on. Each has a group of its own, so that what it started
    in turn gets the same signals.
    """

    def __init__(self) -> None:
        self.interruptions = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._missed: int | None = None
        self._signals = termination.handled(self._interrupted)

    def __enter__(self) -> Watched:
        self._signals.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._signals.__exit__(None, None, None)
        if self._process is not None:  # an error on our side leaves none behind
            self._send(signal.SIGTERM)
            self._process.wait()
            self._process = None

    def call(self, words: Sequence[str], variables: Mapping[str, str], out: Path, err: Path) -> int:
        """The exit code of a command whose output goes to two files. Raises OSError where it cannot be started."""
        # The guard ends the command when we end: else it would disturb the runs that come next.
        guard = [sys.executable, "-I", "-S", "-c", _GUARD] if sys.platform == "linux" else []
        with out.open("wb") as printed, err.open("wb") as errors:
            self._process = subprocess.Popen(  # noqa: S603  # the user's own command, and no shell
                [*guard, *words],
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=errors,
                env={**os.environ, **variables},
                start_new_session=True,
            )
            if self._missed is not None:  # it came while the process was being started
                self._send(self._missed)
            code = self._process.wait()
            self._process = None
        return code

    def _interrupted(self, number: int) -> None:
        self.interruptions += 1
        if self._process is None:
            self._missed = number
        else:
            self._send(signal.SIGKILL if self.interruptions > 2 else number)

    def _send(self, number: int) -> None:
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """One run of a side: the result at `path`, whether it can be used, and else why not.

    A `late` one is not valid because its requests left late, and of nothing else. `wrong` is a command that cannot run,
    `crashed` a bench command that met a bug. `exact` results are those of a virtual clock. `address` is that of a
    remote server, `salt` opened its prompts. A search has `many_seeds`.
    """

    path: Path
    state: State
    why: str | None = None
    schedule_sha256: str | None = None
    exact: bool = False
    address: object = None
    salt: object = None
    given_up: int = 0
    many_seeds: bool = False


def outcome_of(path: Path, code: int, err: Path, *, ours: bool) -> RunOutcome:
    """The result of a command with that exit code at `path`, or beside it with an ending; `ours` is a `bench run`."""
    if code == INTERRUPTED or (ours and code in _ENDED):
        return RunOutcome(path, _ENDED[code], _last(err))
    if (path / "run.json").exists():
        return _of_run(path, code, err, ours=ours)
    if (answer := next((path / name for name in ANSWERS if (path / name).exists()), None)) is not None:
        # A search or a sweep: unresolved is an answer, not valid is none.
        try:
            info = answers.of(answer)
        except UsageError as error:
            return RunOutcome(path, "failed", str(error).rstrip("."))
        search = info if isinstance(info, SweepAnswer | CapacityAnswer) else None
        if code == _NOT_VALID or (search is not None and search.exit_code == _NOT_VALID):
            return RunOutcome(path, "invalid", _last(err))
        if code not in _JUDGED:
            return RunOutcome(path, "failed", f"it ended with exit code {code}: {_last(err)}")
        return RunOutcome(path, "good", exact=search is not None and search.clock == "virtual", many_seeds=True)
    if code != 0:
        return RunOutcome(path, "failed", f"it ended with exit code {code}: {_last(err)}")
    return _of_file(path)


def _of_run(path: Path, code: int, err: Path, *, ours: bool) -> RunOutcome:
    try:
        info = read_info(path)
    except UsageError as error:
        return RunOutcome(path, "failed", str(error).rstrip("."))
    ending = info.outcome or Ending()
    of_run = partial(
        RunOutcome,
        path,
        schedule_sha256=info.schedule.sha256,
        exact=info.virtual,
        address=info.backend.get("url"),
        salt=info.backend.get("salt"),
        given_up=ending.cut or 0,
    )
    if ending.ended in ("stopped", "interrupted"):
        return of_run("interrupted", "it was interrupted")
    if ending.ended == "failed" or (code not in (*_JUDGED, _NOT_VALID)):
        return of_run("failed", (ending.error or f"it ended with exit code {code}: {_last(err)}").rstrip("."))
    if not info.verdict.valid:
        state: State = "late" if failed_checks(info) == {LATENESS} else "invalid"
        return of_run(state, (info.verdict.text or "it has no verdict").rstrip("."))
    if not ours and code not in _JUDGED:
        return of_run("failed", f"it ended with exit code {code}: {_last(err)}")
    return of_run("good")


def _of_file(path: Path) -> RunOutcome:
    """A result file of another tool."""
    logs = (".stdout.txt", ".stderr.txt")
    others = path.parent.glob(f"{path.name}.*")
    places = [path] if path.exists() else sorted(p for p in others if not p.name.endswith(logs))
    for place in places:
        try:
            runs = imports.open(place)
        except UsageError:
            continue
        if len(runs) != 1:
            return RunOutcome(place, "failed", f"it left {len(runs)} runs where one was expected")
        info = runs[0].info
        if info.verdict.valid is False:
            return RunOutcome(place, "invalid", str(info.verdict.text))
        return RunOutcome(place, "good", schedule_sha256=info.schedule.sha256)
    return RunOutcome(path, "wrong", "it left no run at {out}, and no result file of a known tool")


def log_file(path: Path, kind: Literal["out", "err"]) -> Path:
    """The file of what a command prints, beside its result."""
    return path.with_name(f"{path.name}.std{kind}.txt")


def _last(err: Path) -> str:
    """The last line of an error output, without control characters."""
    lines = [line.strip() for line in err.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    text = lines[-1].removeprefix("bench: ") if lines else "it printed nothing"
    return "".join(c if c.isprintable() else " " for c in text)[:600].rstrip(".")
