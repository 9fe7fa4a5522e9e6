"""How often `bench compare` calls a loss where there is none, and how often it finds one, under realistic noise.

    python tests/perf/comparison_power.py                       # some minutes
    python tests/perf/comparison_power.py --run-s 600           # long runs
    python tests/perf/comparison_power.py --seed 1 --pairs 5    # other draws; one number of pairs

A session of interleaved pairs (A B, B A, ...) is drawn second by second: the machine's speed, the requests of each pair
with their own weight, and each request's own noise. The gates are those that stand at one rate (TPOT, TTFT, failed).
The same draws are compared without a difference, with a head that is 5 % slower, and with one that stalls for 1 s
every 20 s (TPOT and TTFT + 5 % in the mean, not in the median). Each cell is the share of `regressed` in %.

    --sessions     sessions in each row
    --run-s        length of a run
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from _options import parsed  # beside this file
from scipy.signal import lfilter

from harness.data.folder import Run
from harness.data.run_json import RunInfo
from harness.experiments.compare import gates, refusals, verdict
from harness.experiments.compare.compare_json import GateRow
from harness.experiments.compare.pairing import Pair
from harness.stats.paired import ALPHA, steady_loss, whole

Floats = npt.NDArray[np.float64]
Rng = np.random.Generator

MOST_PAIRS = verdict.INTERIM[-1]
GAP_S = 10
"""Between two runs: the next process starts, and the first answers come."""
REQUESTS, REQUEST_S = 600, 4.0
TOKENS, TPOT_S, TTFT_S = 100, 0.04, 0.5
TRAFFIC, SCHEDULE, OWN, TTFT_OWN = 0.15, 0.03, 0.1, 0.3
"""Standard deviations of ln: weight of a request and of a schedule (shared by the pair), noise of TPOT and TTFT."""
LOSS, STALL_S, STALL_EVERY_S = 1.05, 1.0, 20.0

NONE, SLOWER, STALLS = EFFECTS = "none", "slower", "stalls"


@dataclass(frozen=True)
class Noise:
    """What disturbs a session, as ln of the slow-down: of each run (iid), and of each second.

    `speed` takes the generator and a number of seconds; `day` is of all runs of a side, made in a batch of their own.
    """

    run: Callable[[Rng, int], Floats]
    speed: Callable[[Rng, int], Floats] = field(default=lambda _, seconds: np.zeros(seconds))
    day: float = 0.0


def normal(sd: float) -> Callable[[Rng, int], Floats]:
    return lambda rng, runs: rng.normal(0, sd, runs)


def drifting(sd: float, tau_s: float) -> Callable[[Rng, int], Floats]:
    """AR(1) with a step of a second."""
    keep = np.exp(-1 / tau_s)

    def speed(rng: Rng, seconds: int) -> Floats:
        shocks = sd * np.sqrt(1 - keep**2) * rng.standard_normal(seconds)
        shocks[0] = sd * rng.standard_normal()
        return np.asarray(lfilter([1.0], [1.0, -keep], shocks))

    return speed


def neighbours(every_s: float) -> Callable[[Rng, int], Floats]:
    """15 to 20 % slower for 30 s, again after half to one and a half times `every_s`."""

    def speed(rng: Rng, seconds: int) -> Floats:
        found, at = np.zeros(seconds), rng.uniform(0, every_s)
        while at < seconds:
            found[int(at) : int(at) + 30] = np.log(rng.uniform(1.15, 1.20))
            at += rng.uniform(0.5, 1.5) * every_s
        return found

    return speed


def some_slow(rng: Rng, runs: int) -> Floats:
    """One run in twenty is 20 % slower."""
    slow: Floats = np.log(1.2) * (rng.random(runs) < 0.05)
    return slow + normal(0.01)(rng, runs)


def first_slow(rng: Rng, runs: int) -> Floats:
    """The machine is cold in the first run."""
    slow: Floats = np.log(1.1) * (np.arange(runs) == 0)
    return slow + normal(0.01)(rng, runs)


NOISES = {
    "iid 1 %": Noise(normal(0.01)),
    "iid 2 %": Noise(normal(0.02)),
    "AR(1) 2 %, 60 s": Noise(normal(0.0), drifting(0.02, 60)),
    "AR(1) 2 %, 5 min": Noise(normal(0.0), drifting(0.02, 300)),
    "neighbours every 5 min": Noise(normal(0.01), neighbours(300)),
    "neighbours every 15 min": Noise(normal(0.01), neighbours(900)),
    "t(2) 1 %": Noise(lambda rng, runs: 0.01 * rng.standard_t(2, runs)),
    "5 % of runs + 20 %": Noise(some_slow),
    "first run + 10 %": Noise(first_slow),
    "batches, day effect 2 %": Noise(normal(0.01), day=0.02),
}


@dataclass(frozen=True)
class Session:
    """A gate -> the means of base and head of every pair, and its steady loss with the scatter over groups."""

    means: Mapping[str, list[tuple[float, float]]]
    steady: Mapping[str, list[tuple[float, float]]]
    in_turns: bool


@cache
def in_turns(batches: bool) -> bool:
    """What the product makes of the start times of interleaved runs, or of a night of each side."""
    pairs = []
    for number in range(MOST_PAIRS):
        order = (number, MOST_PAIRS + number) if batches else (2 * number + number % 2, 2 * number + 1 - number % 2)
        runs = [RunInfo.of({"started": f"2026-01-05T{hour:02d}:00:00+00:00", "clock": "wall"}) for hour in order]
        base, head = (Run(Path(), info, pa.table({}), None, None, complete=True) for info in runs)
        pairs.append(Pair(base, head))
    return refusals.in_turns(pairs)


def drawn(
    rng: Rng, noise: Noise, run_s: float, effect: str, requests: int = REQUESTS, pairs: int = 2 * MOST_PAIRS
) -> Session:
    """A session of interleaved pairs, or of two batches where days differ."""
    runs = 2 * pairs
    step_s = run_s + GAP_S
    seconds = int(runs * step_s + 2 * REQUEST_S) + 2
    slow = np.concatenate([[0.0], np.cumsum(np.exp(noise.speed(rng, seconds)))])
    factor = noise.run(rng, runs)
    days = noise.day * rng.standard_normal(2)
    phase_s = rng.uniform(0, STALL_EVERY_S)
    tpot_s, ttft_s = np.empty((pairs, 2, requests)), np.empty((pairs, 2, requests))
    for pair in range(pairs):
        due_s = np.sort(rng.uniform(0, run_s, requests))
        weight = np.exp(SCHEDULE * rng.standard_normal() + TRAFFIC * rng.standard_normal(requests))
        for side in (0, 1):
            place = 2 * pair + (side if pair % 2 == 0 else 1 - side)
            at_s = due_s + place * step_s
            average = (np.interp(at_s + REQUEST_S, np.arange(len(slow)), slow)
                       - np.interp(at_s, np.arange(len(slow)), slow)) / REQUEST_S  # fmt: skip
            speed = average * np.exp(factor[place] + days[side])
            worse = side == 1 and effect == SLOWER
            tpot = TPOT_S * weight * speed * np.exp(OWN * rng.standard_normal(requests)) * (LOSS if worse else 1)
            ttft = TTFT_S * weight * speed * np.exp(TTFT_OWN * rng.standard_normal(requests)) * (LOSS if worse else 1)
            if side == 1 and effect == STALLS:
                until_s = (phase_s - at_s) % STALL_EVERY_S  # of the next stall
                tpot += np.where(until_s < REQUEST_S, STALL_S / TOKENS, 0.0)
                ttft += np.maximum(0.0, STALL_S - (at_s - phase_s) % STALL_EVERY_S)
            tpot_s[pair, side], ttft_s[pair, side] = tpot, ttft
    values = {"tpot": tpot_s, "ttft": ttft_s}
    means = {name: [(float(a), float(b)) for a, b in each.mean(2)] for name, each in values.items()}
    steady = {name: [found for sides in each if (found := steady_loss(*sides))] for name, each in values.items()}
    return Session({**means, "failed": [(0.0, 0.0)] * pairs}, {**steady, "failed": []}, in_turns(noise.day > 0))


def judged(session: Session, places: Sequence[int], alpha: float) -> list[GateRow]:
    """The rows of the gates on these pairs."""
    gated = []
    for gate in gates.defaults(session.means):
        name = gate.quantity.name
        base, head = zip(*(session.means[name][place] for place in places), strict=True)
        steady = tuple(session.steady[name][place] for place in places) if session.steady[name] else ()
        gated.append((gate, verdict.Series(gate.quantity, {}, base, head, steady)))
    return verdict.paired(gated, alpha)


def compared(session: Session, pairs: int | None) -> tuple[str, int]:
    """The verdict after so many pairs, or that of `--pairs auto`, and the pairs made; unusual ones are made again once.

    The second attempts are those behind `MOST_PAIRS`.
    """
    again: dict[int, int] = {}
    for count in verdict.INTERIM if pairs is None else (pairs,):
        alpha = verdict.alpha(verdict.INTERIM) if pairs is None else ALPHA
        while True:
            rows = judged(session, [again.get(place, place) for place in range(count)], alpha)
            place = next((place for place in verdict.unusual(rows) if place not in again), None)
            if place is None:
                break
            again[place] = MOST_PAIRS + place
        found = whole([row.verdict for row in rows]) if session.in_turns else "inconclusive"
        if found != "inconclusive":
            break
    return found, count + len(again)


PAIRS = (3, 5, 10, None)
"""Numbers of pairs; None is auto."""


def regressed(noise: Noise, run_s: float, seed: tuple[int, int]) -> list[list[tuple[bool, int]]]:
    """(effects, numbers of pairs): whether a session is called a regression, and after how many pairs."""
    sessions = [drawn(np.random.default_rng(seed), noise, run_s, effect) for effect in EFFECTS]
    endings = [[compared(session, pairs) for pairs in PAIRS] for session in sessions]
    return [[(found == "regressed", made) for found, made in row] for row in endings]


def main() -> None:
    """Print the table, the noise under which fewest losses are found by 5 pairs first."""
    given = parsed(__doc__, sessions=1000, run_s=60.0, seed=0)
    found = np.array(
        [
            np.mean([regressed(noise, given.run_s, (given.seed, i)) for i in range(given.sessions)], axis=0)
            for noise in NOISES.values()
        ]
    )  # (noises, effects, numbers of pairs, [share, pairs])
    titles = ("no difference", "loss of 5 %", "stalls", "pairs made, equal")
    numbers = "".join(f"{'auto' if pairs is None else pairs:>7}" for pairs in PAIRS)
    print(f"regressed, in % of {given.sessions:,} comparisons of runs of {given.run_s:g} s; pairs:\n")
    print(f"{'':26}" + "  ".join(f"{title:>28}" for title in titles))
    print(f"{'':26}" + "  ".join([numbers] * 4))
    for place in np.argsort(found[:, 1, 1, 0], kind="stable"):
        cells = [*100 * found[place, :, :, 0], found[place, 0, :, 1]]
        print(f"{list(NOISES)[place]:26}" + "  ".join("".join(f"{cell:7.1f}" for cell in row) for row in cells))


if __name__ == "__main__":
    main()
