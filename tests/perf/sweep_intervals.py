"""How often the interval of a point of a sweep holds the truth, and how far its crossing is off.

The synthetic server of `_synthetic.py` at rates around its knee, with as many seeds as `--seeds`; these are taken for
all there are, and sweeps of 5 and of 10 of them are drawn again and again. Near the knee the attainment of a seed is
skewed, so Student's t of few seeds holds less than it says.

    --seeds        seeds at each rate
"""

from collections.abc import Sequence

import _synthetic as synthetic
import numpy as np
from _options import parsed  # beside this file

from harness.experiments.pool import of
from harness.stats.crossing import crossing
from harness.stats.seeds import spread

RATES = (13.0, 13.8, 14.6, 15.4)
DRAWS = 2000


def attained(at: tuple[float, int]) -> float:
    """Attainment of one seed at one rate."""
    rate_rps, seed = at
    return synthetic.fixed(seed, rate_rps).attainment()


def held(values: Sequence[float], seeds: int, rng: np.random.Generator) -> float:
    """The share of sweeps of so many seeds whose interval holds the mean of all."""
    truth = float(np.mean(values))
    found = [spread(rng.choice(values, seeds, replace=False).tolist(), most=1.0) for _ in range(DRAWS)]
    known = [one for one in found if one is not None and one.low is not None]
    return float(np.mean([one.low <= truth <= one.high for one in known]))


def crossings(table: np.ndarray, seeds: int, rng: np.random.Generator) -> np.ndarray:
    """Where sweeps of so many seeds cross the goal; `table` is (rates, seeds)."""
    requests = [synthetic.REQUESTS * seeds] * len(RATES)
    drawn = [table[:, rng.choice(table.shape[1], seeds, replace=False)].mean(axis=1) for _ in range(DRAWS)]
    return np.array([c.at for one in drawn if (c := crossing(RATES, one, requests, synthetic.GOAL)).at is not None])


def main() -> None:
    count = parsed(__doc__, seeds=200).seeds
    tasks = [(rate_rps, seed) for seed in range(count) for rate_rps in RATES]
    with of() as pool:
        found = dict(pool.map(attained, tasks))
    table = np.array([[found[rate_rps, seed] for seed in range(count)] for rate_rps in RATES])
    rng = np.random.default_rng(0)
    print(f"{count} seeds at each rate, {DRAWS:,} sweeps drawn from them\n")
    print("rate (req/s)  attainment (%)  sd over seeds (points)  95% interval holds the mean (%): 5 seeds  10 seeds")
    for rate_rps, values in zip(RATES, table, strict=True):
        shares = [f"{100 * held(values.tolist(), seeds, rng):.1f}" for seeds in (5, 10)]
        mean, deviation = 100 * values.mean(), 100 * values.std(ddof=1)
        print(f"{rate_rps:<12g}  {mean:>14.2f}  {deviation:>22.1f}  {shares[0]:>40}  {shares[1]:>8}")
    print(f"\ncrossing of {synthetic.GOAL:.0%}, which {synthetic.CAPACITY_RPS} req/s is")
    for seeds in (5, 10):
        at = crossings(table, seeds, rng)
        print(f"{seeds:>2} seeds: mean {at.mean():.2f} req/s, sd {at.std(ddof=1) / at.mean():.1%}")


if __name__ == "__main__":
    import sweep_intervals  # by its name, so that processes can find what they call

    sweep_intervals.main()
