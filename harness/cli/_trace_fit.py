"""`bench trace fit` and `bench trace generate`.

`bench trace download`: the list of public traces, and one of them fetched with its progress shown.
"""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness import compose, registry
from harness.cli import _terminal, _trace_tools
from harness.data import files
from harness.errors import UsageError, no_such
from harness.spec import parse

MODES = ("parametric", "rate-following")
OF_WORKLOADS = ("arrivals", "lengths", "sessions", "prefixes")


def fit(
    file: str,
    target: str,
    *,
    force: bool,
    mode: str,
    window: str | None,
    html: str | None,
    as_json: bool,
    **options: str | None,
) -> int:
    """Fit a model, write it, and print its parameters and quality."""
    if mode not in MODES:
        raise no_such("mode of fitting", mode, MODES)
    if window is not None and mode != "rate-following":
        raise UsageError("--window is the narrowest window of --mode rate-following; leave one of them out.")
    _allowed(target, force)
    _trace_tools.page_to_write(html)
    window_s = None if window is None else _trace_tools.duration(window, "--window")
    model = compose.fit_trace(_trace_tools.read(file, **options), mode=mode, window_s=window_s)
    model.save(target)
    if as_json:
        _terminal.say(json.dumps(model.quality, indent=2, default=str))
    else:
        _trace_tools.tell("fitted", model.lines(), target)
    if html is not None:
        _trace_tools.draw(html, model.picture(), f"Fit of {Path(file).name}")
    return 0


def generate(source: str, target: str, *, force: bool, **options: str | None) -> int:
    """Draw a trace from a model or a workload."""
    limits: dict[str, Any] = {
        "requests": _optional(options["requests"], lambda text: _trace_tools.whole(text, "--requests", 1)),
        "duration_s": _optional(options["duration"], lambda text: _trace_tools.duration(text, "--duration")),
        "seed": _trace_tools.whole(str(options["seed"]), "--seed", 0),
    }
    rate = _optional(options["rate"], lambda text: _trace_tools.rate(text, "--rate"))
    workers = _trace_tools.whole(str(options["workers"]), "--workers", 1)
    parts = {name: value for name in OF_WORKLOADS if (value := options[name]) is not None}
    if limits["requests"] is None and limits["duration_s"] is None:
        raise UsageError("How much is to be drawn? Give --requests N or --duration TIME.")
    if source.endswith(".json") or (Path(source).is_file() and not source.endswith(".toml")):
        return _from_model(source, target, force, parts, rate_rps=rate, workers=workers, **limits)
    return _from_workload(source, target, force, parts, rate, limits)


def _from_model(source: str, target: str, force: bool, parts: Mapping[str, str], **options: Any) -> int:
    """Requests one by one; with --sessions fitted:FILE the sessions that were fitted."""
    if other := [part for part in parts if part != "sessions"]:
        raise UsageError(f"--{other[0]} belongs to a workload; the model '{source}' brings its own.")
    model = compose.load_model(source)
    if parts:
        return _sessions_of(model, source, parts["sessions"], target, force, **options)
    tables = compose.draw_model(model, **options)
    facts = {"made_by": f"bench trace generate {source}", "model": dict(model.source), "seed": options["seed"]}
    rows = compose.write_trace(target, tables, facts, force=force)
    dropped = compose.dropped_by_model(model, source)
    return _told(target, rows, f"model {source}", options["seed"], dropped=dropped)


def _sessions_of(
    model: Any, source: str, text: str, target: str, force: bool, *, rate_rps: float | None, workers: int, **limits: Any
) -> int:
    """Sessions drawn from a model, with its arrivals of sessions and its lengths of turns."""
    spec = parse(text)
    if spec.name != "fitted" or workers != 1:
        what = f"--workers {workers} is for requests drawn one by one" if workers != 1 else f"got --sessions {text}"
        raise UsageError(f"The sessions of a model are drawn by --sessions fitted:{source} in one process; {what}.")
    sessions = registry.make("sessions", text)
    service = f",service={sessions.service}" if sessions.service else ""
    fitted = f"fitted:path={source}{service},of=sessions"
    own_rps = model.only(sessions.service).of("sessions").rate_rps * sessions.mean_requests
    parts = {"arrivals": fitted, "sessions": text}
    return _from_workload(fitted, target, force, parts, rate_rps or own_rps, limits)


def _from_workload(
    source: str, target: str, force: bool, parts: Mapping[str, str], rate: float | None, limits: Mapping[str, Any]
) -> int:
    from harness.data.schedule import Schedule

    loaded = compose.load_workload(source, rate_rps=rate, seed=limits["seed"], **parts)
    if loaded.timing == "closed":
        raise UsageError(
            f"'{source}' with arrivals {loaded.arrivals_text}: in a closed loop the answers decide when requests come, "
            "so there is no trace to draw; take other --arrivals, such as poisson."
        )
    schedule = Schedule.draw(loaded.workload, **limits)
    table, tokens = compose.schedule_as_trace(schedule.table)
    facts = {
        "made_by": f"bench trace generate {source}", "arrivals": loaded.arrivals_text, "lengths": loaded.lengths_text,
        "seed": limits["seed"], "schedule_sha256": schedule.sha256,
    }  # fmt: skip
    rows = compose.write_trace(target, [table], facts, block_tokens=tokens, force=force)
    origin = f"{loaded.name}: arrivals {loaded.arrivals_text}, lengths {loaded.lengths_text}"
    return _told(target, rows, origin, limits["seed"], schedule.has_follow_ups)


def _told(target: str, rows: int, origin: str, seed: int, follow_ups: bool = False, dropped: Sequence[str] = ()) -> int:
    _trace_tools.tell("generated", target, rows, origin, seed, follow_ups, dropped)
    return 0


def _optional(text: str | None, convert: Any) -> Any:
    return None if text is None else convert(text)


def _allowed(target: str, force: bool) -> None:
    """Fail before the work, not after it."""
    files.check(target)
    if Path(target).exists() and not force:
        raise UsageError(f"'{target}' is there already; --force replaces it.")


Progress = Callable[[int, int | None], None]


def listed() -> int:
    """Print the names that can be fetched."""
    _trace_tools.tell("sources", compose.public_traces().values())
    return 0


def fetch(name: str, folder: str, *, force: bool, timeout: str, quiet: bool) -> int:
    """Fetch one trace; the file, its hash and what is known about it are printed."""
    timeout_s = _trace_tools.duration(timeout, "--timeout")
    source = compose.public_trace(name)
    if not quiet:
        licence = f" ({source.licence})" if source.licence else ""
        _terminal.note(f"{source.url}{licence}")
    with _shown(quiet=quiet) as progress:
        note = _terminal.nothing if quiet else _terminal.note
        done = compose.download_trace(
            name, Path(folder), force=force, timeout_s=timeout_s, note=note, progress=progress
        )
    _trace_tools.tell("fetched", done, source)
    return 0


@contextmanager
def _shown(*, quiet: bool) -> Iterator[Progress]:
    """A bar on a terminal; nothing elsewhere."""
    if quiet or not sys.stderr.isatty():
        yield lambda _, __: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bar

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Bar(*columns, console=Console(file=sys.stderr), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
