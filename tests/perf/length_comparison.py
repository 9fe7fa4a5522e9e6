"""Does `bench compare` call equal output lengths different, and does it find shorter ones? On systems drawn at random.

Drawn are the law of the lengths, the number of requests, how alike both sides answer the same prompt, whether requests
are turns of sessions, and how a head is shortened. The decision is that of the product. Two minutes, worst first.

    python tests/perf/length_comparison.py [--seed 7] [--systems 28] [--comparisons 1000]

    --comparisons  of equal sides; a quarter of it of others
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from _options import parsed  # beside this file

from harness.experiments.compare import verdict
from harness.experiments.compare.gates import OUTPUT_TOKENS
from harness.experiments.compare.lengths import Answered

Floats: TypeAlias = npt.NDArray[np.float64]

SERIES = verdict.Series(OUTPUT_TOKENS, {}, (1.0,), (1.0,))
SHORTER_BY = (0.0, 0.02, 0.05, 0.75)
ALPHA = 0.01


@dataclass(frozen=True, slots=True)
class System:
    """Lengths as a function of standard normal draws, of which `alike` is the correlation between the two sides."""

    name: str
    tokens: Callable[[Floats], Floats]
    requests: int
    alike: float
    turns: int
    scaled: bool


def drawn(rng: np.random.Generator) -> System:
    """A system at random."""
    name, tokens = law(rng)
    requests = round(float(np.exp(rng.uniform(np.log(20), np.log(2000)))))
    alike, turns = float(rng.choice([0, 0.3, 0.7, 0.95, 1.0])), int(rng.choice([1, 1, 4]))
    return System(name, tokens, requests, alike, turns, str(rng.choice(["scaled", "cut"])) == "scaled")


def law(rng: np.random.Generator) -> tuple[str, Callable[[Floats], Floats]]:
    """One of five kinds of lengths."""
    from scipy.special import ndtr

    kind = rng.integers(5)
    if kind == 0:
        sigma = rng.uniform(0.3, 1.5)
        return f"log-normal, sigma {sigma:.2f}", lambda u: np.exp(5 + sigma * u)
    if kind == 1:
        return "exponential", lambda u: 1 - 300 * np.log1p(-ndtr(u))
    if kind == 2:
        short = rng.uniform(0.1, 0.6)
        return f"two humps, {short:.2f} short", lambda u: np.where(ndtr(u) < short, 12, 300 + 60 * u)
    if kind == 3:
        tail = rng.uniform(2.1, 3.5)
        return f"Pareto, alpha {tail:.2f}", lambda u: np.minimum(40 * (1 - ndtr(u)) ** (-1 / tail), 32768)
    return "uniform, 1 to 1,000", lambda u: 1 + 999 * ndtr(u)


def normal(rng: np.random.Generator, system: System) -> Floats:
    """Standard normal draws, half of whose variance the turns of a session share."""
    own = rng.normal(size=system.requests)
    if system.turns == 1:
        return own
    shared = np.repeat(rng.normal(size=-(-system.requests // system.turns)), system.turns)[: system.requests]
    return np.sqrt(0.5) * (own + shared)


def answers(rng: np.random.Generator, system: System) -> tuple[Floats, Floats]:
    """Output tokens of the base and of a head that is the same system."""
    prompt = normal(rng, system)
    sides = [np.sqrt(system.alike) * prompt + np.sqrt(1 - system.alike) * normal(rng, system) for _ in range(2)]
    base, head = (np.maximum(1, np.rint(system.tokens(side))) for side in sides)
    return base, head


def shortened(rng: np.random.Generator, system: System, tokens: Floats, by: float) -> Floats:
    """Shorter by this share in the mean: every answer, or answers that are cut at random."""
    if system.scaled:
        return np.maximum(1, np.rint(tokens * (1 - by)))
    cut = rng.random(len(tokens)) < min(1, by / 0.5)
    left = rng.random(len(tokens)) if by <= 0.5 else np.full(len(tokens), 1 - by)
    return np.where(cut, np.maximum(1, np.rint(tokens * left)), tokens)


def called(rng: np.random.Generator, system: System, by: float, comparisons: int) -> tuple[float, float]:
    """Percent of comparisons in which a head that is shorter by this share is called shorter, and longer."""
    sessions = np.arange(system.requests) // system.turns
    found = []
    for _ in range(comparisons):
        base, head = answers(rng, system)
        sums = [np.bincount(sessions, side) for side in (base, shortened(rng, system, head, by) if by else head)]
        found.append(Answered({}, sums[0], sums[1], system.requests, SERIES, exact=False).decided(ALPHA)[0])
    return 100 * found.count("shorter") / comparisons, 100 * found.count("longer") / comparisons


def main() -> None:
    """Print the table, worst first, and the ranges over all systems."""
    given = parsed(__doc__, seed=7, systems=28, comparisons=1000)
    rows = []
    for number in range(given.systems):
        rng = np.random.default_rng([given.seed, number])
        system = drawn(rng)
        counts = [given.comparisons // (4 if by else 1) for by in SHORTER_BY]
        rows.append((system, [called(rng, system, *one) for one in zip(SHORTER_BY, counts, strict=True)]))
    rows.sort(key=lambda row: -sum(row[1][0]))
    print("equal sides called shorter, longer | found: 2 %, 5 %, 75 % shorter | lengths, requests, alike, turns, how")
    for system, ((shorter, longer), *found) in rows:
        shares = "  ".join(f"{share:3.0f}%" for share, _ in found)
        how = "scaled" if system.scaled else "cut at random"
        print(
            f"{shorter:.1f}%  {longer:.1f}%  |  {shares}  |  {system.name}, {system.requests:,}, {system.alike:g}, "
            f"{system.turns}, {how}"
        )
    for what, shares in (
        ("equal, called shorter", [row[1][0][0] for row in rows]),
        ("equal, called longer", [row[1][0][1] for row in rows]),
        ("75 % shorter, found", [row[1][-1][0] for row in rows]),
    ):
        print(f"{len(rows)} systems, {what}: {min(shares):.1f} to {max(shares):.1f} %")
    requests = [system.requests for system, _ in rows]
    print(f"{min(requests):,} to {max(requests):,} requests")


if __name__ == "__main__":
    main()
