"""One `bench validate --against`: every requested comparison, as one answer.

How far simulated numbers are from measured ones, over the pairs that the calibration did not see.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from msgspec import field

from harness.data.codec import Count, Document, Facts, Number, Part
from harness.data.host import versions
from harness.errors import UsageError
from harness.experiments.validate import Pair, Target, Validation


class PairRow(Part, frozen=True, kw_only=True):
    """A measured and a simulated number, and their error: in percent, or in points of a percentage."""

    setting: str
    metric: str
    measured: Number
    simulated: Number
    calibrated: bool
    x: Number | None
    curve: str
    error: Number


class TargetRow(Part, frozen=True, kw_only=True):
    """A limit on the errors of a metric, what was obtained, and whether it holds."""

    metric: str
    how: str
    limit: Number
    obtained: Number
    published: str
    pairs: Count | None = None
    holds: bool


class ErrorRow(Part, frozen=True, kw_only=True):
    """The errors of a metric, in `unit`: of how many pairs, and the setting of the largest."""

    metric: str
    pairs: Count
    calibrated: Count
    mean: Number
    bias: Number
    rmse: Number
    largest: Number
    worst: str
    unit: str


class ValidationRow(Part, frozen=True, kw_only=True):
    """One comparison with measurements."""

    name: str
    title: str
    setting: list[str]
    targets: list[TargetRow]
    errors: list[ErrorRow]
    pairs: list[PairRow]


class ValidateAnswer(Document, frozen=True, kw_only=True):
    """What `bench validate --against` writes; exit code 1 where a target is missed."""

    schema: int = 1
    kind: Literal["validate"] = "validate"
    versions: Facts = field(default_factory=dict)
    exit_code: int = 0
    command: str
    validations: list[ValidationRow]


def answer(found: Sequence[Validation], command: str) -> ValidateAnswer:
    """The answer of these comparisons."""
    missed = any(not target.holds for one in found for target in one.targets)
    return ValidateAnswer(
        versions=dict(versions()),
        exit_code=int(missed),
        command=command,
        validations=[
            ValidationRow(
                name=one.name,
                title=one.title,
                setting=list(one.setting),
                targets=[TargetRow(**asdict(target), holds=target.holds) for target in one.targets],
                errors=[
                    ErrorRow(**{**asdict(row), "worst": row.worst.setting}, unit="points" if in_points(metric) else "%")
                    for metric in metrics(one.pairs)
                    if scored(one.pairs, metric)
                    for row in [errors(one.pairs, metric)]
                ],
                pairs=[PairRow(**asdict(pair), error=percent(pair)) for pair in one.pairs],
            )
            for one in found
        ],
    )


MEAN = "mean error in percent"
WORST = "largest error in percent"
RMSE = "RMSE in points"
LARGEST = "largest error in points"
FACTOR = "largest factor"
"""The larger of simulated / measured and measured / simulated."""
HOW = (MEAN, WORST, RMSE, LARGEST, FACTOR)
WORSE_HALF = "worse half"
"""What a constant that fits one half of the settings by chance does not hold for."""


@dataclass(frozen=True, slots=True)
class Errors:
    """The errors of one metric: relative ones in percent, those of a percentage in points.

    `mean` is of their sizes, `bias` of the errors themselves, `rmse` their root mean square; `worst` is the pair with
    the largest. `calibrated` more pairs were seen by the calibration and are left out.
    """

    metric: str
    pairs: int
    calibrated: int
    mean: float
    bias: float
    rmse: float
    largest: float
    worst: Pair


def in_points(metric: str) -> bool:
    """Whether the errors of a metric are points of a percentage, not relative."""
    return metric.endswith("_pct")


def percent(pair: Pair) -> float:
    """The error of a pair in percent, or in points."""
    return pair.error if in_points(pair.metric) else 100 * pair.error


def covers(metric: str, one: str) -> bool:
    """Whether `one` is the metric, or a statistic of it: `ttft_s` covers `ttft_mean_s` and `ttft_p90_s`."""
    return one == metric or (metric in ("ttft_s", "tpot_s") and one.startswith(metric.removesuffix("s")))


def scored(pairs: Iterable[Pair], metric: str) -> list[Pair]:
    """The pairs of a metric that count."""
    return [pair for pair in pairs if covers(metric, pair.metric) and not pair.calibrated]


def errors(pairs: Sequence[Pair], metric: str) -> Errors:
    """The errors of a metric. Raises UsageError where nothing is left to score."""
    found = scored(pairs, metric)
    if not found:
        raise UsageError(f"No measurement of {metric} is left to score: the calibration has seen all of them.")
    sizes = [percent(pair) for pair in found]
    worst = max(found, key=lambda pair: abs(pair.error))
    return Errors(
        metric=metric,
        pairs=len(found),
        calibrated=sum(covers(metric, pair.metric) for pair in pairs) - len(found),
        mean=sum(map(abs, sizes)) / len(sizes),
        bias=sum(sizes) / len(sizes),
        rmse=math.sqrt(sum(size * size for size in sizes) / len(sizes)),
        largest=max(map(abs, sizes)),
        worst=worst,
    )


def target(pairs: Sequence[Pair], metric: str, how: str, limit: float, published: str = "") -> Target:
    """A limit on the errors of a metric; `how` is one of `HOW`, and may go on after a comma. Raises like `errors`.

    With `WORSE_HALF` after the comma the error is that of the worse half of the settings, every other one in each.
    """
    kind, _, more = how.partition(",")
    found = errors(pairs, metric)
    halves = [pairs]
    if WORSE_HALF in more:
        settings = list(dict.fromkeys(pair.setting for pair in scored(pairs, metric)))
        parts = [set(half) for half in (settings[::2], settings[1::2]) if half]
        halves = [[pair for pair in pairs if pair.setting in part] for part in parts]
    return Target(metric, how, limit, max(_obtained(half, metric, kind) for half in halves), published, found.pairs)


def _obtained(pairs: Sequence[Pair], metric: str, kind: str) -> float:
    found = errors(pairs, metric)
    kinds = {MEAN: found.mean, WORST: found.largest, RMSE: found.rmse, LARGEST: found.largest}
    if kind == FACTOR:
        sides = [(pair.simulated, pair.measured) for pair in scored(pairs, metric)]
        kinds[FACTOR] = max(max(a / b, b / a) for a, b in sides)
    return kinds[kind]


def metrics(pairs: Iterable[Pair]) -> list[str]:
    """The metrics of the pairs, in the order in which they come."""
    return list(dict.fromkeys(pair.metric for pair in pairs))
