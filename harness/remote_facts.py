"""What `run.json` and the tables say of a run against a remote server: its senders, and what the wire saw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from harness.metrics._lists import number

if TYPE_CHECKING:
    import pyarrow as pa

    from harness.folder import Run

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
    """The rows of `harness.server_view.compared` that `run.json` holds."""
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
