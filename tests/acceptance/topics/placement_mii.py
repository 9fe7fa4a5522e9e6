"""DistServe's placements beside DeepSpeed-MII, the second baseline of its final text (K10, K05)."""

import shlex
from collections.abc import Iterator, Mapping

from acceptance.rows import Place, Row
from acceptance.topics import placement
from harness.experiments.place.settings import PlaceOptions
from harness.experiments.place.systems import MII, Deployment, Shape

SMALL = placement.pair(Shape(2, 1), Shape(1, 1))
LARGE = placement.pair(Shape(4, 1), Shape(2, 2))
CASES: Mapping[str, tuple[str, Deployment, Shape, str]] = {
    "distserve-13b-chat": ("opt-13b", SMALL, Shape(1, 1), "1.6 to 7.4"),
    "distserve-66b-chat-ae": ("opt-66b", LARGE, Shape(4, 1), "1.6 to 7.4"),
    "distserve-66b-code": ("opt-66b", LARGE, Shape(4, 1), "1.6"),
    "distserve-66b-summ": ("opt-66b", LARGE, Shape(4, 1), "1.8"),
}
"""Published placement, parallelism of the baseline, and published gain, by workload."""
LATENCIES = ("abc:distserve,fitted=true", "roofline")
"""The same model for both systems: constants of MII's engine are not published. The first one is gated."""


def rows(place: Place) -> Iterator[Row]:
    """S69: rates per GPU of the published placements over those of colocated replicas under Dynamic SplitFuse."""
    del place
    for letter, (workload, (model, placed, plain, published)) in zip("abcd", CASES.items(), strict=True):
        systems = (placed, placement.colocated(plain, MII))
        options = [_options(workload, latency) for latency in LATENCIES]
        (ours, theirs), others = ([placement.sustained(one, system) for system in systems] for one in options)
        yield Row(
            f"S69.{letter}", "DeepSpeed-MII beside DistServe", "simulated",
            f"{workload}: {published} times MII's rate per GPU (final text)",
            f"{placed.name} {ours:.3g}, MII ({plain.tp},{plain.pp}) {theirs:.3g} req/s per GPU: {_times(ours, theirs)}",
            "above 1", ours > theirs, " && ".join(_command(options[0], system) for system in systems),
            f"policy {MII}, the same step times for both, 8 seeds. By roofline {others[0]:.3g} and {others[1]:.3g} "
            f"req/s per GPU: {_times(*others)}. All shapes: bench place --gpus 8 --algorithm low,mii --model {model}.",
        )  # fmt: skip


def _options(workload: str, latency: str) -> PlaceOptions:
    run = {"model": CASES[workload][0], "workload": workload, "latency": latency}
    return placement.options_of(run, gpus=8, algorithm="low,mii", conditions="joint", seeds=None)


def _command(options: PlaceOptions, one: Deployment) -> str:
    """The search of its capacity, of which the row has the part of a GPU."""
    given = {**options.of(one).options(), "backend": "sim"}
    return "bench capacity " + " ".join(f"--{name} {shlex.quote(str(value))}" for name, value in given.items())


def _times(ours: float, theirs: float) -> str:
    return f"{ours / theirs:.2f} times" if theirs else "MII meets the SLO at no rate"
