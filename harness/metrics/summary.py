"""A run in numbers: counts, percentiles, attainment and rates, as plain data for run.json and reports.

vLLM's result keys, as `vllm bench serve --save-result` writes them, from our events by vLLM's definitions.

Source: vllm-project/vllm, vllm/benchmarks/serve.py. All latencies count from sending, in milliseconds; `duration` runs
from the start of the run, or from the cut of its warm-up, to the last token, drain included; a TPOT of one token counts
as 0 in goodput. Where vLLM writes 0 because nothing was measured, None stands here; and its TPOT is here over the
streamed tokens, because it divides by tokens of hidden reasoning too.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import UNSET, UnsetType

from harness import values as check
from harness.api import Metric, RunTables, Slo, Status
from harness.data.codec import Facts
from harness.data.lists import BLOCK, Floats, Mask, lists, number, ratio, streamed_tokens, tokens_each
from harness.data.run_json import Described, OutputTokens, ScoredBound, Summary
from harness.metrics.measure import ended_well, first_last, metrics, missing, run_metrics, sample
from harness.metrics.objective import BoundScore, Score, Seen, met_bounds, score
from harness.metrics.quantiles import quantile, quantiles

__all__ = ["describe", "of_run", "per_second_of", "quantile", "served", "summarize", "vllm_keys", "window_of"]

PERCENTILES = (50.0, 90.0, 99.0)
"""Those that every run has, and that are shown unless --percentiles names others."""


def percentiles_of(spec: Facts) -> tuple[float, ...]:
    """The percentiles of the latencies of a run, by its options."""
    text = spec.get("percentiles")
    return tuple(map(float, check.percentiles(text, "percentiles").split(","))) if text else PERCENTILES


def summarize(
    table: pa.Table,
    slo: Slo,
    *,
    seen: Seen | None = None,
    scored: Score | None = None,
    percentiles: Sequence[float] = PERCENTILES,
) -> Summary:
    """The numbers of a run; None stands where nothing was measured.

    Rates count all requests of the table, whenever they ended: the share of requests times the rate of all, so that
    goodput <= throughput <= the rate that was scheduled.
    Latencies are those of requests that ended well; attainment counts all requests. Where every bound is on a
    percentile there is neither attainment nor goodput. Metrics that are dear (`on_request`) are measured only where the
    SLO names them. `seen` is the table with all its token times where it has only the first and the last of each
    request, and `scored` its score where that is known.
    """
    seen = Seen(table) if seen is None else seen
    scored = score(table, slo, seen) if scored is None else scored
    ok = seen.ok
    per_second = per_second_of(table)
    good = per_second if scored.by_request and not scored.unknown else lambda _: math.nan
    bounded = {bound.metric for bound in slo.bounds}
    chosen = {name: m for name, m in metrics().items() if name in bounded or not m.on_request}
    measured = {name: _measured(m, seen, percentiles) for name, m in chosen.items()}
    ends = {row["values"]: row["counts"] for row in pc.value_counts(table["status"]).to_pylist()}
    return Summary(
        requests=len(table),
        status={status: ends.get(status, 0) for status in get_args(Status)},
        failed=float(1 - ended_well(table).mean()) if len(ok) else None,
        window_s=known(window_of(table)),
        throughput_rps=known(per_second(int(ok.sum()))),
        output_tps=known(per_second(_tokens(table, ok))),
        goodput_rps=known(good(int(scored.met.sum()))),
        token_goodput_tps=known(good(_tokens(table, scored.met))),
        preemptions=pc.sum(table["preemptions"]).as_py(),
        tokens=_output_tokens(table, ok),
        metrics=measured,
        slo=str(slo),
        goal=slo.goal,
        attainment=known(scored.attainment),
        passed=scored.passed if scored.bounds and len(scored.met) and not scored.unknown else None,
        bounds=[scored_bound(b) for b in scored.bounds],
        binding=str(scored.binding.bound) if scored.binding else None,
        classes=dict(scored.by_class),
    )


def of_run(tables: RunTables) -> dict[str, Described]:
    """The metrics of the run as a whole, those that it can tell."""
    by_metric = {metric: metric.of(tables) for metric in run_metrics().values()}
    return {metric.name: describe(values, metric.unit) for metric, values in by_metric.items() if len(values)}


def _measured(metric: Metric, seen: Seen, percentiles: Sequence[float]) -> Described:
    """The values of a metric over the requests that ended well."""
    if not metric.gaps or not seen.is_thin:
        return describe(sample(metric, seen.table, seen.ok), metric.unit, percentiles)
    if not metric.pooled:
        values = seen.values(metric.name)[seen.ok]
        return describe(values[np.isfinite(values)], metric.unit, percentiles)
    levels = sorted({*PERCENTILES, *percentiles})
    ranked = seen.selected(metric.name, seen.ok, [p / 100 for p in levels])
    by_level = dict(zip(levels, map(known, ranked.quantiles), strict=True))
    mean, std, largest = map(known, (ranked.mean, ranked.std, ranked.largest))
    return _described(ranked.n, mean, std, by_level, largest, metric.unit, percentiles)


def _described(
    n: int, mean: float | None, std: float | None, at: Mapping[float, float | None], largest: float | None,
    unit: str | None, percentiles: Sequence[float],
) -> Described:  # fmt: skip
    """The numbers of a metric, the requested percentiles by name only where they are not those of every run."""
    p50, p90, p99 = (at[percentile] for percentile in PERCENTILES)
    extra = UNSET if tuple(percentiles) == PERCENTILES else {f"p{p:g}": at[p] for p in percentiles}
    return Described(n=n, mean=mean, std=std, p50=p50, p90=p90, p99=p99, max=largest, unit=unit, percentiles=extra)


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


def per_second_of(table: pa.Table) -> Callable[[int], float]:
    """What makes a rate of a count; NaN for a time of no length.

    That is count / n x (n - 1) / (last - first scheduled time), because n requests
    have n - 1 gaps; n / (last - first) would be a higher rate than was sent, the more the fewer they are. Where there
    are no gaps it is the count over `window_of`.
    """
    n, span_s = len(table), _scheduled(table)[1] if len(table) else 0.0
    if span_s > 0:
        return lambda count: count / n * ((n - 1) / span_s)
    seconds = window_of(table)
    return lambda count: count / seconds if seconds > 0 else math.nan


def _scheduled(table: pa.Table) -> tuple[float, float]:
    """First scheduled time, and seconds to the last."""
    ends = pc.min_max(table["scheduled_s"]).as_py()
    return float(ends["min"]), float(ends["max"] - ends["min"])


def describe(values: Floats, unit: str | None = None, percentiles: Sequence[float] = PERCENTILES) -> Described:
    """n, mean, standard deviation, percentiles and largest of values without NaN, which it reorders."""
    n = len(values)
    mean: float | None = math.nan
    std: float | None = math.nan
    largest: float | None = math.nan
    if n:
        mean, largest = values.mean(), values.max()
        # numpy's own standard deviation would need all values a second time
        squares = (np.square(values[at : at + BLOCK] - mean).sum() for at in range(0, n, BLOCK))
        std = math.sqrt(float(sum(squares)) / n)
    at = sorted({*PERCENTILES, *percentiles})
    by_level = dict(zip(at, map(known, quantiles(values, [p / 100 for p in at])), strict=True))
    return _described(n, known(mean), known(std), by_level, known(largest), unit, percentiles)


def _tokens(table: pa.Table, mask: Mask) -> int:
    return int(table["output_tokens"].to_numpy()[mask].sum())


def _output_tokens(table: pa.Table, ok: Mask) -> OutputTokens | UnsetType:
    output, streamed = _tokens(table, ok), int(streamed_tokens(table)[ok].sum())
    return UNSET if output == streamed else OutputTokens(output=output, streamed=streamed, unseen=output - streamed)


def scored_bound(b: BoundScore) -> ScoredBound:
    """A bound with what was found, as run.json has it."""
    return ScoredBound(
        text=str(b.bound),
        metric=b.bound.metric,
        limit_s=known(b.bound.limit),
        tag=b.bound.tag,
        percentile=b.bound.percentile,
        requests=int(b.applies.sum()),
        attainment=known(b.attainment),
        value_s=known(b.value_s),
        passed=None if math.isnan(b.attainment) else b.passed,
    )


def known(value: float | None) -> float | None:
    """A plain Python number, and None for NaN and infinity, which JSON does not know."""
    return float(value) if value is not None and math.isfinite(value) else None


def served(table: pa.Table, start_s: float = 0.0, *, seen: Seen | None = None) -> dict[str, float | None]:
    """Return the time (s) from `start_s` to the last answer, and what ended well in it per second, by vLLM's keys."""
    seen = Seen(table) if seen is None else seen
    last_s = float(np.fmax.reduce(first_last(table)[1], initial=-math.inf))
    duration_s = last_s - start_s if math.isfinite(last_s) else 0.0
    counts = {"request": float(seen.ok.sum()), "output": float(_tokens(table, seen.ok))}
    rates = {f"{name}_throughput": n / duration_s if duration_s > 0 else None for name, n in counts.items()}
    return {"duration": duration_s, **rates}


def vllm_keys(
    table: pa.Table, slo: Slo, summary: Summary, start_s: float = 0.0, *, seen: Seen | None = None
) -> dict[str, float | int | None]:
    """vLLM's keys for a table with its summary, which has the gaps (`itl`) as vLLM's are.

    Measuring began at `start_s`, from where `duration` counts; `seen` is as in `summarize`.
    """
    seen = Seen(table) if seen is None else seen
    ok = seen.ok
    sent_s, (first_s, last_s) = number(table, "sent_s"), first_last(table)
    flow = served(table, start_s, seen=seen)
    duration_s = flow["duration"] or 0.0
    prompt, output = number(table, "prompt_tokens")[ok], number(table, "output_tokens")[ok]
    if (unknown := seen.unknown("ttft")) is not None:
        first_s = np.where(unknown, np.nan, first_s)
    latencies = {
        "ttft": (first_s - sent_s)[ok],
        "tpot": ratio((last_s - first_s)[ok], tokens_each(table)[ok] - 1),
        "e2e": (last_s - sent_s)[ok],
    }
    bounds = [b for b in slo.bounds if b.metric in latencies and b.tag is None and b.percentile is None]
    good = met_bounds(latencies, bounds) if bounds and unknown is None else None  # as vLLM's --goodput counts

    def per_second(count: float) -> float | None:
        return count / duration_s if duration_s > 0 else None

    return {
        **flow,
        "completed": int(ok.sum()),
        "failed": int((~ok).sum()),
        "total_input_tokens": int(prompt.sum()),
        "total_output_tokens": int(output.sum()),
        "request_goodput": None if good is None else per_second(int(good.sum())),
        "total_token_throughput": per_second(float(prompt.sum() + output.sum())),
        "max_output_tokens_per_s": _peak_events(seen, sent_s[ok]),
        "max_concurrent_requests": peak_in_flight(sent_s[ok], last_s[ok]),
        **_statistics("ttft", latencies["ttft"]),
        **_statistics("tpot", latencies["tpot"]),
        **_in_ms("itl", summary.metrics["itl"]),
        **_statistics("e2el", latencies["e2e"]),
    }


def _statistics(name: str, values: Floats) -> dict[str, float | None]:
    defined = values[~np.isnan(values)]
    if not len(defined):
        return _in_ms(name, Described())
    p50, p90, p99 = quantiles(defined, [0.5, 0.9, 0.99])
    return _in_ms(name, Described(mean=defined.mean(), std=defined.std(), p50=p50, p90=p90, p99=p99))


def _in_ms(name: str, of: Described) -> dict[str, float | None]:
    values_s = {"mean": of.mean, "median": of.p50, "std": of.std, "p50": of.p50, "p90": of.p90, "p99": of.p99}
    return {f"{key}_{name}_ms": None if value is None else 1000 * float(value) for key, value in values_s.items()}


def _peak_events(seen: Seen, sent_s: Floats) -> float:
    """Most token events in one second, seconds counted from the first sending."""
    finite_s = sent_s[~np.isnan(sent_s)]
    if not len(finite_s):
        return 0.0
    start = finite_s.min()
    counts = np.zeros(1, np.int64)
    for piece in seen.pieces():
        ok = pc.equal(piece["status"], "ok")
        event_s = lists(piece if pc.all(ok).as_py() else piece.filter(ok), "token_s").values
        for begin in range(0, len(event_s), BLOCK):
            seconds = np.maximum((event_s[begin : begin + BLOCK] - start).astype(np.int64), 0)
            summed = np.bincount(seconds, minlength=len(counts))
            summed[: len(counts)] += counts
            counts = summed
    return float(counts.max())


def peak_in_flight(sent_s: Floats, end_s: Floats) -> int:
    """Most requests between sending and last token; at one instant those that end go first."""
    valid = ~(np.isnan(sent_s) | np.isnan(end_s))
    times = np.concatenate([sent_s[valid], end_s[valid]])
    steps = np.repeat([1, -1], int(valid.sum()))
    order = np.lexsort((steps, times))
    return int(np.cumsum(steps[order]).max(initial=0))
