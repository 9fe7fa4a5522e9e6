"""Readings of a run against a remote server: its senders, the wire, and the resolution of the client.

The client's floor is the error of its timestamps, measured against a server whose times are known. A bound is
unresolved where that error decides it: all limits are moved by the floor, once up and once down, and the bound is met
in only one of the two cases. Answers that were held back meet all bounds in one case, and none in the other.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import UnsetType

from harness.api import Slo
from harness.data.folder import Run
from harness.data.held_back import HELD_BACK
from harness.data.lists import number
from harness.data.run_json import Floor, Resolution, RunInfo, Sender
from harness.metrics.measure import placed
from harness.metrics.objective import BROUGHT, Score, Seen, score, share

Floats: TypeAlias = npt.NDArray[np.float64]
Senders: TypeAlias = Sequence[Sender]


def is_remote(run: Run) -> bool:
    """Whether the run went to a server through senders; of one that was killed, as far as it had come."""
    return run.http is not None or bool(run.info.client) or bool(run.info.server)


def of_each(senders: Senders, name: str) -> list[float]:
    """A number that senders report; those that report none are left out."""
    values = (getattr(sender, name) for sender in senders)
    return [float(value) for value in values if isinstance(value, int | float)]


def most(senders: Senders, name: str) -> float:
    """The largest of these numbers; 0 where there is none."""
    return max(of_each(senders, name), default=0.0)


def total(senders: Senders, name: str) -> float:
    return sum(of_each(senders, name))


def column(table: pa.Table | None, name: str) -> Floats:
    """A column without its nulls; empty where there is no table."""
    if table is None:
        return np.zeros(0)
    values = number(table, name)
    return values[~np.isnan(values)]


def stamps_of(info: RunInfo) -> str | None:
    """What stamped the tokens: "kernel" or "process"; the worse one where senders differ, None where it is unknown."""
    stamps = [info.client.stamps, *(sender.stamps for sender in info.client.per_sender)]
    words = {word for word in stamps if word} or {str(info.backend.get("stamps") or "")}
    return "process" if "process" in words else "kernel" if "kernel" in words else None


def shared_share(run: Run) -> float | None:
    """Share of the token events that were read together with a later one, of answers that were not held back on their
    way; None without a table of what the wire saw, and without such answers."""
    if run.http is None:
        return None
    table, http = run.requests, run.http
    if (held := of_held_back(run)) is not None:
        ids = table["request_id"].to_numpy()[~held]
        table, http = table.filter(pa.array(~held)), http.filter(pc.is_in(http["request_id"], pa.array(ids)))
    of_each = table["events"] if "events" in table.column_names else pc.list_value_length(table["token_s"])
    events = int(pc.sum(of_each).as_py() or 0)
    return float(column(http, "shared_events").sum()) / events if events else None if held is not None else 0.0


def of_held_back(run: Run) -> npt.NDArray[np.bool_] | None:
    """(requests,) whose answers were held back on their way; None where none was."""
    return run.requests[HELD_BACK].to_numpy() if HELD_BACK in run.requests.column_names else None


def ms(value_s: float) -> str:
    """A time in milliseconds, three digits."""
    return f"{1000 * value_s:.3g} ms"


def ratio(part_of: float | UnsetType | None, whole: float | UnsetType | None) -> float:
    """One number divided by another; 0 where one of them is missing."""
    if isinstance(part_of, int | float) and isinstance(whole, int | float) and whole > 0:
        return part_of / whole
    return 0.0


def floor_of() -> dict[str, str]:
    """Per metric the part of the floor that is its error."""
    return {metric.name: metric.floor for metric in placed() if metric.floor is not None}


def floors_s(floor: Floor | UnsetType | None) -> dict[str, float]:
    """The 99th percentile of the client's error per metric, seconds; empty where none was measured."""
    if not floor:
        return {}
    values = {metric: floor.error(name).p99_s for metric, name in floor_of().items()}
    return {metric: max(0.0, float(value)) for metric, value in values.items() if value is not None}


def resolution(seen: Seen, slo: Slo, floor: Floor | UnsetType | None) -> Resolution | None:
    """What holds with all limits a floor lower and values that are unknown missed, and with all limits a floor higher
    and those met; None where there is no floor and nothing unknown, or no bound."""
    errors_s = floors_s(floor)
    if not len(seen.table) or not (errors_s or HELD_BACK in seen.table.column_names):
        return None
    low, high = (_moved(seen, slo, errors_s, sign) for sign in (-1, 1))
    if not low.bounds:
        return None
    names = [str(b.bound) for b in score(seen.table, slo, seen).bounds]
    pairs = zip(names, low.bounds, high.bounds, strict=True)
    return Resolution(
        attainment=(share(low.met), high.attainment) if low.by_request else None,
        kept=(low.percentiles_hold, high.percentiles_hold),
        passed=(low.passed, high.passed),
        unresolved=[name for name, a, b in pairs if a.applies.any() and a.passed != b.passed],
        undecided=low.passed != high.passed,
    )


def undecided(found: Resolution | None, fail_under: float) -> bool:
    """Whether the floor of a run leaves open if at least the share `fail_under` of its requests met the SLO."""
    if not found:
        return False
    shares = found.attainment or (1.0, 1.0)  # percentiles alone decide
    cases = {share >= fail_under and passed for share, passed in zip(shares, found.kept, strict=True)}
    return len(cases) > 1


def _moved(seen: Seen, slo: Slo, errors_s: Mapping[str, float], sign: int) -> Score:
    """The score with every limit moved by the error of its metric, those of single requests too."""
    table = seen.table
    bounds = tuple(dataclasses.replace(b, limit=b.limit + sign * errors_s.get(b.metric, 0.0)) for b in slo.bounds)
    for metric, column in BROUGHT.items():
        if metric in errors_s and table[column].null_count < len(table):
            moved = pc.add(table[column], sign * errors_s[metric])
            table = table.set_column(table.schema.get_field_index(column), table.schema.field(column), moved)
    return score(table, dataclasses.replace(slo, bounds=bounds), seen.of(table), unknown_meets=sign > 0)
