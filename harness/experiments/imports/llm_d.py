"""Results of llm-d: a Benchmark Report 0.2.x, JSON or YAML, the aggregates of one run of some harness.

Source: llm-d-benchmark, package llmd-benchmark-report 0.2.1, schema_v0_2.py. Its latencies are by the definitions of
the harness that it was made from.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.experiments.imports._table import Json, ToolRun, aggregates, count, items, part, scaled, text
from harness.experiments.imports._table import number_of as number

_METRICS = {"ttft": "time_to_first_token", "tpot": "time_per_output_token", "itl": "inter_token_latency",
            "e2e": "request_latency"}  # fmt: skip
_STATISTICS = {"mean": "mean", "std": "stddev", "max": "max"} | {p: p for p in ("p50", "p90", "p95", "p99")}


@dataclass(frozen=True, slots=True)
class LlmD:
    """One report, which holds no single requests."""

    def recognizes(self, values: Sequence[Any]) -> bool:
        """Whether every value is such a report."""
        return all(
            str(part(v).get("version")).startswith("0.2") and bool(_aggregate(v)) and isinstance(v.get("run"), Mapping)
            for v in values
        )

    def runs(self, values: Sequence[Any]) -> Iterator[ToolRun]:
        for value in values:
            load, run = part(value, "scenario", "load", "standardized"), part(value, "run")
            rate, started = number(load.get("rate_qps")), part(run, "time").get("start")
            harness = " ".join(str(load[key]) for key in ("tool", "tool_version") if load.get(key))
            yield ToolRun(
                tool="llm-d",
                version=text(value.get("version")),
                answers=[],
                workload=text(run.get("description")),
                model=_model(value),
                started=text(started) or (None if started is None else str(started)),  # YAML has times of its own
                rate_rps=rate,
                closed=rate is None and load.get("concurrency") is not None,
                per_request=False,
                missing=frozenset({"scheduled_s"}),
                notes=(f"its latencies are by the definitions of {harness}",) if harness else (),
                aggregates=_aggregates(value),
            )


def _aggregate(value: object) -> Json:
    return part(value, "results", "request_performance", "aggregate")


def _model(value: Json) -> str | None:
    for component in items(part(value, "scenario").get("stack")):
        standard = part(component, "standardized")
        model = text(part(standard, "model").get("name")) or text(standard.get("model"))
        if model is not None:
            return model
    return None


def _aggregates(value: Json) -> dict[str, Any]:
    aggregate, bench = _aggregate(value), part(value, "results", "observability", "bench")
    latency, rates, requests = part(aggregate, "latency"), part(aggregate, "throughput"), part(aggregate, "requests")
    parts = {name: part(latency, tool_name) for name, tool_name in _METRICS.items()}
    failed = count(requests.get("failures")) + count(requests.get("incomplete"))
    completed = count(requests.get("total")) - failed
    return aggregates(
        {name: scaled(stats, _STATISTICS, 1e-3 if str(stats.get("units")).startswith("ms") else 1.0)
         for name, stats in parts.items()},
        {"throughput_rps": part(rates, "request_rate").get("mean"), "goodput_rps": bench.get("goodput_rps"),
         "output_tps": part(rates, "output_token_rate").get("mean"), "attainment": bench.get("attainment")},
        {"completed": completed, "failed": failed,
         "output_tokens": (number(part(requests, "output_length").get("mean")) or 0.0) * completed},
    )  # fmt: skip
