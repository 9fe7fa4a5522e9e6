"""A run in numbers: counts, percentiles, attainment and rates, as plain data for run.json and reports."""

import math
from collections.abc import Callable
from typing import Any, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from harness.api import Slo, Status
from harness.measure import first_last, metrics, sample, succeeded
from harness.metrics._lists import BLOCK
from harness.missing import missing
from harness.quantiles import quantile, quantiles
from harness.slo import BoundScore, Score, score, text
from harness.vllm import vllm_keys

__all__ = ["describe", "per_second_of", "quantile", "summarize", "window_of"]

Floats: TypeAlias = npt.NDArray[np.float64]
Mask: TypeAlias = npt.NDArray[np.bool_]
PERCENTILES = (50, 90, 99)


def summarize(table: pa.Table, slo: Slo, *, window_s: float | None = None, start_s: float = 0.0) -> dict[str, Any]:
    """The numbers of a run, fit for JSON; None stands where nothing was measured.

    Rates count all requests of the table, whenever they ended: per second of `window_s` where it is given, else as
    the share of requests times the rate of all, so that goodput <= throughput <= the rate that was scheduled.
    Latencies are those of requests that ended well; attainment counts all requests. Where every bound is on a
    percentile there is neither attainment nor goodput. Metrics that are dear (`on_request`) are measured only where the
    SLO names them. Measuring began at `start_s`, from where vLLM's duration counts.
    """
    scored = score(table, slo)
    ok = succeeded(table)
    window = window_of(table) if window_s is None else window_s
    per_second = per_second_of(table, window_s)
    good = per_second if scored.by_request else lambda _: math.nan
    asked = {bound.metric for bound in slo.bounds}
    wanted = {name: m for name, m in metrics().items() if name in asked or not m.on_request}
    measured = {name: describe(sample(m, table, ok)) | {"unit": m.unit} for name, m in wanted.items()}
    ends = {row["values"]: row["counts"] for row in pc.value_counts(table["status"]).to_pylist()}
    found: dict[str, Any] = {
        "requests": len(table),
        "status": {status: ends.get(status, 0) for status in get_args(Status)},
        "failed": float(1 - ok.mean()) if len(ok) else None,
        "window_s": window,
        "throughput_rps": per_second(int(ok.sum())),
        "output_tps": per_second(_tokens(table, ok)),
        "goodput_rps": good(int(scored.met.sum())),
        "token_goodput_tps": good(_tokens(table, scored.met)),
        "preemptions": pc.sum(table["preemptions"]).as_py(),
        "metrics": measured,
        **_slo_part(slo, scored),
        "vllm": vllm_keys(table, slo, ok, measured, start_s),
    }
    return {key: _clean(value) for key, value in found.items()}


def window_of(table: pa.Table) -> float:
    """Seconds of sending: from the first to the last scheduled time, not to the end of the drain.

    One request, or all due at one instant, leave no such time: then it is the time to the last token. NaN
    where there is neither, and where the table has no time axis at all.
    """
    if not len(table) or "sent_s" in missing(table):
        return math.nan
    first_s, span_s = _scheduled(table)
    if span_s > 0:
        return span_s
    last_s = first_last(table)[1]
    return float(np.nanmax(last_s)) - first_s if np.isfinite(last_s).any() else math.nan


def per_second_of(table: pa.Table, window_s: float | None = None) -> Callable[[int], float]:
    """What makes a rate of a count; NaN for a time of no length.

    Over a window: count / window. Without: count / n x (n - 1) / (last - first scheduled time), because n requests
    have n - 1 gaps; n / (last - first) would be a higher rate than was sent, the more the fewer they are. Where there
    are no gaps it is the count over `window_of`.
    """
    n, span_s = len(table), _scheduled(table)[1] if len(table) else 0.0
    if window_s is None and span_s > 0:
        return lambda count: count / n * ((n - 1) / span_s)
    seconds = window_of(table) if window_s is None else window_s
    return lambda count: count / seconds if seconds > 0 else math.nan


def _scheduled(table: pa.Table) -> tuple[float, float]:
    """First scheduled time, and seconds to the last."""
    ends = pc.min_max(table["scheduled_s"]).as_py()
    return float(ends["min"]), float(ends["max"] - ends["min"])


def describe(values: Floats) -> dict[str, Any]:
    """n, mean, standard deviation, p50, p90, p99 and largest of values without NaN, which it reorders."""
    n = len(values)
    mean = std = largest = math.nan
    if n:
        mean, largest = values.mean(), values.max()
        # numpy's own standard deviation would need all values a second time
        squares = (np.square(values[at : at + BLOCK] - mean).sum() for at in range(0, n, BLOCK))
        std = math.sqrt(float(sum(squares)) / n)
    at = quantiles(values, [p / 100 for p in PERCENTILES])
    parts = {"n": n, "mean": mean, "std": std, **{f"p{p}": v for p, v in zip(PERCENTILES, at, strict=True)}}
    return {key: _clean(value) for key, value in (parts | {"max": largest}).items()}


def _tokens(table: pa.Table, mask: Mask) -> int:
    return int(table["output_tokens"].to_numpy()[mask].sum())


def _slo_part(slo: Slo, scored: Score) -> dict[str, Any]:
    return {
        "slo": text(slo),
        "goal": slo.goal,
        "attainment": scored.attainment,
        "passed": scored.passed if scored.bounds and len(scored.met) else None,
        "bounds": [_bound_part(b) for b in scored.bounds],
        "binding": scored.binding.text if scored.binding else None,
        "classes": scored.by_class,
    }


def _bound_part(b: BoundScore) -> dict[str, Any]:
    return {
        "text": b.text,
        "metric": b.bound.metric,
        "limit_s": _clean(b.bound.limit),
        "tag": b.bound.tag,
        "percentile": b.bound.percentile,
        "requests": int(b.applies.sum()),
        "attainment": _clean(b.attainment),
        "value_s": _clean(b.value_s),
        "passed": b.passed if b.applies.any() else None,
    }


def _clean(value: Any) -> Any:
    """Plain Python numbers, and None for NaN and infinity, which JSON does not know."""
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    return value
