"""Whether open loops of sessions have the rate that was requested, from their first minute on, worst preset first.

    python tests/perf/session_rates.py PRESET@RATE... [--seeds 20] [--minutes 20] [--run]

Printed are the mean of the seeds and its standard error, the standard deviation of one seed (what few long sessions
make of it), how many seeds are within 5 %, and the requests of the first minute and of each quarter, all relative to
the rate. Times are those of `bench trace generate`, where answers take their nominal time; with `--run` those of a
schedule, where they take none.
"""

import argparse

import numpy as np

from harness.data.schedule import Schedule
from workloads import catalog


def counts(preset: str, rate_rps: float, seed: int, minutes: int, *, run: bool) -> np.ndarray:
    """(minutes,) requests of each minute, relative to the rate."""
    loaded = catalog.load(preset, rate_rps=rate_rps, seed=seed, duration_s=60.0 * minutes)
    workload = loaded.workload if run else loaded.workload.as_recorded()  # type: ignore[attr-defined]  # of drawn sessions
    at_s = Schedule.draw(workload, seed=seed, duration_s=60.0 * minutes).table["scheduled_s"].to_numpy()
    return np.bincount((at_s[at_s < 60 * minutes] / 60).astype(int), minlength=minutes) / (60 * rate_rps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("presets", nargs="+")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--minutes", type=int, default=20)
    parser.add_argument("--run", action="store_true")
    given = parser.parse_args()
    lines = []
    for name, _, rate in (text.partition("@") for text in given.presets):
        minutes = np.array([counts(name, float(rate), s, given.minutes, run=given.run) for s in range(given.seeds)])
        off = minutes.mean(axis=1) - 1
        quarters = " ".join(f"{part.mean():.2f}" for part in np.array_split(minutes.mean(axis=0), 4))
        within = int((np.abs(off) <= 0.05).sum())
        spread = off.std(ddof=1)
        lines.append((within, (
            f"{name}@{rate}: {off.mean():+.1%} +- {spread / len(off) ** 0.5:.1%}, one seed {spread:.1%}, {within} of "
            f"{len(off)} within 5 %; first minute {minutes[:, 0].mean():.2f}, quarters {quarters}"
        )))  # fmt: skip
    print("\n".join(line for _, line in sorted(lines)))


if __name__ == "__main__":
    main()
