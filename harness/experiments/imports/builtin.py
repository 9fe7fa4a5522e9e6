"""Results of `vllm bench serve` and of SGLang's `sglang.benchmark.serving`, which began as the same program."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from harness.experiments.imports._table import (
    Answer,
    Json,
    Stamps,
    ToolRun,
    aggregates,
    columns_of,
    count,
    ended,
    items,
    objective,
    part,
    scaled,
    stamps,
    text,
)
from harness.experiments.imports._table import number_of as number

_STATISTICS = {"mean": "mean", "std": "std", "p50": "median", "p90": "p90", "p95": "p95", "p99": "p99"}
_NO_TIMES = (
    "SGLang writes no time at which a request was sent: rates, goodput per second and all that goes over time are "
    "unknown, and E2E is TTFT plus the gaps, a little shorter than its own, which runs to the end of the stream"
)


@dataclass(frozen=True, slots=True)
class Vllm:
    """Results of `vllm bench serve --save-result`: JSON, with a row per request where it was run with --save-detailed.

    One object, or several one below the other (--append-result), each a run. Latencies count from sending.

    Source: vllm-project/vllm, vllm/benchmarks/serve.py (0.33).
    """

    def recognizes(self, values: Sequence[Any]) -> bool:
        """Return whether every value is such a result."""
        return all(
            isinstance(v, Mapping) and {"request_throughput", "mean_ttft_ms", "backend"} <= v.keys()
            and isinstance(v["backend"], str)  # a run.json of bench once had vLLM's keys too
            and "total_output_tokens_retokenized" not in v for v in values
        )  # fmt: skip

    def runs(self, values: Sequence[Any]) -> Iterator[ToolRun]:
        for value in values:
            detailed = all(items(value.get(name)) for name in ("ttfts", "itls"))
            timed = bool(items(value.get("start_times"))) or not detailed  # older versions write no start_times
            answers = [*_answers(value)] if detailed else []
            uneven = any(a.status == "ok" and len(a.token_s) not in (a.output_tokens, a.output_tokens + 1)
                         for a in answers)  # fmt: skip
            rate = number(value.get("request_rate"))
            started = text(value.get("date"))
            with contextlib.suppress(ValueError):  # '20260102-030405' as ISO 8601; another text as it is
                started = started and datetime.strptime(started, "%Y%m%d-%H%M%S").isoformat()  # noqa: DTZ007  # local
            yield ToolRun(
                tool="vllm",
                answers=answers,
                model=text(value.get("model_id")),
                started=started,
                rate_rps=rate,
                closed=rate is None and number(value.get("max_concurrency")) is not None,
                per_request=detailed,
                missing=_missing(timed=timed, uneven=uneven),
                aggregates=_aggregates(value, "e2el") | {"failed": count(value.get("failed"))},
            )


@dataclass(frozen=True, slots=True)
class Sglang:
    """Results of SGLang's `sglang.benchmark.serving`: JSON lines, a run each; rows where it ran with --output-details.

    There is no time at which a request was sent.

    Source: sgl-project/sglang, python/sglang/benchmark/serving.py (0.5.23).
    """

    def recognizes(self, values: Sequence[Any]) -> bool:
        """Return whether every value is such a result."""
        return all(isinstance(v, Mapping) and "total_output_tokens_retokenized" in v for v in values)

    def runs(self, values: Sequence[Any]) -> Iterator[ToolRun]:
        for value in values:
            detailed = bool(items(value.get("ttfts")))
            answers = [*_answers(value)] if detailed else []
            rate, numbers = number(value.get("request_rate")), _aggregates(value, "e2e_latency")
            sent = len(items(value.get("errors")))
            yield ToolRun(
                tool="sglang",
                answers=answers,
                workload=text(value.get("dataset_name")),
                model=text(part(value, "server_info").get("model_path")),
                rate_rps=rate,
                closed=rate is None and number(value.get("max_concurrency")) is not None,
                per_request=detailed,
                missing=_missing(timed=False, uneven=any(a.token_n is not None for a in answers)),
                notes=(_NO_TIMES,) if detailed else (),
                aggregates=numbers | {
                    "attainment": number(value.get("slo_attainment")),
                    "failed": max(0, sent - numbers["completed"]) if sent else None,
                },
                slo=objective(part(value, "goodput_slos_ms"), {"ttft": "ttft", "tpot": "tpot", "e2el": "e2e"}, 1e-3),
            )  # fmt: skip


def _missing(*, timed: bool, uneven: bool) -> frozenset[str]:
    """Return what such a file does not have: the due times always, those of sending, the tokens of each event."""
    return frozenset(["scheduled_s", *([] if timed else ["sent_s"]), *(["token_n"] if uneven else [])])


def _answers(value: Json) -> Iterator[Answer]:
    columns = columns_of(value, ("ttfts", "itls", "output_lens"), ("start_times", "input_lens", "errors"))
    for ttft_s, gaps_s, output, start_s, prompt, error in columns:
        sent_s, failed = start_s or 0.0, bool(error) or count(output) == 0 or not ttft_s
        token_s: Stamps = [] if failed else stamps(sent_s + ttft_s, gaps_s)
        yield ended(Answer(sent_s, token_s, count(prompt), count(output)), failed=failed, error=error)


def _aggregates(value: Json, e2e: str) -> dict[str, Any]:
    """Return the numbers of the tool, which calls E2E by that name."""
    names = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e": e2e}
    return aggregates(
        {metric: scaled(value, {k: f"{v}_{tool_name}_ms" for k, v in _STATISTICS.items()}, 1e-3)
         for metric, tool_name in names.items()},
        {"throughput_rps": value.get("request_throughput"), "goodput_rps": value.get("request_goodput"),
         "output_tps": value.get("output_throughput"), "duration_s": value.get("duration")},
        {"completed": value.get("completed"), "output_tokens": value.get("total_output_tokens")},
    )  # fmt: skip
