"""The text of `bench explain` for a workload."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from workloads.listed import Listed
from workloads.mixed import Mixed

if TYPE_CHECKING:
    from harness.api import Lengths
    from workloads._loaded import Loaded

DRAWS = 100_000
_LABELS = {"source": "Source", "preparation": "Preparation", "tokenizer": "Tokenizer", "licence": "Licence",
           "slo_source": "SLO from"}  # fmt: skip


def text(loaded: Loaded, about: str) -> str:
    """What the workload is, its lengths, arrivals, SLO and provenance, one fact a line."""
    lines = [loaded.name, "", about, ""]
    workload = loaded.workload
    if isinstance(workload, Listed):
        lines += _listed(workload)
    elif isinstance(workload, Mixed):
        lines += _lengths(workload.lengths)
        lines.append(f"Arrivals: {loaded.arrivals_text}, mean {loaded.rate_rps:g} requests/s")
        lines.append(f"Lengths from: {loaded.lengths_text}")
    lines.append(f"Default SLO: {_slo(loaded.slo)}")
    if loaded.requests:
        lines.append(f"Default number of requests: {loaded.requests}")
    lines += [f"{label}: {loaded.provenance[key]}" for key, label in _LABELS.items() if key in loaded.provenance]
    return "\n".join(lines) + "\n"


def _slo(slo: Mapping[str, float]) -> str:
    parts = [f"{metric.upper()} at most {bound:g} s" for metric, bound in slo.items()]
    return " and ".join(parts) or "none; give one with --slo"


def _listed(workload: Listed) -> Iterator[str]:
    yield "Requests (id: time, prompt -> output tokens):"
    for r in workload.requests:
        yield f"  {r.id}: {r.scheduled_s:g} s, {r.prompt_tokens} -> {r.output_tokens}"


def _lengths(lengths: Lengths) -> Iterator[str]:
    """Mean, p50 and p90 of prompt and output."""
    quantile = getattr(lengths, "quantile_tokens", None)
    if quantile is not None:
        p50, p90, origin = quantile(50), quantile(90), "stored quantiles"
    else:
        drawn = np.array(list(islice(lengths.pairs(np.random.default_rng(0)), DRAWS)))  # (N, 2)
        p50, p90 = np.quantile(drawn, [0.5, 0.9], axis=0, method="inverted_cdf").tolist()
        origin = f"p50 and p90 from {DRAWS:,} draws"
    for i, side in enumerate(("Prompt", "Output")):
        yield f"{side} tokens: mean {lengths.mean_tokens[i]:,.1f}, p50 {p50[i]:,}, p90 {p90[i]:,} ({origin})"
