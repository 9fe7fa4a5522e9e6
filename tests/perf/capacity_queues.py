"""Does the interval of `bench capacity` hold on queues whose runs cost milliseconds? Hundreds of searches in minutes.

The search itself, on runs of queues instead of the simulator: first come first served with one server or several, and
metastable ones, which serve slower once the queue is long; requests are within the SLO when they wait no longer than a
bound. Servers, service times, arrivals, bound and goal are drawn by the number of a queue. The truth is where the mean
share over the same horizon crosses the goal, by fresh seeds, common to two rates around it, with its standard error.
`tests/perf/random_systems.py` does it on the simulator.

    python tests/perf/capacity_queues.py [--first 0] [--queues 60] [--searches 2] [--limit 600000] [--file FILE]
    python tests/perf/capacity_queues.py --file FILE --queues 0        only the tables
    python tests/perf/capacity_queues.py --vary [--first 0] [--queues 12]   its constants halved and doubled

    --truth        requests that a truth takes at most
"""

import heapq
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import Pool
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
from _options import parsed  # beside this file

from harness.api import Bound, Slo
from harness.experiments.capacity import horizon
from harness.experiments.capacity.conditions import Share, sure_misses
from harness.experiments.capacity.horizon import HorizonSearch
from harness.experiments.capacity.search_spec import SearchResult, SearchSpec, TrialRequest
from harness.experiments.capacity.trials import QUARTERS, Quarters, Trial
from harness.metrics.objective import JOINT
from harness.stats import crossing
from harness.stats.crossing import logit

KINDS = ("fifo", "fifo", "slots", "metastable")
ARRIVALS = ("poisson", "poisson", "gamma2", "gamma3", "mmpp", "wandering", "on-off")
GOALS = (0.5, 0.8, 0.9, 0.9, 0.95, 0.99)
TRUTH_SEED, APART = 90_000_000, 0.03
LEVELS = {"mmpp": ((30.0, 10.0), (1.0, 3.0)), "on-off": ((15.0, 15.0), (0.0001, 2.0))}
"""Seconds in each of two states, and their rates."""
WANDERS_S, WANDERS, TICK_S = 285.0, 0.24, 2.0
"""The logarithm of a wandering rate is an Ornstein-Uhlenbeck process of this memory and standard deviation."""

DEFINES = {"HORIZON_S", "ANSWERS", "WAITS", "SHORTEST_S", "ENOUGH", "FEWEST", "LENGTHS_S", "NOT_BEGUN", "TYPE_CHECKING"}
"""Constants that say what is looked for, not how."""


@dataclass(frozen=True)
class Queue:
    """`mean_s` is the time of a service, `slow` its factor where the wait is beyond `slow_from_s`."""

    number: int
    kind: str
    arrivals: str
    goal: float
    servers: int
    mean_s: float
    cv: float
    bound_s: float
    slow: float = 1.0
    slow_from_s: float = math.inf

    @property
    def slo(self) -> Slo:
        """The bound on waiting."""
        return Slo((Bound("ttft", self.bound_s),))

    @property
    def mean_known(self) -> bool:
        """Whether runs have the rate times their length requests on average: gamma gaps begin with a request."""
        return not self.arrivals.startswith("gamma")

    def arrive(self, rng: np.random.Generator, rate_rps: float, until_s: float) -> np.ndarray:
        """When requests are due."""
        if self.arrivals == "poisson" or self.arrivals.startswith("gamma"):
            cv2 = 1.0 if self.arrivals == "poisson" else float(self.arrivals[5:]) ** 2
            n = int(rate_rps * until_s + 6 * math.sqrt(cv2 * rate_rps * until_s) + 60 * cv2)
            due_s = np.cumsum(rng.gamma(1 / cv2, cv2, n)) / rate_rps
            return due_s[due_s < until_s]
        if self.arrivals == "wandering":
            n, keeps = int(until_s / TICK_S) + 2, math.exp(-TICK_S / WANDERS_S)
            moves = rng.normal(size=n) * WANDERS * np.where(np.arange(n) > 0, math.sqrt(1 - keeps**2), 1)
            level = [float(moves[0])]
            for move in moves[1:].tolist():
                level.append(keeps * level[-1] + move)
            lasts_s, rates = np.full(n, TICK_S), np.exp(np.array(level) - WANDERS**2 / 2)
        else:
            dwells_s, levels = LEVELS[self.arrivals]
            n = int(until_s / 10) + 40
            state = (int(rng.random() > dwells_s[0] / sum(dwells_s)) + np.arange(n)) % 2
            lasts_s = rng.exponential(1, n) * np.array(dwells_s)[state]
            rates = np.array(levels)[state] * sum(dwells_s) / sum(a * b for a, b in zip(dwells_s, levels, strict=True))
        expected = np.concatenate([[0], np.cumsum(lasts_s * rates)]) * rate_rps
        unit = np.cumsum(rng.exponential(1, int(expected[-1] + 6 * math.sqrt(expected[-1]) + 20)))
        due_s = np.interp(unit[unit < expected[-1]], expected, np.concatenate([[0], np.cumsum(lasts_s)]))
        return due_s[due_s < until_s]

    def waits(self, seed: int, rate_rps: float, until_s: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """When requests are due, how long each waits, and its service; all (requests,)."""
        arrivals, services = np.random.default_rng([self.number, seed]).spawn(2)
        due_s = self.arrive(arrivals, rate_rps, until_s)
        spread2 = math.log(1 + self.cv**2)
        work_s = np.exp(services.normal(-spread2 / 2, math.sqrt(spread2), len(due_s))) * self.mean_s
        if self.kind == "fifo":
            behind = np.concatenate([[0], np.cumsum(work_s[:-1] - np.diff(due_s))])[: len(due_s)]
            return due_s, behind - np.minimum.accumulate(behind), work_s
        waits, free = np.empty(len(due_s)), [0.0] * self.servers
        for i, (at, takes) in enumerate(zip(due_s.tolist(), work_s.tolist(), strict=True)):
            begins = max(at, free[0])
            waits[i] = begins - at
            heapq.heapreplace(free, begins + (takes * self.slow if waits[i] > self.slow_from_s else takes))
        return due_s, waits, work_s

    def run(self, request: TrialRequest) -> Trial:
        """The run that a search asks for; a probe ends when its side is certain."""
        key, until_s = request.key, request.horizon_s
        bound = self.slo.bounds[0]
        if until_s is None:
            alone = tuple(Share(name, key.planned, key.planned) for name in (JOINT, bound))
            return Trial(key, key.planned, key.planned, 0, True, False, self.mean_s, 0, 0, alone)
        due_s, waits, work_s = self.waits(key.seed, key.rate_rps, until_s)
        met, sent, passed = waits <= self.bound_s, len(due_s), None
        if key.goal is not None:
            late = np.flatnonzero(np.cumsum(~met) >= sure_misses(key.goal, key.planned))
            sent, passed = (int(late[0]) + 1, False) if len(late) else (sent, None)
        quarter = np.minimum(QUARTERS - 1, (due_s / until_s * QUARTERS).astype(int))
        by_quarter = [np.bincount(quarter, each, QUARTERS).astype(int) for each in (met, np.ones(len(met)))]
        ends = until_s / QUARTERS * np.arange(1, QUARTERS + 1)
        under_way = np.array([int((due_s < end).sum() - (due_s + waits + work_s < end).sum()) for end in ends])
        counted = (dict.fromkeys((JOINT, bound), part) for part in by_quarter)
        shares = tuple(Share(name, int(met.sum()), len(met)) for name in (JOINT, bound))
        drawn = float(work_s.sum()) / self.mean_s, 0.0
        return Trial(key, sent, len(met), 0, passed, False, self.mean_s, until_s, 0, shares,
                     quarters=Quarters(*counted, under_way, drawn))  # fmt: skip

    def searched(self, seed: int, limit: int, tolerance: float = 0.03) -> tuple[HorizonSearch, SearchResult]:
        """One search."""
        spec = SearchSpec(self.slo, self.goal, "joint", 100, seed, tolerance, limit=limit, mean_known=self.mean_known)
        search = HorizonSearch(spec)
        steps, made = search.steps(), None
        while True:
            try:
                made = [self.run(request) for request in steps.send(made)]  # type: ignore[arg-type]
            except StopIteration as end:
                return search, end.value

    def truth(self, horizon_s: float, rate_rps: float, requests: int) -> tuple[float, float, float]:
        """ln(rate) where the mean share crosses the goal, its standard error, and the slope in logits.

        Where the mean number of requests is known, what it explains of the shares is taken off.
        """
        x, seed, sent, shares, more = math.log(rate_rps), TRUTH_SEED, 0, [], []
        for step in range(60):
            for seed in range(seed, seed + (40 if step < 8 else 150)):  # noqa: B020
                pair = [self.waits(seed, math.exp(x + side), horizon_s)[1] <= self.bound_s for side in (-APART, APART)]
                sent += sum(map(len, pair))
                more.append(sum(map(len, pair)) / (2 * math.exp(x) * math.cosh(APART) * horizon_s) - 1)
                shares.append([float(met.mean()) if len(met) else 1.0 for met in pair])
            seed += 1
            share, load = np.array(shares), np.array(more) * self.mean_known
            beta = (load - load.mean()) @ share / max(1e-12, float(((load - load.mean()) ** 2).sum()))
            share = share - load[:, None] * beta
            mean = np.clip(share.mean(axis=0), 1e-6, 1 - 1e-6)
            above, below = (logit(float(share)) - logit(self.goal) for share in mean)
            slope = max((above - below) / (2 * APART), 0.3)
            crossing = x - APART + above / slope
            if abs(crossing - x) > APART and step < 8:
                x, shares, more = x + max(-0.2, min(0.2, crossing - x)), [], []
                continue
            spread = float(share.mean(axis=1).std(ddof=2))
            error = spread / math.sqrt(len(shares)) / (self.goal * (1 - self.goal) * slope)
            if sent > requests or (len(shares) >= 100 and error < 0.003):
                break
        return crossing, error, slope


def drawn(number: int) -> Queue:
    """The queue of that number."""
    rng = np.random.default_rng([99, number])
    kind = KINDS[number % len(KINDS)]
    arrivals, goal = str(rng.choice(ARRIVALS)), float(rng.choice(GOALS))
    servers = int(rng.choice([4, 16, 64])) if kind == "slots" else 1
    mean_s = math.exp(rng.uniform(math.log(0.05), math.log(1.0))) * max(1, servers / 4)
    cv = float(rng.choice([0.3, 1.0, 1.5]))
    bound_s = mean_s / servers * math.exp(rng.uniform(math.log(1.5), math.log(30)))
    slow = (float(rng.uniform(1.05, 1.5)), bound_s * float(rng.uniform(1, 6))) if kind == "metastable" else ()
    return Queue(number, kind, arrivals, goal, servers, mean_s, cv, bound_s, *slow)


def row(wanted: tuple[int, int, int, int]) -> list[dict[str, Any]]:
    """The searches of a queue, each with the truth over its own horizon."""
    number, searches, limit, truth_requests = wanted
    queue, rows, truths = drawn(number), [], {}
    for place in range(searches):
        begun_s = time.process_time()
        search, result = queue.searched(1_000 + 100_000 * place, limit)
        answer = {"number": number, "system": str(queue), "kind": queue.kind, "arrivals": queue.arrivals,
                  "goal": queue.goal, "servers": queue.servers, "horizon_s": search.horizon_s,
                  "state": "resolved" if result.resolved else "unresolved", "why": result.why,
                  "requests": search._spent, "cpu_s": time.process_time() - begun_s,
                  "needs": result.needs}  # fmt: skip
        if (found := result.estimate) is not None and found.low_rps and found.high_rps:
            answer |= {"rate": found.rate_rps, "low": found.low_rps, "high": found.high_rps}
            if search.horizon_s not in truths:
                truths[search.horizon_s] = queue.truth(search.horizon_s, found.rate_rps, truth_requests)
            answer["truth"], answer["error"], answer["slope"] = truths[search.horizon_s]
        rows.append(answer)
    return rows


def judged(answer: Mapping[str, Any]) -> dict[str, float]:
    """Off by so much in ln(rate), half of the interval, and whether it holds the truth, also with two errors of it."""
    if "rate" not in answer:
        return {"off": math.nan, "half": math.inf, "held": math.nan, "nearly": math.nan}
    low, high, truth, slack = (*(math.log(answer[k]) for k in ("low", "high")), answer["truth"], 2 * answer["error"])
    return {
        "off": math.log(answer["rate"]) - truth, "half": (high - low) / 2, "held": float(low <= truth <= high),
        "nearly": float(low <= truth + slack and truth - slack <= high),
    }  # fmt: skip


HEAD = (
    f"{'stratum':<24}{'searches':>9}{'answers':>8}{'hold':>6}{'+2se':>6}{'resolved':>9}{'of them hold':>13}"
    f"{'<3%':>5}{'<5%':>5}{'<10%':>6}{'bias':>7}{'+-':>6}{'requests':>10}{'resolved':>10}{'cpu s':>7}"
)


def total(name: str, answers: Sequence[Mapping[str, Any]]) -> str:
    """One line about the searches of a stratum, in %; requests are medians, of all and of the resolved ones."""
    verdicts = [judged(answer) for answer in answers]
    off, half, held, nearly = (np.array([v[k] for v in verdicts]) for k in ("off", "half", "held", "nearly"))
    known, resolved = np.isfinite(off), np.array([a["state"] == "resolved" for a in answers])
    requests = np.array([a["requests"] for a in answers])

    def mean(values: np.ndarray) -> float:
        return 100 * float(values.mean()) if len(values) else math.nan

    some = known & resolved
    error = 2 * 100 * float(off[some].std(ddof=1)) / math.sqrt(some.sum()) if some.sum() > 1 else math.nan
    within = [mean(half <= width * 1.005) for width in (0.03, 0.05, 0.10)]
    return (
        f"{name:<24}{len(answers):>9}{known.sum():>8}{mean(held[known]):>6.1f}{mean(nearly[known]):>6.1f}"
        f"{mean(resolved):>9.0f}{mean(held[some]):>13.1f}{within[0]:>5.0f}{within[1]:>5.0f}{within[2]:>6.0f}"
        f"{mean(off[some]):>7.2f}{error:>6.2f}{np.median(requests):>10,.0f}"
        f"{np.median(requests[some]) if some.any() else math.nan:>10,.0f}"
        f"{np.median([a['cpu_s'] for a in answers]):>7.1f}"
    )


Strata: TypeAlias = Mapping[str, Callable[[Mapping[str, Any]], str]]
STRATA: Strata = {
    "": lambda _: "all",
    "kind": lambda a: a["kind"] + (f" {a['servers']}" if a["servers"] > 1 else ""),
    "arrivals": lambda a: a["arrivals"],
    "goal": lambda a: f"{a['goal']:g}",
    "horizon": lambda a: "cut" if a["horizon_s"] < 600 else "600 s" if a["horizon_s"] == 600 else "longer",
    "steady": lambda a: "poisson fifo or slots" if a["arrivals"] == "poisson" and a["kind"] != "metastable" else "",
}


def tables(answers: Sequence[Mapping[str, Any]], worst: int, strata: Strata) -> None:
    """The worst answers, and the totals of the strata."""

    def away(answer: Mapping[str, Any]) -> float:
        verdict = judged(answer)
        return abs(verdict["off"]) / verdict["half"] if "rate" in answer else 0.0

    for answer in sorted(answers, key=away, reverse=True)[:worst]:
        if "rate" in answer:
            verdict = judged(answer)
            print(
                f"{away(answer):5.2f} half widths off ({100 * verdict['off']:+.1f} %, +-{100 * verdict['half']:.1f} %, "
                f"truth +-{100 * answer['error']:.2f} %, slope {answer['slope']:.1f}, {answer['requests']:,} requests, "
                f"T {answer['horizon_s']:g} s) {answer['number']} {answer['system']}"
            )
    print(HEAD)
    for name, of in strata.items():
        groups: dict[str, list[Mapping[str, Any]]] = {}
        for answer in answers:
            groups.setdefault(of(answer), []).append(answer)
        for key in sorted(groups):
            if key:
                print(total(f"{name} {key}".strip(), groups[key]))
    without = [a for a in answers if "rate" not in a]
    print(f"without an interval: {len(without)}", sorted({a["why"] or "" for a in without}))


def constants() -> Iterator[tuple[ModuleType, str, int | None]]:
    """Numbers that tune the search (and not what it defines): their module, name, and place where there are several."""
    for module in (horizon, crossing):
        for name, value in vars(module).items():
            if name.isupper() and name not in DEFINES and isinstance(value, (int, float, tuple)):
                if not isinstance(value, tuple):
                    yield module, name, None
                elif all(isinstance(number, (int, float)) for number in value):
                    yield from ((module, name, place) for place in range(len(value)))


def scaled(value: Any, factor: float) -> Any:
    """A number times a factor; whole ones stay whole and 1 at least, parts of one stay below it."""
    if isinstance(value, int):
        return max(1, round(value * factor))
    return min(value * factor, 0.95) if value < 1 else value * factor


def varied(numbers: Sequence[int], limit: int, truth_requests: int) -> None:
    """How many intervals hold, are resolved, and cost, with each constant at half and at twice its value."""
    truths: dict[tuple[int, float], tuple[float, float, float]] = {}

    def tried(name: str) -> None:
        answers = []
        for number in numbers:
            queue, begun_s = drawn(number), time.process_time()
            try:
                search, result = queue.searched(1_000, limit)
            except (ArithmeticError, ValueError, IndexError) as error:
                print(f"{name}: queue {number} ends in {type(error).__name__}: {error}", flush=True)
                continue
            answer = {"number": number, "state": "resolved" if result.resolved else "unresolved", "why": result.why,
                      "requests": search._spent, "cpu_s": time.process_time() - begun_s}  # fmt: skip
            if (found := result.estimate) is not None and found.low_rps and found.high_rps:
                key = number, search.horizon_s
                if key not in truths:
                    truths[key] = queue.truth(search.horizon_s, found.rate_rps, truth_requests)
                answer |= {"rate": found.rate_rps, "low": found.low_rps, "high": found.high_rps}
                answer["truth"], answer["error"], answer["slope"] = truths[key]
            answers.append(answer)
        print(total(name, answers), flush=True)

    print(HEAD)
    tried("as they are")
    for module, name, place in [*constants()]:
        before = getattr(module, name)
        for factor in (0.5, 2.0):
            one = before if place is None else before[place]
            value = scaled(one, factor)
            if value != one:
                setattr(module, name, value if place is None else (*before[:place], value, *before[place + 1 :]))
                tried(f"{name}{'' if place is None else f'[{place}]'} {one:g} to {value:g}")
        setattr(module, name, before)


def main() -> None:
    """Search, append a line of JSON for each search to the file, and print the tables."""
    given = parsed(
        __doc__, first=0, queues=60, searches=2, limit=600_000, truth=3_000_000, workers=2, worst=12, file=Path,
        vary=False,
    )  # fmt: skip
    if given.vary:
        varied(range(given.first, given.first + given.queues), given.limit, given.truth)
        return
    exists = given.file is not None and given.file.exists()
    answers = [json.loads(line) for line in given.file.read_text().splitlines()] if exists else []
    wanted = [(n, given.searches, given.limit, given.truth) for n in range(given.first, given.first + given.queues)]
    with Pool(given.workers) as processes:
        for rows in processes.imap(row, wanted):
            answers += rows
            if given.file is not None:
                with given.file.open("a") as out:
                    out.writelines(json.dumps(each) + "\n" for each in rows)
    tables(answers, given.worst, STRATA)


if __name__ == "__main__":
    main()
