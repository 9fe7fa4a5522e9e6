"""The system of a capacity search: its whole trials by rate, the capacities that were found, and every trial made."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from harness.api import Bound
from harness.data.codec import encode
from harness.data.folder import load
from harness.errors import BenchError, UsageError
from harness.experiments.capacity.capacity_json import CapacityAnswer
from harness.experiments.capacity.store import TABLE
from harness.experiments.capacity.trials import TRIALS_FOLDER as TRIALS
from harness.experiments.capacity.trials import Ledger, Trial, folder_name
from harness.experiments.sweep.answer import over_seeds
from harness.experiments.sweep.axes import Rescoring
from harness.experiments.sweep.runs import swept
from harness.experiments.sweep.sweep_json import SweepPoint
from harness.metrics.objective import JOINT, ShareKey, restored_slo
from harness.stats.seeds import Spread, spread
from reports._format import clean
from reports._system import first
from reports.study.runs import Capacity, Kept, Point, Study, System

LONE = 0.05
"""A lowest rate below this share of the next is that of requests one by one, which no curve needs to reach."""


def of_capacity(info: CapacityAnswer, path: str | Path) -> Study:
    """What a search found, also one that was killed; `path` is its folder, where trials.parquet is looked for.

    Without that file points know attainment as a whole alone. Requests one by one are no point of a curve.
    """
    tried = trials(path)
    # only whole trials of the size that the capacities speak of, where the file tells it
    planned = {row.requests for row in info.answers} if info.answers else {info.run.requests}
    planned.discard(None)
    if info.over_horizon or info.chains:  # of all lengths
        planned.clear()
    complete = [t for t in tried if t.key.goal is None and (not planned or t.key.planned in planned)]
    complete.sort(key=lambda t: (t.key.rate_rps, t.key.seed))
    by_rate = [list(group) for _, group in groupby(complete, key=lambda t: t.key.rate_rps)]
    slo = restored_slo(info.slo)
    by_request = any(bound.percentile is None for bound in slo.bounds)
    points = [_point(group, slo.bounds, folders(path)) for group in by_rate] or [
        Point(p.rate_rps, p.seeds, p.requests, p.overloaded, 0,
              Spread(p.seeds, p.attainment, None, None, p.least, p.most), ())
        for p in info.curve if by_request
    ]  # fmt: skip
    points = points[lone([point.rate_rps for point in points]) :]
    gpu_count = info.backend.get("gpus")
    gpus = gpu_count if isinstance(gpu_count, int) and gpu_count > 0 else None
    # as a sweep calls what was tried: 'sim, vllm-v0'
    backend = first(info.backend, "backend", "name") or clean(info.spec.get("backend") or "", 60)
    name = ", ".join(text for text in (backend, first(info.backend, "policy")) if text) or "the system"
    text = clean(info.slo.text or str(slo), 400)
    capacities = tuple(
        Capacity(row.goal, None if row.state == "unreachable" else row.capacity_rps, row.low_rps, row.high_rps,
                 "searched", clean(row.why or "", 300).rstrip("."))
        for row in info.answers
    )  # fmt: skip
    system = System(name, gpus, tuple(points), capacities, text)
    return Study(text, goals(info), (system,), (encode(info),))


def lone(rates_rps: Sequence[float]) -> bool:
    """Whether the first of these rising rates is that of requests one by one."""
    return len(rates_rps) > 1 and rates_rps[0] < LONE * rates_rps[1]


def goals(info: CapacityAnswer) -> tuple[float, ...]:
    """The goals of a search, rising."""
    goal = info.spec.get("goal")
    return tuple(sorted(info.searched_goals)) or ((float(goal),) if isinstance(goal, int | float) else ())


def trials(path: str | Path) -> list[Trial]:
    """Every trial of the search in a folder, in the order in which they were made; none where they are gone."""
    location = Path(path)
    file = (location if location.is_dir() else location.parent) / TABLE
    try:
        return list(Ledger(file)) if file.is_file() else []
    except UsageError:
        return []


def folders(path: str | Path) -> dict[str, Path]:
    """The folders of runs that a search on a real clock keeps, by name."""
    location = Path(path)
    home = (location if location.is_dir() else location.parent) / TRIALS
    return {folder.name: folder for folder in sorted(home.iterdir())} if home.is_dir() else {}


def _point(made: Sequence[Trial], bounds: Sequence[Bound], kept: Mapping[str, Path]) -> Point:
    run_folders = tuple(folder for t in made if (folder := kept.get(folder_name(t.key))) is not None)
    point = Point(
        rate_rps=made[0].key.rate_rps,
        seeds=len(made),
        requests=sum(t.kept for t in made),
        overloaded=sum(t.overloaded for t in made),
        invalid=0,
        attainment=_spread(made, JOINT) if made[0].by_request else None,
        bounds=tuple(
            Kept(str(b), b.metric, b.limit, b.tag, b.percentile, _spread(made, b) if b.percentile is None else None)
            for b in bounds
        ),
        folders=run_folders,
    )
    if (measured := _measured(run_folders)) is None:
        return point
    return replace(
        point,
        goodput_rps=measured.goodput_rps,
        throughput_rps=measured.throughput_rps,
        output_tps=measured.output_tps,
        metrics=measured.metrics,
    )


def _measured(kept: Sequence[Path]) -> SweepPoint | None:
    """What a sweep tells of these runs beside attainment; None where one of them cannot be read."""
    try:
        return over_seeds({}, "", [swept(load(folder), "", Rescoring()) for folder in kept]) if kept else None
    except (BenchError, KeyError, TypeError, AttributeError):
        return None


def _spread(made: Sequence[Trial], key: ShareKey) -> Spread | None:
    return spread([share(tried, key) for tried in made], most=1.0)


def share(tried: Trial, key: ShareKey) -> float | None:
    """The share of that name in a trial; None where it was not taken, or of nothing."""
    counted = next((s for s in tried.shares if s.key == key), None)
    return counted.met / counted.of if counted is not None and counted.of else None
