"""Sessions drawn from a model that was fitted to one half of a trace, beside the other half, worst first.

    python tests/perf/fitted_sessions.py ../shared/data/agentic/weka [--splits 10] [--seed 1]
    python tests/perf/fitted_sessions.py ../shared/data/traces/mooncake/conversation_trace.jsonl

Sessions with clocks of their own are divided at random, other traces in the middle of their time (either half is fitted
once, and drawn from `--splits` times). Printed are Kolmogorov-Smirnov distances of turns, pauses, prompt and output
tokens, the share of the blocks that repeat an earlier one, and the largest difference of the hits in five LRU caches:
of the draw, and in brackets of the half that was fitted, each beside the half that was held out.
"""

import argparse
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from harness.stats import arrivals
from workloads import trace_rows, traces
from workloads.fit import _whole_quality, command
from workloads.fit._whole_quality import Reuse
from workloads.traces import Trace


class Apart(NamedTuple):
    """How far a trace is from another: KS distances of turns, pauses, prompts and outputs, its share of blocks that
    repeat an earlier one, and its share of hits in each of five caches.
    """

    ks: list[float]  # (4,)
    reuse: float
    lru: list[float]  # (5,)

    @classmethod
    def of(cls, one: Trace, other: Trace, cached: Reuse) -> "Apart":
        series, others = _whole_quality.numbers(one), _whole_quality.numbers(other)
        ks = [arrivals.distance(series[name], others[name]) for name in _whole_quality.NUMBERS]
        return cls(ks, _whole_quality.share_again(other.table), cached.curve(other))


class Scored(NamedTuple):
    """A draw and the half that its model was fitted to, each beside the half that was held out."""

    name: str
    draw: Apart
    half: Apart
    reuse: float  # of the half that was held out
    lru: list[float]

    def row(self) -> list[tuple[float, float]]:
        """Pairs (draw, half): four KS distances, points of reuse and points of hits that they are off."""
        sides = (self.draw, self.half)
        points = [(abs(side.reuse - self.reuse) * 100 for side in sides),
                  (np.abs(np.subtract(side.lru, self.lru)).max() * 100 for side in sides)]  # fmt: skip
        return [*zip(self.draw.ks, self.half.ks, strict=True), *((float(a), float(b)) for a, b in points)]


def scored(name: str, fitted: Trace, held_out: Trace, seeds: list[int]) -> Iterator[Scored]:
    """The halves beside one another, for each seed of a draw."""
    model = command.fit(fitted, mode="parametric", seeds=0)
    assert model.whole is not None
    cached = Reuse.of(held_out, own_clocks=model.whole["own_clocks"])
    half, lru, reuse = (
        Apart.of(held_out, fitted, cached),
        cached.curve(held_out),
        _whole_quality.share_again(held_out.table),
    )
    for seed in seeds:
        draw = Apart.of(held_out, _whole_quality.like(model, held_out, seed), cached)
        yield Scored(f"{name}, seed {seed}", draw, half, reuse, lru)


def halves(path: str, splits: int, seed: int) -> Iterator[Scored]:
    """Both ways of dividing a trace."""
    trace = traces.read(path)
    if traces.clock(trace.facts) == "session":
        units, sessions = trace_rows.conversations(trace.table)
        for number in range(splits):
            first = np.random.default_rng([seed, number]).permutation(sessions)[: sessions // 2]
            inside = np.isin(units, first)
            one, other = (trace_rows.rows_of(trace, np.flatnonzero(rows)) for rows in (inside, ~inside))
            yield from scored(f"split {number}", one, other, [number])
        return
    middle_s = float(trace.at_s[-1]) / 2
    early, late = (traces.read(path, None, traces.Slice(*part)) for part in ((None, middle_s), (middle_s, None)))
    for name, one, other in (("early half fitted", early, late), ("late half fitted", late, early)):
        yield from scored(name, one, other, list(range(seed, seed + splits)))


HEADER = ("turns", "pauses", "prompts", "outputs", "reuse, points", "hits, points")


def main() -> None:
    """Print a row for each split, the worst draw first, and the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace")
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    rows = [(each.name, each.row(), each) for each in halves(given.trace, given.splits, given.seed)]
    rows.sort(key=lambda row: -sum(pair[0] for pair in row[1][:4]))
    print(f"{'draw (half) beside the half held out':<32}" + "".join(f"{name:>16}" for name in HEADER) + "   reuse")
    for name, pairs, each in rows:
        print(f"{name:<32}{_text(pairs)}   {each.draw.reuse:.1%} / {each.reuse:.1%}")
    print(f"{'median':<32}{_text(np.median([pairs for _, pairs, _ in rows], axis=0))}")


def _text(pairs: list[tuple[float, float]] | np.ndarray) -> str:
    cells = [f"{a:.3f} ({b:.3f})" if i < 4 else f"{a:.1f} ({b:.1f})" for i, (a, b) in enumerate(pairs)]
    return "".join(f"{cell:>16}" for cell in cells)


if __name__ == "__main__":
    main()
