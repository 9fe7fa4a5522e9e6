"""A comparison as its figures draw it: the answer of `bench compare`, and the requests of its stored runs.

from harness import answers
from reports import comparison
from reports.figures.compare import forest

forest(comparison.of(answers.of("pairs"), "pairs")).show()
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from harness.data.folder import read_info
from harness.data.lists import Floats, ascending, number
from harness.data.run_json import Cut
from harness.errors import UsageError
from harness.experiments import imports
from harness.experiments.compare import wording
from harness.experiments.compare.compare_json import CompareAnswer, ComparedPair
from harness.experiments.rescore import reading
from harness.experiments.rescore.objectives import curve
from harness.experiments.rescore.reading import Source
from harness.metrics.objective import Seen, parse_slo, restored_slo
from reports._format import clean

TIMES_S: Floats = np.geomspace(1e-4, 1e4, 3201)
"""Latencies (s) at which shares are taken: 400 a decade, so that two of them are 0.6 % apart."""

METRICS = ("ttft", "tpot")


_NOTHING = "The figure needs the runs that were compared; put their folders where the comparison found them."

_SEARCHED = "Searches keep no requests of their trials; compare two sweeps to see what the requests of both sides did."

_INVALID = "No pair is valid, so nothing is drawn of its requests; make the pairs again that are named below."

SEARCH = "capacity.json"


@dataclass(frozen=True, slots=True, eq=False)
class Contrast:
    """Both sides of pair number `pair`, and the `requests` that are the same on both.

    `within` has the shares of the requests of each side at or below `TIMES_S`: one that failed is never answered, one
    without a TPOT is not among those of TPOT. Of the requests `both`, only `base`, only `head` and `neither` met the
    SLO; without a bound on single requests nothing is `met`.
    """

    pair: int
    within: tuple[Mapping[str, Floats], Mapping[str, Floats]]
    requests: int
    met: Mapping[str, int]


def contrast(pair: ComparedPair, base: Source, head: Source, info: CompareAnswer) -> Contrast:
    """The contrast of a pair under the SLO of the comparison; of runs with SLOs of their own each under its own."""
    sides = [_seen(source, float(pair.cut_s or 0.0)) for source in (base, head)]
    objectives = [
        parse_slo(info.slo, goal=info.goal) if info.slo else restored_slo(source.info) for source in (base, head)
    ]
    curves = [curve(seen, slo, []) for seen, slo in zip(sides, objectives, strict=True)]
    _, first, second = np.intersect1d(_ids(sides[0]), _ids(sides[1]), return_indices=True)
    base_met, head_met = curves[0].ratio[first] <= 1.0, curves[1].ratio[second] <= 1.0
    met = {
        "both": base_met & head_met,
        "base": base_met & ~head_met,
        "head": head_met & ~base_met,
        "neither": ~base_met & ~head_met,
    }
    counts = {which: int(mask.sum()) for which, mask in met.items()} if curves[0].bounds else {}
    return Contrast(pair.pair, (_within(sides[0]), _within(sides[1])), len(first), counts)


def _ids(seen: Seen) -> Floats:
    return number(seen.table, "request_id")


def _seen(source: Source, cut_s: float) -> Seen:
    """The requests that count: those due from the cut of the pair on."""
    if not cut_s:
        return source.seen
    return Seen(_from(source.table, cut_s), lambda: (_from(piece, cut_s) for piece in source.seen.pieces()))


def _from(table: pa.Table, cut_s: float) -> pa.Table:
    return table.filter(pc.greater_equal(table["scheduled_s"], cut_s))


def _within(seen: Seen) -> dict[str, Floats]:
    shares = {}
    for metric in METRICS:
        values = seen.values(metric)
        finite = ascending(values, seen.ok & np.isfinite(values))
        count = len(finite) + int((~seen.ok).sum())
        shares[metric] = (
            np.searchsorted(finite, TIMES_S, side="right") / count if count else np.full(len(TIMES_S), np.nan)
        )
    return shares


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """The answer `info`, which stands in `folder`.

    `contrasts` are the pairs at one point whose runs could be read, request by request; `point` names that point and
    says why it was chosen (empty where there is one point only), `missing` why there are no contrasts.
    """

    info: CompareAnswer
    folder: Path
    contrasts: tuple[Contrast, ...]
    point: str
    missing: str


def of(info: CompareAnswer, path: str | Path) -> Comparison:
    """The comparison `info` that stands at `path` (its folder or file), with what can be read of its runs."""
    location = Path(path)
    folder = location if location.is_dir() else location.parent
    point, why = _point(info)
    contrasts: tuple[Contrast, ...] = ()
    missing = _NOTHING if any(pair.valid for pair in info.pairs) else _INVALID
    missing = _SEARCHED if _is_of_searches(info, folder) else missing
    try:
        contrasts = tuple(_contrasts(info, folder, point))
    except UsageError as error:
        missing = f"The runs that were compared cannot be read: {error}"
    return Comparison(info, folder, contrasts, why, "" if contrasts else missing)


def _contrasts(info: CompareAnswer, folder: Path, point: Mapping[str, str]) -> Iterator[Contrast]:
    if info.refused or not info.gates:
        return
    for pair in info.pairs:
        if pair.valid and (pair.point or {}) == point:
            sides = [_source(info, pair, side, folder) for side in ("base", "head")]
            if sides[0] is not None and sides[1] is not None:
                yield contrast(pair, sides[0], sides[1], info)


def _point(info: CompareAnswer) -> tuple[Mapping[str, str], str]:
    """The point whose requests are drawn: where the two sides differ most in what the SLO asks."""
    point, why = next((pair.point or {} for pair in info.pairs), {}), "the first point"
    for name in ("attainment", "goodput_rps"):
        differences = [
            (abs(row.head - row.base), row.point)
            for row in info.rows
            if row.metric == name and row.base is not None and row.head is not None
        ]
        if differences:
            point = max(differences, key=lambda one: one[0])[1]
            why = f"where the {name.removesuffix('_rps')} of the two sides differs most"
            break
    return point, f"{clean(wording.where(point))}, {why}" if point else ""


def folder_of(info: CompareAnswer, pair: ComparedPair, side: str, beside: Path) -> Path | None:
    """The run or search of a side of a pair, if it is still there: a folder or a file; None else.

    A run folder of another schedule than was compared is another run.
    """
    schedule = pair.schedule_hash if side == "base" or info.same_requests else None
    for path in _places(Path(pair.run(side)), beside):
        if path.is_file() or (path / SEARCH).is_file():
            return path
        if (path / "run.json").exists() and _is_it(path, schedule):
            return path
    return None


def _source(info: CompareAnswer, pair: ComparedPair, side: str, beside: Path) -> Source | None:
    """The requests of a side of a pair, all that were sent; None where they cannot be found, or are ambiguous."""
    path = folder_of(info, pair, side, beside)
    if path is None or (path / SEARCH).is_file():
        return None
    sources = [run for run in _read(path, float(pair.cut_s or 0.0)) if run.table.num_rows]
    matching = [run for run in sources if run.info.schedule.sha256 == pair.schedule_hash]
    candidates = matching if len(sources) > 1 else sources
    return candidates[0] if len(candidates) == 1 else None


def _is_of_searches(info: CompareAnswer, beside: Path) -> bool:
    """Whether the first valid pair, or the first, is of searches that are still there."""
    pair = next((pair for pair in info.pairs if pair.valid), next(iter(info.pairs), None))
    return pair is not None and any((place / SEARCH).is_file() for place in _places(Path(pair.base_run), beside))


def _read(path: Path, cut_s: float) -> Iterator[Source]:
    """The runs at a path, with every request from `cut_s` on, whatever their own cut was."""
    for run in reading.sources(path):
        if run.info.warmup.at_s <= cut_s:
            yield run
        else:
            no_cut = Cut("none", 0.0, 0)
            yield from (
                reading.of_run(replace(source, info=source.info.change(warmup=no_cut))) for source in imports.open(path)
            )


def _places(stored: Path, beside: Path) -> Iterator[Path]:
    """Where a run may be: each end of its stored path below the folder of the comparison, then as it was stored."""
    parts = [part for part in stored.parts if part not in ("..", stored.anchor)]
    if not parts:
        return
    yield from (beside.joinpath(*parts[start:]) for start in range(len(parts)))
    yield stored


def _is_it(path: Path, schedule: object) -> bool:
    try:
        stored = read_info(path).schedule.sha256
    except UsageError:
        return False
    return schedule is None or stored == schedule
