"""Which answers were held back on their way: their token events came in few pieces, so nothing tells when tokens were
made, and neither TTFT, TPOT nor ITL are known.

Something between buffers the stream (a proxy, a gateway that compresses, a server that writes blocks), or answers come
from a cache. A client that reads late merges events too: where it was, it is not the stream that is doubted.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from harness.data.lists import Mask, number
from harness.data.run_json import RunInfo

HELD_BACK = "held_back"
"""The column of a requests table that tells it, there where an answer was held back."""

EVENTS = 4
"""Fewer token events than this may well be made in one step of a model that drafts."""

HELD_S = 0.050
"""Tokens made unseen in less than this are no matter: fast servers, and answers across one machine."""

LATE = 2.0
"""The silence before a group of events must be so many times the lateness (p90) of a client that did not merge them."""

FEW_PIECES = 0.7
"""Share of the events of an answer that came together with an earlier one, groups of three to four: a model that drafts
makes two or three tokens a step."""

MOST_ANSWERS = 0.5
"""Share of the answers from which on none of the run is believed: the others are those too short to tell, or lucky."""


def stall_s(info: RunInfo) -> float:
    """How late the senders of a run read answers (p90, the worst of them)."""
    return max((s.stall_p90_s for s in info.client.per_sender if isinstance(s.stall_p90_s, int | float)), default=0.0)


def with_held_back(requests: pa.Table, http: pa.Table | None, late_s: float) -> pa.Table:
    """The table with a column of the answers that were held back, all where most were; unchanged where none was.

    `late_s` is how late the client reads (p90): what it merged itself is not held back.
    """
    if http is None or not len(http) or http["held_events"].null_count == len(http):
        return requests
    row = pc.index_in(requests["request_id"], http["request_id"].combine_chunks())
    http = http.take(row.combine_chunks())  # nulls where nothing was sent
    events = requests["events"] if "events" in requests.column_names else pc.list_value_length(requests["token_s"])
    events_n = events.to_numpy().astype(np.float64)
    together, silence_s = number(http, "held_events"), number(http, "held_s")
    single = (events_n == 1) & (together == 1)
    many: Mask = (events_n >= EVENTS) | single
    groups = np.maximum(events_n - together, 1)
    held: Mask = (
        many & (together >= FEW_PIECES * events_n) & (silence_s > HELD_S) & (silence_s > LATE * late_s * groups)
    )
    if not held.any():
        return requests
    if held.sum() > MOST_ANSWERS * many.sum():
        held = np.ones(len(held), bool)
    return requests.append_column(HELD_BACK, pa.array(held))


def without_held_back(requests: pa.Table) -> pa.Table:
    """Return the requests whose times are known; all where none was held back."""
    return requests.filter(pc.invert(requests[HELD_BACK])) if HELD_BACK in requests.column_names else requests
