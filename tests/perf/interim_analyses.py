"""How `--pairs auto` ends: after 3, 5, 7 or 10 pairs, how often wrongly, and beside the table it was taken from.

    python tests/perf/interim_analyses.py [--draws 4000]

Losses of a pair are normal; the noise of a run is its standard deviation, of which a pair has sqrt(2) and, from the
jitter of the server, 0.16 % more. The verdict is that of `harness.stats.paired`, at the alpha of each look.

    --draws        comparisons in each cell
"""

import math
from collections import Counter

import numpy as np
from _options import parsed  # beside this file

from harness.experiments.compare.verdict import ALPHA_INTERIM, INTERIM
from harness.stats.paired import Limits, decide

JITTER = 0.0016
CAPACITY = Limits(-math.log(0.98), -math.log(0.95))
LOSSES = (0.0, 0.03, 0.05)
TABLE = {
    0.002: ("0 / 0, 3.0", "100", "100 / 0, 3.0"),
    0.005: ("0 / 0, 3.8", "98.9", "100 / 0, 3.8"),
    0.01: ("0.05 / 0, 4.7", "90", "100 / 0.01, 4.7"),
    0.02: ("0.6 / 3.7, 7.0", "49", "96 / 0.3, 7.0"),
    0.03: ("0.9 / 35, 8.6", "22", "64 / 0.7, 8.6"),
}
"""Noise -> no loss: regressed / inconclusive, pairs; 3 %: regressed; 5 %: regressed / equivalent, pairs."""


def ending(rng: np.random.Generator, noise: float, loss: float) -> tuple[str, int]:
    """The verdict of one comparison, and after how many pairs."""
    drawn = -math.log(1 - loss) + math.hypot(math.sqrt(2) * noise, JITTER) * rng.standard_normal(INTERIM[-1])
    for pairs in INTERIM:
        verdict = decide(drawn[:pairs].tolist(), CAPACITY, ALPHA_INTERIM).verdict
        if verdict != "inconclusive":
            return verdict, pairs
    return "inconclusive", INTERIM[-1]


def cell(rng: np.random.Generator, noise: float, loss: float, draws: int) -> tuple[Counter[str], float]:
    """Shares of the verdicts in %, and mean pairs."""
    endings = [ending(rng, noise, loss) for _ in range(draws)]
    counts = Counter(verdict for verdict, _ in endings)
    shares = Counter({verdict: 100 * count / draws for verdict, count in counts.items()})  # type: ignore[arg-type]
    return shares, float(np.mean([pairs for _, pairs in endings]))


def main() -> None:
    draws = parsed(__doc__, draws=4000).draws
    rng = np.random.default_rng(0)
    print(f"{draws:,} comparisons a cell; ours, and in brackets the table of the specification, in %\n")
    print("noise   no loss: regressed / open, pairs     loss 3%: regressed   loss 5%: regressed / equivalent, pairs")
    for noise, result in TABLE.items():
        (a, a_pairs), (b, _), (c, c_pairs) = (cell(rng, noise, loss, draws) for loss in LOSSES)
        none = f"{a['regressed']:.2g} / {a['inconclusive']:.2g}, {a_pairs:.1f} ({result[0]})"
        five = f"{c['regressed']:.3g} / {c['equivalent']:.2g}, {c_pairs:.1f} ({result[2]})"
        print(f"{noise:5.1%}   {none:36} {b['regressed']:5.3g} ({result[1]})         {five}", flush=True)


if __name__ == "__main__":
    main()
