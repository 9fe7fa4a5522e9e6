"""How often 95 % intervals hold the truth on cases drawn at random: on the plain scale, and as they are printed.

Within a run: simulated systems, of which model, GPU, policy, traffic, load, number of requests and bound are drawn, and
waits that are log-normal with a memory of drawn length, some with rare bursts. Over seeds: 5 to 10 values above 0, of
which some have rare seeds that are far off, and shares. Truths are means of all runs of a case, or known.

    python tests/perf/interval_coverage.py [--systems 26] [--runs 100]

Without systems (`--systems 0`) half a minute, else ten.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from _options import parsed  # beside this file

from harness.api import Slo
from harness.data.lists import number
from harness.errors import BenchError
from harness.experiments import trial
from harness.metrics import measure
from harness.metrics.objective import parse_slo, score
from harness.options import RunSpec
from harness.stats.seeds import spread
from harness.stats.within_run import FEWEST, FEWEST_MISSES, MOST_ALIKE, Blocks, Resampled, autocorrelation
from harness.validity.steady_state import overload

Floats: TypeAlias = npt.NDArray[np.float64]
Held: TypeAlias = tuple[bool, bool]
"""Whether the truth is within the interval on the plain scale, and within the one that is printed."""

MODELS = ("opt-13b", "llama2-7b", "llama2-13b", "llama3-8b", "mistral-7b", "qwen2.5-7b")
HARDWARE = ("a100-80g", "h100", "l40s", "h20")
POLICIES = ("sarathi", "vllm-v0", "sarathi:budget=512", "none", "vllm-v0")
"""Systems with "none" are skipped: so those that were measured are drawn again."""
WORKLOADS = (
    "chatbot", "code", "decode-heavy", "azure-conversation", "burstgpt", "two-scenario", "long-tail", "slo-mix",
    "shared-prefix",
)  # fmt: skip
FEWEST_RUNS = 10
"""Runs with an interval from which on a case counts."""
DRAWS = 4000


def systems(rng: np.random.Generator, count: int, runs: int) -> Iterator[dict[str, list[Held]]]:
    """Of each simulated system what every run with an interval held."""
    found = 0
    while found < count:
        model, hardware, policy = (str(rng.choice(known)) for known in (MODELS, HARDWARE, POLICIES))
        workload, cv = str(rng.choice(WORKLOADS)), float(rng.choice([1, 1, 2, 3]))
        requests = int(np.exp(rng.uniform(math.log(110), math.log(1000))))
        spec = RunSpec(
            workload=workload, backend="sim", requests=300, seed=5, slo="ttft=100", model=model, hardware=hardware,
            policy=policy, arrivals=None if workload == "burstgpt" else f"gamma:cv={cv:g}",
        )  # fmt: skip
        try:
            at_once = trial.simulate(replace(spec, rate=1e4)).table
            spec = replace(spec, rate=len(at_once) / np.nanmax(measure.first_last(at_once)[1]) * rng.uniform(0.1, 1.0))
            ttft_s = measure.per_request(measure.metrics()["ttft"], trial.simulate(spec).table)
        except BenchError:
            continue
        bound = parse_slo(f"ttft={np.nanquantile(ttft_s, rng.uniform(0.5, 0.99)):.4g}")
        seeds = [int(rng.integers(1, 10**7)) for _ in range(runs)]
        yield of_system(replace(spec, requests=requests), bound, seeds)
        found += 1


def of_system(spec: RunSpec, bound: Slo, seeds: Sequence[int]) -> dict[str, list[Held]]:
    """What the runs of these seeds held of the means over all of them, overloaded ones included."""
    seen: list[tuple[bool, dict[str, Floats]]] = []
    for seed in seeds:
        table = trial.simulate(replace(spec, seed=seed)).table
        ordered = table.take(np.argsort(number(table, "scheduled_s"), kind="stable"))
        series = {name: measure.per_request(measure.metrics()[name], ordered) for name in ("ttft", "tpot")}
        series = {name: np.where(np.isfinite(values), values, np.nan) for name, values in series.items()}
        seen.append((overload(table) is not None, series | {"met": score(ordered, bound).met.astype(float)}))
    truth = {name: float(np.mean([np.nanmean(series[name]) for _, series in seen])) for name in ("ttft", "tpot", "met")}
    held: dict[str, list[Held]] = {name: [] for name in truth}
    for overloaded, series in seen:
        alike = autocorrelation(series["ttft"])
        if overloaded or alike is None or alike >= MOST_ALIKE:
            continue
        for name, values in series.items():
            share = name == "met"
            known = int((~np.isnan(values)).sum())
            if known >= FEWEST and not (share and not FEWEST_MISSES <= values.mean() <= 1 - FEWEST_MISSES):
                held[name].append(of_run(values, truth[name], share=share))
    return held


def of_run(values: Floats, truth: float, *, share: bool = False) -> Held:
    """The interval of the mean of one series."""
    drawn = Resampled([Blocks.draw(len(values))])
    [(low, high, wider)], middle = drawn._ends(values), float(np.nanmean(values))
    printed = drawn.share(values) if share else drawn.mean(values)
    plain = [middle + wider * (end - middle) for end in (low, high)]
    return plain[0] <= truth <= plain[1], printed[0] <= truth <= printed[1]


def waits(rng: np.random.Generator, runs: int) -> list[Held]:
    """Log-normal waits, each with a memory of the one before it; in half of the cases a few in a hundred are bursts."""
    n, sigma, memory = (
        int(np.exp(rng.uniform(math.log(100), math.log(2500)))),
        rng.uniform(0.3, 2.5),
        rng.uniform(0, 0.9),
    )
    share, far = float(rng.choice([0, 0, 0.02, 0.05])), rng.uniform(20, 300)
    state = rng.standard_normal((runs, n))
    for i in range(1, n):
        state[:, i] = memory * state[:, i - 1] + math.sqrt(1 - memory**2) * state[:, i]
    values, truth = np.exp(sigma * state - sigma**2 / 2), 1.0
    if share:
        begun = rng.random((runs, n)) < share / 3
        values *= np.where(begun | np.roll(begun, 1, 1) | np.roll(begun, 2, 1), far, 1)
        truth = float(values.mean())
    return [of_run(one, truth) for one in values if (autocorrelation(one) or 0.0) < MOST_ALIKE]


def seeds_above_0(rng: np.random.Generator) -> list[Held]:
    """Means over log-normal values of seeds; in a third of the cases some seeds are far off."""
    k, sigma = int(rng.choice([5, 5, 8, 10])), rng.uniform(0.05, 1.5)
    values, truth = np.exp(rng.standard_normal((DRAWS, k)) * sigma - sigma**2 / 2), 1.0
    if rng.random() < 0.3:
        share, far = rng.uniform(0.05, 0.3), rng.uniform(3, 30)
        values, truth = values * np.where(rng.random((DRAWS, k)) < share, far, 1), 1 - share + share * far
    return [of_seeds(one, truth, None) for one in values]


def seeds_of_shares(rng: np.random.Generator) -> list[Held]:
    """Means over shares of seeds, whose log odds are normal."""
    k, mean, deviation = int(rng.choice([5, 5, 8, 10])), rng.uniform(-3, 5), rng.uniform(0.05, 2.0)

    def shares(*size: int) -> Floats:
        return 1 / (1 + np.exp(-mean - deviation * rng.standard_normal(size)))

    truth = float(shares(400_000).mean())
    return [of_seeds(one, truth, 1.0) for one in shares(DRAWS, k)]


def of_seeds(values: Floats, truth: float, most: float | None) -> Held:
    """Student's t interval of the mean of these seeds."""
    from scipy.special import stdtrit

    half = stdtrit(len(values) - 1, 0.975) * values.std(ddof=1) / math.sqrt(len(values))
    printed = spread(values.tolist(), most=most)
    assert printed is not None
    return bool(abs(values.mean() - truth) <= half), bool(printed.low <= truth <= printed.high)


def row(what: str, cases: Sequence[Sequence[Held]], fewest: int) -> None:
    """Print the worst case and the mean over all intervals."""
    counted = [case for case in cases if len(case) >= fewest]
    if not counted:
        return
    shares = np.array([np.mean(case, axis=0) for case in counted])
    means = np.average(shares, axis=0, weights=[len(case) for case in counted])
    cells = [f"{100 * worst:.0f} %, {100 * mean:.0f} %" for worst, mean in zip(shares.min(axis=0), means, strict=True)]
    print(f"| {what} | {len(counted)} | {cells[0]} | {cells[1]} |", flush=True)


def main() -> None:
    """Print the table."""
    given = parsed(__doc__, systems=26, runs=100)
    print("| intervals | cases | plain scale: worst, mean | as printed |")
    rng = np.random.default_rng(1)
    row("log-normal waits with bursts", [waits(rng, given.runs) for _ in range(24)], given.runs // 5)
    row("over seeds, above 0", [seeds_above_0(rng) for _ in range(20)], 1)
    row("over seeds, shares", [seeds_of_shares(rng) for _ in range(20)], 1)
    found = list(systems(np.random.default_rng(3), given.systems, given.runs))
    for name in ("ttft", "tpot", "met"):
        row(f"systems, {name}", [case[name] for case in found], FEWEST_RUNS)


if __name__ == "__main__":
    main()
