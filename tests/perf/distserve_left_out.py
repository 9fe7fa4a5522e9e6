"""`distserve-a100` with each run left out in turn: calibrated on all others of its configuration, scored on this one.

    python tests/perf/distserve_left_out.py [--data ../shared/data] [--runs 25]

RMSE and largest error in points under both SLOs of the source, and the largest factor of TTFT p90 in saturation, beside
DistServe's own simulator on the same runs. One minute.
"""

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.experiments.validate import Pair, measured_runs
from harness.experiments.validate.answer import errors

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from published import distserve_a100 as source  # once its folder is on the path


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
        path = source.written(Path(folder), "left-out", [run], {run.curve: options}, ())
        return list(measured_runs.validate(path).pairs)


def by_peer(curves: Mapping[str, Sequence[source.Run]]) -> list[Pair]:
    """The runs by DistServe's own simulator."""
    with tempfile.TemporaryDirectory() as folder:
        return [pair for path in source.peer_of(curves, Path(folder)) for pair in measured_runs.validate(path).pairs]


def main() -> None:
    """Print a line for each simulator."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--runs", type=int, default=25)
    given = parser.parse_args()
    curves = source.measured(given.data)
    lowest = {name: source._lowest(runs) for name, runs in curves.items()}
    chosen = [run for runs in curves.values() for run in runs][: given.runs]
    for name, pairs in (
        ("ours", [pair for run in chosen for pair in left_out(run, curves)]),
        ("DistServe's own", [pair for pair in by_peer(curves) if pair.setting in {run.name for run in chosen}]),
    ):
        found = [errors(pairs, source._attainment(bounds)) for bounds in source.BOUNDS]
        factor = source._factor(pairs, lowest)
        points = " and ".join(f"{one.rmse:.2f}" for one in found)
        worst = max(one.largest for one in found)
        times_off = "-" if factor is None else f"{factor:.3g}"
        print(f"{name}: {len(chosen)} runs, RMSE {points} points, at worst {worst:.1f}, TTFT p90 by {times_off} times")


if __name__ == "__main__":
    main()
