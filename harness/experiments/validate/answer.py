"""One `bench validate --against`: every requested comparison, as one answer.

How far simulated numbers are from measured ones, over the pairs that the calibration did not see.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Literal

from msgspec import field
from msgspec.structs import force_setattr

from harness.data.codec import Count, Document, Facts, Number, Part
from harness.data.host import versions
from harness.errors import UsageError

MEAN = "mean error in percent"
WORST = "largest error in percent"
RMSE = "RMSE in points"
LARGEST = "largest error in points"
FACTOR = "largest factor"
"""The larger of simulated / measured and measured / simulated."""
HOW = (MEAN, WORST, RMSE, LARGEST, FACTOR)
WORSE_HALF = "worse half"
"""What a constant that fits one half of the settings by chance does not hold for."""


class Pair(Part, frozen=True):
    """One measured number beside the simulated one, in the unit that the metric's name ends with (`ttft_mean_s`).

    A metric is in seconds (`_s`) or in percent (`_pct`). `setting` names the run; `x` is its place on the axis of the
    `curve` of that name (requests per second), if there is one. `calibrated` tells that the number was seen by the
    calibration: such pairs are shown, and never scored. `error` is in percent, or in points of a percentage.
    """

    setting: str
    metric: str
    measured: Number
    simulated: Number
    calibrated: bool = False
    x: Number | None = None
    curve: str = ""
    error: Number = math.nan

    def __post_init__(self) -> None:
        if math.isnan(self.error):
            points = in_points(self.metric)
            error = self.simulated - self.measured if points else 100 * (self.simulated / self.measured - 1)
            force_setattr(self, "error", error)


class Target(Part, frozen=True):
    """A limit on the error over all scored pairs of a metric, and whether it holds.

    `how` says what is averaged (`mean relative error`, `RMSE in points`), `limit` and `obtained` are in the same unit;
    `published` is what another simulator was found to reach, as a sentence; `pairs` is over how many pairs it is, where
    that is not over all that are scored.
    """

    metric: str
    how: str
    limit: Number
    obtained: Number
    published: str = ""
    pairs: Count | None = None
    holds: bool = False

    def __post_init__(self) -> None:
        force_setattr(self, "holds", self.obtained <= self.limit)


class Errors(Part, frozen=True, kw_only=True):
    """The errors of one metric, in `unit`: relative ones in percent, those of a percentage in points.

    `mean` is of their sizes, `bias` of the errors themselves, `rmse` their root mean square; `worst` is the setting
    with the largest. `calibrated` more pairs were seen by the calibration and are left out.
    """

    metric: str
    pairs: Count
    calibrated: Count
    mean: Number
    bias: Number
    rmse: Number
    largest: Number
    worst: str
    unit: str


class Validation(Part, frozen=True, kw_only=True):
    """What came of one comparison: `setting` are sentences on system, calibration and data."""

    name: str
    title: str
    setting: list[str]
    targets: list[Target]
    errors: list[Errors]
    pairs: list[Pair]


class ValidateAnswer(Document, frozen=True, kw_only=True):
    """What `bench validate --against` writes; exit code 1 where a target is missed."""

    schema: int = 1
    kind: Literal["validate"] = "validate"
    versions: Facts = field(default_factory=dict)
    exit_code: int = 0
    command: str
    validations: list[Validation]


def answer(validations: Sequence[Validation], command: str) -> ValidateAnswer:
    """Return the answer of these comparisons."""
    missed = any(not target.holds for validation in validations for target in validation.targets)
    return ValidateAnswer(
        versions=dict(versions()), exit_code=int(missed), command=command, validations=list(validations)
    )


def validation(
    name: str, title: str, setting: Iterable[str], pairs: Iterable[Pair], targets: Iterable[Target]
) -> Validation:
    """Return a comparison with the errors of each of its metrics."""
    all_pairs = list(pairs)
    return Validation(
        name=name,
        title=title,
        setting=list(setting),
        targets=list(targets),
        errors=[errors(all_pairs, metric) for metric in metrics(all_pairs) if scored(all_pairs, metric)],
        pairs=all_pairs,
    )


def in_points(metric: str) -> bool:
    """Whether the errors of a metric are points of a percentage, not relative."""
    return metric.endswith("_pct")


def covers(metric: str, one: str) -> bool:
    """Whether `one` is the metric, or a statistic of it: `ttft_s` covers `ttft_mean_s` and `ttft_p90_s`."""
    return one == metric or (metric in ("ttft_s", "tpot_s") and one.startswith(metric.removesuffix("s")))


def scored(pairs: Iterable[Pair], metric: str) -> list[Pair]:
    """The pairs of a metric that count."""
    return [pair for pair in pairs if covers(metric, pair.metric) and not pair.calibrated]


def errors(pairs: Sequence[Pair], metric: str) -> Errors:
    """The errors of a metric. Raises UsageError where nothing is left to score."""
    counted = scored(pairs, metric)
    if not counted:
        raise UsageError(f"No measurement of {metric} is left to score: the calibration has seen all of them.")
    sizes = [pair.error for pair in counted]
    worst = max(counted, key=lambda pair: abs(pair.error))
    return Errors(
        metric=metric,
        pairs=len(counted),
        calibrated=sum(covers(metric, pair.metric) for pair in pairs) - len(counted),
        mean=sum(map(abs, sizes)) / len(sizes),
        bias=sum(sizes) / len(sizes),
        rmse=math.sqrt(sum(size * size for size in sizes) / len(sizes)),
        largest=max(map(abs, sizes)),
        worst=worst.setting,
        unit="points" if in_points(metric) else "%",
    )


def target(pairs: Sequence[Pair], metric: str, how: str, limit: float, published: str = "") -> Target:
    """A limit on the errors of a metric; `how` is one of `HOW`, and may go on after a comma. Raises like `errors`.

    With `WORSE_HALF` after the comma the error is that of the worse half of the settings, every other one in each.
    """
    kind, _, more = how.partition(",")
    summary = errors(pairs, metric)
    halves = [pairs]
    if WORSE_HALF in more:
        settings = list(dict.fromkeys(pair.setting for pair in scored(pairs, metric)))
        parts = [set(half) for half in (settings[::2], settings[1::2]) if half]
        halves = [[pair for pair in pairs if pair.setting in part] for part in parts]
    return Target(metric, how, limit, max(_obtained(half, metric, kind) for half in halves), published, summary.pairs)


def _obtained(pairs: Sequence[Pair], metric: str, kind: str) -> float:
    summary = errors(pairs, metric)
    kinds = {MEAN: summary.mean, WORST: summary.largest, RMSE: summary.rmse, LARGEST: summary.largest}
    if kind == FACTOR:
        sides = [(pair.simulated, pair.measured) for pair in scored(pairs, metric)]
        kinds[FACTOR] = max(max(a / b, b / a) for a, b in sides)
    return kinds[kind]


def metrics(pairs: Iterable[Pair]) -> list[str]:
    """The metrics of the pairs, in the order in which they come."""
    return list(dict.fromkeys(pair.metric for pair in pairs))
