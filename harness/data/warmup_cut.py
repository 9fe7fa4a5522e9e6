"""The part of a run that is measured, where its warm-up is cut off."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


@dataclass(frozen=True, slots=True)
class Cut:
    """Requests due before `at_s` stay in the table and in the load, and are left out of metrics.

    `requests` of them are left out. `stationary` is False where MSER-5 found no place to cut, so that nothing was.
    """

    rule: str
    at_s: float
    requests: int
    stationary: bool = True


def restored(info: Mapping[str, Any]) -> Cut:
    """The cut that a run.json tells of; none where it tells of none."""
    told = info.get("warmup")
    if not isinstance(told, dict):
        return Cut("none", 0.0, 0)
    return Cut(str(told["rule"]), float(told["at_s"]), int(told["requests"]), bool(told.get("stationary", True)))


def kept(table: pa.Table, cut: Cut) -> pa.Table:
    """The requests that are measured: those due at the cut or after it."""
    if not cut.requests:
        return table
    return table.filter(pc.greater_equal(table["scheduled_s"], cut.at_s))
