"""How often the usual interval of one run holds the truth: Wilson's, of independent requests, on the synthetic server.

    python tests/perf/one_run_interval.py --seeds 150

The truth at a rate is the mean over all seeds. Two minutes on two cores.
"""

import _synthetic as synthetic
import numpy as np
from _options import parsed  # beside this file

from harness.experiments.pool import of

RATES_RPS = (11.0, 12.0, 13.0, 14.0)


def attainment(item: tuple[float, int]) -> float:
    """Share within the SLO of one run at a rate, with a seed."""
    rate_rps, seed = item
    return synthetic.fixed(seed, rate_rps).attainment()


def holds(share: float, truth: float, n: int) -> bool:
    """Whether Wilson's 95 % interval of a share of `n` requests contains the truth."""
    from scipy.stats import binomtest

    found = binomtest(round(share * n), n).proportion_ci(method="wilson")
    return bool(found.low <= truth <= found.high)


def main() -> None:
    """Print the table."""
    given = parsed(__doc__, seeds=150, workers=int)
    with of(given.workers) as pool:
        found = dict(pool.map(attainment, [(rate, seed) for rate in RATES_RPS for seed in range(given.seeds)]))
    print("rate (req/s)  attainment  sd over seeds  Wilson 95 % holds the truth")
    for rate in RATES_RPS:
        shares = np.array([found[rate, seed] for seed in range(given.seeds)])
        held = np.mean([holds(share, shares.mean(), synthetic.REQUESTS - synthetic.DROPPED) for share in shares])
        print(f"{rate:12g}  {shares.mean():10.2%}  {shares.std():13.2%}  {held:27.0%}")


if __name__ == "__main__":
    import one_run_interval  # by its name, so that processes can find what they call

    one_run_interval.main()
