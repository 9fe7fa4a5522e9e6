"""A run as the result of `guidellm run --output kind=json`: one object with one benchmark.

Source: vllm-project/guidellm 0.8.1, benchmark/schemas and schemas/base/statistics.py. It calls TPOT inter-token latency
and counts it once per later token; its time per output token includes TTFT; a percentile is an element of the list.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from harness.data.folder import Run
from reports import _foreign
from reports._foreign import Facts, Floats, Listed

VERSION = "0.8.1"
_PERCENTILES = {"p001": 0.001, "p01": 0.01, "p05": 0.05, "p10": 0.1, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p90": 0.9,
                "p95": 0.95, "p99": 0.99, "p999": 0.999}  # fmt: skip
_BOUNDS = {"ttft": "ttft_ms", "tpot": "tpot_ms", "e2e": "e2el_ms"}
_INCOMPLETE = ("cancelled", "dropped")
_MEDIA = {"text": "tokens words characters", "image": "tokens images pixels bytes",
          "video": "tokens frames seconds bytes", "audio": "tokens samples seconds bytes",
          "tool_call": "tokens mixed_tokens count"}  # fmt: skip
"""Statistics that guidellm has of each medium; none of them is known."""
_MERGED_S = 1e-4
"""Events nearer than this are one in guidellm's rates."""

Mask: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Guidellm:
    """GuideLLM's metrics by GuideLLM's definitions, over the requests after the warm-up."""

    omits: ClassVar[str] = (
        "the gaps between the tokens of an answer, and so ITL; classes, stages, bounds other than ttft, tpot and e2e; "
        "its token rates over time count an answer at its end"
    )

    def render(self, run: Run) -> Iterator[str]:
        """The text of the file. Raises UsageError for a run without single requests."""
        found = _foreign.listed(run, "guidellm")
        report = {
            "metadata": {"version": 2, "guidellm_version": VERSION,
                         "python_version": str(run.info.versions.get("python", "")), "platform": "bench"},
            "config": {"spec": _scenario(found)},
            "benchmarks": iter([_benchmark(found)]),
            "conclusions": [],
        }  # fmt: skip
        yield from _foreign.chunks(report)
        yield "\n"


def _strategy(found: Listed) -> Facts:
    """Of arrivals that guidellm does not know, a trace: they are due at times of their own."""
    info = found.info
    law, _, users = _foreign.arrivals(found)
    if users is not None:
        return {"type_": "concurrent", "streams": users}
    if law in ("poisson", "constant") and info.workload.rate_rps:
        return {"type_": law, "rate": info.workload.rate_rps}
    return {"type_": "trace"}


def _scenario(found: Listed) -> Facts:
    model, url = _foreign.system(found.info)
    isl, osl = (max(1, round(float(found.column(name).mean()))) for name in ("prompt_tokens", "output_tokens_asked"))
    strategy = _strategy(found)
    profile: Facts = {"kind": strategy["type_"], "rate": [strategy.get("rate")]}
    if strategy["type_"] == "concurrent":
        profile = {"kind": "concurrent", "streams": [strategy["streams"]]}
    elif strategy["type_"] == "trace":
        profile = {"kind": "throughput", "max_concurrency": len(found.events.ok)}
    return {
        "backend": {"kind": "openai_http", "target": url or "http://localhost", "model": model},
        "profile": profile,
        "data": [{"kind": "synthetic_text", "prompt_tokens": isl, "output_tokens": osl}],
        "constraints": [{"kind": "max_requests", "count": len(found.events.ok)}],
    }


def _benchmark(found: Listed) -> Facts:
    events, scenario = found.events, _scenario(found)
    status = np.array(found.run.requests["status"].to_pylist())
    left = np.isin(status, _INCOMPLETE)
    states = {"successful": events.ok, "errored": ~events.ok & ~left, "incomplete": left}
    made: Facts = {name: int(mask.sum()) for name, mask in states.items()}
    made["total"] = len(events.ok)
    start_s, end_s = found.epoch_s + events.start_s, found.epoch_s + float(np.nanmax(events.end_s, initial=0.0))
    of = hashlib.sha256(f"{found.info.schedule.sha256}{found.info.started}".encode()).hexdigest()[:32]
    slo = {_BOUNDS[metric]: limit * 1e3 for metric, limit in found.limits.items()}
    late_s = float(np.mean(_foreign.known(events.sent_s - events.due_s))) if not np.isnan(events.sent_s).all() else 0.0
    time_s = float(np.mean(found.times.e2e[events.ok])) if events.ok.any() else 0.0
    none_s = dict.fromkeys(("queued_time_avg", "resolve_start_delay_avg", "resolve_end_delay_avg",
                            "finalized_delay_avg", "processed_delay_avg", "request_start_delay_avg"), 0.0)  # fmt: skip
    late = dict.fromkeys(("resolve_targeted_start_delay_avg", "request_targeted_start_delay_avg"), late_s)
    return {
        "type_": "generative_benchmark",
        "config": {
            "id_": of, "run_id": of, "run_index": 0, "strategy": _strategy(found), "constraints": {},
            "slo": slo or None, "profile": scenario["profile"], "requests": scenario["data"][0],
            "backend": scenario["backend"], "environment": {"made_by": "bench"},
        },
        "scheduler_state": {
            "node_id": 0, "num_processes": 1, "start_time": start_s, "end_time": end_s,
            "created_requests": made["total"], "processed_requests": made["total"],
            "successful_requests": made["successful"], "errored_requests": made["errored"],
            "cancelled_requests": made["incomplete"],
        },
        "scheduler_metrics": {
            "start_time": start_s, "request_start_time": start_s, "measure_start_time": start_s,
            "measure_end_time": end_s, "request_end_time": end_s, "end_time": end_s, "requests_made": made,
            "generation_delay": _spread(np.zeros(0)), **none_s, **late, "request_time_avg": time_s,
            "resolve_time_avg": time_s, "dataset_incomplete": False, "strategy_type": _strategy(found)["type_"],
        },
        "metrics": _metrics(found, states, made, start_s, end_s),
        "requests": {name: _requests(found, mask) for name, mask in states.items()} | {"total": None},
        "start_time": start_s,
        "end_time": end_s,
        "duration": end_s - start_s,
    }  # fmt: skip


def _metrics(found: Listed, states: Mapping[str, Mask], made: Facts, start_s: float, end_s: float) -> Facts:
    events, times, judged = found.events, found.times, found.judged
    prompt, output = found.column("prompt_tokens"), np.where(events.events > 0, events.tokens, 0.0)
    first, end = events.first_s - events.sent_s, events.end_s - events.sent_s
    later = np.maximum(output - 1, 0.0)
    own_tpot = np.where(output > 0, (events.last_s - events.sent_s) / np.maximum(output, 1), np.nan)

    def each(values: Floats, weights: Floats | None = None) -> Facts:
        return {name: _spread(values[m], None if weights is None else weights[m])
                for name, m in (*states.items(), ("total", np.ones(len(values), bool)))}  # fmt: skip

    def rate(weights: Floats) -> Facts:
        return {name: _rates(found.epoch_s + events.end_s[m], weights[m], start_s, end_s)
                for name, m in (*states.items(), ("total", np.ones(len(weights), bool)))}  # fmt: skip

    ones, dispatch = np.ones(len(events.ok)), events.sent_s - events.due_s
    tpot = (events.last_s - events.first_s) / np.where(later > 0, later, np.nan)
    due = _strategy(found)["type_"] != "concurrent"
    goodput: Facts | None = None
    if found.limits and judged.of:
        limits = [(times.of(metric), limit) for metric, limit in found.limits.items()]
        good = np.logical_and.reduce([events.ok, *(values <= limit for values, limit in limits)])
        goodput = rate(np.where(good, 1.0, 0.0)) | {name: _spread(np.zeros(0)) for name in ("errored", "incomplete")}
    return {
        "request_totals": made,
        "requests_per_second": rate(ones),
        "request_concurrency": {
            name: _concurrency(found.epoch_s + events.sent_s[m], found.epoch_s + events.end_s[m], start_s, end_s)
            for name, m in (*states.items(), ("total", np.ones(len(ones), bool)))
        },
        "request_latency": each(end),
        "request_dispatch_delay": each(dispatch) if due else None,
        "request_scheduled_latency": each(events.end_s - events.due_s) if due else None,
        "request_streaming_iterations_count": each(events.events),
        "prompt_token_count": each(prompt),
        "output_token_count": each(output),
        "total_token_count": each(prompt + output),
        "time_to_first_token_ms": each(first * 1e3),
        "time_to_first_output_token_ms": each(first * 1e3),
        "time_per_output_token_ms": each(own_tpot * 1e3, output),
        "inter_token_latency_ms": each(tpot * 1e3, later),
        "time_to_last_round_trip_ms": _none(states),
        "avg_round_trip_time_ms": _none(states),
        "prompt_tokens_per_second": rate(prompt),
        "output_tokens_per_second": rate(output),
        "tokens_per_second": rate(prompt + output),
        "output_tokens_per_iteration": each(output / np.where(events.events > 0, events.events, np.nan)),
        "iter_tokens_per_iteration": each(later / np.where(events.events > 1, events.events - 1, np.nan)),
        **{medium: dict.fromkeys(names.split()) for medium, names in _MEDIA.items()},
        "slo_attainment": judged.good / judged.of if goodput and judged.good is not None and judged.of else None,
        "slo_determined_requests": judged.of if goodput else 0,
        "request_goodput": goodput,
    }  # fmt: skip


def _none(states: Mapping[str, Mask]) -> Facts:
    return {name: _spread(np.zeros(0)) for name in (*states, "total")}


def _spread(values: Floats, weights: Floats | None = None, count: int | None = None) -> Facts:
    """guidellm's summary of values, each with a weight; zeros of no values."""
    weights = np.ones(len(values)) if weights is None else weights
    there = ~np.isnan(values) & (weights > 0)
    values, weights = values[there], weights[there]
    if not len(values):
        names = ("mean", "median", "mode", "variance", "std_dev", "min", "max", "total_sum")
        return dict.fromkeys(names, 0.0) | {"count": 0, "percentiles": dict.fromkeys(_PERCENTILES, 0.0)}
    distinct, inverse = np.unique(values, return_inverse=True)
    share = np.bincount(inverse, weights) / weights.sum()
    up_to = np.minimum(np.cumsum(share) + 1e-12, 1.0)  # 0.29 * 100 is a little more than 29
    up_to[-1] = 1.0
    at = {name: float(distinct[np.searchsorted(up_to, q)]) for name, q in _PERCENTILES.items()}
    mean = float(np.sum(distinct * share))
    variance = float(np.sum((distinct - mean) ** 2 * share))
    count = round(float(weights.sum())) if count is None else count
    return {
        "mean": mean, "median": at["p50"], "mode": float(distinct[np.argmax(share)]), "variance": variance,
        "std_dev": variance**0.5, "min": float(distinct[0]), "max": float(distinct[-1]), "count": count,
        "total_sum": mean * count, "percentiles": at,
    }  # fmt: skip


def _rates(at_s: Floats, weights: Floats, start_s: float, end_s: float) -> Facts:
    """Rates of events over time: each event's weight over the time that is nearer to it than to its neighbours."""
    known = ~np.isnan(at_s)
    times, occurred = _merged([*at_s[known], start_s, end_s], [*weights[known], 0.0, 0.0])
    if len(times) < 2:
        return _spread(np.zeros(0))
    middles = (times[1:] + times[:-1]) / 2
    lasted = np.maximum(np.diff(np.concatenate([times[:1], middles, times[-1:]])), 1e-6)
    return _spread(occurred / lasted, lasted, round(float(occurred.sum())))


def _concurrency(begin_s: Floats, finish_s: Floats, start_s: float, end_s: float) -> Facts:
    """Requests under way, by how long so many were."""
    known = ~np.isnan(begin_s) & ~np.isnan(finish_s)
    n = int(known.sum())
    if not n:
        return _spread(np.zeros(0))
    times, steps = _merged([*begin_s[known], *finish_s[known], start_s, end_s], [*[1.0] * n, *[-1.0] * n, 0.0, 0.0])
    return _spread(np.maximum(np.cumsum(steps), 0.0)[:-1], np.diff(times), n)


def _merged(times: Sequence[float], weights: Sequence[float]) -> tuple[Floats, Floats]:
    """Events in order, those that come together as one."""
    order = np.argsort(np.asarray(times), kind="stable")
    at_s, weight = np.asarray(times)[order], np.asarray(weights)[order]
    first = np.concatenate([[True], np.diff(at_s) > _MERGED_S])
    return at_s[first], np.bincount(np.cumsum(first) - 1, weight).astype(np.float64)


def _requests(found: Listed, mask: Mask) -> Iterator[Facts]:
    events, epoch_s = found.events, found.epoch_s
    prompt, cached = found.column("prompt_tokens"), found.column("cached_tokens")
    ids = found.column("request_id").astype(int).tolist()

    def at(values: Floats, i: int) -> float | None:
        return None if np.isnan(values[i]) else epoch_s + float(values[i])

    for i, row in enumerate(_foreign.rows(found.run)):
        if not mask[i]:
            continue
        output = int(events.tokens[i]) if len(row.token_s) else 0
        sent = at(events.sent_s, i)
        ended = at(events.end_s, i) or sent
        status = "completed" if row.status == "ok" else "cancelled" if row.status in _INCOMPLETE else "errored"
        timings = {
            "targeted_start": at(events.due_s, i), "queued": at(events.due_s, i), "dequeued": sent,
            "scheduled_at": sent, "resolve_start": sent, "request_start": sent,
            "first_request_iteration": at(events.first_s, i), "first_token_iteration": at(events.first_s, i),
            "first_output_token_iteration": at(events.first_s, i), "last_token_iteration": at(events.last_s, i),
            "last_request_iteration": at(events.last_s, i), "request_iterations": len(row.token_s),
            "token_iterations": len(row.token_s), "request_end": ended, "resolve_end": ended,
        }  # fmt: skip
        info = {"request_id": str(ids[i]), "turn_index": row.turn, "status": status, "timings": timings,
                "error": row.error or None}  # fmt: skip
        if row.session is not None:
            info["conversation_id"] = str(row.session)
        tokens = int(prompt[i])
        hit = None if np.isnan(cached[i]) else int(cached[i])
        yield {
            "type_": "generative_request_stats",
            "request_id": str(ids[i]),
            "request_args": None,
            "info": info,
            "input_metrics": {"text_tokens": tokens, "cached_tokens": hit, "total_tokens": tokens},
            "output_metrics": {"text_tokens": output, "total_tokens": output},
            "prompt_tokens": tokens,
            "cached_tokens": hit,
            "output_tokens": output,
        }
