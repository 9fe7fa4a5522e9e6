"""What the text and the page of `bench validate --against` say alike: metrics, pairs, errors and targets as rows."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from reports import _format
from reports._format import clean

Info = Mapping[str, Any]

TARGETS = ("metric", "error over what was not calibrated on", "limit", "obtained", "target", "published")
ERRORS = ("metric", "worst at", "scored", "seen", "mean error", "bias", "RMSE", "largest")
PAIRS = ("run", "metric", "measured", "simulated", "error")
SEEN = "seen by the calibration"


def name(metric: str) -> str:
    """A metric without its unit: 'ttft mean' of 'ttft_mean_s'."""
    return clean(metric.removesuffix("_pct").removesuffix("_s").replace("_", " "), 60)


def value(metric: str, number: float) -> str:
    """A number of a metric with its unit."""
    return f"{number:.1f}%" if metric.endswith("_pct") else _format.seconds(number)


def size(number: float, unit: str, *, signed: bool = False) -> str:
    """An error with its unit, '%' or 'points'; one that has a direction is `signed`."""
    digits = 1 if abs(number) >= 1 else 2
    text = f"{number:+.{digits}f}" if signed else f"{number:.{digits}f}"
    return f"{text}%" if unit == "%" else f"{text} points"


def _limit(row: Info, number: float) -> str:
    """A limit, or what was obtained: a factor, points or a percentage, as the target says."""
    return f"{number:.2f} times" if "factor" in row["how"] else size(number, unit(row["metric"]))


def unit(metric: str) -> str:
    """The unit of the errors of a metric."""
    return "points" if metric.endswith("_pct") else "%"


def target_rows(one: Info) -> list[tuple[str, ...]]:
    """A row for each target."""
    return [
        (
            name(row["metric"]),
            clean(row["how"], 60),
            _limit(row, row["limit"]),
            _limit(row, row["obtained"]),
            "holds" if row["holds"] else "MISSED",
            clean(row["published"] or "-", 200),
        )
        for row in one["targets"]
    ]


def error_rows(one: Info) -> list[tuple[str, ...]]:
    """A row for each metric of which something was scored."""
    return [
        (
            name(row["metric"]),
            clean(row["worst"], 60),
            f"{row['pairs']:,}",
            f"{row['calibrated']:,}",
            size(row["mean"], row["unit"]),
            size(row["bias"], row["unit"], signed=True),
            size(row["rmse"], row["unit"]),
            size(row["largest"], row["unit"]),
        )
        for row in one["errors"]
    ]


def pair_rows(pairs: Iterable[Info]) -> list[tuple[str, ...]]:
    """A row for each pair."""
    return [
        (
            clean(pair["setting"], 80),
            name(pair["metric"]),
            value(pair["metric"], pair["measured"]),
            value(pair["metric"], pair["simulated"]),
            SEEN if pair["calibrated"] else size(pair["error"], unit(pair["metric"]), signed=True),
        )
        for pair in pairs
    ]


def shown(one: Info, most: int) -> tuple[Sequence[Info], str]:
    """At most `most` pairs, those furthest apart where they are more, and what is to be said of that."""
    pairs = one["pairs"]
    if len(pairs) <= most:
        return pairs, ""
    scored = [pair for pair in pairs if not pair["calibrated"]]
    worst = sorted(scored, key=lambda pair: -abs(pair["error"]))[:most]
    return worst, f"the {len(worst)} furthest apart of {len(pairs):,}; all of them are in the JSON of --out"


def verdict(one: Info) -> str:
    """The one sentence that says how the comparison came out."""
    missed = [row for row in one["targets"] if not row["holds"]]
    if not one["targets"]:
        return "There is no target: the numbers stand side by side for information."
    count = _format.count(len(one["targets"]), "target")
    if not missed:
        return f"{count} {'holds' if len(one['targets']) == 1 else 'hold'}: {_said(one['targets'])}."
    return f"{len(missed)} of {count} missed: {_said(missed)}."


def _said(rows: Iterable[Info]) -> str:
    return "; ".join(
        f"{name(row['metric'])} {_limit(row, row['obtained'])} where {_limit(row, row['limit'])} is allowed"
        for row in rows
    )
