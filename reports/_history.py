"""How a nightly series is written: values, dates, levels and changes."""

from harness.experiments.compare.compare_json import Step, TrendMetric
from reports._format import clean, in_unit, number, unit_of, with_unit

MOST_DRAWN = 1000
"""Runs of a series that are drawn, the latest."""


def format_value(metric: TrendMetric, value: float | None) -> str:
    """A value of the metric with its unit."""
    return with_unit(value, "req/s" if metric.unit == "1/s" else metric.unit)


def format_night(at: str, commit: str | None) -> str:
    """A date with its commit."""
    return f"{at} (commit {commit})" if commit else at


def format_step(metric: TrendMetric, step: Step) -> tuple[str, str]:
    """What a step did to a metric: ('10% worse', '100 -> 110 ms')."""
    loss, levels = step.loss_pct, [step.before, step.after]
    by = "overloaded" if step.side == "worse" else "no longer overloaded"
    if loss is not None:
        by = f"{number(abs(loss), 2)}{' points' if metric.unit == 'share' else '%'} {step.side}"
    text = " -> ".join("overloaded" if value is None else format_value(metric, value) for value in levels)
    if metric.unit == "s" and None not in levels:
        unit = unit_of(levels)
        text = f"{in_unit(levels[0], unit)} -> {in_unit(levels[1], unit)} {unit}"
    return by, text


def format_since(metric: TrendMetric) -> str:
    """' since 2026-01-11', the first run of the change that lasts; empty without one."""
    return next((f" since {step.first}" for step in metric.steps if step.open), "")


def format_reference(metric: TrendMetric) -> str:
    """'100 ms' for the accepted level, '90.0 ms since 2026-02-01' for that of a gain."""
    since = "" if metric.gained is None else f" since {clean(metric.gained, 40)}"
    return format_value(metric, metric.reference) + since


def format_level(metric: TrendMetric) -> str:
    """The level beside the reference, with its interval: '+10.0% (9.2% to 10.8%)'; '~' where it is no change."""
    if metric.level_pct is None:
        return "-"
    if metric.state in ("steady", "few", "none", "suspect"):
        return "~"
    unit = " points" if metric.unit == "share" else "%"
    text = f"{metric.level_pct:+.1f}{unit}"
    if metric.level_low_pct is None or metric.level_low_pct == metric.level_high_pct:
        return text
    return f"{text} ({metric.level_low_pct:+.1f} to {metric.level_high_pct:+.1f})"
