"""Is a run called overloaded just below the capacity of its system, and above saturation? On systems drawn at random.

A system is one of `random_systems.py` (model, GPU, parallelism, colocated or prefill and decode apart, policy, traffic,
arrivals, goal), bounded by TPOT: the bound lies between the TPOT without load and that at 0.95 of saturation, so
it binds before the queue has no end. Saturation is the rate of answers with a backlog, or at 1.5 times that if higher.
Capacity is the rate at which attainment crosses the goal, of the middle of runs, between rates 12 % apart. Then runs of
other seeds at 0.97 of the capacity and at 1.15 of saturation are judged as `bench run --warmup mser5` judges them.

A run is long enough to tell where the 13 % of its arrivals that 1.15 of saturation has too many are 2 + 1.64 times
their scatter, so that 19 of 20 such queues stand out: the root of the arrivals times the sum of their index of
dispersion in twentieths of the run and the squared cv of their tokens. And it lasts 3 times the p90 of E2E (of a
session, where there are any) of the first fifth: until then batches and the number of sessions grow.

    python tests/perf/overload_random.py [--first 1000] [--systems 60] [--seeds 3] [--file FILE]

    --systems      numbers that are tried; in some TPOT does not bind
    --seeds        runs below the capacity at each length
    --file         what is there is not made again
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import random_systems
from _options import parsed  # beside this file

from harness.data.lists import number
from harness.data.records import since
from harness.errors import BenchError
from harness.experiments import trial
from harness.metrics import measure
from harness.metrics.objective import parse_slo, score
from harness.stats.crossing import logit
from harness.validity import steady_state

BELOW, ABOVE = 0.97, 1.15
LENGTHS = {BELOW: (300, 1000, 3000), ABOVE: (300, 1000, 3000, 10_000)}
APART = 1.12
"""Ratio of the rates between which the capacity is interpolated."""
SEEDS_OF_RUNS = 100_000


@dataclass(frozen=True, slots=True)
class Judged:
    """A run: whether its queue grew, whether that is overload (the SLO is missed too), whether it is long enough."""

    factor: float
    requests: int
    grew: bool
    overloaded: bool
    long: bool


@dataclass(frozen=True, slots=True)
class System:
    """A system whose capacity is bound by TPOT."""

    number: int
    text: str
    arrivals: str
    layout: str
    traffic: str
    saturation_rps: float
    capacity_rps: float


class Drawn:
    """The system of a number with the traffic that it is tried with."""

    def __init__(self, number_: int) -> None:
        spec, self.goal, self.strata = random_systems.drawn(number_)
        self.number = number_
        self.spec = replace(spec, slo=None)
        self.own_rps = trial.own_rate(spec)
        self.tightness = np.random.default_rng([18, number_]).uniform(0.15, 0.95)

    def run(self, rate_rps: float, requests: int, seed: int) -> pa.Table:
        """A run of one seed at a rate."""
        return trial.simulate(
            replace(trial.at_rate(self.spec, rate_rps, self.own_rps), requests=requests, seed=seed)
        ).table

    def saturation_rps(self) -> float:
        """Answers per second with a backlog, of runs that are long enough to fill the batches."""
        requests, before, found = 2000, 0.0, served_rps(self.run(1000.0, 1000, 77))
        while found > 1.03 * before and requests <= 8000:
            before, found = found, max(found, served_rps(self.run(1.5 * found, requests, 77 + requests)))
            requests *= 2
        return found

    def bound(self, saturation_rps: float) -> None:
        """Bound TPOT."""
        alone = tpot_s(self.run(0.02 * saturation_rps, 150, 79), 0.97)
        busy = tpot_s(self.run(0.95 * saturation_rps, 1500, 80), self.goal)
        limit = alone * max(busy / alone, 1.05) ** self.tightness
        self.spec = replace(self.spec, slo=f"tpot={limit:.4g}")

    def capacity_rps(self, saturation_rps: float) -> float | None:
        """Where attainment crosses the goal; None where that is not below saturation."""
        low, high, rate = 0.0, math.inf, saturation_rps * (0.3 + 0.5 * self.tightness)
        while high / max(low, 1e-9) > APART:
            low, high = (rate, high) if self.away(rate, 1500, [81]) >= 0 else (low, rate)
            rate = math.sqrt(low * high) if low and high < math.inf else 1.25 * low if low else high / 1.3
            if not 0.01 * saturation_rps < rate < 1.05 * saturation_rps:
                return None
        above, below = (self.away(rate, 2500, [82, 83]) for rate in (low, high))
        part = above / (above - below) if above > below else 0.5
        return float(low * (high / low) ** min(1.0, max(0.0, part)))

    def away(self, rate_rps: float, requests: int, seeds: Sequence[int]) -> float:
        """Log odds of attainment over those of the goal, without the first quarter and the last twentieth."""
        met: list[bool] = []
        for seed in seeds:
            table = self.run(rate_rps, requests, seed)
            due_s = number(table, "scheduled_s")
            middle = (due_s >= np.quantile(due_s, 0.25)) & (due_s <= np.quantile(due_s, 0.95))
            met += score(table, parse_slo(str(self.spec.slo))).met[middle].tolist()
        return float(logit((sum(met) + 0.5) / (len(met) + 1)) - logit(self.goal))

    def judged(self, system: System, seeds: int) -> Iterator[Judged]:
        """Runs below the capacity and above saturation."""
        for factor, base_rps in ((BELOW, system.capacity_rps), (ABOVE, system.saturation_rps)):
            for requests in LENGTHS[factor]:
                for seed in range(seeds if factor == BELOW else 2 if requests < 10_000 else 1):
                    own = SEEDS_OF_RUNS + 1000 * self.number + 10 * seed + requests % 7
                    table = self.run(factor * base_rps, requests, own)
                    cut = steady_state.find(table, "mser5")
                    scored = score(since(table, cut.since_s), parse_slo(str(self.spec.slo)))
                    grew = steady_state.overload(table) is not None
                    met = (scored.attainment or 0.0) >= self.goal
                    yield Judged(factor, requests, grew, bool(grew and not met), long_enough(table))


def long_enough(table: pa.Table) -> bool:
    """Whether a run is long enough to tell overload of 15 %, by its arrivals, its requests and its E2E."""
    due_s, end_s = number(table, "scheduled_s"), measure.first_last(table)[1]
    opening = table["turn"].to_numpy() == 0
    until_s = due_s[opening].max()
    session = np.where(table["session"].is_null(), -1 - np.arange(len(table)), number(table, "session"))
    _, task = np.unique(session, return_inverse=True)
    begin_s, done_s = np.full(task.max() + 1, np.inf), np.full(task.max() + 1, -np.inf)
    np.minimum.at(begin_s, task, due_s)
    np.fmax.at(done_s, task, end_s)
    early = np.argsort(begin_s)[: max(10, len(begin_s) // 5)]
    filled_s = 3 * float(np.quantile((done_s - begin_s)[early], 0.9))
    tokens = number(table, "prompt_tokens") + number(table, "output_tokens")
    arrivals = int((due_s <= until_s).sum())
    counts = np.histogram(due_s[due_s <= until_s], 20)[0]
    spread = max(1.0, float(counts.var(ddof=1) / counts.mean())) + float(tokens.var() / tokens.mean() ** 2)
    chance = math.sqrt(arrivals * spread)
    return bool((1 - 1 / ABOVE) * arrivals > (steady_state.GROWTH + 1.64) * chance and until_s > filled_s)


def served_rps(table: pa.Table) -> float:
    """Answers per second between the first 30 % of them and 70 %."""
    end_s = np.sort(measure.first_last(table)[1])
    end_s = end_s[np.isfinite(end_s)]
    first, last = int(0.3 * len(end_s)), int(0.7 * len(end_s))
    return float((last - first) / (end_s[last] - end_s[first]))


def tpot_s(table: pa.Table, quantile: float) -> float:
    """A quantile of TPOT."""
    return float(np.nanquantile(measure.per_request(measure.metrics()["tpot"], table), quantile))


def made(number_: int, seeds: int) -> tuple[System, list[Judged]] | None:
    """A system and its runs; None where TPOT does not bind."""
    drawn = Drawn(number_)
    saturation_rps = drawn.saturation_rps()
    drawn.bound(saturation_rps)
    capacity_rps = drawn.capacity_rps(saturation_rps)
    if capacity_rps is None:
        return None
    strata = drawn.strata
    system = System(
        number_, random_systems._text(drawn.spec), strata["arrivals"], strata["layout"], strata["traffic"],
        saturation_rps, capacity_rps,
    )  # fmt: skip
    return system, list(drawn.judged(system, seeds))


def tables(found: Sequence[tuple[System, list[Judged]]]) -> None:
    """Systems, worst first, and totals by length of the run."""

    def wrong(entry: tuple[System, list[Judged]]) -> tuple[int, int]:
        runs = entry[1]
        return -sum(r.overloaded for r in runs if r.factor == BELOW), -sum(
            r.long and not r.grew for r in runs if r.factor == ABOVE
        )

    for system, runs in sorted(found, key=wrong):
        below = [run for run in runs if run.factor == BELOW]
        enough = [run for run in runs if run.factor == ABOVE and run.long]
        print(
            f"{system.number:>5} overloaded below {sum(r.overloaded for r in below)} of {len(below)}, "
            f"above, long enough, {sum(r.grew for r in enough)} of {len(enough)}; "
            f"capacity {system.capacity_rps / system.saturation_rps:.2f} of saturation  {system.text}"
        )
    strata = {"all": list(found)}
    for name in ("arrivals", "layout", "traffic"):
        for entry in found:
            strata.setdefault(f"{name} {getattr(entry[0], name)}", []).append(entry)
    below = [run for _, runs in found for run in runs if run.factor == BELOW]
    print(f"\n{len(found)} systems on which TPOT binds")
    print(f"{sum(run.grew for run in below)} of {len(below)} runs at {BELOW} grew")
    print("stratum                 rate requests  runs  grew overload long enough  grew")
    for name, entries in strata.items():
        for factor, lengths in LENGTHS.items():
            for requests in (*lengths, 0):
                runs = [r for _, some in entries for r in some if r.factor == factor and requests in (0, r.requests)]
                enough = [r for r in runs if r.long]
                if name == "all" or not requests:
                    print(
                        f"{name:<22}{factor:>6}{requests or 'all':>9}{len(runs):>6}{sum(r.grew for r in runs):>6}"
                        f"{sum(r.overloaded for r in runs):>9}{len(enough):>12}{sum(r.grew for r in enough):>6}"
                    )


def main() -> None:
    """Make the runs and print the tables."""
    given = parsed(__doc__, first=1000, systems=60, seeds=3, file=Path)
    lines = given.file.read_text().splitlines() if given.file and given.file.exists() else []
    stored = {line["number"]: line for line in map(json.loads, lines)}
    found = []
    for number_ in range(given.first, given.first + given.systems):
        if number_ not in stored:
            try:
                one = made(number_, given.seeds)
            except BenchError as error:
                print(f"{number_}: {error}", flush=True)
                one = None
            line = {"number": number_, "system": None, "runs": []}
            if one is not None:
                line |= {"system": asdict(one[0]), "runs": [asdict(run) for run in one[1]]}
            stored[number_] = line
            if given.file:
                with given.file.open("a") as out:
                    out.write(json.dumps(line) + "\n")
        line = stored[number_]
        if line["system"] is not None:
            found.append((System(**line["system"]), [Judged(**run) for run in line["runs"]]))
    tables(found)


if __name__ == "__main__":
    main()
