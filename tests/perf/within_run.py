"""Per rate: how often the intervals of one run cover the truth, how often it has none, and how often it is called
overloaded.

    python tests/perf/within_run.py --rates 0.5,1,2,3,3.5,4,4.5 --runs 200

The truth is that of long runs with other seeds. An interval "within this run" should cover it in 95 of 100 runs and
must not be given where it does not; overload must be 0 of 100 at 0.9 of the capacity (2.1 req/s) and at least 95 of 100
at 1.15 of the saturation (3.9 req/s).
"""

import argparse
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from harness.data.codec import encode
from harness.data.records import since
from harness.experiments import pool, trial
from harness.metrics import measure
from harness.metrics.objective import parse_slo, score
from harness.options import RunSpec
from harness.stats.within_run import within
from harness.validity import steady_state

SLO = "ttft=0.25,tpot=0.1"
QUANTITIES = ("attainment", "ttft mean", "ttft p99", "tpot mean", "tpot p99")


@dataclass(frozen=True, slots=True)
class Seen:
    """What a run measured, in the order of `QUANTITIES`, its intervals or None, and its marks."""

    values: tuple[float, ...]
    intervals: tuple[tuple[float, float] | None, ...]
    given: bool
    alike: float
    overloaded: bool


def spec_of(rate_rps: float, seed: int, requests: int, arrivals: str) -> RunSpec:
    """Chatbot traffic on OPT-13B and one A100, with DistServe's coefficients and vLLM's first policy."""
    return RunSpec(
        workload="chatbot", backend="sim", latency="abc:distserve", policy="vllm-v0", rate=rate_rps, requests=requests,
        seed=seed, arrivals=arrivals, slo=SLO,
    )  # fmt: skip


def look(spec: RunSpec) -> Seen:
    """Simulate a run and compute its intervals."""
    table = trial.simulate(spec).table
    cut = steady_state.find(table, "mser5")
    measured = since(table, cut.since_s)
    grown = steady_state.overload(table) is not None
    info = encode(within(measured, parse_slo(SLO), overloaded=grown))
    ttft_s, tpot_s = (measure.per_request(measure.metrics()[name], measured) for name in ("ttft", "tpot"))
    values = [score(measured, parse_slo(SLO)).attainment]
    for of in (ttft_s, tpot_s):
        values += [float(np.nanmean(of)), float(np.nanquantile(of, 0.99))]
    share = info["attainment"]
    found = [None if share is None else (share["low"], share["high"])]
    for name in ("ttft", "tpot"):
        found += [info["metrics"].get(name, {}).get(word) for word in ("mean", "p99")]
    return Seen(tuple(values), tuple(found), info["why_not"] is None, info["alike"] or 0.0, grown)


def covered(seen: Iterable[Seen], truth: tuple[float, ...]) -> list[str]:
    """Per quantity the share of the given intervals that hold the truth."""
    shown = []
    for i, value in enumerate(truth):
        pairs = [s.intervals[i] for s in seen if s.intervals[i] is not None]
        hits = [low <= value <= high for low, high in pairs if pairs]  # type: ignore[misc]  # None is left out above
        shown.append(f"{100 * np.mean(hits):.1f}%" if hits else "-")
    return shown


def main() -> None:
    """Print a line per rate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", default="0.5,1,2,3,3.5,4,4.5")
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--requests", type=int, default=2200)
    parser.add_argument("--long", type=int, default=40, help="runs of ten times the requests that give the truth")
    parser.add_argument("--arrivals", default="poisson")
    given = parser.parse_args()
    workers = pool.of()
    heads = ("rate", "lag-1 of TTFT", "overloaded", "with intervals", *QUANTITIES)
    print("  ".join(heads))
    for rate_rps in map(float, given.rates.split(",")):
        long = [spec_of(rate_rps, 10_000 + i, 10 * given.requests, given.arrivals) for i in range(given.long)]
        truth = tuple(np.mean([s.values for _, s in workers.map(look, long)], axis=0))
        specs = [spec_of(rate_rps, i, given.requests, given.arrivals) for i in range(given.runs)]
        seen = [s for _, s in workers.map(look, specs)]
        marks = (
            f"{np.median([s.alike for s in seen]):.2f}",
            f"{sum(s.overloaded for s in seen)} of {given.runs}",
            f"{sum(s.given for s in seen)} of {given.runs}",
        )
        cells = (f"{rate_rps:g}", *marks, *covered(seen, truth))
        print("  ".join(c.rjust(len(h)) for c, h in zip(cells, heads, strict=True)), flush=True)


if __name__ == "__main__":
    import within_run  # by its name, so that processes can find what they call

    within_run.main()
