"""How often the interval of `bench agents` holds the truth: repeated searches beside a reference of many other seeds.

    python tests/perf/agents_intervals.py --systems 40 --searches 12
    python tests/perf/agents_intervals.py --trace traces/ --systems 4 --searches 6

Systems are drawn at random. Without a trace they are formulas, whose truth is known: the share within the bound is a
logistic curve of the agents above a floor, seeds scatter about it by their work, and sessions within a seed alike. With
a trace they are simulated: model and GPU, cap of the think times, longest context, tier; the truth of each is the
crossing of a line through trials of `--reference` seeds at two numbers of agents around the searches' answers. An
interval holds the truth in whole agents.
"""

import math
import statistics
from dataclasses import dataclass

import numpy as np
from _options import parsed  # beside this file
from scipy.optimize import brentq
from scipy.special import expit, logit

from harness.api import Bound, Slo
from harness.experiments import pool
from harness.experiments.agents.agents_json import AgentTrial
from harness.experiments.agents.execute import (
    CUT,
    AgentSearch,
    Key,
    Setup,
    Task,
    agents_at,
    run_search,
    set_up,
    simulated,
)
from harness.experiments.capacity.conditions import Share
from harness.experiments.capacity.search_spec import SearchResult, SearchSpec, TrialRequest, answered
from harness.experiments.capacity.trials import Trial
from harness.metrics.objective import JOINT
from harness.options import Given, run_spec

MODELS = (
    ("llama3.1-8b", "h100", 1), ("llama3.1-8b", "a100-80g", 1), ("qwen3-32b", "h100", 2), ("gpt-oss-20b", "h200", 1),
    ("llama3.1-70b", "h200", 4),
)  # fmt: skip
REFERENCE_SEED = 1_000_000
PACE_RPS = 0.02
"""Requests per second of an agent of a formula."""


def system(number: int, trace: str, horizon_s: float, seed: int = 0) -> tuple[str, Setup]:
    """A system drawn by its number, and what names it."""
    rng = np.random.default_rng(number)
    model, gpu, tp = MODELS[rng.integers(len(MODELS))]
    cap_s, context = int(rng.choice([5, 20, 60])), int(rng.choice([16_000, 32_000, 64_000, 96_000]))
    tier = f"p95:ttft={rng.choice([1, 2, 5])},p90:tpot={rng.choice([20, 30, 50])}ms"
    given = {
        "trace": trace, "turns": f"think-only:cap={cap_s}s", "scale": f"context:{context}", "seed": str(seed),
        "backend": "sim:kv=paged:block_tokens=64",
        "model": model, "hardware": gpu, "tp": str(tp), "prefix-cache": "on",
    }  # fmt: skip
    name = f"{number}: {model} on {tp} x {gpu}, think <= {cap_s} s, context <= {context:,}, {tier}"
    return name, set_up(run_spec(Given(given)), [tier], horizon_s)


@dataclass(frozen=True)
class Formula:
    """A system whose share is known: `slope` in logit(share) by ln(agents) above a `floor`, `scatter` of ln(capacity)
    between seeds, and how many of the requests of a trial are independent."""

    number: int
    goal: float
    slope: float
    scatter: float
    independent: float
    floor: float
    capacity: float

    @classmethod
    def draw(cls, number: int) -> "Formula":
        """A system drawn by its number."""
        rng = np.random.default_rng(number)
        goal = float(rng.choice([0.9, 0.95]))
        wide = (float(np.exp(rng.uniform(*np.log(ends)))) for ends in ((4, 60), (0.03, 0.3), (10, 300)))
        slope, scatter, independent = wide
        floor, capacity = float(rng.uniform(0, 0.6)), float(np.exp(rng.uniform(*np.log((3, 80)))))
        return cls(number, goal, slope, scatter, independent, floor, capacity)

    def share(self, users: float, capacity: np.ndarray) -> np.ndarray:
        """The share within the bound of a seed with that capacity."""
        above = logit((self.goal - self.floor) / (1 - self.floor)) - self.slope * np.log(users / capacity)
        return np.asarray(self.floor + (1 - self.floor) * expit(above))

    def at(self, load: float) -> float:
        """The mean share over seeds, between two whole numbers on a straight line."""
        nodes, weights = np.polynomial.hermite_e.hermegauss(101)
        seeds, below = self.capacity * np.exp(self.scatter * nodes), max(1, math.floor(load))
        ends = [float(np.average(self.share(n, seeds), weights=weights)) for n in (below, below + 1)]
        return float(np.interp(load, (below, below + 1), ends))

    def truth(self) -> float:
        """Where the mean share over seeds crosses the goal."""
        return float(brentq(lambda load: self.at(load) - self.goal, 0.5, 6 * self.capacity))

    def trial(self, want: TrialRequest, repeat: int, bound: Bound) -> Trial:
        """A trial; half of the scatter of a seed is the same at all numbers of agents."""
        key, span_s = want.key, want.horizon_s or 0.0
        users = agents_at(key.rate_rps, key.seed)
        requests = max(20, int(PACE_RPS * users * span_s))
        common = np.random.default_rng([self.number, repeat, key.seed]).standard_normal()
        rng = np.random.default_rng([self.number, repeat, users, key.seed])
        work = math.sqrt(0.5) * (common + rng.standard_normal())
        p = float(self.share(users, np.array(self.capacity * math.exp(self.scatter * work))))
        ends = (max(part * self.independent, 1e-3) for part in (p, 1 - p))
        met = int(rng.binomial(requests, rng.beta(*ends)))
        bounds = want.slo.bounds if want.slo is not None else (bound,)
        shares = (Share(each, met if each == bound else requests, requests) for each in bounds)
        joint = Share(JOINT, requests, requests)
        return Trial(key, requests, requests, 0.0, None, False, None, span_s, 0.0, (joint, *shares))

    def search(self, repeat: int) -> tuple[SearchResult, int]:
        """The answer of a search, and its trials."""
        bound, made = Bound("tpot", 1.0, None, 100 * self.goal), set[tuple[int, int, float | None]]()
        spec = SearchSpec(
            slo=Slo((bound,)), goal=0.9, definition="joint", planned=0, tolerance=0.1, from_rps=1.0, horizon_s=3600.0,
            limit=200_000,
        )  # fmt: skip

        def run(wanted: list[TrialRequest]) -> list[Trial]:
            made.update((agents_at(w.key.rate_rps, w.key.seed), w.key.seed, w.horizon_s) for w in wanted)
            return [self.trial(want, repeat, bound) for want in wanted]

        return answered(AgentSearch(spec).steps(), run), len(made)


def of_formulas(first: int, systems: int, searches: int) -> None:
    """Print the worst of the systems, and how often the intervals of all held."""
    lines, trials, halves = [], 0, []
    for system in map(Formula.draw, range(first, first + systems)):
        found, truth = [system.search(repeat) for repeat in range(searches)], system.truth()
        trials += sum(count for _, count in found)
        estimates = [one.answered for one, _ in found]
        known = [(e.low_rps, e.high_rps, e.half_width) for e in estimates if e and e.low_rps and e.high_rps]
        halves += [half for _, _, half in known]
        held = sum(math.floor(low) <= truth <= math.ceil(high) for low, high, _ in known)
        lines.append((held / max(1, len(known)), held, len(known), f"{system}, truth {truth:.3g}"))
    for share, held, known, text in sorted(lines)[:8]:
        print(f"{held} of {known} hold ({share:.0%}): {text}")
    held, known = sum(line[1] for line in lines), sum(line[2] for line in lines)
    print(
        f"held {held} of {known} ({held / known:.1%}), worst {min(lines)[0]:.0%}, {systems * searches - known} not "
        f"resolved, half-width {statistics.median(halves):.1%}, {trials / systems / searches:.0f} trials a search"
    )


def _crossing(setup: Setup, trials: list[AgentTrial]) -> float:
    """Where the first condition crosses its goal, on a line between two numbers of agents, in logits by logarithms."""
    low, high = sorted({trial.users for trial in trials})
    crossings = []
    for condition in setup.tiers[0].spec.bounds:
        z = []
        for users in (low, high):
            shares = [trial.share(str(condition.key)) for trial in trials if trial.users == users]
            z.append(logit(np.mean([share.met / share.of for share in shares])) - logit(condition.goal))
        part = z[0] / (z[0] - z[1]) if z[0] > z[1] else math.inf
        crossings.append(math.log(low) + part * math.log(high / low))
    return math.exp(min(crossings))


def main() -> None:
    """Print a line for each system, the worst first."""
    given = parsed(__doc__, trace=str, first=0, systems=4, searches=6, reference=60, horizon=1200.0)
    if given.trace is None:
        of_formulas(given.first, given.systems, given.searches)
        return
    lines, counts = [], list[tuple[int, int]]()
    for number in range(given.first, given.first + given.systems):
        name, setup = system(number, given.trace, given.horizon)
        found = []
        for search in range(given.searches):
            (tier,) = run_search(system(number, given.trace, given.horizon, 100_000 * search)[1], None).answers
            found.append(tier)
        known = [one for one in found if one.agents is not None and one.low is not None and one.high is not None]
        if not known:
            lines.append((1.0, f"{name}: {found[0].state} ({found[0].why})"))
            continue
        middle = statistics.median(one.agents for one in known if one.agents is not None)
        numbers = {max(1, math.floor(middle * 0.93)), math.ceil(middle * 1.07)}
        tasks = [Task(setup.spec, setup.tiers, Key(users, REFERENCE_SEED + seed, given.horizon), CUT * given.horizon)
                 for users in numbers for seed in range(given.reference)]  # fmt: skip
        with pool.of() as processes:
            truth = _crossing(setup, [one for _, one in processes.map(simulated, tasks)])
        held = [one for one in known if math.floor(one.low or 0) <= truth <= math.ceil(one.high or 0)]
        half = statistics.median(((one.high or 0) - (one.low or 0)) / (2 * (one.agents or 1)) for one in known)
        each = ", ".join(f"{one.agents:.3g}" for one in known)
        text = f"truth {truth:.3g}, {len(held)} of {len(known)} hold (+-{half:.1%}): {each}"
        lines.append((len(held) / len(known), f"{name}: {text}"))
        counts.append((len(held), len(known)))
        print(lines[-1][1], flush=True)
    if counts:
        worst = min(counts, key=lambda one: one[0] / one[1])
        print(f"held {sum(h for h, _ in counts)} of {sum(k for _, k in counts)}; worst {worst[0]} of {worst[1]}")
    print("\nworst first")
    for _, line in sorted(lines):
        print(line)


if __name__ == "__main__":
    main()
