"""How often a comparison cries wolf, and how often it finds a loss of 5 %: our rule beside the usual ones.

    python tests/perf/false_alarms.py                     # all of it, some minutes on two cores
    python tests/perf/false_alarms.py --no-runs           # only the rules on knees, which are stored: seconds

A is compared with A, and with B whose steps take 5 % longer, on the synthetic server (_synthetic.py), under a noise
of each run (one factor, normal on the log scale); comparison_power.py has other noise, and runs at one rate. Every
cell is false alarms / losses found, in %, of --comparisons (four times as many on knees, which cost nothing).
What is wanted of 5 pairs: under 1 % false alarms at every noise, over 95 % found at 1 %.
One-run rules look at 2,000 requests at 13 req/s; their noise takes --levels values of equal chance.

    --seeds        different traffic of the runs at one rate
    --levels       values of the noise of the runs at one rate
    --no-runs      leave out the rules on runs at one rate
"""

import argparse
import math
from collections.abc import Callable
from statistics import NormalDist

import _synthetic as synthetic
import numpy as np
from _options import parsed  # beside this file
from scipy import stats

from harness.experiments.pool import of
from harness.stats.paired import Limits, decide

NOISE = (0.0, 0.01, 0.02)
SLOWER = 1.05
TRAFFIC = 0.0016
"""What the jitter of steps adds to the ratio of two knees of one schedule, which the synthetic server leaves out."""
RATE_RPS = 13.0
CAPACITY = Limits(-math.log(0.98), -math.log(0.95))

Rng = np.random.Generator
Rule = Callable[[Rng, float, float], bool]
"""(generator, noise, slower) -> whether the head is called worse than the base."""


def knee(rng: Rng, seed: int, noise: float, slower: float = 1.0) -> float:
    """ln of the knee of a seed in one run."""
    slow = slower * math.exp(noise * rng.standard_normal())
    return math.log(synthetic.stored_knee(seed, slow)) + TRAFFIC / math.sqrt(2) * rng.standard_normal()


def losses(rng: Rng, pairs: int, noise: float, slower: float) -> list[float]:
    """The losses of knees of some pairs, each of a schedule of its own."""
    seeds = rng.choice(SEEDS, pairs, replace=False)
    return [knee(rng, seed, noise) - knee(rng, seed, noise, slower) for seed in seeds]


def ours(pairs: int) -> Rule:
    """The verdict `regressed`."""
    return lambda rng, noise, slower: decide(losses(rng, pairs, noise, slower), CAPACITY).verdict == "regressed"


def mean_only(pairs: int) -> Rule:
    """A mean loss above 2.5 %, without a test."""
    return lambda rng, noise, slower: bool(np.mean(losses(rng, pairs, noise, slower)) > 0.025)


def welch(runs: int) -> Rule:
    """Welch's t on knees of different traffic."""

    def rule(rng: Rng, noise: float, slower: float) -> bool:
        seeds = rng.choice(SEEDS, 2 * runs, replace=False)
        base = [knee(rng, seed, noise) for seed in seeds[:runs]]
        head = [knee(rng, seed, noise, slower) for seed in seeds[runs:]]
        return bool(stats.ttest_ind(base, head, equal_var=False, alternative="greater").pvalue < 0.01)

    return rule


def one_knee(limit: float, *, same: bool) -> Rule:
    """One knee each."""

    def rule(rng: Rng, noise: float, slower: float) -> bool:
        first, second = rng.choice(SEEDS, 2, replace=False)
        return knee(rng, first, noise) - knee(rng, first if same else second, noise, slower) > -math.log(1 - limit)

    return rule


class Runs:
    """Runs at one rate, made once for each seed and each level of the noise."""

    def __init__(self, seeds: int, levels: int, rate_rps: float, requests: int, workers: int | None) -> None:
        self.seeds = seeds
        self._z = [NormalDist().inv_cdf((i + 0.5) / levels) for i in range(levels)]
        slow = {self._slow(noise, z, slower) for noise in NOISE for z in self._z for slower in (1.0, SLOWER)}
        wanted = [(seed, each, rate_rps, requests) for seed in range(seeds) for each in sorted(slow)]
        with of(workers) as pool:
            self._times = {item[:2]: times for item, times in pool.map(made, wanted)}

    def draw(self, rng: Rng, seed: int, noise: float, slower: float) -> synthetic.Times:
        """A run of a seed, its noise drawn."""
        return self._times[seed, self._slow(noise, self._z[rng.integers(len(self._z))], slower)]

    def two(self, rng: Rng, noise: float, slower: float, *, same: bool) -> tuple[synthetic.Times, synthetic.Times]:
        """A run of each side, of the same traffic or of another."""
        first, second = rng.choice(self.seeds, 2, replace=False)
        return self.draw(rng, first, noise, 1.0), self.draw(rng, first if same else second, noise, slower)

    @staticmethod
    def _slow(noise: float, z: float, slower: float) -> float:
        return round(slower * math.exp(noise * z), 6)


def made(item: tuple[int, float, float, int]) -> synthetic.Times:
    """One run: (seed, slow, rate, requests)."""
    seed, slow, rate_rps, requests = item
    return synthetic.fixed(seed, rate_rps, slow, requests)


def worse(of_run: Callable[[synthetic.Times], float], limit: float, runs: Runs, *, same: bool) -> Rule:
    """One number each, worse by more than a limit."""

    def rule(rng: Rng, noise: float, slower: float) -> bool:
        base, head = runs.two(rng, noise, slower, same=same)
        return of_run(head) > (1 + limit) * of_run(base)

    return rule


def mann_whitney(values: Callable[[synthetic.Times], np.ndarray], runs: Runs, *, same: bool) -> Rule:
    """A rank test on the requests of two runs, as if they were independent."""

    def rule(rng: Rng, noise: float, slower: float) -> bool:
        base, head = runs.two(rng, noise, slower, same=same)
        return bool(stats.mannwhitneyu(values(head), values(base), alternative="greater").pvalue < 0.01)

    return rule


def bootstrap(block: int, runs: Runs) -> Rule:
    """Bootstrap of the attainment of two runs, 99 %: of single requests, or of blocks of them."""

    def resampled(rng: Rng, times: synthetic.Times) -> np.ndarray:
        met = (times.ttft_s <= synthetic.TTFT_S) & (times.tpot_s <= synthetic.TPOT_S)
        if block == 1:  # the same law, a thousand times faster
            return rng.binomial(len(met), met.mean(), 1000) / len(met)
        sums = np.convolve(met, np.ones(block), "valid")
        return rng.choice(sums, (1000, len(met) // block)).mean(1) / block

    def rule(rng: Rng, noise: float, slower: float) -> bool:
        base, head = runs.two(rng, noise, slower, same=False)
        return bool(np.quantile(resampled(rng, head) - resampled(rng, base), 0.99) < 0)

    return rule


def p99(times: synthetic.Times) -> float:
    """p99 of TTFT."""
    return float(np.quantile(times.ttft_s, 0.99))


def on_knees() -> dict[str, dict[str, Rule]]:
    """The rules that need no run: knees are stored."""
    return {
        "ours: bench compare on capacities (t p < .01 and loss > 2%)": {f"{k} pairs": ours(k) for k in (3, 5, 7, 10)},
        "repeated trials, otherwise": {
            "Welch p < .01, 5+5 different traces": welch(5),
            "Welch p < .01, 10+10 different traces": welch(10),
            "mean loss > 2.5% of 5 pairs, no test": mean_only(5),
        },
        "one knee each": {
            "worse by 5%, different traces": one_knee(0.05, same=False),
            "worse by 2.5%, same trace": one_knee(0.025, same=True),
        },
    }


def on_runs(given: argparse.Namespace) -> dict[str, dict[str, Rule]]:
    """The rules on runs at one rate."""
    long = Runs(given.seeds, given.levels, RATE_RPS, synthetic.REQUESTS, given.workers)
    return {
        f"one run each, different traces, {RATE_RPS:g} req/s": {
            "p99 TTFT worse by 5%": worse(p99, 0.05, long, same=False),
            "mean TTFT worse by 5%": worse(lambda t: float(t.ttft_s.mean()), 0.05, long, same=False),
            "mean TPOT worse by 5%": worse(lambda t: float(t.tpot_s.mean()), 0.05, long, same=False),
            "Mann-Whitney on TTFT, p < .01": mann_whitney(lambda t: t.ttft_s, long, same=False),
            "Mann-Whitney on TPOT, p < .01": mann_whitney(lambda t: t.tpot_s, long, same=False),
            "bootstrap of attainment, single requests": bootstrap(1, long),
            "bootstrap of attainment, blocks of 200": bootstrap(200, long),
        },
        f"one run each, same trace, {RATE_RPS:g} req/s": {
            "mean TPOT worse by 2%": worse(lambda t: float(t.tpot_s.mean()), 0.02, long, same=True),
            "p99 TTFT worse by 5%": worse(p99, 0.05, long, same=True),
            "Mann-Whitney on TPOT, p < .01": mann_whitney(lambda t: t.tpot_s, long, same=True),
        },
    }


def rate(rule: Rule, rng: Rng, noise: float, slower: float, comparisons: int) -> float:
    """Share of comparisons that call the head worse, in %."""
    return 100 * sum(rule(rng, noise, slower) for _ in range(comparisons)) / comparisons


def show(groups: dict[str, dict[str, Rule]], comparisons: int) -> None:
    """Print a row for each rule."""
    for title, rules in groups.items():
        print(f"\n{title}")
        for name, rule in rules.items():
            cells = []
            for column, noise in enumerate(NOISE):
                rng = np.random.default_rng([column, comparisons])
                alarms, found = (rate(rule, rng, noise, slower, comparisons) for slower in (1.0, SLOWER))
                cells.append(f"{alarms:6.1f} / {found:5.1f}")
            print(f"  {name:45s}" + "  ".join(cells), flush=True)


def main() -> None:
    """Print the tables."""
    given = parsed(__doc__, comparisons=1000, seeds=60, levels=6, workers=int, no_runs=False)
    print(
        "false alarms / losses of 5 % found, in %" + " " * 8 + "".join(f"noise {100 * n:g}%".ljust(17) for n in NOISE)
    )
    show(on_knees(), 4 * given.comparisons)
    if not given.no_runs:
        show(on_runs(given), given.comparisons)


SEEDS = 400
"""Seeds whose knees are stored."""

if __name__ == "__main__":
    import false_alarms  # by its name, so that processes can find what they call

    false_alarms.main()
