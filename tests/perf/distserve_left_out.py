"""`distserve-a100` with each run left out in turn: calibrated on all others of its configuration, scored on this one.

    python tests/perf/distserve_left_out.py [--data ../shared/data] [--runs 25]

RMSE and largest error in points under both SLOs of the source, and the largest factor of TTFT p90 in saturation, beside
DistServe's own simulator on the same runs. One minute.
"""

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.validate import Pair
from harness.validate.scoring import errors
from harness.validate.simulated import times
from harness.validate.sources import distserve_a100 as source


def left_out(run: source.Run, curves: Mapping[str, Sequence[source.Run]]) -> list[Pair]:
    """The run by a simulator that was calibrated on all others; the prefill of every configuration apart is shared."""
    apart = run.shape is not None
    seen = {
        name: [one for one in runs if one is not run]
        for name, runs in curves.items()
        if name == run.curve or (apart and runs[0].shape is not None)
    }
    with tempfile.TemporaryDirectory() as folder:
        options, _ = source.fitted(seen, Path(folder))[run.curve]
        return list(source._pairs(run, times(run.seen.traffic, options)))


def main() -> None:
    """Print a line for each simulator."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--runs", type=int, default=25)
    given = parser.parse_args()
    curves: dict[str, list[source.Run]] = {}
    for run in source._runs(given.data / "profiles" / "distserve_a100_opt13b_sharegpt_requests.parquet"):
        curves.setdefault(run.curve, []).append(run)
    lowest = {name: source._lowest(runs) for name, runs in curves.items()}
    chosen = [run for runs in curves.values() for run in runs][: given.runs]
    for name, pairs in (
        ("ours", [pair for run in chosen for pair in left_out(run, curves)]),
        ("DistServe's own", [pair for run in chosen for pair in source._peer(run)]),
    ):
        found = [errors(pairs, source._attainment(bounds)) for bounds in source.BOUNDS]
        factor = source._factor(pairs, lowest)
        points = " and ".join(f"{one.rmse:.2f}" for one in found)
        worst = max(one.largest for one in found)
        times_off = "-" if factor is None else f"{factor:.3g}"
        print(f"{name}: {len(chosen)} runs, RMSE {points} points, at worst {worst:.1f}, TTFT p90 by {times_off} times")


if __name__ == "__main__":
    main()
