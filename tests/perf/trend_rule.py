"""The rule of `bench compare --trend` on a simulated nightly series: false alarms a year, steps found within a week.

    python tests/perf/trend_rule.py [--years 400]

Values are independent and normal. Beside the rule (two values in a row, above 5 % and three robust standard deviations)
stand one value alone and two values without the robust standard deviations, and the figures of the specification.
"""

import argparse
import time

import numpy as np

from harness.stats.steps import LONGEST, pieces
from harness.stats.watch import Rule, watch

RULES = (Rule(in_a_row=1, sds=0), Rule(sds=0), Rule())
TABLE = {0.01: "0 / 0 / 0; 100 / 100", 0.02: "4.3 / 0.16 / 0.03; 100 / 97", 0.03: "24 / 2.7 / 0.35; 100 / 63",
         0.04: "47 / 7.7 / 0.6; 96 / 38"}  # fmt: skip
"""sd of a night -> false alarms a year by the three rules; % of 10 % steps found by the last two."""
BEFORE, WEEK, YEAR, RUN_IN = 30, 7, 365, 14


def called(series: np.ndarray, rule: Rule, first: int) -> int:
    """Steps for the worse that are called from night `first` on."""
    return sum(
        step.side == "worse" and step.called >= first for step in watch(series.tolist(), rule, higher=False).steps
    )


def row(rng: np.random.Generator, sd: float, years: int) -> str:
    """One line of the table."""
    flat = 1 + sd * rng.standard_normal((years, RUN_IN + YEAR))
    alarms = [sum(called(one, rule, RUN_IN) for one in flat) / years for rule in RULES]
    stepped = 1 + sd * rng.standard_normal((10 * years, BEFORE + WEEK))
    stepped[:, BEFORE:] *= 1.1
    found = [100 * np.mean([called(one, rule, BEFORE) > 0 for one in stepped]) for rule in RULES[1:]]
    return f"{' / '.join(f'{a:.2g}' for a in alarms)}; {' / '.join(f'{f:.0f}' for f in found)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--years", type=int, default=400, help="years of daily values for each line")
    years = parser.parse_args().years
    rng = np.random.default_rng(0)
    print(
        "false alarms a year: 1 value / 2 values / 2 values with MAD; 10% step found in 7 values: 2 values / with MAD\n"
    )
    print(f"{'sd':>4}  {'ours':32}  specification")
    for sd, published in TABLE.items():
        print(f"{sd:4.0%}  {row(rng, sd, years):32}  {published}", flush=True)
    begun_s = time.perf_counter()
    pieces((100 + rng.standard_normal(LONGEST)).tolist())
    print(f"\nstep fit of {LONGEST} values: {time.perf_counter() - begun_s:.2f} s")


if __name__ == "__main__":
    main()
