"""Is a run called overloaded below the capacity of its system, and above? On systems drawn at random where TPOT binds.

Model, GPU, policy, traffic, burstiness, length of the runs and bounds are drawn. The capacity is bisected with one
seed; then runs of other seeds at 0.97 of it and at 1.2 to 2 times it are marked. Five minutes.

    python tests/perf/overload_random.py [SEED:SYSTEMS ...]
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from harness.data.warmup_cut import kept
from harness.errors import BenchError
from harness.experiments import trial
from harness.metrics import measure, slo
from harness.options import RunSpec
from harness.validity import overload, warmup

MODELS = ("opt-13b", "llama2-7b", "llama2-13b", "llama3-8b", "mistral-7b", "qwen2.5-7b")
HARDWARE = ("a100-80g", "h100", "l40s", "h20")
POLICIES = ("sarathi", "vllm-v0", "sarathi:budget=512", "sarathi:budget=256")
WORKLOADS = ("chatbot", "code", "decode-heavy", "azure-conversation")
BELOW, ABOVE = 0.97, (1.2, 2.0)
RUNS_BELOW, RUNS_ABOVE = 4, 3
APART = 1.03
"""Ratio of the rates between which the capacity is known."""


@dataclass(frozen=True, slots=True)
class Marked:
    """A run, whether its queue grew, and whether it met the SLO."""

    above: bool
    grew: bool
    met: bool


def drawn(rng: np.random.Generator) -> Iterator[tuple[RunSpec, float]]:
    """Systems with their capacities, of which TPOT binds."""
    while True:
        model, hardware, policy, workload = (str(rng.choice(of)) for of in (MODELS, HARDWARE, POLICIES, WORKLOADS))
        cv, seed = float(rng.choice([1, 1, 1, 1.5, 2])), int(rng.integers(1, 10_000))
        sent = int(rng.choice([600, 1000, 1500]))
        spec = RunSpec(
            workload=workload, backend="sim", requests=150, seed=seed, rate=0.05, slo="ttft=100", model=model,
            hardware=hardware, policy=policy, arrivals="poisson" if cv == 1 else f"gamma:cv={cv:g}",
        )  # fmt: skip
        try:
            idle = trial.simulate(spec).table
        except BenchError:
            continue
        tpot_s, ttft_s = (measure.per_request(measure.metrics()[name], idle) for name in ("tpot", "ttft"))
        tpot = np.nanmedian(tpot_s) * rng.uniform(1.2, 3)
        bounds = f"ttft={np.nanquantile(ttft_s, 0.99) * rng.choice([10, 30, 100]):.4g},tpot={tpot:.4g}"
        spec = replace(spec, requests=sent, slo=bounds)
        found = capacity(spec)
        if found is not None:
            yield spec, found


def capacity(spec: RunSpec) -> float | None:
    """The rate up to which one seed reaches 90 %; None where there is none or TTFT binds."""
    low, high, binding = None, None, None
    rate = 0.5
    while low is None or high is None or high / low > APART:
        scored = score(replace(spec, rate=rate))[1]
        if (scored.attainment or 0.0) >= 0.9:
            low = rate
        else:
            high, binding = rate, scored.binding
        rate = (low * high) ** 0.5 if low and high else rate * 2 if high is None else rate / 2
        if not 0.01 <= rate <= 400:
            return None
    return low if binding is not None and binding.bound.metric == "tpot" else None


def score(spec: RunSpec) -> tuple[bool, slo.Score]:
    """Whether the queue of a run grew, and its score after the warm-up."""
    table = trial.simulate(spec).table
    cut = warmup.find(table, "mser5")
    grew = overload.overload(table, after_s=cut.at_s) is not None
    return grew, slo.score(kept(table, cut), slo.parse(str(spec.slo)))


def marked(rng: np.random.Generator, spec: RunSpec, capacity_rps: float) -> Iterator[Marked]:
    """The runs of a system below and above its capacity."""
    for factor in [BELOW] * RUNS_BELOW + [float(rng.uniform(*ABOVE)) for _ in range(RUNS_ABOVE)]:
        grew, scored = score(replace(spec, rate=capacity_rps * factor, seed=int(rng.integers(10_000, 10**6))))
        yield Marked(factor > 1, grew, bool(scored.passed))


def main() -> None:
    """Print how many runs were marked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("draws", nargs="*", default=["1:16", "2:14"], metavar="SEED:SYSTEMS")
    runs: list[Marked] = []
    systems = 0
    for seed, count in (draw.split(":") for draw in parser.parse_args().draws):
        rng = np.random.default_rng(int(seed))
        for spec, capacity_rps in islice(drawn(rng), int(count)):
            runs += marked(rng, spec, capacity_rps)
            systems += 1
    for name, above in ((f"{BELOW} of", False), ("1.2 to 2 times", True)):
        there = [run for run in runs if run.above == above]
        grew = [run for run in there if run.grew]
        print(f"{len(there)} runs at {name} the capacity of {systems} systems: the queue grew in {len(grew)}, ", end="")
        print(f"and the SLO was met in {sum(run.met for run in grew)} of these")


if __name__ == "__main__":
    main()
