"""The synthetic server on which capacity and comparison are tried, as a configuration of the simulator.

Continuous batching: 48 slots, decodes first, 512 tokens a step, a step of 10 ms + 0.12 ms a decode + 0.03 ms a prompt
token; Poisson arrivals, clipped log-normal lengths. `TRUTH` and the capacities come from another simulator of the
same server (compiled, 1,000 seeds), whose steps had a log-normal jitter of 10 %: its mean is in `JITTER`, and what
it adds beyond that averages out over the hundred steps of a request.

A server that is slower by a factor f is this one with another unit of time. So a knee at every factor follows from
the same runs: it is the knee under the SLO divided by f, divided by f.
"""

import math
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from harness.experiments.pool import of
from harness.experiments.trial import simulate
from harness.metrics.measure import metrics, per_request
from harness.options import RunSpec

Floats: TypeAlias = npt.NDArray[np.float64]

TTFT_S, TPOT_S, GOAL = 0.5, 0.025, 0.9
REQUESTS, DROPPED = 2000, 200
TRUTH = {13.0: 0.9928, 13.8: 0.9684, 14.6: 0.882, 15.4: 0.655, 16.2: 0.300}
"""Attainment by rate (req/s), mean over 1,000 seeds."""
SPREAD = {13.0: 0.015, 13.8: 0.040, 14.6: 0.102, 15.4: 0.208, 16.2: 0.224}
"""Standard deviation of attainment between seeds."""
CAPACITY_RPS = 14.49
"""Where the mean over seeds reaches 90 %; Poisson arrivals."""
GAMMA_CAPACITY_RPS = 12.46
"""The same for gamma gaps with cv 2, at 1 % run noise."""
JITTER = math.exp(0.1**2 / 2)
STORED = Path(__file__).with_name("synthetic_knees.csv")
"""Knees of 400 seeds at the factors of `FACTORS`, written by `python tests/perf/_synthetic.py`."""
FACTORS = tuple(round(0.94 + 0.02 * i, 2) for i in range(10))
STEP = math.log(1.02)
"""Rates that are tried for a knee are 14.5 req/s times powers of this."""


def spec(
    rate_rps: float = 14.5, seed: int = 0, slow: float = 1.0, cv: float = 1.0, requests: int = REQUESTS
) -> RunSpec:
    """A run against the server, slower by `slow`; gamma gaps of this `cv` where it is not 1."""
    unit = slow * JITTER
    step = f"base_s={0.010 * unit:.9g},decode_seq_s={0.00012 * unit:.9g},prefill_token_s={0.00003 * unit:.9g}"
    prompts, outputs = (
        f"{_law('prompt', 300, 0.8)},prompt_clip=8..4000",
        f"{_law('output', 120, 0.7)},output_clip=4..600",
    )
    return RunSpec(
        workload="chatbot",
        arrivals="poisson" if cv == 1 else f"gamma:cv={cv:g}",
        lengths=f"lognormal:{prompts},{outputs}",
        rate=rate_rps,
        seed=seed,
        requests=requests,
        backend="sim:kv_blocks=100000",
        latency=f"linear:{step}",
        policy="sarathi:budget=512,max_seqs=48",
        slo=f"ttft={TTFT_S:g},tpot={TPOT_S:g}",
        warmup=str(DROPPED),
        goal=GOAL,
    )


def _law(name: str, median: float, sigma: float) -> str:
    mean, cv = median * math.exp(sigma**2 / 2), math.sqrt(math.expm1(sigma**2))
    return f"{name}_mean_tokens={mean:.9g},{name}_cv={cv:.9g}"


@dataclass(frozen=True, slots=True, eq=False)
class Times:
    """TTFT and TPOT (requests,) in seconds, in order of departure, the first `DROPPED` left out."""

    ttft_s: Floats
    tpot_s: Floats

    def attainment(self, slow: float = 1.0) -> float:
        """Share that meets the SLO when all of it is slower by a factor."""
        return float(np.mean((self.ttft_s * slow <= TTFT_S) & (self.tpot_s * slow <= TPOT_S)))


def times(run: RunSpec) -> Times:
    """What a run measured, without a folder."""
    table = simulate(run).table.sort_by([("scheduled_s", "ascending"), ("request_id", "ascending")]).slice(DROPPED)
    ttft_s, tpot_s = (per_request(metrics()[name], table) for name in ("ttft", "tpot"))
    return Times(ttft_s, np.nan_to_num(tpot_s))


def fixed(seed: int, rate_rps: float, slow: float = 1.0, requests: int = REQUESTS, cv: float = 1.0) -> Times:
    """One run at a rate of a server slower by `slow`."""
    return times(spec(rate_rps, seed, slow, cv, requests))


class Knees:
    """Knees of one seed at any factor; every rate is simulated once."""

    def __init__(self, seed: int, cv: float = 1.0) -> None:
        self._start = spec(CAPACITY_RPS if cv == 1 else GAMMA_CAPACITY_RPS, seed, cv=cv)
        self._at = cache(self._run)

    def knee(self, slow: float = 1.0) -> float:
        """The highest rate (req/s) at which 90 % meet the SLO, for a server slower by `slow`."""
        k = round(-math.log(slow) / STEP)  # near it, in steps of the unslowed server
        step = 1 if self._met(k, slow) else -1
        while self._met(k, slow) == (step > 0):
            k += step
        below = k - 1 if step > 0 else k
        low, high = (_logit(self._at(i).attainment(slow)) for i in (below, below + 1))
        part = (low - _logit(GOAL)) / (low - high)
        return self._rate_rps(below + part) / slow

    def _met(self, k: int, slow: float) -> bool:
        return self._at(k).attainment(slow) >= GOAL

    def _rate_rps(self, k: float) -> float:
        assert self._start.rate is not None
        return self._start.rate * math.exp(STEP * k)

    def _run(self, k: int) -> Times:
        return times(replace(self._start, rate=self._rate_rps(k)))


def _logit(share: float) -> float:
    half = 0.5 / (REQUESTS - DROPPED)
    share = min(max(share, half), 1 - half)
    return math.log(share / (1 - share))


def knees(seed: int) -> list[float]:
    """Knees of a seed at each of `FACTORS`."""
    server = Knees(seed)
    return [server.knee(slow) for slow in FACTORS]


def stored() -> Floats:
    """Stored knees in req/s: (seeds, factors)."""
    return np.loadtxt(STORED, delimiter=",", skiprows=1, ndmin=2)[:, 1:]


def stored_knee(seed: int, slow: float) -> float:
    """The knee of a seed at any factor near those that are stored (a line between logarithms): no simulation."""
    table = _stored_log()
    return math.exp(float(np.interp(math.log(slow), np.log(FACTORS), table[seed % len(table)])))


@cache
def _stored_log() -> Floats:
    return np.log(stored())


def main() -> None:
    """Write the stored knees: two minutes a hundred seeds on two cores."""
    from _options import parsed  # beside this file

    given = parsed(__doc__, seeds=400, workers=int)
    with of(given.workers) as pool:
        found = dict(pool.map(knees, range(given.seeds)))
    rows = (f"{seed}," + ",".join(f"{knee:.4f}" for knee in found[seed]) for seed in range(given.seeds))
    STORED.write_text("\n".join(["seed," + ",".join(map(str, FACTORS)), *rows]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    import _synthetic  # by its name, so that processes can find what they call

    _synthetic.main()
