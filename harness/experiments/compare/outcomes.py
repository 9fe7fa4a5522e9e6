"""The result of a command: a run, an answer, another tool's file, or printed numbers; and whether it counts."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from harness.data.folder import read_info
from harness.data.run_json import Ending
from harness.errors import CRASHED, INTERRUPTED, UsageError
from harness.experiments import answers, imports
from harness.experiments.capacity.capacity_json import CapacityAnswer
from harness.experiments.compare import pairing
from harness.experiments.sweep.sweep_json import SweepAnswer
from harness.validity.checks import LATENESS, failed_checks

ANSWERS = ("capacity.json", "sweep.json")
State = Literal["good", "late", "invalid", "failed", "wrong", "crashed", "interrupted"]

_WRONG_USAGE, _NOT_VALID = 2, 4
_JUDGED = (0, 1, 5)
"""Exit codes of bench commands that measured well, whatever the result."""


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
    address: str | None = None
    salt: str | None = None
    given_up: int = 0
    many_seeds: bool = False


def outcome_of(path: Path, code: int, out: Path, err: Path, *, ours: bool) -> RunOutcome:
    """The result of a command with that exit code at `path`, or beside it with an ending; `ours` is a `bench run`."""
    if ours and code == _WRONG_USAGE:
        return RunOutcome(path, "wrong", _last(err))
    if ours and code == CRASHED:
        return RunOutcome(path, "crashed", _last(err))
    if code == INTERRUPTED:
        return RunOutcome(path, "interrupted", _last(err))
    if (path / "run.json").exists():
        return _of_run(path, code, err, ours=ours)
    if (answer := next((path / name for name in ANSWERS if (path / name).exists()), None)) is not None:
        # A search or a sweep: unresolved is an answer, not valid is none.
        try:
            info = answers.of(answer)
        except UsageError as error:
            return RunOutcome(path, "failed", str(error).rstrip("."))
        known = info if isinstance(info, SweepAnswer | CapacityAnswer) else None
        if code == _NOT_VALID or (known is not None and known.exit_code == _NOT_VALID):
            return RunOutcome(path, "invalid", _last(err))
        if code not in _JUDGED:
            return RunOutcome(path, "failed", f"it ended with exit code {code}: {_last(err)}")
        return RunOutcome(path, "good", exact=known is not None and known.clock == "virtual", many_seeds=True)
    if code != 0:
        return RunOutcome(path, "failed", f"it ended with exit code {code}: {_last(err)}")
    return _of_file(path) or _of_numbers(path, out)


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
        address=_text(info.backend.get("url")),
        salt=_text(info.backend.get("salt")),
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


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _of_file(path: Path) -> RunOutcome | None:
    """A result file of another tool; None where there is none that is known."""
    logs = (".stdout.txt", ".stderr.txt")
    others = path.parent.glob(f"{path.name}.*")
    there = [path] if path.exists() else sorted(p for p in others if not p.name.endswith(logs))
    for place in there:
        try:
            found = imports.open(place)
        except UsageError:
            if place.is_file() and (values := pairing.found(place.read_text(encoding="utf-8", errors="replace"))):
                pairing.write(path, values)
                return RunOutcome(path, "good")
            continue
        if len(found) != 1:
            return RunOutcome(place, "failed", f"it left {len(found)} runs where one was expected")
        info = found[0].info
        if info.verdict.valid is False:
            return RunOutcome(place, "invalid", str(info.verdict.text))
        return RunOutcome(place, "good", schedule_sha256=info.schedule.sha256)
    return None


def _of_numbers(path: Path, out: Path) -> RunOutcome:
    values = pairing.found(out.read_text(encoding="utf-8", errors="replace"))
    if not values:
        return RunOutcome(path, "wrong", "it left no run at {out}, and printed no JSON object with numbers")
    pairing.write(path, values)
    return RunOutcome(path, "good")


def log(path: Path, kind: Literal["out", "err"]) -> Path:
    """The file of what a command prints, beside its result."""
    return path.with_name(f"{path.name}.std{kind}.txt")


def _last(err: Path) -> str:
    """The last line of an error output, without control characters."""
    lines = [line.strip() for line in err.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    text = lines[-1].removeprefix("bench: ") if lines else "it printed nothing"
    return "".join(c if c.isprintable() else " " for c in text)[:600].rstrip(".")
