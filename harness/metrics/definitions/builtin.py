"""Our metrics: a row each, which decides where it is shown and how, and above the table what computes them.

Each function gives (requests,) float64 seconds but where it says otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from harness.api import Metric
from harness.data.lists import (
    Floats,
    first,
    gap_lists,
    last,
    lateness,
    lists,
    number,
    ratio,
    row_max,
    row_quantile,
    tokens_each,
)

if TYPE_CHECKING:
    import pyarrow as pa


def ttft(table: pa.Table) -> Floats:
    """From the scheduled time to the first token."""
    return first(lists(table, "token_s")) - number(table, "scheduled_s")


def ttft_sent(table: pa.Table) -> Floats:
    """From sending to the first token."""
    return first(lists(table, "token_s")) - number(table, "sent_s")


def tpot(table: pa.Table) -> Floats:
    """The mean time of the tokens after the first."""
    stamps = lists(table, "token_s")
    more = tokens_each(table) - 1
    more[np.diff(stamps.offsets) < 2] = 0  # one event: no time has passed that could be shared out
    return ratio(last(stamps) - first(stamps), more)


def e2e(table: pa.Table) -> Floats:
    """From the scheduled time to the last token."""
    return last(lists(table, "token_s")) - number(table, "scheduled_s")


def token_gaps(table: pa.Table) -> Floats:
    """(gaps,) float64 seconds, request by request."""
    return gap_lists(lists(table, "token_s")).values


def largest_gap(table: pa.Table) -> Floats:
    """NaN for fewer than two token events."""
    return row_max(gap_lists(lists(table, "token_s")))


def p99_gap(table: pa.Table) -> Floats:
    """NaN for fewer than two token events."""
    return row_quantile(gap_lists(lists(table, "token_s")), 0.99)


def normalized_latency(table: pa.Table) -> Floats:
    answers = np.fmax(number(table, "answers"), 1)  # NaN for one: fmax takes the other
    return ratio(e2e(table), number(table, "output_tokens") / answers)


def scheduling_delay(table: pa.Table) -> Floats:
    """From the scheduled time to the first work on the prompt."""
    return number(table, "prefill_start_s") - number(table, "scheduled_s")


def task(table: pa.Table) -> Floats:
    """From the first scheduled time of a session to its last token: the same for each of its requests."""
    session = number(table, "session")
    inside = ~np.isnan(session)
    task_s = np.full(len(session), np.nan)
    if not inside.any():
        return task_s
    _, group = np.unique(session[inside], return_inverse=True)
    end_s = last(lists(table, "token_s"))[inside]
    end_s[table["status"].to_numpy()[inside] != "ok"] = np.inf
    first_s, last_s = np.full(group.max() + 1, np.inf), np.full(group.max() + 1, -np.inf)
    np.minimum.at(first_s, group, number(table, "scheduled_s")[inside])
    np.maximum.at(last_s, group, end_s)
    task_s[inside] = (last_s - first_s)[group]
    return task_s


# A few lines of choices each, so that metrics can be compared.
# fmt: off
ROWS: tuple[Metric, ...] = (
    Metric(
        name="ttft", place=0, title="TTFT", of=ttft,
        headline=True, in_summary=True, one_token=True, needs_token_times=True, decided_by="prefill", floor="ttft",
        phases=("cap_wait", "lateness", "front_s", "queue", "queue_prefill", "prefill"),
        compared=("mean", "p50", "p99"),
        terms=(("TTFT", "time to first token: first token minus the scheduled time of the request (s)"),),
        about="""
        Time to first token, counted from the scheduled time (seconds per request).

        Source: the start of clock of MLPerf's Server scenario (mlcommons/inference, loadgen). A late client is part
        of it, as it is for a user.

        First token minus `scheduled_s`; NaN for a request without a token.
        """,
    ),
    Metric(
        name="tpot", place=1, title="TPOT", of=tpot,
        headline=True, in_summary=True, one_token=True, needs_token_times=True, decided_by="decode", floor="tpot",
        phases=("handoff", "stall", "decode"), compared=("mean", "p99"),
        terms=(
            (
                "TPOT",
                "(last - first token) / (n - 1) of one request (s); with one token it has none and meets its bound",
            ),
        ),
        about="""
        Time per output token after the first (seconds per request).

        Source: equal to the TPOT of vLLM, SGLang and inference-perf.

        (last - first) / (n - 1) for n streamed output tokens; NaN for n < 2, which meets every bound. Tokens that
        the server counts and never streams, such as hidden reasoning, are none of the n.

        NaN too where all tokens came in one event: the time between them is unknown.
        """,
    ),
    Metric(
        name="itl", place=2, title="ITL", worst_title="worst gap", of=token_gaps, worst=largest_gap, pooled=True,
        gaps=True, in_summary=True, one_token=True, needs_token_times=True, decided_by="decode", floor="itl",
        phases=("handoff", "stall", "decode"), compared=("p99",),
        terms=(
            ("ITL", "every single gap between token events, pooled over all requests (s)"),
            (
                "ITL max (request)",
                "the largest gap of each request: what the bound itl asks of every single request (s)",
            ),
        ),
        about="""
        Inter-token latency: every single gap between token events, pooled over all requests (seconds).

        Source: the ITL of vLLM and SGLang. One value per gap; tokens of one event make no gap among
        themselves.

        All gaps of all requests; a bound on it asks it of the largest gap of each request.
        """,
    ),
    Metric(
        name="itl_p99", place=3, title="ITL p99 (request)", of=p99_gap, gaps=True, on_request=True,
        in_summary=False, one_token=True, needs_token_times=True, decided_by="decode", floor="itl",
        phases=("handoff", "stall", "decode"), compared=None,
        terms=(
            ("ITL p99 (request)", "the 99th percentile of the gaps of each request: what the bound itl_p99 asks (s)"),
            ("ITL p99 (run)", "the 99th percentile of all gaps of the run: what the bound p99:itl asks, once (s)"),
        ),
        about="""
        The 99th percentile of the gaps between token events of one request (seconds per request).

        Source: numpy.quantile with linear interpolation, as everywhere here.

        p99 of a request's own gaps; NaN for fewer than two token events.
        """,
    ),
    Metric(
        name="e2e", place=4, title="E2E", of=e2e,
        in_summary=True, floor="e2e", compared=("mean",),
        terms=(("E2E", "last token minus the scheduled time (s)"),),
        about="""
        End-to-end latency, from the scheduled time to the last token (seconds per request).

        Source: "end-to-end latency" of MLPerf's Server scenario (mlcommons/inference, loadgen).

        Last token minus `scheduled_s`; NaN for a request without a token.
        """,
    ),
    Metric(
        name="task", place=5, of=task, on_request=True, whole=True,
        in_summary=False, floor="e2e", compared=None,
        about="""
        Task latency, from when the first request of a session is due to the last token of its last (seconds per
        request).

        Source: the deadline of a compound request in JITServe (UIUC-MLSys/JITServe): a user waits for the whole
        task, not for one of its calls.

        Last token of the session minus its first `scheduled_s`: the same for each of its requests.

        Infinite where one of them did not end well, NaN for a request without a session. Think times are part of it.
        """,
    ),
    Metric(
        name="normalized_latency", place=6, of=normalized_latency,
        in_summary=False, compared=(),
        about="""
        End-to-end latency divided by output tokens (seconds per token, per request).

        Source: Kwon et al., Efficient Memory Management for LLM Serving with PagedAttention, SOSP 2023, section 6.

        E2E / output tokens; NaN for a request without a token.
        """,
    ),
    Metric(
        name="scheduling_delay", place=7, of=scheduling_delay,
        in_summary=False, phases=("cap_wait", "lateness", "front_s", "queue"), compared=(),
        about="""
        How long a request waited before its prompt was first worked on (seconds per request).

        Source: Agrawal et al., Sarathi-Serve, OSDI 2024: a median of at most 2 s is part of its capacity.

        `prefill_start_s` minus `scheduled_s`; NaN where the backend does not see it.
        """,
    ),
    Metric(
        name="lateness", place=8, title="lateness", of=lateness,
        in_summary=False, floor="lateness", phases=("lateness",), compared=None,
        terms=(("lateness", "sent minus scheduled time (s): the client's own delay, part of TTFT and E2E"),),
        about="""
        How late the client sent (seconds per request); zero in a simulation.

        Source: the schedule delay of open-loop load generators (Tene, "How NOT to measure latency", wrk2).

        `sent_s` minus `scheduled_s`, less `cap_wait_s`; NaN for a request that never left.
        """,
    ),
    Metric(
        name="ttft_sent", place=9, of=ttft_sent,
        in_summary=False, one_token=True, needs_token_times=True, floor="ttft", compared=(),
        phases=("front_s", "queue", "queue_prefill", "prefill"),
        about="""
        Time to first token, counted from sending (seconds per request).

        Source: the start of clock of vLLM, SGLang and most load generators; it is reported
        beside `ttft`, which a late client cannot flatter.

        First token minus `sent_s`; NaN for a request without a token.
        """,
    ),
)
# fmt: on
