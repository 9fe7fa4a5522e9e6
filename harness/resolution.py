"""Whether a run can tell that its bounds are kept: a limit nearer than the client's own error decides nothing.

The client's floor is the error of its stamps, measured against a server whose times are known. Here all limits are
moved by it, once up and once down: what holds in only one of the two cases is unresolved.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from harness.api import Slo
from harness.measure import placed
from harness.slo import OWN, Score, score


def floor_of() -> dict[str, str]:
    """Per metric the part of the floor that is its error."""
    return {metric.name: metric.floor for metric in placed() if metric.floor is not None}


def floors_s(floor: Any) -> dict[str, float]:
    """The 99th percentile of the client's error per metric, seconds; empty where none was measured."""
    if not isinstance(floor, Mapping):
        return {}
    parts = {metric: floor.get(name) for metric, name in floor_of().items()}
    values = {metric: part.get("p99_s") for metric, part in parts.items() if isinstance(part, Mapping)}
    return {metric: max(0.0, float(v)) for metric, v in values.items() if isinstance(v, int | float)}


def resolution(table: pa.Table, slo: Slo, floor: Any) -> dict[str, Any] | None:
    """What holds with all limits a floor lower, and a floor higher; None where no floor or no bound is there.

    `attainment` (None where every bound is on a percentile) and `kept` (all bounds on percentiles) are pairs for the
    two cases, `passed` too. `unresolved` lists the bounds that hold in one case only, `undecided` says whether the goal
    of the run is one of those questions.
    """
    errors_s = floors_s(floor)
    if not errors_s or not len(table):
        return None
    low, high = (_moved(table, slo, errors_s, sign) for sign in (-1, 1))
    if not low.bounds:
        return None
    names = [b.text for b in score(table, slo).bounds]
    pairs = zip(names, low.bounds, high.bounds, strict=True)
    return {
        "attainment": [low.attainment, high.attainment] if low.by_request else None,
        "kept": [_kept(low), _kept(high)],
        "passed": [low.passed, high.passed],
        "unresolved": [name for name, a, b in pairs if a.applies.any() and a.passed != b.passed],
        "undecided": low.passed != high.passed,
    }


def undecided(info: Mapping[str, Any], fail_under: float) -> bool:
    """Whether the floor of a run leaves open if `fail_under` of its requests keep the SLO."""
    told = info.get("resolution")
    if not isinstance(told, Mapping):
        return False
    shares = told["attainment"] or (1.0, 1.0)  # percentiles alone decide
    cases = {share >= fail_under and kept for share, kept in zip(shares, told["kept"], strict=True)}
    return len(cases) > 1


def _kept(scored: Score) -> bool:
    return all(b.passed for b in scored.bounds if b.bound.percentile is not None)


def _moved(table: pa.Table, slo: Slo, errors_s: Mapping[str, float], sign: int) -> Score:
    """The score with every limit moved by the error of its metric, those that requests bring along too."""
    bounds = tuple(dataclasses.replace(b, limit=b.limit + sign * errors_s.get(b.metric, 0.0)) for b in slo.bounds)
    for metric, column in OWN.items():
        if metric in errors_s and table[column].null_count < len(table):
            moved = pc.add(table[column], sign * errors_s[metric])
            table = table.set_column(table.schema.get_field_index(column), table.schema.field(column), moved)
    return score(table, dataclasses.replace(slo, bounds=bounds))
