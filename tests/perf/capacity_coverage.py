"""Does the interval of `bench capacity` hold the truth, and what does it cost beside a bisection of fixed trials?

Every case is searched `--searches` times with other seeds. The truth is the crossing of runs of a million requests,
stored or made on the way; `covered` are the resolved searches whose interval holds it.
Bisection as others do it: one seed, whole trials of 2,048 requests (Sarathi-Serve) or 300 (DistServe), rates halved
until they are 1% apart, no interval; the requests that it would need for our width are those of so many seeds that
Student's t of their mean is as wide.

    python tests/perf/capacity_coverage.py [--case chatbot] [--searches 100] [--workers 2] [--tolerance 3%]
    python tests/perf/capacity_coverage.py --case chatbot --bisections 40
    python tests/perf/capacity_coverage.py --case chatbot --truth 2.18,2.25,2.32
"""

import argparse
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from _capacity_cases import CASES, TRUTHS, truth

from harness.experiments import pool
from harness.experiments.capacity.conditions import settings
from harness.experiments.capacity.execute import run_search, set_up
from harness.experiments.capacity.store import Store
from harness.experiments.trial import at_rate, simulate
from harness.metrics import slo

APART = 100
"""Between the first seeds of two searches, which share no seed."""


@dataclass(frozen=True, slots=True)
class Searched:
    """One search: the rate and its interval in requests per second, and what it took."""

    rate_rps: float
    low_rps: float
    high_rps: float
    seeds: int
    requests: int
    resolved: bool


def searched(number: int, case: str, tolerance: str, adjust: bool) -> Searched:
    """The search of that number."""
    options = settings(None, None, tolerance, None, None, None, None, adjust=adjust)
    setup = set_up(replace(CASES[case], seed=APART * (number + 1)), options)
    info = run_search(setup, Store(None), workers=1)
    found = info.answers[0]
    rates = [math.nan if rate is None else rate for rate in (found.capacity_rps, found.low_rps, found.high_rps)]
    return Searched(*rates, found.seeds, info.cost.requests, found.state == "resolved")


def nearby_truth(case: str, rate_rps: float) -> float:
    """The truth of a case of which none is stored, from long runs on either side of what a search found."""
    return truth(CASES[case], [rate_rps * factor for factor in (0.95, 0.98, 1.02, 1.05)])


@dataclass(frozen=True, slots=True)
class Bisected:
    """One bisection: its rate and its requests."""

    rate_rps: float
    requests: int


def bisected(number: int, case: str, requests: int, goal: float = 0.9) -> Bisected:
    """From half of the truth to twice of it, with whole trials of one seed, until the ends are 1% apart."""
    low, high, spent = TRUTHS[case] / 2, TRUTHS[case] * 2, 0
    while high / low > 1.01:
        middle = math.sqrt(low * high)
        spec = replace(CASES[case], seed=APART * (number + 1), requests=requests)
        trial = simulate(at_rate(spec, middle))
        spent += requests
        low, high = (middle, high) if slo.score(trial.table, trial.plan.slo).attainment >= goal else (low, middle)
    return Bisected(math.sqrt(low * high), spent)


def print_results(case: str, true_rps: float, found: Sequence[Searched], wall_s: float) -> None:
    """Print coverage, width and cost."""
    known = [one for one in found if not math.isnan(one.low_rps)]
    resolved = [one for one in found if one.resolved]
    covered = sum(one.low_rps <= true_rps <= one.high_rps for one in resolved)
    widths = [(one.high_rps - one.low_rps) / 2 / one.rate_rps for one in known]
    errors = [math.log(one.rate_rps / true_rps) for one in known]
    print(
        f"{case:>18} {true_rps:>8.4g} {len(found):>8} {len(resolved):>8} {covered:>7} "
        f"{100 * covered / max(1, len(resolved)):>6.0f} "
        f"{100 * statistics.fmean(widths):>7.2f} {100 * statistics.fmean(errors):>+7.2f} "
        f"{100 * statistics.stdev(errors):>7.2f} {statistics.fmean(one.seeds for one in known):>6.1f} "
        f"{statistics.fmean(one.requests for one in found):>9,.0f} {wall_s:>7.0f}",
        flush=True,
    )


HEAD = (
    f"{'case':>18} {'truth':>8} {'searches':>8} {'resolved':>8} {'covered':>7} {'in %':>6} {'+-%':>7} "
    f"{'bias %':>7} {'sd %':>7} "
    f"{'seeds':>6} {'requests':>9} {'wall s':>7}"
)


def bisections(case: str, number: int, workers: int, width: float) -> None:
    """Print what fixed bisection would need for a width (half, relative)."""
    with pool.of(workers) as processes:
        for requests in (2048, 300):
            call = partial(bisected, case=case, requests=requests)
            found = [one for _, one in processes.map(call, range(number))]
            logs = [math.log(one.rate_rps / TRUTHS[case]) for one in found]
            seeds = seeds_for(statistics.stdev(logs), width)
            each = statistics.fmean(one.requests for one in found)
            print(
                f"{case:>18} bisection of {requests:>5,}: one seed {each:,.0f} requests, bias "
                f"{100 * statistics.fmean(logs):+.2f}%, sd {100 * statistics.stdev(logs):.2f}%; "
                f"+-{100 * width:.2f}% takes {seeds} seeds = {seeds * each:,.0f} requests",
                flush=True,
            )


def seeds_for(deviation: float, width: float) -> int:
    """Fewest seeds whose mean has a 95% interval of this half-width."""
    from scipy.special import stdtrit

    return next(n for n in range(2, 100_000) if stdtrit(n - 1, 0.975) * deviation / math.sqrt(n) <= width)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=sorted(CASES), action="append")
    parser.add_argument("--searches", type=int, default=100)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--tolerance", default="3%")
    parser.add_argument("--no-adjust", action="store_true")
    parser.add_argument("--bisections", type=int, default=0)
    parser.add_argument("--width", type=float, default=0.027)
    parser.add_argument("--truth", metavar="RATES")
    given = parser.parse_args()
    cases = given.case or sorted(TRUTHS)
    if given.truth:
        print(f"{cases[0]}: {truth(CASES[cases[0]], [float(rate) for rate in given.truth.split(',')]):.5g} req/s")
        return
    if given.bisections:
        for case in cases:
            bisections(case, given.bisections, given.workers, given.width)
        return
    print(HEAD)
    with pool.of(given.workers) as processes:
        for case in cases:
            begun_s = time.monotonic()
            call = partial(searched, case=case, tolerance=given.tolerance, adjust=not given.no_adjust)
            found = [one for _, one in processes.map(call, range(given.searches))]
            true_rps = TRUTHS.get(case) or nearby_truth(case, found[0].rate_rps)
            print_results(case, true_rps, found, time.monotonic() - begun_s)


if __name__ == "__main__":
    main()
