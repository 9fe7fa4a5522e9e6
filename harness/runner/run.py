"""A run from its spec to its folder: plan, drive, conclude, report."""

from __future__ import annotations

import dataclasses
import os
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Protocol, cast

import pyarrow.compute as pc
from msgspec.structs import replace

from harness import termination
from harness.api import VERSION, ActionLog, Backend, Outcome, Remote, RequestRecord, Simulator
from harness.data import files, large
from harness.data.folder import Aggregate, Run, RunFolder, check_free, new_folder
from harness.data.host import busy, host, process_age_s, versions
from harness.data.mapped import release
from harness.data.records import Recounts
from harness.data.run_json import RunInfo, Schedule, Summary
from harness.errors import CRASHED, FAILED, BenchError, Interrupted
from harness.metrics.objective import Pooled, meets, stored_slo
from harness.metrics.stages import PromptSteps
from harness.options import RunSpec
from harness.runner.live import Live
from harness.runner.plan import Plan, plan
from harness.runner.progress import QUIET, Display
from harness.runner.recorder import Recorder
from harness.runner.virtual import Stop, drive_virtual, no_collection, quiet_process
from harness.spec import parse
from harness.validity import steady_state
from harness.validity.client_warnings import HELD_BACK
from harness.validity.conclude import conclude
from harness.validity.physics import Laws
from harness.validity.remote import undecided
from harness.validity.work_done import exceeded

RUNS = "bench-runs"
BELOW, INVALID, UNRESOLVED = 1, 4, 5
ROW_BYTES, TOKEN_BYTES = 200, 12
"""Of a request and of one of its tokens in the stream of a run; the table beside it has half of that, compressed."""
SPARE_BYTES = 1_000_000
"""For run.json and the last rows, when a run ends because the disk runs low."""

__all__ = ["Result", "RunSpec", "execute"]


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a run: the run read back, its outcome, the report if one was written, the exit code."""

    run: Run
    outcome: Outcome
    report: Path | None
    exit_code: int


class Watcher(Protocol):
    """Ends a run early, once the rest would change nothing."""

    def begin(self, planned: Plan, live: Live) -> None:
        """The run is about to begin; `live.stop` ends it."""
        ...

    def take(self, records: Sequence[RequestRecord]) -> bool:
        """Requests have ended; True ends the run."""
        ...


def execute(
    spec: RunSpec,
    *,
    out: str | Path | None = None,
    report: Callable[[Run, Callable[[str], None]], Path | None] | None = None,
    display: Display = QUIET,
    command: str | None = None,
    repeats: str | None = None,
    force: bool = False,
    say: Callable[[str], None] = lambda _: None,
    watch: Watcher | None = None,
    shared: Path | None = None,
    aggregates: Sequence[type[Aggregate]] = (),
) -> Result:
    """Execute a run and conclude it. `say` gets notes for the user, one line each. Under the wall clock `watch` gets
    the finished requests; once it returns True nothing more is sent, and the run counts as interrupted. `shared` is a
    file by which the runs of one command ask a remote server once what it can do. `report` writes the page of the
    concluded run; it never raises, and passes errors to `say`. Of a large simulated run it finds the `aggregates` made.

    Without `out` the run gets a new folder; with it, an earlier run there is only replaced with `force`. Raises
    UsageError, before anything is written, for whatever is wrong with the spec; BackendError when the backend
    cannot start. A backend that fails later gives a Result with exit code 3: what was measured stays.
    """
    path = None if out is None else Path(out)
    if path is not None:
        check_free(path, force=force)
    planned = plan(spec, repeats=repeats)
    release(len(planned.schedule))  # drawing takes more than the schedule does
    steady_state.check_leaves(spec.warmup, planned.schedule)
    # once for all runs of a command: the first of them makes the file that they share; a search says it itself
    first = watch is None and not (shared is not None and shared.exists())
    if first and not planned.virtual and (load := busy(host())) is not None:
        say(f"warning: {load}: requests will leave late and tokens be read late; quiet the machine, or use another one")
    at_most = planned.schedule.has_follow_ups and planned.spec.duration is not None
    live = Live(
        len(planned.schedule),
        at_most,
        planned.schedule.span_s,
        planned.slo,
        watch=None if watch is None else watch.take,
    )
    if watch is not None:
        watch.begin(planned, live)
    elif not at_most:
        _check_room(planned, path)
    start = _Start(planned, path, force, command or shlex.join(["bench", *sys.argv[1:]]), say)
    if planned.virtual:
        start.passing = large.passing(len(planned.schedule), [Laws, Pooled, PromptSteps, *aggregates])
    if not planned.virtual:  # a simulation is too fast to be stopped, and its rows are written elsewhere then
        live.room = start.shortage
    try:
        return _run(start, live, report=report, display=display, say=say, shared=shared)
    except KeyboardInterrupt:
        raise start.interrupted() from None
    except OSError as error:
        if not files.has_no_room(error):
            raise
        raise start.unwritable(error) from error


def _run(
    start: _Start,
    live: Live,
    *,
    report: Callable[[Run, Callable[[str], None]], Path | None] | None,
    display: Display,
    say: Callable[[str], None],
    shared: Path | None,
) -> Result:
    planned = start.planned
    with display.showing(live):
        outcome = _outcome(start, live, say, shared)
    if live.short is not None:
        outcome = dataclasses.replace(outcome, error=f"the run was ended because the disk runs low: {live.short}")
    folder = start.folder()
    if outcome.ended == "stopped" and folder.written >= large.LARGE:  # to conclude it takes longer than one may wait
        raise start.interrupted()
    state = "finished" if outcome.ended == "finished" else "interrupted"
    backend = planned.backend
    facts = {} if isinstance(backend, Remote) else {"backend": dict(backend.describe())}  # it knows more by now
    folder.finish(start.recounted, state=state, **facts)
    run = start.passing.run(folder, planned.schedule) if start.passing is not None else None
    run = run or large.load(folder.path, known={"schedule": planned.schedule.table})
    # counted anew, because a driver does not know the follow-ups that no answer released
    dropped = int(pc.sum(pc.equal(run.requests["status"], "dropped")).as_py() or 0)
    outcome = dataclasses.replace(outcome, not_sent=len(planned.schedule) - outcome.sent - dropped)
    folder.write(conclude(run, planned.slo, planned.law, outcome))
    release(len(planned.schedule))
    run = dataclasses.replace(run, info=folder.info)
    written = report(run, say) if report is not None else None
    return Result(run, outcome, written, exit_code(run.info, outcome, planned.spec.fail_under))


def _outcome(start: _Start, live: Live, say: Callable[[str], None], shared: Path | None) -> Outcome:
    """Drive the run by the clock of its backend."""
    backend = start.planned.backend
    if start.planned.virtual:
        return _simulate(start, live)
    if not isinstance(backend, Remote):
        return termination.run(_serve(start, live))
    from harness.runner.remote.run import RemoteRun  # brings asyncio with it

    remote = RemoteRun(start.planned, backend, live, start.folder, say, shared)
    outcome = termination.run(remote.run(partial(_signals, live=live)))
    start.recounted = remote.recounted
    return outcome


def exit_code(info: RunInfo, outcome: Outcome, fail_under: float | None) -> int:
    """0 good, 70 a bug ended it, 3 the backend failed, 4 not valid or ended at once; 1 and 5 by `fail_under`.

    3: also where more requests failed for another reason than load than --max-failed allows. 1: fewer requests met the
    SLO, or a bound on a percentile was missed. 5: the bounds hold, but the run ended early, or its queue grew all
    through, so that a longer run may miss them; or the client's own error decides. Without `fail_under` too where the
    stream was held back, so that nothing tells whether the SLO is met.
    """
    if outcome.crash is not None:
        return CRASHED
    if outcome.ended == "failed" or exceeded(info):
        return FAILED
    if not info.verdict.valid or outcome.ended == "stopped":
        return INVALID
    if fail_under is None:
        return UNRESOLVED if info.warning(HELD_BACK) is not None and info.resolution.undecided else 0
    if undecided(info.resolution, fail_under):
        return UNRESOLVED
    if not meets(info.summary.attainment, info.summary.percentiles_passed, fail_under):
        return BELOW
    return UNRESOLVED if info.verdict.overloaded or outcome.ended != "finished" else 0


def why(code: int, info: RunInfo, outcome: Outcome, fail_under: float | None) -> str | None:
    """One sentence on an exit code of `fail_under`, `max_failed` or a stream that was held back; None for any other."""
    if code == FAILED and (failed := exceeded(info)) is not None:
        return f"exit code {FAILED}: {failed}"
    if code == UNRESOLVED and info.warning(HELD_BACK) is not None and (bounds := info.resolution.unresolved):
        verb = "is" if len(bounds) == 1 else "are"
        return (
            f"exit code {UNRESOLVED}: whether {' and '.join(bounds)} {verb} met is unknown, because something between "
            "buffers the stream (warning held-back)."
        )
    if fail_under is None or code not in (BELOW, UNRESOLVED):
        return None
    option = f"--fail-under {fail_under:.4g}"
    if code == BELOW:
        return f"exit code {BELOW}: {' and '.join(_short_of(info.summary, fail_under))} ({option})."
    if undecided(info.resolution, fail_under):
        shares = info.resolution.attainment
        between = "a bound on a percentile is met or missed"
        if shares is not None:
            between = f"between {shares[0]:.1%} and {shares[1]:.1%} of the requests met the SLO"
        return (
            f"exit code {UNRESOLVED}: within the client's own error {between}, so {option} is undecided; measure with "
            "a quieter client, or choose another bound."
        )
    if info.verdict.overloaded:
        return (
            f"exit code {UNRESOLVED}: {option} holds so far, but the queue grew all through the run; lower the load, "
            "or make the run longer to see whether it still holds."
        )
    return f"exit code {UNRESOLVED}: {option} holds for what was sent, but the run was ended early ({outcome.ended})."


def _short_of(summary: Summary, fail_under: float) -> Iterator[str]:
    """What was missed: the SLO by too many requests, bounds on percentiles."""
    attainment, percentiles = summary.attainment, [b for b in summary.bounds if b.percentile is not None]
    if attainment is not None and attainment < fail_under:
        yield f"{100 * attainment:.4g}% of the requests met the SLO"
    elif attainment is None and not percentiles:
        yield "none of the requests met the SLO"
    for bound in percentiles:
        if bound.passed is False:
            yield f"{bound.text} is missed"


def _check_room(planned: Plan, path: Path | None) -> None:
    """Raise BenchError where the disk has no room for what will be written."""
    rows, tokens = len(planned.schedule), int(pc.sum(planned.schedule.table["output_tokens"]).as_py() or 0)
    files_of_it = 0.5 if planned.virtual else 1.5  # a simulation writes no stream beside its table
    short = files.shortage(path or Path(RUNS), files_of_it * (rows * ROW_BYTES + tokens * TOKEN_BYTES))
    if short is not None:
        raise BenchError(
            f"{rows:,} requests with {tokens:,} tokens do not fit: {short}; send fewer, or name another --out."
        )


def default_folder(planned: Plan) -> Path:
    """bench-runs/<workload>-<backend>-<UTC stamp>."""
    workload = planned.loaded.name
    if planned.spec.trace is not None:
        workload = workload.partition(".")[0] or workload
    name = f"{_plain(workload)}-{_plain(parse(planned.spec.backend).name)}"
    return Path(RUNS) / f"{name}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"


def _plain(name: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in name).strip("-.")[:60] or "run"


def opening(planned: Plan, expected: str | None = None) -> str:
    """One line about the run that is about to start, with the rate and dispersion `expected` of it."""
    n = len(planned.schedule)
    many = f"{n:,} request{'' if n == 1 else 's'}"
    parts = [f"{planned.loaded.name} on {planned.spec.backend}", many, f"seed {planned.spec.seed}"]
    if expected is not None:
        parts.append(f"expected {expected}")
    if not planned.virtual:
        most_s = f", then up to {planned.drain_s:g} s for the last answers" if planned.drain_s else ""
        parts.append(f"sending for {planned.schedule.span_s:.0f} s{most_s}")
        if planned.spec.trace is not None and planned.spec.duration is not None:
            parts.append(f"the first {planned.spec.duration:g} s of the trace (--duration changes that)")
    return ", ".join(parts)


class _Start:
    """Creates the folder of a run once the backend is known to be ready."""

    def __init__(self, planned: Plan, path: Path | None, force: bool, command: str, say: Callable[[str], None]) -> None:
        self._say = say
        self.planned = planned
        self._path = path
        self._force = force
        self._command = command
        self._folder: RunFolder | None = None
        self.recounted: Recounts = {}
        self.passing: large.Held | large.Passing | None = None

    def folder(self) -> RunFolder:
        """The folder; created with run.json and the schedule at the first call."""
        if self._folder is None:
            path = new_folder(default_folder(self.planned)) if self._path is None else self._path
            check_free(path, force=self._force)  # again: starting a backend takes time
            redact = None if self.planned.virtual else self.planned.redact  # a simulator is given no secret
            drawn = self.planned.loaded.expected
            expected = None if drawn is None else drawn()
            self._folder = RunFolder.create(path, self._info(expected), redact=redact)
            if self.passing is not None:
                self._folder.passing = self.passing.add
            self._folder.save_schedule(self.planned.schedule)
            self._say(self.planned.redact(f"{opening(self.planned, expected)}; into {path}"))
        return self._folder

    def shortage(self) -> str | None:
        """What is missing for turning the rows so far into tables, which stand beside them for a moment."""
        folder = self.folder()
        return files.shortage(
            folder.path, SPARE_BYTES + sum(file.stat().st_size for file in folder.path.glob("*.arrows"))
        )

    def interrupted(self) -> Interrupted:
        """The error after Ctrl-C before the report: how many records there are, and the command that reads them."""
        recorded = 0
        if self._folder is not None:
            self._folder.flush()
            self._folder.close()
            recorded = self._folder.written
        if self._folder is None or not recorded:
            return Interrupted("interrupted before there was anything to report.")
        path = shlex.quote(str(self._folder.path))
        return Interrupted(
            f"interrupted before the report; 'bench report {path}' shows the {recorded:,} stored records."
        )

    def unwritable(self, error: OSError) -> BenchError:
        """The error on a full disk: where the records are, also those that were only in memory."""
        if self._folder is None:
            return files.refused(self._path or RUNS, error)
        folder, why = self._folder, os.strerror(error.errno or 0)
        if self.planned.virtual:
            folder.close()
            where = error.filename or folder.path
            return BenchError(f"'{where}' cannot be written: {why}; make the run again with another --out or TMPDIR.")
        try:
            folder.flush()  # there may be room again: what failed to be written was taken away
        except OSError:
            return self._elsewhere(folder, why)
        finally:
            folder.close()
        text = f"'{folder.path}' cannot be written: {why}"
        if not folder.written:
            return BenchError(f"{text}; no request had been answered.")
        path = shlex.quote(str(folder.path))
        return BenchError(f"{text}; 'bench report {path}' shows the {folder.written:,} records in it.")

    def _elsewhere(self, folder: RunFolder, why: str) -> BenchError:
        """Copy the run to the folder for temporary files, with the records that its own folder did not take."""
        text = f"'{folder.path}' cannot be written: {why}"
        stored, total = folder.written, folder.written + folder.waiting
        try:
            path = Path(tempfile.mkdtemp(prefix="bench-run-"))
            try:
                folder.copy_to(path)
            except OSError:
                shutil.rmtree(path, ignore_errors=True)
                raise
        except OSError as error:
            return BenchError(
                f"{text}; {folder.waiting:,} records that were in memory are lost, because temporary files cannot be "
                f"written either ({error.strerror}), and {stored:,} are in that folder."
            )
        quoted = shlex.quote(str(path))
        return BenchError(
            f"{text}; all {total:,} records are in '{path}' now, {folder.waiting:,} of them only there; "
            f"'bench report {quoted}' shows them."
        )

    def _info(self, expected: str | None) -> RunInfo:
        p = self.planned
        extra = {} if expected is None else {"expected": expected}
        return RunInfo(
            schema=VERSION,
            spec=p.spec.options(),
            command=self._command,
            versions=dict(versions()),
            host=host(),
            clock="virtual" if p.virtual else "wall",
            started=datetime.now(UTC).isoformat(timespec="milliseconds"),
            workload=replace(p.traffic, provenance={**p.traffic.provenance, **extra}),
            backend=dict(p.backend.describe()),
            slo=stored_slo(p.slo),
            schedule=Schedule(sha256=p.schedule.sha256, requests=len(p.schedule), span_s=p.schedule.span_s),
        )


async def _serve(start: _Start, live: Live) -> Outcome:
    """The run under the wall clock."""
    from harness.runner.transport import StreamingTransport  # brings asyncio with it
    from harness.runner.wall import WallDriver

    planned = start.planned
    backend = cast("Backend", planned.backend)
    try:
        await backend.open(planned.loaded.content)
        recorder = Recorder(start.folder(), live.seen)
        follow_ups = planned.follow_ups(recorder.add)
        driver = WallDriver(
            StreamingTransport(backend), planned.schedule.planned(), follow_ups, recorder, live, planned.drain_s,
            planned.spec.max_in_flight, planned.response_cache,
        )  # fmt: skip
        try:
            with quiet_process(), _signals(driver.interrupt, live):
                start.folder().update(startup_s=process_age_s())
                return await driver.run()
        finally:
            recorder.close()
            if isinstance(backend, ActionLog) and (actions := backend.actions()):
                start.folder().add_actions(actions)
    finally:
        await backend.close()


def _simulate(start: _Start, live: Live) -> Outcome:
    """The run under a virtual clock."""
    planned = start.planned
    simulator = cast("Simulator", planned.backend)
    dropped: list[RequestRecord] = []
    follow_ups = planned.follow_ups(dropped.append)
    stop = Stop()
    with no_collection(), _stopped_by_signal(stop):
        return drive_virtual(simulator, planned.schedule.planned(), follow_ups, start.folder(), live, stop, dropped)


@contextmanager
def _signals(stop: Callable[[bool], object], live: Live) -> Iterator[None]:
    """Ctrl-C interrupts the driver, and so does what watches the run; SIGTERM ends it at once. A valid folder stays."""
    import asyncio  # heavy

    loop = asyncio.get_running_loop()

    def interrupt(at_once: bool) -> None:
        with suppress(RuntimeError):  # the loop is closed: the run ended while another thread decided to stop it
            loop.call_soon_threadsafe(stop, at_once)

    def end(number: int) -> None:
        interrupt(number != signal.SIGINT)

    live.end = interrupt

    with termination.handled(end):
        yield


@contextmanager
def _stopped_by_signal(stop: Stop) -> Iterator[None]:
    def ask(number: int) -> None:
        if stop.requested:
            raise KeyboardInterrupt
        stop.requested = True
        stop.at_once = number != signal.SIGINT

    with termination.handled(ask):
        yield
