"""A run as the results of `aiperf profile`: profile_export.jsonl, a line per request, and profile_export_aiperf.json.

Source: ai-dynamo/aiperf 0.13, common/models/export_models.py and record_models.py. Its inter_token_latency is TPOT, its
inter_chunk_latency are the gaps; both files are in ms and count from sending.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

import numpy as np

from harness.data.folder import Run
from reports import _foreign
from reports._foreign import Facts, Floats, Listed, known

VERSION = "0.13.0"
_PERCENTS = (1, 5, 10, 25, 50, 75, 90, 95, 99)
_PHASES = {"poisson": "poisson", "gamma": "gamma", "constant": "constant"}
_BOUNDS = {"ttft": "time_to_first_token", "tpot": "inter_token_latency", "e2e": "request_latency"}


@dataclass(frozen=True, slots=True)
class Aiperf:
    """AIPerf's metrics by AIPerf's definitions, over the requests after the warm-up."""

    omits: ClassVar[str] = (
        "the tokens of each event, classes, stages, and bounds other than ttft, tpot and e2e; its latencies count from "
        "sending"
    )

    def render(self, run: Run) -> dict[str, Iterator[str]]:
        """The text of each file by its name. Raises UsageError for a run without single requests."""
        found = _foreign.listed(run, "aiperf")
        return {"profile_export.jsonl": _lines(found), "profile_export_aiperf.json": _aggregates(found)}


def _lines(found: Listed) -> Iterator[str]:
    events, times = found.events, found.times
    start_s = np.where(np.isnan(events.sent_s), events.due_s, events.sent_s)
    end_s = np.fmax(np.fmax(events.end_s, events.last_s), start_s)
    prompt, cached = found.column("prompt_tokens"), found.column("cached_tokens")
    ids = found.column("request_id").astype(int).tolist()
    for i, row in enumerate(_foreign.rows(found.run)):
        ok, output = row.status == "ok", int(events.tokens[i])
        metrics: Facts = {"input_sequence_length": _value(int(prompt[i]), "tokens")}
        if not np.isnan(cached[i]):
            metrics["usage_prompt_cache_read_tokens"] = _value(int(cached[i]), "tokens")
        if ok:
            metrics |= {
                "output_sequence_length": _value(output, "tokens"),
                "request_latency": _value(times.e2e[i] * 1e3, "ms"),
                "time_to_first_token": _value(times.ttft[i] * 1e3, "ms"),
            }
            gaps_ms = (np.diff(row.token_s) * 1e3).tolist()
            if found.gaps_s is not None and gaps_ms:
                metrics["inter_chunk_latency"] = _value(gaps_ms, "ms")
            if not np.isnan(times.tpot[i]):
                metrics["inter_token_latency"] = _value(times.tpot[i] * 1e3, "ms")
        line: Facts = {
            "metadata": {
                "session_num": i if row.session is None else row.session,
                "x_request_id": str(ids[i]),
                "conversation_id": None if row.session is None else str(row.session),
                "turn_index": row.turn,
                "credit_issued_ns": _ns(found, events.due_s[i]),
                "request_start_ns": _ns(found, start_s[i]),
                "request_end_ns": _ns(found, end_s[i]),
                "worker_id": "bench",
                "record_processor_id": "bench",
                "benchmark_phase": "profiling",
                "was_cancelled": row.status == "cancelled",
            },
            "metrics": metrics,
        }
        if not ok:
            line["error"] = {"type": row.status, "message": row.error}
        yield json.dumps(line, allow_nan=False) + "\n"


def _value(value: float | list[float], unit: str) -> Facts:
    return {"value": value if isinstance(value, list | int) else float(value), "unit": unit}


def _ns(found: Listed, at_s: float) -> int:
    return round(found.epoch_s * 1e6) * 1000 + round(float(at_s) * 1e9)  # a float of both would be 256 ns apart


def _aggregates(found: Listed) -> Iterator[str]:
    events, times, judged = found.events, found.times, found.judged
    ok, duration_s = events.ok, judged.duration_s
    prompt, output = found.column("prompt_tokens")[ok], events.tokens[ok]
    metrics = {
        "request_latency": _spread(known(times.e2e) * 1e3, "ms"),
        "time_to_first_token": _spread(known(times.ttft) * 1e3, "ms"),
        "inter_token_latency": _spread(known(times.tpot) * 1e3, "ms"),
        "inter_chunk_latency": _spread(np.empty(0) if found.gaps_s is None else found.gaps_s * 1e3, "ms"),
        "output_token_throughput_per_user": _spread(1 / known(np.where(times.tpot > 0, times.tpot, np.nan)),
                                                    "tokens/sec/user"),
        "input_sequence_length": _spread(prompt, "tokens"),
        "output_sequence_length": _spread(output, "tokens"),
        "request_count": _one(int(ok.sum()), "requests"),
        "error_request_count": _one(int((~ok).sum()), "requests"),
        "total_output_tokens": _one(output.sum(), "tokens"),
        "total_osl": _one(output.sum(), "tokens"),
        "total_isl": _one(prompt.sum(), "tokens"),
    }  # fmt: skip
    if duration_s:
        metrics |= {
            "benchmark_duration": _one(duration_s, "sec"),
            "request_throughput": _one(ok.sum() / duration_s, "requests/sec"),
            "output_token_throughput": _one(output.sum() / duration_s, "tokens/sec"),
            "total_token_throughput": _one((prompt.sum() + output.sum()) / duration_s, "tokens/sec"),
        }
    if found.limits and judged.good is not None and judged.of:
        metrics["good_request_count"] = _one(judged.good, "requests")
        metrics["good_request_fraction"] = _one(judged.good / judged.of, "ratio")
        if duration_s:
            metrics["goodput"] = _one(judged.good / duration_s, "requests/sec")
    begun, ended = (datetime.fromtimestamp(found.epoch_s + at_s).isoformat()  # noqa: DTZ006  # local, as aiperf's
                    for at_s in (events.start_s, np.nanmax(events.end_s, initial=events.start_s)))  # fmt: skip
    of = hashlib.sha256(f"{found.info.schedule.sha256}{found.info.started}".encode()).hexdigest()[:12]
    facts = {
        "schema_version": "1.4",
        "aiperf_version": VERSION,
        "benchmark_id": of,
        **{name: value for name, value in metrics.items() if value},
        "input_config": _config(found),
        "run_info": {"benchmark_id": of, "trial": 0, "random_seed": found.info.seed, "cli_command": found.info.command},
        "was_cancelled": False,
        "is_complete": found.run.complete,
        "error_summary": _errors(found),
        "start_time": begun,
        "end_time": ended,
    }
    yield json.dumps(facts, indent=2, allow_nan=False) + "\n"


def _errors(found: Listed) -> list[Facts]:
    seen = Counter((row.status, row.error) for row in _foreign.rows(found.run) if row.status != "ok")
    return [{"error_details": {"type": kind, "message": text}, "count": n} for (kind, text), n in seen.most_common()]


def _spread(values: Floats, unit: str) -> Facts:
    """Statistics of a metric that has a value per request, or per gap; empty of no values."""
    if not len(values):
        return {}
    found = {f"p{p:g}": value for p, value in _foreign.percentiles(values, _PERCENTS).items()}
    numbers = {"avg": values.mean(), "min": values.min(), "max": values.max(), "std": values.std(), "sum": values.sum()}
    return {"unit": unit, **found, **{k: float(v) for k, v in numbers.items()}, "count": len(values)}


def _one(value: float, unit: str) -> Facts:
    return {"unit": unit, "avg": float(value)}


def _config(found: Listed) -> Facts:
    """The configuration as far as AIPerf's has a place for it: arrivals it does not know are a fixed schedule."""
    info = found.info
    law, cv, users = _foreign.arrivals(found)
    model, url = _foreign.system(info)
    phase: Facts = {"name": "profiling", "kind": "profiling", "requests": len(found.events.ok)}
    if users is not None:
        phase |= {"type": "concurrency", "concurrency": users}
    elif law in _PHASES and info.workload.rate_rps:
        phase |= {"type": _PHASES[law], "rate": info.workload.rate_rps}
        if law == "gamma" and cv:
            phase["smoothness"] = 1 / cv**2
    else:
        phase |= {"type": "fixed_schedule"}
    isl, osl = (float(found.column(name).mean()) for name in ("prompt_tokens", "output_tokens_asked"))
    return {
        "models": {"items": [{"name": model}]},
        "endpoint": {"urls": [url or "http://localhost"], "type": "chat", "streaming": True,
                     "use_server_token_count": True},
        "datasets": [{"name": "main", "type": "synthetic", "entries": len(found.events.ok),
                      "prompts": {"isl": {"mean": isl}, "osl": {"mean": osl}}}],
        "phases": [phase],
        **({"slos": {_BOUNDS[metric]: limit * 1e3 for metric, limit in found.limits.items()}} if found.limits else {}),
    }  # fmt: skip
