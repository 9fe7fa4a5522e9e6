"""How errors of a simulator are written: the name and unit of a metric, the size of an error, the verdict."""

from harness.experiments.validate.answer import Target, Validation
from reports._format import clean


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
