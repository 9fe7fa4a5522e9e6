"""A run as the result of `vllm bench serve --save-result --save-detailed`: one JSON object.

Source: vllm-project/vllm, vllm/benchmarks/serve.py (0.33). Latencies count from sending, aggregates are in ms.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from harness import registry
from harness.data.folder import Run
from harness.data.lists import lists, number
from harness.data.run_json import RunInfo
from harness.errors import UsageError
from harness.experiments.rescore import reading
from harness.experiments.rescore.side_by_side import events_of_run
from harness.metrics.measure import missing
from harness.metrics.profiles._base import Events
from harness.metrics.summary import peak_in_flight, summarize, vllm_keys
from harness.validity.warnings import is_closed
from reports import _data


@dataclass(frozen=True, slots=True)
class Vllm:
    """vLLM's keys by vLLM's definitions, over the requests after the warm-up; `detailed` adds the lists of requests."""

    detailed: bool = True
    omits: ClassVar[str] = (
        "when requests were due (its latencies count from sending), classes, turns, stages, the way in which a request "
        "failed, and bounds other than ttft, tpot and e2e"
    )

    def render(self, run: Run) -> Iterator[str]:
        """The text of the file. Raises UsageError for a run without single requests or gaps."""
        lost = missing(run.requests)
        if not len(run.requests):
            raise UsageError(f"'{run.path}' holds no single requests, which the format is made of.")
        for name, what in (("sent_s", "when requests were sent"), ("itl", "the gaps between tokens")):
            if name in lost:
                raise UsageError(f"'{run.path}' does not hold {what}, which the format is made of.")
        measured, events = _data.measured(run), events_of_run(reading.of_run(run), lost)
        info, table, seen = measured.info, measured.requests, _data.seen(measured)
        slo = _data.slo(run)
        keys = vllm_keys(table, slo, summarize(table, slo, seen=seen), events.start_s, seen=seen)
        cv, users = _arrivals(info, events)
        backend = str(info.backend.get("backend") or info.backend.get("name"))
        at = datetime.fromisoformat(info.started).timestamp() if info.started else 0.0
        facts = {
            "date": datetime.fromtimestamp(at).strftime("%Y%m%d-%H%M%S"),  # noqa: DTZ006  # local, as theirs
            "endpoint_type": backend,
            "backend": backend,
            "label": "bench",
            "model_id": str(info.backend.get("model") or "unknown"),
            "tokenizer_id": None,
            "num_prompts": len(table),
            "request_rate": info.workload.rate_rps if users is None and info.workload.rate_rps else "inf",
            "burstiness": 1 / cv**2 if cv else None,
            "max_concurrency": users,
        }
        # where nothing was measured vLLM has 0
        numbers = {name: 0.0 if value is None and name != "request_goodput" else value for name, value in keys.items()}
        yield from _chunks({**facts, **numbers, "rtfx": 0.0, **(_lists(measured, events) if self.detailed else {})})
        yield "\n"


def _arrivals(info: RunInfo, events: Events) -> tuple[float | None, int | None]:
    """The coefficient of variation of the gaps where their law is a gamma, and the users of a loop.

    Of a loop whose users are not known, as in a file of another tool, they are the most requests under way.
    """
    text = info.workload.arrivals or ""
    name = text.partition(":")[0]
    if is_closed(info.workload):
        stated = None if info.source else int(registry.make("arrivals", text).users)
        return None, stated or max(1, peak_in_flight(events.sent_s, events.end_s))
    cv = {"poisson": 1.0, "constant": 0.0}.get(name)
    return float(registry.make("arrivals", text).cv) if name == "gamma" else cv, None


def _lists(run: Run, events: Events) -> dict[str, Any]:
    """A value for each request, in seconds; 0 where there is none."""
    ok, times = events.ok, registry.make("profiles", "vllm").times(events)
    start_s = np.where(np.isnan(events.sent_s), events.due_s, events.sent_s)
    return {
        "input_lens": number(run.requests, "prompt_tokens").astype(int).tolist(),
        "output_lens": np.where(ok, events.tokens, 0).astype(int).tolist(),
        "ttfts": _zeros(times.ttft),
        "itls": _gaps(run),
        "latencies": _zeros(times.e2e),
        "start_times": start_s.tolist(),
        "queue_times": np.maximum(start_s - events.due_s, 0.0).tolist(),
        "generated_texts": iter([""] * len(ok)),
        "errors": _errors(run),
    }


def _zeros(values: npt.NDArray[np.float64]) -> list[float]:
    return [0.0 if math.isnan(value) else value for value in values.tolist()]


def _gaps(run: Run) -> Iterator[list[float]]:
    """Those of each request that ended well, read piece by piece."""
    for piece in run.pieces():
        stamps = lists(piece, "token_s")
        for i, ended in enumerate(piece["status"].to_pylist()):
            span = slice(stamps.offsets[i], stamps.offsets[i + 1])
            yield np.diff(stamps.values[span]).tolist() if ended == "ok" else []


def _errors(run: Run) -> Iterator[str]:
    """How each request failed, read piece by piece; empty where it ended well."""
    for piece in run.pieces():
        status = piece["status"].to_pylist()
        errors = piece["error"].to_pylist() if "error" in piece.column_names else status  # large runs: not in memory
        yield from ("" if ended == "ok" else error or ended for ended, error in zip(status, errors, strict=True))


def _chunks(value: object) -> Iterator[str]:
    """The JSON text of a value in pieces; an iterator in it is a list that is never held."""
    if isinstance(value, Mapping):
        for i, (name, member) in enumerate(value.items()):
            yield f"{', ' if i else '{'}{json.dumps(name)}: "
            yield from _chunks(member)
        yield "}" if value else "{}"
    elif isinstance(value, Iterator):
        yield "["
        for i, item in enumerate(value):
            yield ", " if i else ""
            yield from _chunks(item)
        yield "]"
    else:
        yield json.dumps(value, allow_nan=False)
