"""The definitions of other tools on one run, side by side: what each would have printed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from harness import registry
from harness.api import Bound, Slo
from harness.data.lists import first, lists, number
from harness.experiments.rescore.slo_json import ProfileColumn, Profiles
from harness.metrics.measure import first_last, missing
from harness.metrics.objective import Seen
from harness.metrics.profiles._base import Events, Gaps, Profile, Times, step_quantile
from harness.metrics.quantiles import quantiles
from harness.metrics.summary import known

if TYPE_CHECKING:
    from harness.experiments.rescore.reading import Source

Floats: TypeAlias = npt.NDArray[np.float64]

OURS = "bench"
STATISTICS = {
    "ttft": ("mean", "p50", "p99"),
    "tpot": ("mean", "p50", "p99"),
    "e2e": ("mean", "p99"),
}
"""What is compared of each request, by the metrics whose bounds other tools know."""
ITL = {"p50": 0.5, "p99": 0.99}
"""Percentiles of the gaps, by linear interpolation: no tool that keeps gaps does otherwise."""


def names() -> list[str]:
    """Every profile, ours first."""
    return [OURS, *(name for name in registry.names("profiles") if name != OURS)]


def made(requested: Sequence[str]) -> list[Profile]:
    """The profiles of these names, ours first; `all` has every one. Raises UsageError for an unknown one."""
    plain = [name.strip().lower().replace(".", "-").replace("_", "-") for name in requested]
    chosen = names() if "all" in plain else [OURS, *(name for name in plain if name != OURS)]
    return [registry.make("profiles", name) for name in dict.fromkeys(chosen)]


def side_by_side(source: Source, slo: Slo, profiles: Sequence[Profile]) -> Profiles:
    """A column per profile, and of each row how far the columns lie apart."""
    lost = missing(source.table)
    events, gaps = events_of_run(source, lost), gaps_of_run(source, lost)
    limits = {b.metric: b.limit for b in slo.bounds if b.metric in STATISTICS and _for_all(b)}
    pooled: dict[bool, list[float]] = {}
    timed = "sent_s" not in lost  # else every request begins at 0: there is no duration
    columns = [_column(profile, events, gaps, limits, pooled, timed=timed) for profile in profiles]
    left_out = [b.metric for b in slo.bounds if b.metric not in limits or not _for_all(b)]
    return Profiles(limits, left_out, columns, _apart([column.values for column in columns]))


def gaps_of_run(source: Source, lost: Collection[str] = ()) -> Gaps | None:
    """The gaps between token events of the requests that ended well; None where the file has them not."""
    if "itl" in lost:
        return None
    ok = source.seen.ok
    generated, seen = (number(source.seen.table, column)[ok].sum() for column in ("output_tokens", "events"))
    return Gaps(source.seen.sample("itl", ok), max(0, int(generated - seen)))


def _for_all(bound: Bound) -> bool:
    return bound.tag is None and bound.percentile is None


def events_of_run(source: Source, lost: Collection[str] = ()) -> Events:
    """What the profiles see; not the tokens of each event, where the file has them not."""
    by_event = "token_n" not in lost
    table = source.table
    first_s, last_s = first_last(table)
    ended_s = number(table, "ended_s")
    return Events(
        ok=source.seen.ok,
        cut_off=pc.is_in(table["status"], pa.array(["cancelled", "dropped"])).to_numpy(),
        due_s=number(table, "scheduled_s"),
        sent_s=number(table, "sent_s"),
        opened_s=_opened(source, first_s),
        first_s=first_s,
        last_s=last_s,
        end_s=np.where(np.isnan(ended_s), last_s, ended_s),
        tokens=number(table, "output_tokens"),
        first_tokens=_first_tokens(source.seen) if by_event else np.full(len(table), np.nan),
        events=number(table, "events"),
        start_s=float(source.info.warmup.at_s) if source.left_out else 0.0,
    )


def _opened(source: Source, first_s: Floats) -> Floats:
    """(requests,) the first event of any kind, as the wire saw it; the first token where it was not recorded."""
    wire = source.wire
    if wire is None:
        return first_s
    seen = dict(zip(wire["request_id"].to_pylist(), wire["first_event_s"].to_numpy().tolist(), strict=True))
    opened = np.array([seen.get(i, np.nan) for i in source.table["request_id"].to_pylist()], np.float64)
    return np.where(np.isnan(opened), first_s, opened)


def _first_tokens(seen: Seen) -> Floats:
    """(requests,) tokens of the first event, NaN without one."""
    return np.concatenate([np.empty(0), *(first(lists(piece, "token_n")) for piece in seen.pieces())])


def _column(
    profile: Profile, events: Events, gaps: Gaps | None, limits: Mapping[str, float], pooled: dict[bool, list[float]],
    *, timed: bool,
) -> ProfileColumn:  # fmt: skip
    times = profile.times(events)
    values, more = {**_latencies(profile, times), **_itl(profile, gaps, pooled)}, {}
    if limits:
        judged = profile.judge(events, times, limits)
        good, more = judged.good, dict(judged.more)
        values |= {
            "good": good,
            "of": judged.of,
            "attainment": good / judged.of if good is not None and judged.of else None,
            "goodput_rps": good / judged.duration_s if timed and good is not None and judged.duration_s else None,
        }
    plain, extra = ({name: known(value) for name, value in cells.items()} for cells in (values, more))
    return ProfileColumn(profile.name, profile.tool, list(profile.notes), plain, extra)


def _latencies(profile: Profile, times: Times) -> dict[str, float | None]:
    cells: dict[str, float | None] = {}
    for metric, statistics in STATISTICS.items():
        values = times.of(metric)
        mask = ~np.isnan(values)
        finite = values[mask]
        weight = times.tpot_weight[mask] if metric == "tpot" and times.tpot_weight is not None else None
        for statistic in statistics:
            cells[f"{metric}_{statistic}_s"] = _statistic(profile, finite, weight, statistic) if len(finite) else None
        cells[f"{metric}_n"] = len(finite)
    return cells


def _itl(profile: Profile, gaps: Gaps | None, pooled: dict[bool, list[float]]) -> dict[str, float | None]:
    """The percentiles of the gaps, which are put in another order; `pooled` keeps them for tools that take the same."""
    values = None if gaps is None else profile.itl(gaps)
    if gaps is None or values is None or not len(values):
        return {f"itl_{name}_s": None for name in ITL}
    plain = values is gaps.values_s
    if plain not in pooled:
        pooled[plain] = quantiles(values, list(ITL.values()))
    return {f"itl_{name}_s": value for name, value in zip(ITL, pooled[plain], strict=True)}


def _statistic(profile: Profile, values: Floats, weight: Floats | None, statistic: str) -> float:
    if statistic == "mean":
        return float(np.average(values, weights=weight))
    q = int(statistic[1:]) / 100
    return profile.percentile(values, q) if weight is None else step_quantile(values, q, weight)


def _apart(columns: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    """Per row the largest value over the smallest, minus 1; left out where fewer than two columns have one above 0."""
    spreads: dict[str, float | None] = {}
    for row in dict.fromkeys(name for column in columns for name in column):
        values = [v for column in columns if (v := column.get(row)) is not None and v > 0]
        if len(values) > 1 and not row.endswith("_n") and row not in ("good", "of"):
            spreads[row] = max(values) / min(values) - 1
    return spreads
