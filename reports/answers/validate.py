"""The report of `bench validate --against`: how far simulated numbers are from measured ones, and where."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.data.codec import encode
from harness.experiments.validate.answer import Errors, Pair, Target, ValidateAnswer, Validation
from reports import _format
from reports._format import clean
from reports._system import versions
from reports.document import Cell, Document, Finding, Section, Table, figures_of, listed

MOST_ROWS, MOST_ROWS_ON_PAGE = 60, 200
"""Pairs that are shown."""
CALIBRATED = "seen by the calibration"
_DEFINITIONS = (
    ("error", "simulated against measured: relative, or in points where the number is a percentage"),
    ("scored", "pairs that the calibration did not see; only these count"),
    (CALIBRATED, "pairs that constants were fitted on; shown, never scored"),
    ("bias", "the mean of the errors with their signs: above 0 the simulator is too slow, or too kind"),
    ("RMSE", "the root of the mean of the squared errors"),
)


def document(info: ValidateAnswer, path: Path | None = None) -> Document:
    """The report of a validation; with `path` that of a page, with figures."""
    cases = info.validations
    targets = [target for case in cases for target in case.targets]
    missed = sum(not target.holds for target in targets)
    most = MOST_ROWS if path is None else MOST_ROWS_ON_PAGE
    return Document(
        title=f"Simulator against {', '.join(clean(case.name, 60) for case in cases)}",
        subtitle="; ".join(clean(case.title, 200) for case in cases),
        mark=f"{missed} OF {len(targets)} MISSED" if missed else "TARGETS MET" if targets else "NO TARGET",
        good=not missed if targets else None,
        findings=tuple(
            Finding(
                f"{clean(case.name, 60)}: {verdict(case)}",
                all(target.holds for target in case.targets) if case.targets else None,
            )
            for case in cases
        ),
        key_facts=tuple((clean(case.name, 60), clean(text, 400)) for case in cases for text in case.setting),
        sections=tuple(
            Section(
                f"against-{number}",
                clean(case.name, 80),
                (
                    *_tables(case, most),
                    *([] if path is None else figures_of("validate", case, place=number)),
                ),
            )
            for number, case in enumerate(cases, start=1)
        ),
        commands=(clean(info.command, None),),
        used=versions(info.versions),
        definitions=_DEFINITIONS,
    )


def _tables(one: Validation, most: int) -> Iterator[Table]:
    of_targets = ("metric", "error over what was not calibrated on", "limit", "obtained", "target", "published")
    yield from listed("targets", of_targets, [*map(_target, one.targets)], most, 2, 2)
    of_errors = ("metric", "worst at", "scored", "seen", "mean error", "bias", "RMSE", "largest")
    caption = "errors by metric, of what the calibration did not see"
    yield from listed(caption, of_errors, [*map(_error, one.errors)], most, 2)
    pairs = one.pairs
    if len(pairs) > most:  # the worst
        pairs = sorted(pairs, key=lambda pair: (pair.calibrated, -abs(pair.error)))
    of_pairs = ("run", "metric", "measured", "simulated", "error")
    yield from listed("measured and simulated", of_pairs, [*map(_pair, pairs)], most, 2)


def _target(row: Target) -> tuple[str | Cell, ...]:
    return (
        name(row.metric),
        clean(row.how, 60),
        limit(row, row.limit),
        limit(row, row.obtained),
        Cell("met" if row.holds else "MISSED", good=row.holds),
        clean(row.published or "-", 200),
    )


def _error(row: Errors) -> tuple[str, ...]:
    return (
        name(row.metric),
        clean(row.worst, 60),
        f"{row.pairs:,}",
        f"{row.calibrated:,}",
        size(row.mean, row.unit),
        size(row.bias, row.unit, signed=True),
        size(row.rmse, row.unit),
        size(row.largest, row.unit),
    )


def _pair(pair: Pair) -> tuple[str, ...]:
    metric = pair.metric
    sides = (pair.measured, pair.simulated)
    return (
        clean(pair.setting, 80),
        name(metric),
        *(f"{side:.1f}%" if metric.endswith("_pct") else _format.seconds(side) for side in sides),
        CALIBRATED if pair.calibrated else size(pair.error, unit(metric), signed=True),
    )


def rows(info: ValidateAnswer) -> Iterator[dict[str, Any]]:
    """A row per pair; times in seconds, errors in percent, or in points where the metric is a percentage."""
    for case in info.validations:
        yield from ({"validation": case.name, **encode(pair)} for pair in case.pairs)


def verdict(one: Validation) -> str:
    """How a comparison came out, with what was obtained and its limit for each target that decides it."""
    targets = one.targets
    missed = [target for target in targets if not target.holds]
    if not targets:
        return "no target is set, so nothing is judged."
    rows = "; ".join(
        f"{name(row.metric)} {limit(row, row.obtained)} (limit {limit(row, row.limit)})" for row in missed or targets
    )
    return f"{len(missed or targets)} of {len(targets)} targets {'missed' if missed else 'met'}: {rows}."


def name(metric: str) -> str:
    """A metric without its unit: 'ttft mean' of 'ttft_mean_s'."""
    return clean(metric.removesuffix("_pct").removesuffix("_s").replace("_", " "), 60)


def unit(metric: str) -> str:
    """The unit of the errors of a metric."""
    return "points" if metric.endswith("_pct") else "%"


def size(number: float, unit: str, *, signed: bool = False) -> str:
    """An error with its unit, '%' or 'points'; one that has a direction is `signed`."""
    text = f"{number:{'+' if signed else ''}.{1 if abs(number) >= 1 else 2}f}"
    return f"{text}%" if unit == "%" else f"{text} points"


def limit(row: Target, number: float) -> str:
    """A limit, or what was obtained: a factor, points or a percentage, as the target says."""
    return f"{number:.2f} times" if "factor" in row.how else size(number, unit(row.metric))
