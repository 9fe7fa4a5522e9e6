"""A run as the result of `vllm bench serve --save-result --save-detailed`: one JSON object.

Source: vllm-project/vllm, vllm/benchmarks/serve.py (0.33). Latencies count from sending, aggregates are in ms.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

import numpy as np

from harness.data.folder import Run
from harness.metrics.summary import summarize, vllm_keys
from reports import _data, _foreign


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
        listing = _foreign.listed(run, "vllm", ("itl",))
        info, table, seen = run.info, listing.run.requests, _data.seen(listing.run)
        slo = _data.slo(run)
        keys = vllm_keys(table, slo, summarize(table, slo, seen=seen), listing.events.start_s, seen=seen)
        _, cv, users = _foreign.arrivals(listing)
        facts = {
            "date": datetime.fromtimestamp(listing.epoch_s).strftime("%Y%m%d-%H%M%S"),  # noqa: DTZ006  # local, as theirs
            "endpoint_type": str(info.backend.get("backend") or info.backend.get("name")),
            "backend": str(info.backend.get("backend") or info.backend.get("name")),
            "label": "bench",
            "model_id": _foreign.system(info)[0],
            "tokenizer_id": None,
            "num_prompts": len(table),
            "request_rate": info.workload.rate_rps if users is None and info.workload.rate_rps else "inf",
            "burstiness": 1 / cv**2 if cv else None,
            "max_concurrency": users,
        }
        # where nothing was measured vLLM has 0
        numbers = {name: 0.0 if value is None and name != "request_goodput" else value for name, value in keys.items()}
        yield from _foreign.chunks({**facts, **numbers, "rtfx": 0.0, **self._lists(listing)})
        yield "\n"

    def _lists(self, found: _foreign.Listed) -> dict[str, object]:
        """A value for each request, in seconds; 0 where there is none."""
        if not self.detailed:
            return {}
        events = found.events
        ok = events.ok
        start_s = np.where(np.isnan(events.sent_s), events.due_s, events.sent_s)
        return {
            "input_lens": found.column("prompt_tokens").astype(int).tolist(),
            "output_lens": np.where(ok, events.tokens, 0).astype(int).tolist(),
            "ttfts": _zeros(found.times.ttft),
            "itls": (np.diff(row.token_s).tolist() if row.status == "ok" else [] for row in _foreign.rows(found.run)),
            "latencies": _zeros(found.times.e2e),
            "start_times": start_s.tolist(),
            "queue_times": np.maximum(start_s - events.due_s, 0.0).tolist(),
            "generated_texts": iter([""] * len(ok)),
            "errors": (row.error for row in _foreign.rows(found.run)),
        }


def _zeros(values: _foreign.Floats) -> list[float]:
    return [0.0 if math.isnan(value) else value for value in values.tolist()]
