"""What the stages of requests and the causes of misses are called, and how they were found."""

from harness.data.folder import Run
from harness.metrics.stages import (
    APART,
    DECODE,
    DIVIDED,
    HANDOFF,
    LATENESS,
    PREEMPTED,
    PREFILL,
    QUEUE,
    QUEUE_PREFILL,
    STALL,
    UNKNOWN,
)
from reports import _data
from reports._format import clean

NAMES = {
    LATENESS: "client lateness", QUEUE: "queue", QUEUE_PREFILL: "queue and prefill", PREFILL: "prefill",
    HANDOFF: "hand-off", STALL: "stall", DECODE: "decode", PREEMPTED: "preempted", UNKNOWN: "unknown (no stamps)",
}  # fmt: skip
STALLED = (
    "Stall is the time after the first token in which the request waits to decode or its replica works on prompts "
    "alone."
)
UNSTAMPED = (
    "This backend stamps no stages, so queue and prefill are not separate; --backend engine and --backend sim do."
)
BY_SERVER = (
    "The time before the first token is divided between queue and prefill as in the server's answer, or as in the mean "
    "of its histograms over the second in which the request ended."
)
RULE = (
    "The bound that is broken worst decides; where the work it spans (prefill for TTFT, decode for TPOT and gaps, both "
    "for E2E) breaks it by its own share of the time, that is the cause, otherwise the longest wait; a preempted "
    "request that decoded too slowly counts as preempted."
)


def note(keys: tuple[str, ...]) -> str:
    """Where these phases are from."""
    return {APART: STALLED, DIVIDED: BY_SERVER}.get(keys, UNSTAMPED)


def missed(run: Run) -> str:
    """How many requests missed the SLO, and what each of the client and the phases of the server caused; '-' where the
    server does not tell. Empty where none missed, or the SLO bounds no single request."""
    causes = _data.stages(run).misses
    if not causes:
        return ""
    silent = (QUEUE, PREFILL) if QUEUE_PREFILL in causes else ()
    counts = {**dict.fromkeys(DIVIDED, 0), **causes}
    each = [f"{NAMES.get(key, f'failed ({clean(key)})')} {'-' if key in silent else f'{n:,}'}"
            for key, n in counts.items()]  # fmt: skip
    return f"{sum(causes.values()):,} of {run.requests.num_rows:,} requests: {', '.join(each)}"
