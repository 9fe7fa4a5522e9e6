"""Results of `guidellm run --output kind=json`: one object with a benchmark for each rate or number of streams.

Source: vllm-project/guidellm 0.8.1. Of each answer it keeps the first and the last token's time, and no gap between.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.api import Status
from harness.experiments.imports._table import (
    Answer,
    Json,
    ToolRun,
    aggregates,
    count,
    ended,
    items,
    objective,
    part,
    scaled,
    text,
)
from harness.experiments.imports._table import number_of as number

_DUE = ("constant", "poisson", "trace")
"""Strategies in which a request is due at a time of its own, whatever the others do."""

_STATUS: Mapping[str, Status] = {"successful": "ok", "errored": "error", "incomplete": "cancelled"}
_METRICS = {"ttft": ("time_to_first_token_ms", 1e-3), "tpot": ("inter_token_latency_ms", 1e-3),
            "e2e": ("request_latency", 1.0)}  # fmt: skip
_STATISTICS = {"mean": "mean", "std": "std_dev", "p50": "median", "p90": "p90", "p95": "p95", "p99": "p99"}
_NO_GAPS = "guidellm keeps the first and the last token of an answer and no gap between them, so there is no ITL"


@dataclass(frozen=True, slots=True)
class Guidellm:
    """One object, each of its `benchmarks` a run."""

    def recognizes(self, values: Sequence[Any]) -> bool:
        """Whether every value is such a result."""
        return all("guidellm_version" in part(v, "metadata") for v in values)

    def runs(self, values: Sequence[Any]) -> Iterator[ToolRun]:
        for value in values:
            for benchmark in items(value.get("benchmarks")):
                yield _run(value, benchmark)


def _run(value: Json, benchmark: Json) -> ToolRun:
    config = part(benchmark, "config")
    strategy = part(config, "strategy")
    kind = str(strategy.get("type_") or strategy.get("kind"))
    answers = [*_answers(benchmark, due=kind in _DUE)]
    due = kind in _DUE and all(a.scheduled_s is not None for a in answers)
    backend = part(config, "backend")
    sampled = number(config.get("sample_size"))
    notes = [_NO_GAPS]
    if sampled is not None:
        notes.append(
            f"guidellm kept a sample of at most {sampled:.0f} requests: shares and rates are those of the sample"
        )
    return ToolRun(
        tool="guidellm",
        version=text(part(value, "metadata").get("guidellm_version")),
        answers=answers,
        model=text(backend.get("model")),
        url=text(backend.get("target")),
        rate_rps=number(strategy.get("rate")) if due else None,
        closed=not due,
        per_request=bool(answers),
        missing=frozenset({"itl", "itl_p99", "token_n"} if due else {"itl", "itl_p99", "token_n", "scheduled_s"}),
        notes=tuple(notes),
        aggregates=_aggregates(benchmark),
        slo=objective(part(config, "slo"), {"ttft_ms": "ttft", "tpot_ms": "tpot", "e2el_ms": "e2e"}, 1e-3),
    )


def _answers(benchmark: Json, *, due: bool) -> Iterator[Answer]:
    for group, status in _STATUS.items():
        for request in items(part(benchmark, "requests").get(group)):
            times = part(request, "info", "timings")
            ends = [number(times.get(name)) for name in ("first_token_iteration", "last_token_iteration")]
            output = count(request.get("output_tokens") or part(request, "output_metrics").get("total_tokens"))
            stamps = _stamps(ends, output)
            answer = Answer(
                scheduled_s=number(times.get("targeted_start")) if due else None,
                sent_s=number(times.get("request_start")),
                token_s=stamps,
                token_n=[1, output - 1] if len(stamps) == 2 else None,
                prompt_tokens=count(request.get("prompt_tokens") or part(request, "input_metrics").get("total_tokens")),
                output_tokens=output,
                status=status,
                session=text(part(request, "info").get("conversation_id")),
                turn=count(part(request, "info").get("turn_index")),
                cached_tokens=None if request.get("cached_tokens") is None else count(request["cached_tokens"]),
                ended_s=number(times.get("request_end")) or number(times.get("resolve_end")),
            )
            yield ended(answer, failed=not stamps, error=part(request, "info").get("error"))


def _stamps(ends: Sequence[float | None], output_tokens: int) -> list[float]:
    first_s, last_s = ends
    if first_s is None or output_tokens < 1:
        return []
    return [first_s] if output_tokens == 1 or last_s is None else [first_s, last_s]


def _aggregates(benchmark: Json) -> dict[str, Any]:
    metrics, sums = part(benchmark, "metrics"), part(benchmark, "scheduler_metrics", "requests_made")
    latencies = {name: part(metrics, tool_name, "successful") for name, (tool_name, _) in _METRICS.items()}
    return aggregates(
        {name: scaled({**part(stats, "percentiles"), **stats}, _STATISTICS, _METRICS[name][1])
         for name, stats in latencies.items()},
        {"throughput_rps": part(metrics, "requests_per_second", "successful").get("mean"),
         "goodput_rps": metrics.get("request_goodput"),
         "output_tps": part(metrics, "output_tokens_per_second", "successful").get("mean"),
         "attainment": metrics.get("slo_attainment"), "duration_s": benchmark.get("duration")},
        {"completed": sums.get("successful"), "failed": count(sums.get("errored")) + count(sums.get("incomplete")),
         "output_tokens": part(metrics, "output_token_count", "successful").get("total_sum")},
    )  # fmt: skip
