"""Is what `bench capacity` prints right on random systems? Draws them, searches them, and checks with long runs.

Models, GPUs, layouts, policies, workloads, arrivals and objectives are drawn from a seeded generator. Each is searched
with the default settings; runs of 20,000 requests then measure attainment at both ends of the printed range (interval,
else bracket) and 20% beyond them. `off` is how far the printed range misses the goal in points of attainment: too
high where its low end does not reach the goal, too low where its high end does. Worst first; `GROSS` marks a miss even
20% beyond the end.

    python tests/perf/capacity_random.py [--first 0] [--systems 24] [--budget 100s] [--requests 20000]
"""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from harness.data.warmup_cut import kept
from harness.errors import BenchError
from harness.experiments.capacity.conditions import settings
from harness.experiments.capacity.execute import run_search, set_up
from harness.experiments.capacity.store import Store
from harness.experiments.trial import at_rate, own_rate, simulate
from harness.metrics import slo
from harness.options import RunSpec
from harness.validity import warmup
from harness.validity.overload import overload

MODELS = (
    ("llama3-8b", 1), ("llama2-7b", 1), ("llama2-13b", 1), ("opt-13b", 1), ("mistral-7b", 1), ("qwen2.5-7b", 1),
    ("yi-34b", 2), ("llama3-70b", 4), ("qwen2.5-72b", 4), ("opt-66b", 4),
)  # fmt: skip
HARDWARE = ("h100", "a100-80g", "h200", "h800")
WORKLOADS = (
    "chatbot", "code", "summarization", "sharegpt-8k", "balanced", "prefill-heavy", "distserve-66b-code", "burstgpt",
)  # fmt: skip
POLICIES = ("sarathi", "vllm-v0", "vllm-v1", "orca", "fastgen")
ARRIVALS = (None, None, None, "gamma:cv=2", "gamma:cv=3", "mmpp", "onoff", "constant")
GOALS = (0.9, 0.9, 0.99)
FAR = 1.2


def drawn(number: int) -> tuple[RunSpec, float]:
    """The system of that number, and its goal."""
    rng = np.random.default_rng([8, number])
    model, tp = MODELS[rng.integers(len(MODELS))]
    given: dict[str, Any] = {"model": model, "hardware": HARDWARE[rng.integers(len(HARDWARE))]}
    given["workload"] = WORKLOADS[rng.integers(len(WORKLOADS))]
    given["arrivals"] = ARRIVALS[rng.integers(len(ARRIVALS))]
    layout = rng.integers(4)
    if layout == 0:
        given["prefill"], given["decode"] = (f"{rng.integers(1, 3)}:tp={tp}" for _ in range(2))
    else:
        given["policy"], given["tp"] = POLICIES[rng.integers(len(POLICIES))], tp
        if layout == 1:
            given["replicas"] = int(rng.integers(2, 5))
    ttft, tpot = (f"{low * 10 ** rng.uniform(0, decades):.2g}" for low, decades in ((0.2, 1.3), (0.02, 0.9)))
    bounds = (f"ttft={ttft},tpot={tpot}", f"ttft={ttft},tpot={tpot}", f"ttft={ttft}", f"tpot={tpot}")
    spec = RunSpec(backend="sim", slo=bounds[rng.integers(4)], **given)
    return spec, GOALS[rng.integers(3)]


@dataclass(frozen=True, slots=True)
class Judged:
    """What was printed of a system, and how far off it is."""

    number: int
    system: str
    printed: str
    off: float
    gross: bool
    shares: str


def judged(number: int, budget: str, requests: int) -> Judged:
    """Search a system and look at both ends of the answer."""
    spec, goal = drawn(number)
    parts = (spec.model, spec.hardware, spec.workload, spec.arrivals, spec.policy, spec.prefill, spec.decode, spec.slo)
    system = f"{' '.join(str(part) for part in parts if part is not None)} {goal:g}"
    try:
        setup = set_up(replace(spec, goal=goal), settings(f"{goal:g}", None, None, None, budget, None, None))
        (answer,) = run_search(setup, Store(None), workers=1).answers
    except BenchError as error:
        return Judged(number, system, str(error)[:60], 0.0, gross=False, shares="")
    bracket: Mapping[str, Any] = answer.bracket or {}
    low, high = (answer[f"{end}_rps"] or bracket.get(f"{end}_rate_rps") for end in ("low", "high"))
    rates = {"low/1.2": low and low / FAR, "low": low, "high": high, "high*1.2": high and high * FAR}
    found = {name: good(spec, rate, requests) for name, rate in rates.items() if rate}
    off = max(goal - found.get("low", 1.0), found.get("high", 0.0) - goal, 0.0)
    gross = found.get("low/1.2", 1.0) < goal or found.get("high*1.2", 0.0) >= goal
    kind = "" if answer.capacity_rps is not None else "bracket "
    printed = f"{answer.state}: {kind}{low and f'{low:.4g}'} .. {high and f'{high:.4g}'}"
    return Judged(number, system, printed, off, gross, " ".join(f"{share:.3f}" for share in found.values()))


def good(spec: RunSpec, rate_rps: float, requests: int) -> float:
    """Attainment of a long run after its warm-up; 0 where the queue grew all through."""
    trial = simulate(at_rate(replace(spec, requests=requests, seed=1000), rate_rps, own_rate(spec)))
    cut = warmup.find(trial.table, "mser5")
    if overload(trial.table, after_s=cut.at_s, bursty=True) is not None:
        return 0.0
    return slo.score(kept(trial.table, cut), trial.plan.slo).attainment or 0.0


def main() -> None:
    """Print the table, worst first."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--systems", type=int, default=24)
    parser.add_argument("--budget", default="100s")
    parser.add_argument("--requests", type=int, default=20_000)
    given = parser.parse_args()
    numbers = range(given.first, given.first + given.systems)
    found = [judged(number, given.budget, given.requests) for number in numbers]
    for one in sorted(found, key=lambda one: (not one.gross, -one.off)):
        gross = "GROSS " if one.gross else ""
        print(f"{one.number:>4} {gross}{100 * one.off:.1f} points  {one.printed}  [{one.shares}]  {one.system}")


if __name__ == "__main__":
    main()
