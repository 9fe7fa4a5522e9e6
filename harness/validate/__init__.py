"""Validation: simulated numbers beside measured ones, scored on measurements that the calibration did not see.

One file in `harness/validate/sources/` is one set of measurements and holds `validate(data) -> Validation`, where
`data` is the folder of the measurements. What is calibrated on is chosen by a rule, so that a longer file of the same
form is scored the same way.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harness.errors import UsageError
from harness.registry import folder


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


def needed(path: Path) -> Path:
    """The path of a file of measurements. Raises UsageError where there is none."""
    if not path.is_file():
        raise UsageError(f"'{path}' does not exist; name the folder of public measurements with --data.")
    return path


def names() -> list[str]:
    """Sorted names of the sets of public measurements."""
    files = folder("harness.validate.sources").glob("*.py")
    return sorted(f.stem.replace("_", "-") for f in files if not f.stem.startswith("_"))


def source(name: str) -> Callable[[Path], Validation]:
    """The function `validate` of a set of measurements."""
    module = importlib.import_module(f"harness.validate.sources.{name.replace('-', '_')}")
    found: Callable[[Path], Validation] = module.validate
    return found
