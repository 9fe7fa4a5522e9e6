"""Results of inference-perf: per_request_lifecycle_metrics.json, and summary_lifecycle_metrics.json beside it.

Source: kubernetes-sigs/inference-perf 0.7.0. It stamps chunks and repeats the stamp for each token that its own
tokenizer finds in the chunk; its TPOT and throughput are of these tokens.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from harness.experiments.imports._table import (
    Answer,
    Json,
    ToolRun,
    aggregates,
    count,
    ended,
    items,
    last_line,
    miscounted,
    part,
    scaled,
    text,
)
from harness.experiments.imports._table import number_of as number

_METRICS = {"ttft": "time_to_first_token", "tpot": "time_per_output_token", "e2e": "request_latency",
            "itl": "inter_token_latency"}  # fmt: skip
_STATISTICS = {"mean": "mean", "p50": "median", "p90": "p90", "p95": "p95", "p99": "p99"}


@dataclass(frozen=True, slots=True)
class InferencePerf:
    """The list of requests, the summary of the run, or both one after the other."""

    beside: ClassVar[tuple[str, ...]] = ("per_request_lifecycle_metrics.json", "summary_lifecycle_metrics.json")

    def recognizes(self, values: Sequence[Any]) -> bool:
        """Whether every value is the list or the summary."""
        return all(_is_list(v) or _is_summary(v) for v in values)

    def runs(self, values: Sequence[Any]) -> Iterator[ToolRun]:
        rows = [row for value in values if _is_list(value) for row in value]
        summary: Json = next((v for v in values if _is_summary(v)), {})
        answers = [_answer(row) for row in rows]
        usage = (part(row, "info", "response_metrics", "server_usage").get("completion_tokens") for row in rows)
        yield ToolRun(
            tool="inference-perf",
            answers=answers,
            rate_rps=number(part(summary, "load_summary").get("requested_rate")),
            per_request=bool(rows),
            missing=frozenset({"scheduled_s"}),
            notes=tuple(miscounted("inference-perf", zip((a.output_tokens for a in answers), usage, strict=True))),
            aggregates=_aggregates(summary),
        )


def _is_list(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(
        isinstance(row, Mapping) and {"start_time", "end_time", "info"} <= row.keys() for row in value
    )  # fmt: skip


def _is_summary(value: Any) -> bool:
    return isinstance(value, Mapping) and {"load_summary", "successes"} <= value.keys()


def _answer(row: Json) -> Answer:
    response, computed = part(row, "info", "response_metrics"), part(row, "computed_metrics")
    repeated = np.asarray([t for t in items(response.get("output_token_times")) if number(t) is not None], np.float64)
    stamps, counts = np.unique(repeated, return_counts=True)  # a chunk's time stands once for each of its tokens
    error = row.get("error")
    failed = error is not None or not len(stamps)
    kind, message = text(part(error).get("error_type")), last_line(part(error).get("error_msg"))
    server = part(response, "server_usage")
    cached = part(server, "prompt_tokens_details").get("cached_tokens")
    answer = Answer(
        sent_s=number(row.get("start_time")),
        token_s=stamps,
        token_n=counts.tolist(),
        prompt_tokens=count(computed.get("input_tokens") or part(row, "info").get("input_tokens")
                            or server.get("prompt_tokens")),
        output_tokens=len(repeated),
        ended_s=number(row.get("end_time")) if failed else None,
        prompt_tokens_server=None if server.get("prompt_tokens") is None else count(server["prompt_tokens"]),
        cached_tokens=None if cached is None else count(cached),
        slo_ttft_s=number(computed.get("ttft_slo_sec")),
        slo_tpot_s=number(computed.get("tpot_slo_sec")),
    )  # fmt: skip
    return ended(answer, failed=failed, error=": ".join(words for words in (kind, message) if words) or error)


def _aggregates(whole: Json) -> dict[str, Any]:
    if not whole:
        return {}
    good, rates = part(whole, "successes"), part(whole, "successes", "throughput")
    return aggregates(
        {metric: scaled(part(good, "latency", name), _STATISTICS) for metric, name in _METRICS.items()},
        {"throughput_rps": rates.get("requests_per_sec"),
         "goodput_rps": part(good, "goodput_metrics").get("request_goodput"),
         "output_tps": rates.get("output_tokens_per_sec"), "duration_s": whole.get("benchmark_time_seconds")},
        {"completed": good.get("count"), "failed": part(whole, "failures").get("count"),
         "output_tokens": part(good, "output_tokens").get("total")},
    )  # fmt: skip
