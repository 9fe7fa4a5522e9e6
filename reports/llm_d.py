"""A run as a Benchmark Report 0.2.1 of llm-d: one JSON object, which is YAML too.

Source: llm-d-benchmark, package llmd-benchmark-report 0.2.1, schema_v0_2.py.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import numpy as np

from harness.data.codec import encode
from harness.data.folder import Run
from harness.metrics.quantiles import quantiles
from harness.validity.conclude import completed
from reports import _data, _foreign
from reports._foreign import Facts, Floats, Listed

_PERCENTILES = {f"p{p:g}".replace(".", "p"): p / 100 for p in (0.1, 1, 5, 10, 25, 50, 75, 90, 95, 99, 99.9)}
_LEFT = ("cancelled", "dropped")
"""Requests that the client gave up or never sent."""


@dataclass(frozen=True, slots=True)
class LlmD:
    """Aggregates of the requests after the warm-up, from sending, as llm-d's converters of other harnesses write them;
    SLO, attainment, goodput and verdict stand under `results.observability.bench`."""

    omits: ClassVar[str] = "single requests, when they were due (its latencies count from sending), classes and turns"

    def render(self, run: Run) -> Iterator[str]:
        """The text of the file. Raises UsageError for a run without single requests."""
        run = completed(run)
        listing = _foreign.listed(run, "vllm")
        report = {
            "version": "0.2.1",
            "run": _run(listing),
            "scenario": {"stack": [_component(listing)], "load": _load(listing)},
            "results": {
                "request_performance": {
                    "aggregate": {"requests": _requests(listing), "latency": _latency(listing),
                                  "throughput": _throughput(listing)},
                },
                "observability": {"bench": _ours(run)},
            },
        }  # fmt: skip
        yield from _foreign.chunks(report)
        yield "\n"


def _run(found: Listed) -> Facts:
    info = found.info
    what = f"{info.schedule.sha256}{info.started}{info.backend.get('backend') or info.backend.get('name')}"
    facts: Facts = {"uid": hashlib.sha256(what.encode()).hexdigest()[:32], "description": info.workload.name}
    if info.started:
        begun = datetime.fromtimestamp(found.epoch_s + found.events.start_s, UTC)
        duration_s = _duration_s(found)
        facts["time"] = {"start": begun.isoformat(), "end": (begun + timedelta(seconds=duration_s)).isoformat(),
                         "duration": f"PT{duration_s:.6f}S"}  # fmt: skip
    return facts


def _duration_s(found: Listed) -> float:
    """From the start of measuring to the last token, drain included, as vLLM counts it."""
    return max(float(np.nanmax(found.events.last_s, initial=found.events.start_s)) - found.events.start_s, 0.0)


def _component(found: Listed) -> Facts:
    """The measured system: an inference engine where the backend says on which GPUs it is, else its name."""
    info, backend = found.info, dict[str, Any](found.info.backend)
    model, url = _foreign.system(info)
    name = str(backend.get("backend") or backend.get("name"))
    version = str(backend.get("version") or info.versions.get("bench", "unknown"))
    standard: Facts = {"kind": "generic", "tool": name, "tool_version": version, "model": model, "url": url}
    if backend.get("hardware") and backend.get("gpus"):
        sizes = {size: max(int(backend.get(size) or 1), 1) for size in ("tp", "dp", "pp", "ep")}
        standard = {
            "kind": "inference_engine", "tool": name, "tool_version": version, "role": "replica",
            "replicas": max(int(backend.get("replicas") or 1), 1), "model": {"name": model},
            "accelerator": {"model": str(backend["hardware"]), "count": int(backend["gpus"]), "parallelism": sizes},
        }  # fmt: skip
    plain = {k: v for k, v in backend.items() if isinstance(v, str | int | float | bool)}
    return {"metadata": {"label": name, "cfg_id": _hash(plain)}, "standardized": standard, "native": {"config": plain}}


def _load(found: Listed) -> Facts:
    info = found.info
    law, _, users = _foreign.arrivals(found)
    lengths = {name: found.column(column) for name, column in
               (("input_seq_len", "prompt_tokens"), ("output_seq_len", "output_tokens_asked"))}  # fmt: skip
    standard: Facts = {
        "tool": "bench",
        "tool_version": str(info.versions.get("bench", "unknown")),
        "source": "unknown",
        **{name: _lengths(values) for name, values in lengths.items()},
    }
    if users is not None:
        standard["concurrency"] = users
    elif info.workload.rate_rps:
        standard["rate_qps"] = info.workload.rate_rps
    args = {k: v for k, v in info.spec.items() if isinstance(v, str | int | float | bool)}
    return {"metadata": {"cfg_id": _hash(args), "description": f"{info.workload.name}, {law} arrivals"},
            "standardized": standard, "native": {"args": args}}  # fmt: skip


def _lengths(tokens: Floats) -> Facts:
    low, high = int(tokens.min()), int(tokens.max())
    if low == high:
        return {"distribution": "fixed", "value": low}
    return {"distribution": "other", "value": float(tokens.mean()), "min": low, "max": max(high, 1)}


def _hash(facts: Mapping[str, Any]) -> str:
    return hashlib.sha256(repr(sorted(facts.items())).encode()).hexdigest()


def _requests(found: Listed) -> Facts:
    ok, status = found.events.ok, found.run.requests["status"].to_pylist()
    unfinished = sum(ended in _LEFT for ended in status)
    return {
        "total": len(ok),
        "failures": int((~ok).sum()) - unfinished,
        "incomplete": unfinished,
        "input_length": _statistics(found.column("prompt_tokens")[ok], "count"),
        "output_length": _statistics(found.events.tokens[ok], "count"),
    }


def _latency(found: Listed) -> Facts:
    times = found.times
    values = {
        "time_to_first_token": (times.ttft, "s"),
        "normalized_time_per_output_token": (times.e2e / np.maximum(found.events.tokens, 1), "s/token"),
        "time_per_output_token": (times.tpot, "s/token"),
        "inter_token_latency": (np.empty(0) if found.gaps_s is None else found.gaps_s, "s/token"),
        "request_latency": (times.e2e, "s"),
    }
    return {name: facts for name, pair in values.items() if (facts := _statistics(*pair)) is not None}


def _throughput(found: Listed) -> Facts:
    duration_s, ok = _duration_s(found), found.events.ok
    if not duration_s:
        return {}
    prompt, output = found.column("prompt_tokens")[ok].sum(), found.events.tokens[ok].sum()
    totals = {"input_token_rate": prompt, "output_token_rate": output, "total_token_rate": prompt + output}
    rates = {name: {"units": "tokens/s", "mean": float(total) / duration_s} for name, total in totals.items()}
    return {**rates, "request_rate": {"units": "queries/s", "mean": int(ok.sum()) / duration_s}}


def _statistics(values: Floats, units: str) -> Facts | None:
    """Those of the values that are not NaN; None without any."""
    values = values[~np.isnan(values)]
    if not len(values):
        return None
    facts = {"units": units, "mean": float(values.mean()), "stddev": float(values.std()), "min": float(values.min())}
    percentiles = quantiles(values.copy(), list(_PERCENTILES.values()))
    return facts | dict(zip(_PERCENTILES, percentiles, strict=True)) | {"max": float(values.max())}


def _ours(run: Run) -> Facts:
    """What the report has no place for, by our definitions: latencies count from when a request was due."""
    info, summary = run.info, run.info.summary
    facts = {
        "definitions": "bench: latencies from the scheduled time, a failed request misses its SLO",
        "slo": _data.slo(run).bounds and summary.slo,
        "goal": summary.goal,
        "attainment": summary.attainment,
        "goodput_rps": summary.goodput_rps,
        "throughput_rps": summary.throughput_rps,
        "metrics": {name: encode(values) for name, values in summary.metrics.items()},
        "valid": info.verdict.valid,
        "verdict": info.verdict.text,
    }
    return {name: value for name, value in facts.items() if value not in (None, ())}
