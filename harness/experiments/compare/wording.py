"""The verdict of a comparison as one sentence."""

from collections.abc import Mapping, Sequence

from harness.experiments.compare.compare_json import CompareAnswer, ComparedPair, GateRow, Row

MOST_PCT = 1000
"""A change beyond this is printed as more than this."""


def sentence(info: CompareAnswer) -> str:
    """What was found, with the numbers that decide it, and what to do where nothing is decided."""
    return _SENTENCES[info.verdict](info)


def change(row: Row) -> str:
    """'rose by 3.1%', 'fell by 0.4 points', or that it is not there any more."""
    if row.change_pct is None:
        return "fell to 0" if row.head == 0 else "rose from 0" if row.base == 0 else "is there on one side only"
    if row.endless:
        return f"is 0 or not measured on one side in {row.endless} of {len(row.losses)} pairs"
    return f"{'rose' if row.change_pct > 0 else 'fell'} by {percent(abs(row.change_pct))}{unit(row)}"


def percent(value: float, *, signed: bool = False) -> str:
    """A number of percent with three digits, '5.63', '-12.4' or '+140'; beyond 1,000 'more than 1,000'."""
    if abs(value) > MOST_PCT:
        return f"{'more than ' if not signed else '>' if value > 0 else '<'}{'-' if value < 0 else ''}{MOST_PCT:,}"
    decimals = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value + 0.0:{'+' if signed else ''}.{decimals}f}"


def unit(row: Row) -> str:
    """What a change is counted in."""
    return " points" if row.scale == "difference" else "%"


def at(row: Row) -> str:
    """The point of a row in front of its name; empty where there is one point only."""
    return f"{where(row.point)}: " if row.point else ""


def where(point: Mapping[str, str]) -> str:
    """A point of a sweep: 'rate 1.5', or the name of the folder."""
    return ", ".join(value if name == "run" else f"{name} {value}" for name, value in point.items())


def bounds(row: Row, alpha: float) -> str:
    """'99% bounds +2.1 to +4%'; empty where there are none."""
    if row.bounds_pct is None:
        return ""
    low, high = (percent(end, signed=True) for end in row.bounds_pct)
    return f"{100 * (1 - alpha):.4g}% bounds {low} to {high}{unit(row)}"


def spread(row: Row) -> str:
    """'+1.2 .. +3.4%': the least and the most of the changes of single pairs; empty for a single pair."""
    known = [change for change in row.changes_pct if change is not None]
    if len(known) < 2:
        return ""
    return f"{percent(min(known), signed=True)} .. {percent(max(known), signed=True)}{unit(row)}"


def _changed(info: CompareAnswer) -> str:
    rows = [row for row in info.gates if row.verdict == info.verdict]
    found = []
    for row in rows[:3]:
        why = bounds(row, info.alpha) if info.mode == "paired" else spread(row).replace(" .. ", " to ")
        if row.steady is not None and not row.is_significant:  # the mean is hidden by episodes
            low, high = (percent(end, signed=True) for end in (row.steady.low_pct, row.steady.high_pct))
            why += f"; median group of requests {percent(row.steady.change_pct, signed=True)}%, {low} to {high}%"
        found.append(f"{at(row)}{row.label} {change(row)}{f' ({why})' if why else ''}")
    more = f" and {len(rows) - 3} more" if len(rows) > 3 else ""
    if any(row.metric == "output_tokens" for row in rows):
        more += (
            ": shorter answers are less work, so no speed is compared (--allow-different output-lengths compares it)"
        )
    alone = "" if info.mode == "paired" or any(map(spread, rows)) else " (exact: a simulator has no noise)"
    return f"{info.verdict}: {'; '.join(found)}{more}{alone}."


def _equivalent(info: CompareAnswer) -> str:
    exact = info.exact
    if exact is not None:
        if exact.identical:
            steps = f" and {exact.steps:,} steps" if exact.steps is not None else ""
            pairs = f" of {len(info.pairs)} pairs" if len(info.pairs) > 1 else ""
            return f"equivalent: all {exact.requests:,} requests{steps}{pairs} are equal to the last bit."
        if not any(loss is not None and loss > 0 for row in info.gates for loss in row.losses):
            return "equivalent: the runs differ, but nothing that is gated is worse."
    firsts = {row.metric: row for row in info.gates}.values()
    limits = ", ".join(f"{row.label} {row.must_detect_pct:g}{unit(row)}" for row in firsts)
    return (
        f"equivalent: with {100 * (1 - info.alpha):.4g}% confidence each no gated metric lost as much as must be "
        f"found ({limits})."
    )


def _inconclusive(info: CompareAnswer) -> str:
    if not info.in_turns:
        return (
            "inconclusive: the runs were not made in turns (A B, B A, ...), so that what changed on the machine in "
            "between counts as a difference too; let bench compare make them (--base and --head, or --run twice), or "
            "compare all the same with --allow-different turns."
        )
    rows = [row for row in info.gates if row.verdict == "inconclusive"]
    if any(row.metric == "output_tokens" for row in rows):
        [row] = [row for row in rows if row.metric == "output_tokens"][:1]
        return (
            f"inconclusive: {at(row)}{row.label} {change(row)}, which may be chance or less work, so no speed decides; "
            "make more pairs, or let both sides take ignore_eos for equal lengths."
        )
    if not rows:
        return "inconclusive: there is nothing to gate on; name a gate with --gate."
    return f"inconclusive: {'; '.join(_open(row) for row in rows[:3])}."


def _open(row: GateRow) -> str:
    if row.mde_pct is None:
        return f"{at(row)}{row.label} has no interval from {row.pairs} pair{'s' if row.pairs != 1 else ''}"
    if row.pairs_needed is not None and row.pairs_needed <= row.pairs and row.bounds_pct is not None:
        worst = min if row.better == "higher" else max
        loss = percent(abs(worst(row.bounds_pct)))
        return (
            f"{at(row)}{row.label}: a loss of {loss}{unit(row)} is not ruled out by these {row.pairs} pairs, and "
            f"one of {row.must_detect_pct:g}{unit(row)} must be found; "
            "make more pairs"
        )
    needed = "more than 1,000 pairs" if row.pairs_needed is None else f"{row.pairs_needed:,} pairs"
    return (
        f"{at(row)}{row.label}: a loss of {percent(row.mde_pct)}{unit(row)} would have been found by these "
        f"{row.pairs} pairs, one of {row.must_detect_pct:g}{unit(row)} by {needed}"
    )


def _refused(info: CompareAnswer) -> str:
    if not info.refused:
        return "refused: there is no pair of runs to compare."
    fields = list(dict.fromkeys(stop.field for stop in info.refused))
    first = info.refused[0].message
    others = f" (and {', '.join(fields[1:])})" if len(fields) > 1 else ""
    return f"refused: {first}{others}; --allow-different {','.join(fields)} compares all the same."


def _invalid(info: CompareAnswer) -> str:
    good = {pair.pair for pair in info.pairs if pair.valid}
    bad = [pair for pair in info.pairs if not pair.valid]
    bad = [pair for pair in bad if pair.pair not in good] or bad
    reason = next((reason for pair in bad for reason in pair.problems if reason), "a run is not valid")
    return (
        f"not valid: {_pairs(bad)} of {_pairs(info.pairs)} pairs prove nothing ({reason.rstrip('.')}); "
        "repeat them with the same seed."
    )


def _pairs(attempts: Sequence[ComparedPair]) -> int:
    """How many pairs these attempts are of."""
    return len({attempt.pair for attempt in attempts})


_SENTENCES = {
    "regressed": _changed,
    "improved": _changed,
    "equivalent": _equivalent,
    "inconclusive": _inconclusive,
    "refused": _refused,
    "invalid": _invalid,
}
