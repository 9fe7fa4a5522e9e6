"""Results of `aiperf profile`: profile_export.jsonl, a line per request, and profile_export_aiperf.json, aggregates.

Source: ai-dynamo/aiperf 0.13. It counts tokens with a tokenizer of its own unless --use-server-token-count is given.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from harness.experiments.imports._table import (
    Answer,
    Json,
    Stamps,
    ToolRun,
    aggregates,
    count,
    ended,
    miscounted,
    objective,
    part,
    scaled,
    text,
)
from harness.experiments.imports._table import number_of as number

_METRICS = {"ttft": "time_to_first_token", "tpot": "inter_token_latency", "itl": "inter_chunk_latency",
            "e2e": "request_latency"}  # fmt: skip
_BOUNDS = {"time_to_first_token": "ttft", "inter_token_latency": "tpot", "request_latency": "e2e"}
_WAITING = {"concurrency", "user_centric"}
"""Types of a phase in which a request waits for the answer to another."""

_DROPS = (
    "aiperf moves its schedule when it is late and skips arrivals above a limit on concurrency, so requests that were "
    "due may be missing from its file without a trace"
)


@dataclass(frozen=True, slots=True)
class Aiperf:
    """The lines of one run, its aggregates, or both one after the other."""

    beside: ClassVar[tuple[str, ...]] = ("profile_export.jsonl", "profile_export_aiperf.json")

    def recognizes(self, values: Sequence[Any]) -> bool:
        """Whether every value is a line of one request, or the aggregates."""
        return all(_is_line(v) or (isinstance(v, Mapping) and "aiperf_version" in v) for v in values)

    def runs(self, values: Sequence[Any]) -> Iterator[ToolRun]:
        lines = [v for v in values if _is_line(v)]
        summary: Json = next((v for v in values if not _is_line(v)), {})
        profiled = [v for v in lines if v["metadata"].get("benchmark_phase", "profiling") == "profiling"]
        origin_ns = min((int(v["metadata"]["request_start_ns"]) for v in profiled), default=0)
        answers = [_answer(v, origin_ns) for v in profiled]
        # Whether requests were due at times of their own, by the phase that was measured, and at which rate. Without
        # the aggregates this is unknown, and the times at which credits were issued are used.
        phases = part(summary, "input_config").get("phases")
        measured = [p for p in phases if p.get("name") == "profiling"] if isinstance(phases, list) else []
        rate = next((number(p.get("rate") or p.get("request_rate")) for p in measured), None)
        waiting = {str(p.get("type")) for p in measured} & _WAITING
        rated, rate = not waiting, None if waiting else rate
        due = rated and all(a.scheduled_s is not None for a in answers)
        if not due:
            answers = [replace(a, scheduled_s=None) for a in answers]
        left_out = len(lines) - len(profiled)
        notes = [_DROPS] if due else []
        if left_out:
            notes.append(f"{left_out} requests of aiperf's warm-up are left out")
        usage = [_value(line["metrics"], "usage_completion_tokens") for line in profiled]
        notes += miscounted("aiperf", zip((a.output_tokens for a in answers), usage, strict=True))
        config = part(summary, "input_config")
        uneven = any(a.token_n is not None for a in answers)
        yield ToolRun(
            tool="aiperf",
            version=text(summary.get("aiperf_version")),
            answers=answers,
            model=_first(part(config, "models").get("items"), "name"),
            url=_first(part(config, "endpoint").get("urls")),
            started=text(summary.get("start_time")),
            rate_rps=rate,
            closed=not due,
            per_request=bool(lines),
            missing=frozenset([*([] if due else ["scheduled_s"]), *(["token_n"] if uneven else [])]),
            notes=tuple(notes),
            aggregates=_aggregates(summary),
            slo=objective(part(config, "slos") or part(config, "goodput"), _BOUNDS, 1e-3),  # in the units it prints
        )


def _is_line(value: Any) -> bool:
    return "request_start_ns" in part(value, "metadata") and isinstance(value.get("metrics"), Mapping)


def _answer(line: Json, origin_ns: int) -> Answer:
    metadata, metrics = line["metadata"], line["metrics"]
    error = line.get("error")
    ttft, output = _value(metrics, "time_to_first_token"), count(_value(metrics, "output_sequence_length"))
    sent_s = _seconds(metadata.get("request_start_ns"), origin_ns)
    failed = error is not None or bool(metadata.get("was_cancelled")) or number(ttft) is None or output < 1
    gaps = _value(metrics, "inter_chunk_latency")
    stamps: Stamps = []
    if not failed and sent_s is not None:
        gaps_ms = np.atleast_1d(np.asarray([] if gaps is None else gaps, np.float64))
        stamps = sent_s + (number(ttft) or 0.0) / 1e3 + np.concatenate([[0.0], np.cumsum(gaps_ms)]) / 1e3
    answer = Answer(
        scheduled_s=_seconds(metadata.get("credit_issued_ns"), origin_ns),
        sent_s=sent_s,
        token_s=stamps,
        prompt_tokens=count(_value(metrics, "input_sequence_length")),
        output_tokens=output,
        status="cancelled" if metadata.get("was_cancelled") else "ok",
        session=text(metadata.get("conversation_id")),
        turn=count(metadata.get("turn_index")),
        ended_s=_seconds(metadata.get("request_end_ns"), origin_ns) if failed else None,
        prompt_tokens_server=_maybe(metrics, "usage_prompt_tokens"),
        cached_tokens=_maybe(metrics, "usage_prompt_cache_read_tokens"),
    )
    return ended(answer, failed=failed, error=part(line, "error").get("message") or error)


def _value(metrics: Json, tag: str) -> Any:
    return part(metrics, tag).get("value")


def _maybe(metrics: Json, tag: str) -> int | None:
    return None if number(_value(metrics, tag)) is None else count(_value(metrics, tag))


def _seconds(at_ns: object, origin_ns: int) -> float | None:
    return (at_ns - origin_ns) / 1e9 if isinstance(at_ns, int) else None


def _first(values: object, key: str | None = None) -> str | None:
    if not isinstance(values, list) or not values:
        return None
    return text(values[0] if key is None else part(values[0]).get(key))


def _aggregates(whole: Json) -> dict[str, Any]:
    names = {"mean": "avg", "std": "std", "p50": "p50", "p90": "p90", "p95": "p95", "p99": "p99"}
    plain = {"throughput_rps": "request_throughput", "goodput_rps": "goodput", "output_tps": "output_token_throughput",
             "attainment": "good_request_fraction", "duration_s": "benchmark_duration"}  # fmt: skip
    counts = {"completed": "request_count", "failed": "error_request_count", "output_tokens": "total_output_tokens"}
    averages = ({name: part(whole, tag).get("avg") for name, tag in tags.items()} for tags in (plain, counts))
    latencies = {name: scaled(part(whole, tag), names, 1e-3) for name, tag in _METRICS.items()}
    return aggregates(latencies, *averages) if whole else {}
