"""How tools define what they print, a row each; the functions above the table are what its choices name."""

import math

import numpy as np

from harness.data.lists import Floats, Mask
from harness.metrics.profiles._base import (
    Definition,
    Events,
    Judged,
    Limits,
    Times,
    sending_s,
    span_s,
    step_quantile,
)
from harness.metrics.quantiles import quantile

P99 = 0.99
"""The percentile of MLPerf's Server scenario."""

# What the time after the first token is divided by, (requests,) tokens; there is no TPOT where it is not positive.


def later_tokens(events: Events) -> Floats:
    """All but the first."""
    return events.tokens - 1


def between_events(events: Events) -> Floats:
    """All but the first; 0 of one event, because the time between its tokens is unknown."""
    return np.where(events.events < 2, 0.0, events.tokens - 1)


def after_first_chunk(events: Events) -> Floats:
    """All but those of the first chunk; 0 for fewer than two tokens."""
    before = np.where(np.isnan(events.first_tokens), 1.0, events.first_tokens)
    return np.where(events.tokens < 2, 0, events.tokens - before)


def every_request(events: Events, unknown: Mask) -> Mask:  # noqa: ARG001  # the signature of a denominator
    """All that were sent, whatever came of them."""
    return np.ones(len(events.ok), bool)


def completed(events: Events, unknown: Mask) -> Mask:  # noqa: ARG001  # the signature of a denominator
    return events.ok


def determined(events: Events, unknown: Mask) -> Mask:
    """Errors are bad; what was cut off or has no value for a bound is left out."""
    return ~events.cut_off & (~events.ok | ~unknown)


# The seconds of which goodput is a rate; None where there is no such time.


def while_sending(events: Events) -> float | None:
    """The window of sending, not that of the drain."""
    return sending_s(events.due_s)


def to_last_token(events: Events) -> float | None:
    """The whole duration, drain included."""
    return span_s(events.start_s, events.last_s)


def to_end(events: Events) -> float | None:
    """The whole duration, to the end of the last stream."""
    return span_s(events.start_s, events.end_s)


def of_completed(events: Events) -> float | None:
    """From the first start to the last end of requests that ended well."""
    return span_s(events.sent_s, events.end_s, events.ok)


def of_ended(events: Events) -> float | None:
    """From the first start to the last end of requests that ended in any way."""
    return span_s(events.sent_s, events.end_s, events.ok | np.isfinite(events.end_s))


def element(values: Floats, q: float) -> float:
    """The element floor(N q) of the sorted values, counted from 0."""
    place = min(math.floor(len(values) * q), len(values) - 1)
    return float(np.partition(values, place)[place])


# Rules that no denominator and no window tell.


def bounds_at_p99(events: Events, times: Times, limits: Limits) -> Judged:  # noqa: ARG001  # the signature of a rule
    """1 for each bound that holds at the percentile, 0 for one that does not."""
    more = []
    for metric in ("ttft", "tpot"):
        values = times.of(metric)
        values = values[~np.isnan(values)]
        if metric in limits and len(values):
            more.append((f"{metric} p99 within the bound", float(element(values, P99) <= limits[metric])))
    return Judged(None, None, None, tuple(more))


# A line or two of choices each, so that tools can be compared.
# fmt: off
ROWS: tuple[Definition, ...] = (
    Definition(
        name="bench", tool="bench",
        start="due", divisor=between_events, gaps="pooled", quantile=quantile,
        missing="good", denominator=every_request, window=while_sending,
        about="""
        This program: from the scheduled time, joint over all requests, every failure misses.

        Source: the definitions that every report of `bench` prints.

        TTFT and E2E from `scheduled_s`, TPOT (last - first)/(n - 1); one token has no TPOT and meets its bound.
        """,
    ),
    Definition(
        name="vllm", tool="vllm bench serve 0.33.0",
        start="sent", divisor=later_tokens, gaps="pooled", quantile=quantile,
        missing="good", denominator=None, window=to_last_token,
        about="""
        `vllm bench serve` 0.33.0: from sending, over the requests that completed, in the whole duration.

        Source: vllm-project/vllm, vllm/benchmarks/serve.py and lib/endpoint_request_func.py.

        TTFT and E2E from sending, TPOT (E2E - TTFT)/(N - 1), left out for one token, which counts as 0 in goodput.
        """,
        notes=(
            "prints no attainment: its goodput divides by the whole duration, drain included",
            "an empty finish chunk with a content field moves its E2E; such chunks are not stored",
        ),
    ),
    Definition(
        name="vllm-0.32", tool="vllm bench serve 0.32",
        start="sent", first="event", divisor=later_tokens, gaps="pooled", quantile=quantile,
        missing="good", denominator=None, window=to_last_token,
        about="""
        `vllm bench serve` 0.32: as 0.33, but in chat a chunk with nothing but a role is the first token.

        Source: vllm-project/vllm, vllm/benchmarks/lib/endpoint_request_func.py of 0.32.

        TTFT to the first event of any kind, which a server may send before it has computed anything.
        """,
        notes=(
            "its first token is the first event of the stream, which only a run against a remote server holds",
            "its E2E ends with the finish chunk, which is not stored: the last token stands for it",
        ),
    ),
    Definition(
        name="sglang", tool="sglang bench 0.5.23",
        start="sent", e2e_end="end", tpot_end="end", divisor=later_tokens, gaps="pooled", quantile=quantile,
        missing="good", denominator=every_request, window=to_end,
        about="""
        SGLang's bench 0.5.23: from sending, E2E and TPOT to the last line of the stream, attainment over all that was
        sent.

        Source: sgl-project/sglang, sglang/benchmark/serving.py and goodput.py.

        TPOT (E2E - TTFT)/(N - 1), 0 in goodput for one token; every failure is bad.
        """,
        notes=(
            "its E2E and TPOT end with the last line of the stream, which is not stored: the last token stands for it",
        ),
    ),
    Definition(
        name="guidellm", tool="guidellm 0.8.1",
        start="sent", e2e_end="end", divisor=later_tokens, weighted=True, gaps=None, quantile=step_quantile,
        missing="out", denominator=determined, window=of_completed,
        about="""
        guidellm 0.8.1: from the first write; an answer without a value for a bound is left out of the attainment.

        Source: vllm-project/guidellm, its benchmark and SLO metrics.

        TPOT (last - first)/(N - 1), which it calls ITL; null for one token, which makes a bound undetermined.
        """,
        notes=(
            ("calls this TPOT its inter-token latency and counts it once per later token, so that long answers "
             "weigh more"),
            "its own 'time per output token' is (last - sent)/N, TTFT included",
            "keeps no gap between the first and the last token",
            "its E2E ends with the stream, which is not stored: the last token stands for it",
        ),
    ),
    Definition(
        name="aiperf", tool="aiperf 0.13.0",
        start="sent", divisor=after_first_chunk, gaps="pooled", quantile=quantile,
        missing="bad", denominator=every_request, window=of_ended,
        about="""
        aiperf 0.13.0: from the request call; a missing value is bad, so one-token answers miss a bound on TPOT.

        Source: ai-dynamo/aiperf, its metric types and good_request_count.

        TPOT (E2E - TTFT)/(N - tokens of the first chunk), which it calls ITL; none for N < 2.
        """,
        notes=(
            ("needs a tokenizer: by default it counts tokens itself; here they are the server's "
             "(--use-server-token-count)"),
            "calls this TPOT inter_token_latency; its inter_chunk_latency are the gaps",
            "its goodput is per second of its whole phase, a little longer than from the first start to the last end",
        ),
    ),
    Definition(
        name="inference-perf", tool="inference-perf 0.7.0",
        start="sent", ttft_of_one_token=False, e2e_end="end", divisor=later_tokens, gaps="zeros inside chunks",
        quantile=quantile,
        missing="bad", denominator=completed, window=of_completed,
        about="""
        inference-perf 0.7.0: from sending, attainment over successful requests only; a missing value is bad.

        Source: kubernetes-sigs/inference-perf, its request lifecycle metrics and goodput.

        TPOT (last - first)/(N - 1), null for one token; TTFT is null too where there is only one token.
        """,
        notes=(
            ("needs a tokenizer: by default it counts tokens itself; here they are the server's "
             "(use_server_output_tokens)"),
            "repeats the time of a chunk for each of its tokens: gaps of zero inside chunks are part of its ITL",
            "its E2E ends after its own work on the answer, which is not stored: the last token stands for it",
        ),
    ),
    Definition(
        name="mlperf", tool="MLPerf LoadGen, Server",
        start="due", divisor=later_tokens, gaps=None, quantile=element,
        judged=bounds_at_p99,
        about="""
        MLPerf's LoadGen, Server scenario: from the scheduled time, two bounds at a percentile, no joint rule.

        Source: mlcommons/inference, loadgen/results.cc.

        p99 of TTFT and p99 of TPOT against their bounds; a percentile is element floor(N p) of the sorted list.
        """,
        notes=("has two bounds at p99 and no joint attainment; failures cannot occur in it, here they are left out",),
    ),
)
# fmt: on
