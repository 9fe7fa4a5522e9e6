"""Runs that are repeated every night, read from folders `<workload>/<backend>/<utc>-<commit>/`.

A series is judged against the level of its first runs until a later run is accepted, from which on a new level counts.
"""

import os
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, field

from harness import untrusted
from harness.data.codec import Damaged, Document, Part, Text, decode, encode, inner
from harness.data.folder import read_info
from harness.data.run_json import Described, Intervals, RunInfo
from harness.data.storage import write_json
from harness.errors import UsageError
from harness.experiments import answers
from harness.experiments.capacity.capacity_json import CapacityAnswer
from harness.experiments.compare.pairing import as_run
from harness.experiments.compare.refusals import PASSING

FILES = ("run.json", "capacity.json")
_NAME = re.compile(r"(?<!\d)(20\d\d)-?(\d\d)-?(\d\d)(?:[T_-]?(\d\d):?(\d\d):?(\d\d)?Z?)?(?:-([0-9A-Za-z._]{1,64}))?")


OUTPUT_TOKENS = "output tokens per request"
"""Part of a series where the server chooses it: fewer are less work, and no speed is comparable after more."""

_Stored: TypeAlias = RunInfo | CapacityAnswer | None
"""None for a file that cannot be read."""

_STATISTICS = [(name, statistic) for name in ("tpot", "ttft") for statistic in ("mean", "p99")]

ACCEPTED = "accepted.json"
"""In the folder of a series, made to be committed."""

LATEST = "latest"


@dataclass(frozen=True, slots=True)
class Metric:
    """A quantity of a series: `higher` values are better; `judged` ones decide the exit code.

    A change is at least `least`, as a share of the reference, or as a difference where not `relative`.
    """

    name: str
    unit: str
    higher: bool
    judged: bool
    least: float = 0.03
    relative: bool = True
    latency: bool = False


METRICS = (
    Metric("capacity_rps", "1/s", higher=True, judged=True),
    Metric("tpot mean", "s", higher=False, judged=True, latency=True),
    Metric("ttft mean", "s", higher=False, judged=True, latency=True),
    Metric("failed", "share", higher=False, judged=True, least=0.005, relative=False),
    Metric(OUTPUT_TOKENS, "tokens", higher=True, judged=True, least=0.01),
    Metric("tpot p99", "s", higher=False, judged=False, latency=True),
    Metric("ttft p99", "s", higher=False, judged=False, latency=True),
    Metric("goodput_rps", "1/s", higher=True, judged=False),
    Metric("throughput_rps", "1/s", higher=True, judged=False),
    Metric("attainment", "share", higher=True, judged=False, least=0.05, relative=False),
)
"""The gates of `bench compare`, then what is only shown: far below capacity it says little, or it scatters much."""


@dataclass(frozen=True, slots=True)
class NightlyRun:
    """One date of a series: the values of its run, or the means over its runs; `why` there are none.

    An overloaded run has infinite latencies: they grow for as long as it lasts. `within` has the 95 % intervals of a
    single run; none where the clock is virtual, because nothing but the system moves its values. Where `facts` change,
    values cannot be compared; `marks` are what else may have moved them.
    """

    at: str
    commit: str | None
    path: Path
    exact: bool
    values: Mapping[str, float]
    within: Mapping[str, tuple[float, float]]
    why: str | None
    overloaded: bool
    facts: Mapping[str, str]
    marks: Mapping[str, str]

    @property
    def versions(self) -> dict[str, str]:
        """Those that only mark a series: another bench breaks it."""
        return {name: text for name, text in self.marks.items() if "version" in name and name != "version of bench"}


def read(root: Path) -> dict[str, list[NightlyRun]]:
    """Name of the series -> its runs in order of time. Raises UsageError where there is none."""
    if not root.is_dir():
        raise UsageError(f"'{root}' is no folder; --trend names one with <workload>/<backend>/<utc>-<commit>/ in it.")
    if any((root / file).exists() for file in FILES):
        raise UsageError(f"'{root}' is a single run; --trend names the folder of a series of runs.")
    by_series: dict[str, list[NightlyRun]] = {}
    for path, files in _folders(root):
        below = path.parent.relative_to(root).as_posix()
        series = below if below != "." else "/".join(path.parent.resolve().parts[-2:])
        by_series.setdefault(series, []).append(_nightly_run(path, [_read(file) for file in files]))
    if not by_series:
        raise UsageError(
            f"No nightly run in '{root}': no folder below it has a date in its name and a run.json or capacity.json; "
            f"write each run with 'bench run ... --out {root}/WORKLOAD/BACKEND/20260105T021700Z-COMMIT'."
        )
    return {name: _in_order(runs) for name, runs in sorted(by_series.items())}


def is_series(root: Path) -> bool:
    """Whether a folder holds two nightly runs or more and nothing else: no other run, and no sweep.

    Their names begin with the date; those of single runs end with it.
    """
    dated = {path for path, _ in _folders(root) if _NAME.match(path.name)}
    for place, names, files in os.walk(root):
        path = Path(place)
        if "sweep.json" in files or (path not in dated and not set(FILES).isdisjoint(files)):
            return False
        names[:] = [] if path in dated else names
    return len(dated) > 1


def _in_order(runs: Sequence[NightlyRun]) -> list[NightlyRun]:
    """By time; without the hour where no two are of one day."""
    days = [run.at[:10] for run in runs]
    if len(set(days)) == len(days):
        runs = [replace(run, at=day) for run, day in zip(runs, days, strict=True)]
    return sorted(runs, key=lambda run: (run.at, run.path.name))


def _folders(root: Path) -> Iterator[tuple[Path, list[Path]]]:
    """Dated folders with the files of their runs; of a date with several runs, all below it."""
    for place, names, files in os.walk(root):
        names.sort()
        path = Path(place)
        if path == root or not _NAME.search(path.name):
            continue
        run_files = [path / file for file in FILES if file in files]
        if run_files := run_files or sorted(file for kind in FILES for file in path.rglob(kind)):
            names.clear()
            yield path, run_files


def _read(file: Path) -> _Stored:
    try:
        if file.name == "run.json":
            return read_info(file.parent)
        answer = answers.of(file)
    except UsageError:
        return None
    return answer if isinstance(answer, CapacityAnswer) else None


def _nightly_run(path: Path, stored: Sequence[_Stored]) -> NightlyRun:
    started, commit = _named(path.name)
    why = next((reason for each in stored if (reason := _unusable(each)) is not None), None)
    readable = [each for each in stored if each is not None]
    infos = [as_run(each) if isinstance(each, CapacityAnswer) else each for each in readable]
    exact = len(infos) == len(stored) and all(info.virtual for info in infos)
    values: dict[str, float] = {}
    if why is None:  # means over the runs of what all of them have
        each = [_values(one) for one in readable]
        names = [name for name in each[0] if all(name in one for one in each)]
        values = {name: statistics.fmean(one[name] for one in each) for name in names}
    return NightlyRun(
        at=started,
        commit=commit,
        path=path,
        exact=exact,
        values=values,
        within={} if exact or why is not None or len(stored) > 1 else _within(readable[0]),
        why=why,
        overloaded=any(info.verdict.overloaded for info in infos),
        facts=_facts(infos, len(stored)),
        marks=_marks(infos[0]) if infos else {},
    )


def date_of(name: str) -> str:
    """The date in a folder's name, and the time where it has one."""
    return _named(name)[0]


def _named(name: str) -> tuple[str, str | None]:
    """The date and the commit in a folder's name."""
    match = _NAME.search(name)
    assert match is not None
    year, month, day, hour, minute, second, commit = match.groups()
    time = f" {hour}:{minute}{f':{second}' if second else ''}" if hour else ""
    return f"{year}-{month}-{day}{time}", commit


def _unusable(stored: _Stored) -> str | None:
    if stored is None:
        return "it cannot be read"
    if isinstance(stored, CapacityAnswer):
        if not stored.answers:
            return "not finished: no answer"
        first = stored.answers[0]
        answered = first.state in ("resolved", "unreachable")
        return None if answered else f"{first.state or 'not finished'}: {first.why or 'no answer'}"
    if stored.state != "finished" or not stored.concluded:
        return f"not finished ({stored.state or 'no state'})"
    return None if stored.verdict.valid else stored.verdict.text or "not valid"


def _values(stored: RunInfo | CapacityAnswer) -> dict[str, float]:
    """The values by name, of a search the capacity for its first goal."""
    if isinstance(stored, CapacityAnswer):
        values = {"capacity_rps": stored.answers[0].capacity_rps}
    else:
        summary, lengths = stored.summary, stored.output_lengths
        values = {
            f"{name} {statistic}": getattr(summary.metrics.get(name, Described()), statistic)
            for name, statistic in _STATISTICS
        }
        values |= {name: getattr(summary, name) for name in ("failed", "goodput_rps", "throughput_rps", "attainment")}
        values[OUTPUT_TOKENS] = lengths.output_tokens if lengths.by == "server" else None
    return {name: float(value) for name, value in values.items() if value is not None}


def _within(stored: RunInfo | CapacityAnswer) -> dict[str, tuple[float, float]]:
    """Name -> low and high of each value with an interval."""
    if isinstance(stored, CapacityAnswer):
        first = stored.answers[0]
        ends = {"capacity_rps": (first.low_rps, first.high_rps)}
    else:
        metrics, attainment = stored.within.metrics, stored.within.attainment
        ends = {
            f"{name} {statistic}": getattr(metrics.get(name, Intervals()), statistic) or (None, None)
            for name, statistic in _STATISTICS
        }
        ends |= {} if attainment is None else {"attainment": (attainment.low, attainment.high)}
    return {
        name: (float(low), float(high)) for name, (low, high) in ends.items() if low is not None and high is not None
    }


def _facts(infos: Sequence[RunInfo], runs: int) -> dict[str, str]:
    """What must be equal for two runs to be compared; of the client's machine only where its clock counts."""
    first = infos[0] if infos else RunInfo.of({})
    facts: dict[str, object] = {
        "schedule": " ".join(sorted({(info.schedule.sha256 or "")[:12] for info in infos})),
        "SLO": first.slo.text,
        "model": first.backend.get("model"),
        "hardware": first.backend.get("hardware"),
        "GPUs": first.backend.get("gpus"),
        "clock": first.clock,
        "bench": first.versions.get("bench"),
        "runs a night": runs,
    }
    if not first.virtual:
        facts |= {"processor of the client": first.host.get("cpu"), "cores of the client": first.host.get("cores")}
    return {name: str(value) for name, value in facts.items() if value not in (None, "")}


def _marks(info: RunInfo) -> dict[str, str]:
    """What else may have moved a value: options of the backend, versions."""
    backend = {k: v for k, v in info.backend.items() if k not in PASSING and isinstance(v, str | int | float)}
    versions = {f"version of {name}": version for name, version in info.versions.items()}
    server = {f"server {k}": v for k, v in inner(encode(info), "server").items() if k in ("kind", "version")}
    return {name: str(value) for name, value in {**backend, **versions, **server}.items()}


class Level(Part, frozen=True, kw_only=True):
    """From the folder `run` on the level of the series is another one, accepted at `date`."""

    run: Annotated[str, Meta(pattern=r"20\d\d-?\d\d-?\d\d")]
    date: Annotated[str, Meta(pattern=r"^20\d\d-\d\d-\d\d$")]
    reason: Text = None


class Accepted(Document, frozen=True, kw_only=True):
    """The file: every level that was accepted, in the order of time."""

    schema: int = 1
    kind: Literal["accepted"] = "accepted"
    levels: list[Level] = field(default_factory=list)


def levels(folder: Path) -> Accepted:
    """What is accepted in the folder of a series; nothing without a file. Raises UsageError for a damaged one."""
    path = folder / ACCEPTED
    if not path.exists():
        return Accepted()
    try:
        return decode(Accepted, untrusted.read_json(path))
    except (Damaged, ValueError, OSError) as error:
        fault = f"at '{error}'" if isinstance(error, Damaged) else "it is no JSON"
        raise UsageError(
            f"'{path}' holds no accepted levels ({fault}): each needs the 'run' and the 'date' YYYY-MM-DD; correct it, "
            "or delete it and accept a run again with --accept."
        ) from None


def accepted_places(runs: Sequence[NightlyRun]) -> dict[int, Level]:
    """Place of the first run at each accepted level -> that level; also where the run itself is gone."""
    by_place = {}
    for level in levels(runs[0].path.parent).levels:
        later = [i for i, run in enumerate(runs) if date_of(run.path.name) >= date_of(level.run)]
        if later:
            by_place[later[0]] = level
    return by_place


def accept(root: Path, name: str, reason: str | None) -> None:
    """Accept a run, by its folder, date or commit, or the latest one, in each series below the folder that has it.

    Raises UsageError where none has it, or where the last run has no values.
    """
    series = read(root)
    chosen = {key: run for key, runs in series.items() if (run := _chosen(runs, name)) is not None}
    if not chosen:
        last = max(runs[-1].path.name for runs in series.values())
        raise UsageError(
            f"No run in '{root}' is named '{name}'; give its folder, date or commit, such as '{last}', or latest."
        )
    for key, run in chosen.items():
        if run.why is not None:
            raise UsageError(f"'{run.path.name}' of {key} has no values to accept: {run.why}. Name another run.")
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    for run in chosen.values():
        folder = run.path.parent
        before = levels(folder)
        others = [level for level in before.levels if date_of(level.run) != date_of(run.path.name)]
        new = sorted(
            [*others, Level(run=run.path.name, date=today, reason=reason)], key=lambda level: date_of(level.run)
        )
        write_json(folder / ACCEPTED, encode(before.change(levels=new)))


def _chosen(runs: Sequence[NightlyRun], name: str) -> NightlyRun | None:
    """The run of that name; of several with one commit or on one day the first."""
    if name == LATEST:
        return runs[-1]
    by_name: Mapping[str, NightlyRun] = {
        key: run for run in reversed(runs) for key in (run.commit, run.at, run.at[:10], run.path.name) if key
    }
    return by_name.get(name)
