"""Requests that failed for another reason than load, and how many of them a run may have before its backend has failed.

A server that turns requests away, or lets them wait too long because its queue grows, does what load makes it do: that
is a result. Errors, broken answers and requests that hang are none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

if TYPE_CHECKING:
    import pyarrow as pa

MAX_FAILED = 0.01
"""Share of the requests that may fail for another reason than load, unless --max-failed says so."""

FAULTS = ("error", "truncated", "timeout")
"""Statuses that are the backend's fault; not `rejected` (load), `dropped` (what follows a failure), `cancelled` (the
user ended the run)."""

UNDER_LOAD = "timeout"
"""The status that is load and no fault where the queue grew all through the run."""


def failures(requests: pa.Table, *, overloaded: bool, at_most: float | None = None) -> dict[str, Any]:
    """How many requests failed by the fault of the backend, fit for JSON; `at_most` is the share that may.

    `exceeded` says whether more did, `said` is then the sentence that tells.
    """
    at_most = MAX_FAILED if at_most is None else at_most
    counts = {row["values"]: row["counts"] for row in pc.value_counts(requests["status"]).to_pylist()}
    faults = {name: counts[name] for name in FAULTS if name in counts and not (overloaded and name == UNDER_LOAD)}
    failed, total = sum(faults.values()), len(requests)
    exceeded = total > 0 and failed / total > at_most
    return {
        "requests": failed,
        "share": failed / total if total else None,
        "at_most": at_most,
        "exceeded": exceeded,
        "said": _said(faults, total, at_most) if exceeded else None,
    }


def exceeded(info: Mapping[str, Any]) -> str | None:
    """The sentence of a run.json that says that too many requests failed; None where not."""
    told = info.get("failures")
    return str(told["said"]) if isinstance(told, Mapping) and told.get("exceeded") else None


def _said(faults: Mapping[str, int], total: int, at_most: float) -> str:
    failed = sum(faults.values())
    kinds = ", ".join(f"{count:,} {status}" for status, count in sorted(faults.items()))
    return (
        f"{failed:,} of {total:,} requests ({failed / total:.1%}) failed for another reason than load ({kinds}); "
        f"--max-failed allows {100 * at_most:g}%. See the errors, or allow more."
    )
