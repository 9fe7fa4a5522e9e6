"""The verdict of a comparison as one sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]


def sentence(info: Mapping[str, Any]) -> str:
    """What was found, with the numbers that decide it, and what to do where nothing is decided."""
    return _SAYS[info["verdict"]](info)


def change(row: Row) -> str:
    """'rose by 3.1%', 'fell by 0.4 points', or that it is not there any more."""
    if row["change_pct"] is None:
        return "cannot be compared any more"
    size = abs(row["change_pct"])
    return f"{'rose' if row['change_pct'] > 0 else 'fell'} by {size:.3g}{unit(row)}"


def unit(row: Row) -> str:
    """What a change is counted in."""
    return " points" if row["scale"] == "difference" else "%"


def at(row: Row) -> str:
    """Where in a sweep a row is, in front of its name; empty where there is one point only."""
    return f"{where(row)}: " if row["point"] else ""


def where(row: Row) -> str:
    """Where in a sweep a row is: 'rate 1.5', or the name of the folder."""
    return ", ".join(value if name == "run" else f"{name} {value}" for name, value in row["point"].items())


def bounds(row: Row, alpha: float) -> str:
    """'99% bounds 2.1 to 4%'; empty where there are none."""
    if row["low_pct"] is None:
        return ""
    return f"{100 * (1 - alpha):.4g}% bounds {row['low_pct']:+.3g} to {row['high_pct']:+.3g}{unit(row)}"


def _changed(info: Mapping[str, Any]) -> str:
    rows = [row for row in info["gates"] if row["verdict"] == info["verdict"]]
    told = [f"{at(row)}{row['label']} {change(row)}{_why(row, info)}" for row in rows[:3]]
    more = f" and {len(rows) - 3} more" if len(rows) > 3 else ""
    return f"{info['verdict']}: {'; '.join(told)}{more}."


def _why(row: Row, info: Mapping[str, Any]) -> str:
    if info["mode"] == "exact" and row["low_pct"] is None:
        return " (exact: a simulator has no noise)"
    told = bounds(row, info["alpha"])
    return f" ({told})" if told else ""


def _equivalent(info: Mapping[str, Any]) -> str:
    exact = info["exact"]
    if exact is not None:
        if exact["identical"]:
            steps = f" and {exact['steps']:,} steps" if exact["steps"] is not None else ""
            pairs = f" of {len(info['pairs'])} pairs" if len(info["pairs"]) > 1 else ""
            return f"equivalent: all {exact['requests']:,} requests{steps}{pairs} are equal to the last bit."
        if not any(loss is not None and loss > 0 for row in info["gates"] for loss in row["losses"]):
            return "equivalent: the runs differ, but nothing that is gated is worse."
    told = ", ".join(f"{row['label']} {row['must_detect_pct']:g}{unit(row)}" for row in _firsts(info["gates"]))
    return (
        f"equivalent: with {100 * (1 - info['alpha']):.4g}% confidence each no gated metric lost as much as must be "
        f"found ({told})."
    )


def _inconclusive(info: Mapping[str, Any]) -> str:
    rows = [row for row in info["gates"] if row["verdict"] == "inconclusive"]
    if not rows:
        return "inconclusive: there is nothing to gate on; name a gate with --gate."
    return f"inconclusive: {'; '.join(_open(row) for row in rows[:3])}."


def _open(row: Row) -> str:
    if row["mde_pct"] is None:
        return f"{at(row)}{row['label']} has no interval from {row['pairs']} pair{'s' if row['pairs'] != 1 else ''}"
    needed = "more than 1,000" if row["pairs_needed"] is None else f"{row['pairs_needed']:,}"
    return (
        f"{at(row)}{row['label']}: these {row['pairs']} pairs find a loss of {row['mde_pct']:.3g}{unit(row)}; "
        f"{row['must_detect_pct']:g}{unit(row)} needs {needed}"
    )


def _refused(info: Mapping[str, Any]) -> str:
    if not info["refused"]:
        return "refused: there is no pair of runs to compare."
    fields = [stop["field"] for stop in info["refused"]]
    first = info["refused"][0]["message"]
    others = f" (and {', '.join(fields[1:])})" if len(fields) > 1 else ""
    return f"refused: {first}{others}; --allow-different {','.join(fields)} compares all the same."


def _invalid(info: Mapping[str, Any]) -> str:
    bad = [pair for pair in info["pairs"] if not pair["valid"]]
    reason = next((reason for pair in bad for reason in pair.get("reasons") or []), "a run is not valid")
    return (
        f"not valid: {len(bad)} of {len(info['pairs'])} pairs prove nothing ({reason.rstrip('.')}); "
        "repeat them with the same seed."
    )


def _firsts(rows: Sequence[Row]) -> list[Row]:
    """One row of each metric."""
    return list({row["metric"]: row for row in rows}.values())


_SAYS = {
    "regressed": _changed,
    "improved": _changed,
    "equivalent": _equivalent,
    "inconclusive": _inconclusive,
    "refused": _refused,
    "invalid": _invalid,
}
