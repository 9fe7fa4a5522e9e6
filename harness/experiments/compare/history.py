"""Runs that are repeated night after night, read from folders `<workload>/<backend>/<utc>-<commit>/`."""

import json
import math
import os
import re
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.errors import UsageError
from harness.experiments.compare.refusals import PASSING

FILES = ("run.json", "capacity.json")
_NAME = re.compile(r"(?<!\d)(20\d\d)-?(\d\d)-?(\d\d)(?:[T_-]?(\d\d):?(\d\d):?(\d\d)?Z?)?(?:-([0-9A-Za-z._]{1,64}))?")


@dataclass(frozen=True, slots=True)
class Metric:
    """A quantity that is followed: `higher` values are better; `judged` ones decide the exit code.

    A step is at least `least`, as a share of the reference, or as a difference where not `relative`.
    """

    name: str
    unit: str
    higher: bool
    judged: bool
    least: float = 0.05
    relative: bool = True
    latency: bool = False


OUTPUT_TOKENS = "output tokens per request"
"""Followed where the server chooses it: fewer are less work, and no speed is comparable after more."""

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
"""The gates of `bench compare`, then what is only shown: it says little far below the knee, or scatters much."""


@dataclass(frozen=True, slots=True)
class Night:
    """One night of a series: the values of its run, or the mean over its runs; `why` tells why there are none.

    An overloaded night has infinite latencies: they grow for as long as it is sent. `within` has the 95 % intervals
    that its one run tells; none where the clock is virtual, because nothing but the system moves its values. Where
    `facts` change, values cannot be compared; `marks` are what else may have moved them.
    """

    name: str
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


def read(root: Path) -> dict[str, list[Night]]:
    """Name of the series -> its nights in order of time. Raises UsageError where there is none."""
    if not root.is_dir():
        raise UsageError(f"'{root}' is no folder; --trend names one with <workload>/<backend>/<utc>-<commit>/ in it.")
    if any((root / file).exists() for file in FILES):
        raise UsageError(f"'{root}' is a single run; --trend names the folder that holds the runs of many nights.")
    found: dict[str, list[Night]] = {}
    for path, files in _folders(root):
        night = _night(path, [_info(file) for file in files])
        below = path.parent.relative_to(root).as_posix()
        series = below if below != "." else "/".join(path.parent.resolve().parts[-2:])
        found.setdefault(series, []).append(night)
    if not found:
        raise UsageError(
            f"No night in '{root}': no folder below it has a date in its name and a run.json or capacity.json in it; "
            f"write each night with 'bench run ... --out {root}/WORKLOAD/BACKEND/20260105T021700Z-COMMIT'."
        )
    return {name: _in_order(nights) for name, nights in sorted(found.items())}


def is_series(root: Path) -> bool:
    """Whether a folder holds two nights or more and nothing else.

    The names of nights begin with their date; those of single runs end with it.
    """
    nights = [path for path, _ in _folders(root) if _NAME.match(path.name)]
    return len(nights) > 1 and not _others(root, set(nights))


def _others(root: Path, nights: Collection[Path]) -> bool:
    """Whether a run, or a sweep, lies outside of the nights, or a night is a sweep."""
    for place, names, files in os.walk(root):
        path = Path(place)
        if "sweep.json" in files or (path not in nights and not set(FILES).isdisjoint(files)):
            return True
        names[:] = [] if path in nights else names
    return False


def _in_order(nights: Sequence[Night]) -> list[Night]:
    """By time; without the hour where no two are of one day."""
    days = [night.at[:10] for night in nights]
    if len(set(days)) == len(days):
        nights = [replace(night, at=day) for night, day in zip(nights, days, strict=True)]
    return sorted(nights, key=lambda night: (night.at, night.name))


def _folders(root: Path) -> Iterator[tuple[Path, list[Path]]]:
    """Folders of nights with the files of their runs; of a night with several runs, all below it."""
    for place, names, files in os.walk(root):
        names.sort()
        path = Path(place)
        if path == root or not _NAME.search(path.name):
            continue
        here = [path / file for file in FILES if file in files]
        if here := here or sorted(file for kind in FILES for file in path.rglob(kind)):
            names.clear()
            yield path, here


def _info(file: Path) -> dict[str, Any]:
    try:
        info = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return info if isinstance(info, dict) else {}


def _night(path: Path, infos: Sequence[Mapping[str, Any]]) -> Night:
    first = infos[0]
    at, commit = _named(path.name)
    why = next((reason for info in infos if (reason := _unusable(info)) is not None), None)
    overloaded = any(_part(info, "verdict").get("overloaded") for info in infos)
    exact = all(info.get("clock") == "virtual" for info in infos)
    values: dict[str, float] = {}
    if why is None:  # means over the runs of what all of them have
        each = [_values(info) for info in infos]
        names = [name for name in each[0] if all(name in one for one in each)]
        values = {name: statistics.fmean(one[name] for one in each) for name in names}
    return Night(
        name=path.name,
        at=at,
        commit=commit,
        path=path,
        exact=exact,
        values=values,
        within={} if exact or why is not None or len(infos) > 1 else _within(first),
        why=why,
        overloaded=bool(overloaded),
        facts=_facts(infos),
        marks=_marks(first),
    )


def _named(name: str) -> tuple[str, str | None]:
    """When a night was, and of which commit, from the folder's name."""
    match = _NAME.search(name)
    assert match is not None
    year, month, day, hour, minute, second, commit = match.groups()
    time = f" {hour}:{minute}{f':{second}' if second else ''}" if hour else ""
    return f"{year}-{month}-{day}{time}", commit


def _unusable(info: Mapping[str, Any]) -> str | None:
    if not info:
        return "it cannot be read"
    if info.get("kind") == "capacity":
        answer = _answer(info)
        state = answer.get("state")
        found = state in ("resolved", "unreachable")
        return None if found else f"{state or 'not finished'}: {answer.get('why') or 'no answer'}"
    verdict = _part(info, "verdict")
    if info.get("state") != "finished" or not verdict or "summary" not in info:
        return f"not finished ({info.get('state', 'no state')})"
    return None if verdict.get("valid") else str(verdict.get("text") or "not valid")


def _values(info: Mapping[str, Any]) -> dict[str, float]:
    lengths = _part(info, "output_lengths")
    answered = {OUTPUT_TOKENS: lengths.get("output_tokens") if lengths.get("by") == "server" else None}
    if info.get("kind") == "capacity":
        return _finite({"capacity_rps": _answer(info).get("capacity_rps"), **answered})
    summary = _part(info, "summary")
    metrics = _part(summary, "metrics")
    latencies = {
        f"{name} {stat}": _part(metrics, name).get(stat) for name in ("tpot", "ttft") for stat in ("mean", "p99")
    }
    whole = {name: summary.get(name) for name in ("failed", "goodput_rps", "throughput_rps", "attainment")}
    return _finite({**latencies, **whole, **answered})


def _within(info: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """Name -> low and high of what a run or a search gives an interval for."""
    if info.get("kind") == "capacity":
        answer = _answer(info)
        return _intervals({"capacity_rps": [answer.get("low_rps"), answer.get("high_rps")]})
    within = _part(info, "within")
    metrics, attainment = _part(within, "metrics"), _part(within, "attainment")
    latencies = {
        f"{name} {stat}": _part(metrics, name).get(stat) for name in ("tpot", "ttft") for stat in ("mean", "p99")
    }
    return _intervals({**latencies, "attainment": [attainment.get("low"), attainment.get("high")]})


def _intervals(found: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    pairs = {
        name: _finite(dict(zip("lh", ends, strict=False)))
        for name, ends in found.items()
        if isinstance(ends, list) and len(ends) == 2
    }
    return {name: (ends["l"], ends["h"]) for name, ends in pairs.items() if len(ends) == 2}


def _answer(info: Mapping[str, Any]) -> Mapping[str, Any]:
    """The answer for the first goal of a search."""
    answers = info.get("answers")
    first = answers[0] if isinstance(answers, list) and answers else {}
    return first if isinstance(first, Mapping) else {}


def _finite(values: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }


def _facts(infos: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """What must be equal for two nights to be compared; of the client's machine only where its clock counts."""
    first = infos[0]
    backend, host = _part(first, "backend"), _part(first, "host")
    schedules = {str(_part(info, "schedule").get("sha256", ""))[:12] for info in infos}
    facts: dict[str, object] = {
        "schedule": " ".join(sorted(schedules)),
        "SLO": _part(first, "slo").get("text"),
        "model": backend.get("model"),
        "hardware": backend.get("hardware"),
        "GPUs": backend.get("gpus"),
        "clock": first.get("clock"),
        "bench": _part(first, "versions").get("bench"),
        "runs a night": len(infos),
    }
    if first.get("clock") != "virtual":
        facts |= {"processor of the client": host.get("cpu"), "cores of the client": host.get("cores")}
    return {name: str(value) for name, value in facts.items() if value not in (None, "")}


def _marks(info: Mapping[str, Any]) -> dict[str, str]:
    """What else may have moved a value: options of the backend, versions."""
    backend = {k: v for k, v in _part(info, "backend").items() if k not in PASSING and isinstance(v, str | int | float)}
    versions = {f"version of {name}": version for name, version in _part(info, "versions").items()}
    server = {f"server {k}": v for k, v in _part(info, "server").items() if k in ("kind", "version")}
    return {name: str(value) for name, value in {**backend, **versions, **server}.items()}


def _part(info: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = info.get(key)
    return value if isinstance(value, Mapping) else {}
