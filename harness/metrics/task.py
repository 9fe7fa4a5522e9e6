"""Task latency, from when the first request of a session is due to the last token of its last (seconds per request).

Source: the deadline of a compound request in JITServe (UIUC-MLSys/JITServe): a user waits for the whole
task, not for one of its calls.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from harness.metrics._lists import Assume, Better, Floats, last, lists, number

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Task:
    """Last token of the session minus its first `scheduled_s`: the same for each of its requests.

    Infinite where one of them did not end well, NaN for a request without a session. Think times are part of it.
    """

    name: ClassVar[str] = "task"
    unit: ClassVar[str] = "s"
    better: ClassVar[Better] = "lower"
    on_request: ClassVar[bool] = True
    whole: ClassVar[bool] = True
    assume: Assume = "nothing"

    def of(self, table: pa.Table) -> Floats:
        """(requests,) float64 seconds."""
        session = number(table, "session")
        inside = ~np.isnan(session)
        found = np.full(len(session), np.nan)
        if not inside.any():
            return found
        _, group = np.unique(session[inside], return_inverse=True)
        end_s = last(lists(table, "token_s"))[inside]
        end_s[table["status"].to_numpy()[inside] != "ok"] = np.inf
        first_s, last_s = np.full(group.max() + 1, np.inf), np.full(group.max() + 1, -np.inf)
        np.minimum.at(first_s, group, number(table, "scheduled_s")[inside])
        np.maximum.at(last_s, group, end_s)
        found[inside] = (last_s - first_s)[group]
        return found
