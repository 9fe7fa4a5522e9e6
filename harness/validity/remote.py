"""What `run.json` and the tables say of a run against a remote server: its senders, and what the wire saw.

Whether a run can tell that its bounds are kept: a limit nearer than the client's own error decides nothing.

The client's floor is the error of its stamps, measured against a server whose times are known. Here all limits are
moved by it, once up and once down: what holds in only one of the two cases is unresolved.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from harness.api import Slo
from harness.data.lists import number
from harness.metrics.measure import placed
from harness.metrics.slo import OWN, Score, score

if TYPE_CHECKING:
    import pyarrow as pa

    from harness.data.folder import Run


Floats: TypeAlias = npt.NDArray[np.float64]
Senders: TypeAlias = Sequence[Mapping[str, Any]]


def is_remote(run: Run) -> bool:
    """Whether the run went to a server through senders; of one that was killed, as far as it had come."""
    return run.http is not None or any(isinstance(run.info.get(name), Mapping) for name in ("client", "server"))


def of_senders(info: Mapping[str, Any], key: str) -> list[float]:
    """What each sender says of itself under this key; those that say nothing are left out."""
    values = (sender.get(key) for sender in senders_of(info))
    return [float(v) for v in values if isinstance(v, int | float)]


def senders_of(info: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """What each sender says of itself."""
    found = part(info, "client").get("per_sender")
    return [s for s in found if isinstance(s, Mapping)] if isinstance(found, Sequence) else []


def part(info: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A nested object; empty where it is missing or is no object."""
    found = info.get(name)
    return found if isinstance(found, Mapping) else {}


def compared_of(info: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The rows of `harness.validity.checks.server_metrics.compared` that `run.json` holds."""
    found = part(info, "server").get("compared")
    return [row for row in found if isinstance(row, Mapping)] if isinstance(found, Sequence) else []


def most(senders: Senders, key: str) -> float:
    """The largest of what the senders say under this key; 0 where none says anything."""
    values = (sender.get(key) for sender in senders)
    return max((float(v) for v in values if isinstance(v, int | float)), default=0.0)


def total(senders: Senders, key: str) -> float:
    """The sum of what the senders say under this key."""
    values = (sender.get(key) for sender in senders)
    return sum(float(v) for v in values if isinstance(v, int | float))


def column(table: pa.Table | None, name: str) -> Floats:
    """A column without its nulls; empty where there is no table."""
    if table is None:
        return np.zeros(0)
    values = number(table, name)
    return values[~np.isnan(values)]


def stamps_of(info: Mapping[str, Any]) -> str | None:
    """What stamped the tokens: "kernel" or "process"; the worse one where senders differ, None where nobody tells."""
    told = [part(info, "client").get("stamps"), *(sender.get("stamps") for sender in senders_of(info))]
    found = {str(word) for word in told if word} or {str(part(info, "backend").get("stamps") or "")}
    return "process" if "process" in found else "kernel" if "kernel" in found else None


def shared_share(run: Run) -> float | None:
    """Share of the token events that were read together with a later one; None without a table of what the wire saw."""
    if run.http is None:
        return None
    events = sum(len(chunk.flatten()) for chunk in run.requests["token_s"].chunks)
    return float(column(run.http, "shared_events").sum()) / events if events else 0.0


def ms(value_s: float) -> str:
    """A time in milliseconds, three digits."""
    return f"{1000 * value_s:.3g} ms"


def ratio(facts: Mapping[str, Any], above: str, below: str) -> float:
    """One fact divided by another; 0 where one of them is missing."""
    part_of, whole = facts.get(above), facts.get(below)
    if isinstance(part_of, int | float) and isinstance(whole, int | float) and whole > 0:
        return part_of / whole
    return 0.0


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
