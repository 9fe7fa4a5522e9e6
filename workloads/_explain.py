"""The text of `bench explain` for a workload."""

import shlex
from collections.abc import Iterator, Mapping
from itertools import islice

import numpy as np

from harness.api import LengthQuantiles, Lengths, Loaded
from workloads._build import spec_of
from workloads._presets import Listed, Preset
from workloads.arrivals.closed import Closed
from workloads.blend import Blend
from workloads.mixed import Mixed
from workloads.prefixes import Prefixes

DRAWS = 100_000
DRAWN = (
    "Tokens, classes and shared prefixes: 'bench trace generate {name} --requests 20000 -o drawn.parquet' and 'bench "
    "trace info drawn.parquet'"
)
WARMING_UP = "A run starts without sessions in progress: the request rate rises to its mean as follow-ups arrive."
_LABELS = {"source": "Source", "clients": "Clients", "clients_without_tokens": "Clients left out, without token counts",
           "preparation": "Preparation", "tokenizer": "Tokenizer", "licence": "Licence",
           "slo_source": "SLO from"}  # fmt: skip


def text(loaded: Loaded, preset: Preset) -> str:
    """What the workload is, its classes, lengths, arrivals, SLO and provenance, one fact a line."""
    lines = [loaded.name, "", preset.about, ""]
    workload = loaded.workload
    if isinstance(workload, Listed):
        lines.append("Requests (id: time, prompt -> output tokens):")
        lines += [f"  {r.id}: {r.scheduled_s:g} s, {r.prompt_tokens} -> {r.output_tokens}" for r in workload.requests]
    elif isinstance(workload, Mixed):
        lines += _mixed(workload)
        lines.append(f"Arrivals: {loaded.arrivals_text}, {_rate(loaded)}")
        lines.append(f"Lengths from: {loaded.lengths_text}")
    elif isinstance(workload, Blend):
        lines += _blend(workload, loaded)
    else:
        lines.append(f"Arrivals: {loaded.arrivals_text}, {_rate(loaded)}")
    if not isinstance(workload, Listed) and loaded.arrivals_text.partition(":")[0] != "closed":
        lines.append(DRAWN.format(name=shlex.quote(loaded.name)))
    if preset.arguments:
        lines.append("Arguments: " + ", ".join(f"{key}={value}" for key, value in preset.arguments.items()))
    lines.append(f"Default SLO: {_slo(loaded.slo)}")
    if loaded.requests:
        lines.append(f"Default number of requests: {loaded.requests}")
    lines += [f"{label}: {loaded.provenance[key]}" for key, label in _LABELS.items() if key in loaded.provenance]
    return "\n".join(lines) + "\n"


def _slo(slo: Mapping[str, float]) -> str:
    parts = []
    for metric, bound in slo.items():
        name, at_sign, tag = metric.partition("@")
        percentile, colon, plain = name.rpartition(":")
        parts.append(f"{percentile.upper()}{' ' if colon else ''}{plain.upper()} at most {bound:g} s"
                     f"{f' for {tag}' if at_sign else ''}")  # fmt: skip
    return " and ".join(parts) or "none; give one with --slo"


def _rate(loaded: Loaded) -> str:
    if loaded.rate_rps is None:
        return "at the rate that the answers allow"
    if loaded.arrivals_rps is None or loaded.arrivals_rps == loaded.rate_rps:
        return f"mean {loaded.rate_rps:g} requests/s"
    return f"mean {loaded.rate_rps:g} requests/s ({loaded.arrivals_rps:.4g} arrivals/s, each with its follow-ups)"


def _mixed(workload: Mixed) -> Iterator[str]:
    new = "" if workload.sessions is None and workload.prefixes is None else " (new in each request)"
    yield from _lengths(workload.lengths, new)
    if workload.prefixes is not None:
        yield f"Shared prefixes: {_prefixes(workload.prefixes)}"
    if workload.sessions is not None:
        yield f"Sessions: {spec_of(workload.sessions)}, mean {workload.sessions.mean_requests:.3g} requests each"
        yield WARMING_UP
    if isinstance(workload.arrivals, Closed):
        yield f"Users: {workload.arrivals.users}, each with one request under way"


def _blend(workload: Blend, loaded: Loaded) -> Iterator[str]:
    split = "split among the classes" if workload.arrivals is not None else "each class its own"
    kinds = {c.arrivals.__class__.__name__.lower() for c in workload.classes}
    # one name where they are all the same, as twenty times 'poisson' says no more
    arrivals = kinds.pop() if workload.arrivals is None and len(kinds) == 1 else loaded.arrivals_text
    yield f"Classes: {len(workload.classes)}; arrivals: {arrivals} ({split}), {_rate(loaded)}"
    for c in workload.classes[:8]:
        parts = [f"lengths {spec_of(c.lengths)}"]
        if c.sessions is not None:
            parts.append(f"sessions {spec_of(c.sessions)}, mean {c.sessions.mean_requests:.3g} requests")
        if c.prefixes is not None:
            parts.append(f"prefixes: {_prefixes(c.prefixes)}")
        if c.deadline_s is not None:
            parts.append(f"deadline of a task {c.deadline_s:g} s")
        if c.priority:
            parts.append(f"priority {c.priority}")
        if c.offline:
            parts.append("offline")
        yield f"  {c.tag}: {'; '.join(parts)}"
    if len(workload.classes) > 8:
        yield f"  and {len(workload.classes) - 8} more"
    if any(c.sessions is not None and c.sessions.mean_requests > 1 for c in workload.classes):
        yield WARMING_UP


def _prefixes(prefixes: Prefixes) -> str:
    popular = f", popularity Zipf({prefixes.zipf:g})" if prefixes.count > 1 else ""
    return f"{prefixes.count} of {prefixes.tokens} tokens{popular}, in {prefixes.share:.0%} of the requests"


def _lengths(lengths: Lengths, new: str) -> Iterator[str]:
    """Mean, p50 and p90 of prompt and output."""
    if isinstance(lengths, LengthQuantiles):
        p50, p90, origin = lengths.quantile_tokens(50), lengths.quantile_tokens(90), "stored quantiles"
    else:
        drawn = np.array(list(islice(lengths.pairs(np.random.default_rng(0)), DRAWS)))  # (N, 2)
        p50, p90 = np.quantile(drawn, [0.5, 0.9], axis=0, method="inverted_cdf").tolist()
        origin = f"p50 and p90 from {DRAWS:,} draws"
    for i, side in enumerate(("Prompt", "Output")):
        mean = lengths.mean_tokens[i]
        yield f"{side} tokens{new}: mean {mean:,.1f}, p50 {p50[i]:,}, p90 {p90[i]:,} ({origin})"
