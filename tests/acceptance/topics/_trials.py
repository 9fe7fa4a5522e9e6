"""Simulated runs that several topics make: one spec in, its `requests` table and quantiles out."""

import pyarrow as pa

from harness.configs import read
from harness.experiments.trial import SimulatedTrial, simulate
from harness.options import Given, respelled, run_spec
from harness.registry import make
from harness.spec import parse

VLLM = "vllm-v0:max_seqs=128,max_batched_tokens=8192"
"""The vLLM baseline of Sarathi-Serve for contexts of 8,192 tokens (section 5.1)."""


def trial(config: str | None = None, **options: object) -> SimulatedTrial:
    """The run of a named configuration with these options over it (dashes are underscores)."""
    file = read(config).given if config is not None else None
    given = {name.replace("_", "-"): str(value) for name, value in options.items()}
    backend = parse(given.get("backend", "sim"))
    if file is None and backend.name == "sim" and "latency" not in backend.args:
        given.setdefault("latency", "roofline")  # what the rows of the page were computed with
    return simulate(run_spec(Given(respelled(given)), file))


def quantile(table: pa.Table, metric: str, share: float) -> float:
    """Quantile of a metric over a run, pooled as the metric is; requests without a value are left out."""
    import numpy as np

    return float(np.nanquantile(make("metrics", metric).of(table), share))
