"""Validation: simulated numbers beside measured ones, scored on measurements that the calibration did not see."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pair:
    """One measured number beside the simulated one, in the unit that the metric's name ends with (`ttft_mean_s`).

    A metric is in seconds (`_s`) or in percent (`_pct`). `setting` names the run; `x` is its place on the axis of the
    `curve` of that name (requests per second), if there is one. `calibrated` tells that the number was seen by the
    calibration: such pairs are shown, and never scored.
    """

    setting: str
    metric: str
    measured: float
    simulated: float
    calibrated: bool = False
    x: float | None = None
    curve: str = ""

    @property
    def error(self) -> float:
        """Simulated against measured: in points of a percentage, else relative (0.1 is 10 % too high)."""
        if self.metric.endswith("_pct"):
            return self.simulated - self.measured
        return self.simulated / self.measured - 1


@dataclass(frozen=True, slots=True)
class Target:
    """A limit on the error over all scored pairs of a metric.

    `how` says what is averaged (`mean relative error`, `RMSE in points`), `limit` and `obtained` are in the same unit;
    `published` is what another simulator was found to reach, as a sentence; `pairs` is over how many pairs it is, where
    that is not over all that are scored.
    """

    metric: str
    how: str
    limit: float
    obtained: float
    published: str = ""
    pairs: int | None = None

    @property
    def holds(self) -> bool:
        """Whether the error is at most the limit."""
        return self.obtained <= self.limit


@dataclass(frozen=True, slots=True)
class Validation:
    """What came of one comparison: `setting` are sentences on system, calibration and data."""

    name: str
    title: str
    setting: tuple[str, ...]
    pairs: tuple[Pair, ...]
    targets: tuple[Target, ...]
