"""vLLM's result keys, as `vllm bench serve --save-result` writes them, from our events by vLLM's definitions.

Source: vllm-project/vllm, vllm/benchmarks/serve.py. All latencies count from sending, in milliseconds; `duration` runs
from the start of the run, or from the cut of its warm-up, to the last token, drain included; a TPOT of one token counts
as 0 in goodput. Where vLLM writes 0 because nothing was measured, None stands here.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from harness.api import Slo
from harness.measure import first_last
from harness.metrics._lists import BLOCK, kept, lists, number, ratio
from harness.quantiles import quantiles

Floats: TypeAlias = npt.NDArray[np.float64]
Mask: TypeAlias = npt.NDArray[np.bool_]

_GOODPUT = {"ttft": "ttft", "tpot": "tpot", "e2e": "e2el"}
"""Our bounds that vLLM's --goodput knows, and its names for them."""


def vllm_keys(
    table: pa.Table, slo: Slo, ok: Mask, measured: Mapping[str, Mapping[str, Any]], start_s: float = 0.0
) -> dict[str, float | int | None]:
    """vLLM's keys for a table; `ok` (requests,) ended well, `measured` has the gaps (`itl`), as vLLM's are.

    `duration` counts from `start_s`.
    """
    sent_s, (first_s, last_s) = number(table, "sent_s"), first_last(table)
    duration_s = float(np.nanmax(last_s)) - start_s if np.isfinite(last_s).any() else 0.0
    prompt, output = number(table, "prompt_tokens")[ok], number(table, "output_tokens")[ok]
    latencies = {
        "ttft": (first_s - sent_s)[ok],
        "tpot": ratio((last_s - first_s)[ok], output - 1),
        "e2el": (last_s - sent_s)[ok],
    }
    good = _good(slo, latencies)

    def per_second(count: float) -> float | None:
        return count / duration_s if duration_s > 0 else None

    return {
        "duration": duration_s,
        "completed": int(ok.sum()),
        "failed": int((~ok).sum()),
        "total_input_tokens": int(prompt.sum()),
        "total_output_tokens": int(output.sum()),
        "request_throughput": per_second(int(ok.sum())),
        "request_goodput": None if good is None else per_second(int(good.sum())),
        "output_throughput": per_second(float(output.sum())),
        "total_token_throughput": per_second(float(prompt.sum() + output.sum())),
        "max_output_tokens_per_s": _peak_events(table, ok, sent_s[ok]),
        "max_concurrent_requests": _peak_in_flight(sent_s[ok], last_s[ok]),
        **_statistics("ttft", latencies["ttft"]),
        **_statistics("tpot", latencies["tpot"]),
        **_in_ms("itl", measured["itl"]),
        **_statistics("e2el", latencies["e2el"]),
    }


def _good(slo: Slo, latencies: Mapping[str, Floats]) -> Mask | None:
    """(completed,) within the bounds that vLLM knows; None without such a bound."""
    bounds = [b for b in slo.bounds if b.metric in _GOODPUT and b.tag is None and b.percentile is None]
    if not bounds:
        return None
    met: Mask = np.logical_and.reduce([~(latencies[_GOODPUT[b.metric]] > b.limit) for b in bounds])
    return met


def _statistics(name: str, values: Floats) -> dict[str, float | None]:
    known = values[~np.isnan(values)]
    if not len(known):
        return _in_ms(name, {})
    p50, p90, p99 = quantiles(known, [0.5, 0.9, 0.99])
    return _in_ms(name, {"mean": known.mean(), "std": known.std(), "p50": p50, "p90": p90, "p99": p99})


def _in_ms(name: str, values_s: Mapping[str, Any]) -> dict[str, float | None]:
    keys = {"mean": "mean", "median": "p50", "std": "std", "p50": "p50", "p90": "p90", "p99": "p99"}
    found = {theirs: values_s.get(ours) for theirs, ours in keys.items()}
    return {f"{key}_{name}_ms": None if value is None else 1000 * float(value) for key, value in found.items()}


def _peak_events(table: pa.Table, ok: Mask, sent_s: Floats) -> float:
    """Most token events in one second, seconds counted from the first sending."""
    known = sent_s[~np.isnan(sent_s)]
    if not len(known):
        return 0.0
    start = known.min()
    counts = np.zeros(1, np.int64)
    for piece in kept(table, ok):
        event_s = lists(piece, "token_s").values
        for at in range(0, len(event_s), BLOCK):
            seconds = np.maximum((event_s[at : at + BLOCK] - start).astype(np.int64), 0)
            found = np.bincount(seconds, minlength=len(counts))
            found[: len(counts)] += counts
            counts = found
    return float(counts.max())


def _peak_in_flight(sent_s: Floats, end_s: Floats) -> int:
    """Most requests between sending and last token; at one instant those that end go first."""
    known = ~(np.isnan(sent_s) | np.isnan(end_s))
    times = np.concatenate([sent_s[known], end_s[known]])
    steps = np.repeat([1, -1], int(known.sum()))
    order = np.lexsort((steps, times))
    return int(np.cumsum(steps[order]).max(initial=0))
