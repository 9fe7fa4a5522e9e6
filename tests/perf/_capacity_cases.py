"""Systems with a known capacity: searched many times, and measured once over a million requests.

The truth of a case is the crossing of a curve through runs of 1,000,000 requests at rates around it (`TRUTHS`, written
by `python tests/perf/capacity_coverage.py --truth`). Their requests are scored batch by batch, so memory stays small.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, cast

import _synthetic

from harness.data.records import to_table
from harness.experiments.trial import at_rate
from harness.metrics.slo import score
from harness.options import RunSpec
from harness.runner.plan import plan
from harness.stats.curves import fit

if TYPE_CHECKING:
    from harness.api import RequestRecord, Simulator

LONG = 1_000_000
BATCH = 4096
LEFT_OUT = 1000
"""Requests at the beginning of a long run that are not counted: the system starts empty."""

CHATBOT = RunSpec(
    workload="chatbot", backend="sim", latency="abc:distserve", policy="vllm-v0", slo="ttft=0.25,tpot=0.1"
)  # OPT-13B on an A100, colocated
CASES: Mapping[str, RunSpec] = {
    "chatbot": CHATBOT,
    "chatbot-tight": replace(CHATBOT, slo="ttft=0.4,tpot=0.04"),
    "distserve-fig1": replace(CHATBOT, workload="distserve-fig1", latency="abc:vllm", slo="ttft=0.4,tpot=0.04"),
    "synthetic": replace(_synthetic.spec(requests=2200), requests=None, warmup=None, rate=None),
    "synthetic-bursty": replace(_synthetic.spec(requests=2200, cv=2.0), requests=None, warmup=None, rate=None),
}
TRUTHS: Mapping[str, float] = {"chatbot": 2.254, "synthetic": 14.40, "synthetic-bursty": 12.33}
"""Requests per second at 90%, from runs of a million requests: chatbot of six seeds (90.03% at 2.25, standard error
0.02 points; 0.064 points less for each 0.01 above), synthetic of four (89.34% at 14.43, standard error 0.2 points),
bursty of three (90.99% at 12.2, 87.82% at 12.6)."""


def attainment(spec: RunSpec, rate_rps: float, requests: int = LONG) -> float:
    """Joint attainment of one long run."""
    planned = plan(replace(at_rate(spec, rate_rps), requests=requests, backend=f"{spec.backend}{_no_steps(spec)}"))
    simulator = cast("Simulator", planned.backend)
    met = of = 0
    for records in _batches(simulator.simulate(planned.schedule.planned(), None)):
        counted = score(to_table([r for r in records if r.request_id >= LEFT_OUT]), planned.slo).met
        met, of = met + int(counted.sum()), of + len(counted)
    return met / of


def truth(spec: RunSpec, rates_rps: Sequence[float], goal: float = 0.9) -> float:
    """The crossing of the curve through long runs at these rates."""
    shares = [attainment(spec, rate) for rate in rates_rps]
    for rate, share in zip(rates_rps, shares, strict=True):
        print(f"    {rate:.5g} req/s: {share:.4%}", flush=True)
    curve = fit(rates_rps, shares, [LONG] * len(shares))
    found = None if curve is None else curve.crossing(goal)
    return math.nan if found is None else found


def _no_steps(spec: RunSpec) -> str:
    return f"{',' if ':' in spec.backend else ':'}log_steps=false"


def _batches(records: Iterator[RequestRecord]) -> Iterator[list[RequestRecord]]:
    while batch := list(islice(records, BATCH)):
        yield batch
