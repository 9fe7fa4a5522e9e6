"""The sentences of a comparison: its verdict, and what a reader must know beside it, each with a remedy."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from harness.data.run_json import Warned
from harness.experiments.compare import gates, lengths, verdict
from harness.experiments.compare.compare_json import CachedShares, CompareAnswer, ComparedPair, GateRow, Row
from harness.experiments.compare.pairing import Matched, Searched

MOST_PCT = 1000
"""A change beyond this is printed as more than this."""
CACHED = 0.01
"""Difference of the shares of cached prompt tokens above which a warning is given [ours]."""

FLIPS = 7
"""Pairs from which on a test by sign flips can reach p = 0.01 at all."""


REMEDIES: Mapping[str, str] = {
    "unpaired": "run the other side with the same traffic and seed",
    "allowed-difference": "part of what is shown may come from that",
    "overloaded": "compare at a lower rate, or compare capacities (bench capacity on both sides)",
    "late-requests": "quiet the machine, or send from another one",
    "cached-tokens": "a warm cache favours who runs second; start both sides with the same cache, or salt the contents",
    "ttft-from-sending": "compare runs of bench, or files that hold scheduled times",
    "unresolved": "the capacities of its seeds count all the same; give it more seeds",
    "not-measured": "see which requests failed in these runs, and whether their streams were held back",
    "output-lengths": "make more pairs, or let both sides take ignore_eos for equal lengths",
    "percentile-missed": "a bound on a percentile decides no default gate; name one, such as --gate p99:itl=2%:5%",
    "rows-differ": "see the first request and the first step that differ",
    "less-load": "a slower head may be that work; compare at a rate that both sides serve",
    "outlier": "look at what else ran on the machine; the pair counts all the same",
    "tests-disagree": "the losses are not normal, or the difference is at the edge; make more pairs",
}
"""Each code, and the remedy of its warnings."""

Message: TypeAlias = tuple[str, str]
"""A code, and what must be known."""


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


def short(row: Row, value: float, *, exact: bool) -> str:
    """'+3.1%', '-0.4 pts' or 'same' in a table or figure; '~' where it could be chance, which a simulator knows not."""
    if exact and not any(row.losses):
        return "same"
    if not exact and not row.is_significant:
        return "~"
    return f"{percent(value, signed=True)}{points(row)}"


def points(row: Row) -> str:
    """What a change is counted in, in a table or figure."""
    return " pts" if row.scale == "difference" else "%"


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
    percents = [change for change in row.changes_pct if change is not None]
    if len(percents) < 2:
        return ""
    return f"{percent(min(percents), signed=True)} .. {percent(max(percents), signed=True)}{unit(row)}"


def _changed(info: CompareAnswer) -> str:
    rows = [row for row in info.gates if row.verdict == info.verdict]
    changes = []
    for row in rows[:3]:
        why = bounds(row, info.alpha) if info.mode == "paired" else spread(row).replace(" .. ", " to ")
        if row.steady is not None and not row.is_significant:  # the mean is hidden by episodes
            low, high = (percent(end, signed=True) for end in (row.steady.low_pct, row.steady.high_pct))
            why += f"; median group of requests {percent(row.steady.change_pct, signed=True)}%, {low} to {high}%"
        changes.append(f"{at(row)}{row.label} {change(row)}{f' ({why})' if why else ''}")
    more = f" and {len(rows) - 3} more" if len(rows) > 3 else ""
    if any(row.metric == "output_tokens" for row in rows):
        more += (
            ": shorter answers are less work, so no speed is compared (--allow-different output-lengths compares it)"
        )
    note = "" if info.mode == "paired" or any(map(spread, rows)) else " (exact: a simulator has no noise)"
    return f"{info.verdict}: {'; '.join(changes)}{more}{note}."


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
    return f"inconclusive: {'; '.join(undecided(row) for row in rows[:3])}."


def undecided(row: GateRow) -> str:
    """What it would take to decide a gate."""
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
    return (
        f"{at(row)}{row.label}: with {row.pairs} pairs only a loss of {percent(row.mde_pct)}{unit(row)} or more is "
        f"detectable; {row.must_detect_pct:g}{unit(row)} would take {needed(row)} pairs"
    )


def needed(row: GateRow) -> str:
    """How many pairs find what must be found."""
    return "more than 1,000" if row.pairs_needed is None else f"{row.pairs_needed:,}"


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


def warnings(info: CompareAnswer, matched: Matched) -> Iterator[Warned]:
    """The warnings of an answer that has its rows."""
    messages = (*_of_pairing(info, matched), *_of_runs(info, matched), *_of_rows(info), *_of_gates(info))
    return (Warned(code=code, message=message, remedy=REMEDIES[code]) for code, message in messages)


def _of_pairing(info: CompareAnswer, matched: Matched) -> Iterator[Message]:
    """Runs and seeds of one side alone, and what was allowed to differ."""
    refused = any(stop.field == "runs" for stop in info.refused)
    for side, runs in (("base", matched.alone_base), ("head", matched.alone_head)):
        lone = [run for run in runs if not isinstance(run, Searched)]
        if lone and not (side == "base" and refused):
            names = ", ".join(f"'{run.path}'" for run in lone[:3]) + (", ..." if len(lone) > 3 else "")
            yield "unpaired", f"{len(lone)} of the runs of the {side} found no partner of the same schedule: {names}"
        if seeds := [str(run.seed) for run in runs if isinstance(run, Searched)]:
            yield "unpaired", f"seeds that only the {side} has are left out: {', '.join(seeds)}"
    for difference in info.allowed_differences:
        yield "allowed-difference", f"compared although {difference.message}"


def _of_runs(info: CompareAnswer, matched: Matched) -> Iterator[Message]:
    """Overload, caches that helped one side, TTFT counted from sending, and searches without their tolerance."""
    sides = [run for pair in matched.pairs for run in (pair.base, pair.head)]
    runs = [run for run in sides if not isinstance(run, Searched)]
    if count := sum(run.info.verdict.queue_grew is True for run in runs):
        text = f"the queue grew all through {count} of {len(runs)} runs: their latencies tell how long the run was"
        yield "overloaded", text
    valid = {pair.base_run for pair in info.pairs if pair.valid}
    if late := sum(gates.late_alone(pair) for pair in matched.pairs if str(pair.base.path) in valid):
        text = (
            f"requests of {late} of {len(matched.pairs)} pairs left late; they decide no gate, counted from when they "
            "were due or from when they were sent"
        )
        yield "late-requests", text
    for pair in info.pairs:
        shares = pair.cached or CachedShares()
        base, head = shares.base, shares.head
        if base is not None and head is not None and abs(head - base) > CACHED:
            text = f"{base:.0%} of the prompt tokens came from a cache in the base, {head:.0%} in the head"
            yield "cached-tokens", f"pair {pair.pair}: {text}"
    if any("scheduled_s" in run.info.source.missing for run in runs):
        text = "the files do not tell when requests were due, so TTFT counts from sending and hides a late client"
        yield "ttft-from-sending", text
    searches = {str(run.path): run.search for run in sides if isinstance(run, Searched)}
    for path, search in searches.items():
        if any(answer.state == "unresolved" for answer in search.answers):
            yield "unresolved", f"the search in '{path}' did not reach its tolerance"


def _of_rows(info: CompareAnswer) -> Iterator[Message]:
    """What could not be measured, lengths, bounds on percentiles (no default gate is on them), rows that differ."""
    for gate in info.gates:
        if missing := len(gate.losses) - gate.pairs:
            yield "not-measured", f"{gate.label} could not be compared in {missing} of {len(gate.losses)} pairs"
    for length in info.output_lengths:
        if (message := lengths.warning(length)) is not None:
            yield "output-lengths", message
    for name in dict.fromkeys(row.metric for row in info.shown if row.metric.startswith(gates.MISSED)):
        rows = [row.values for row in info.shown if row.metric == name]
        base, head = (
            [value for values in rows for value in values.on(side) if value is not None] for side in ("base", "head")
        )
        if sum(base) or sum(head):
            text = (
                f"the bound {name.removeprefix(gates.MISSED)} is missed in {sum(base):.0f} of {len(base)} runs of the "
                f"base and in {sum(head):.0f} of {len(head)} of the head"
            )
            yield "percentile-missed", text
    exact = info.exact
    if exact and not exact.identical and all(row.verdict == "equivalent" for row in info.gates):
        yield "rows-differ", "no gated metric is different, but the runs are not the same"


def _of_gates(info: CompareAnswer) -> Iterator[Message]:
    """Less load, and of real runs pairs that are still unlike the others and two tests that disagree."""
    for row in info.gates:
        if row.metric == "failed" and row.verdict == "improved" and row.change_pct is not None:
            text = f"{-row.change_pct:.3g} points fewer requests failed in the head: it did more work"
            yield "less-load", text
    paired = info.gates if info.mode == "paired" else []
    for row in paired:
        for place in verdict.unusual([row]):
            text = f"{row.label}: pair {place + 1} is unlike the others; another process was probably running"
            yield "outlier", text
    for row in paired:
        flips, p, alpha = row.p_signflip, row.p_mean, info.alpha
        if flips is None or p is None or row.pairs < FLIPS or 2.0**-row.pairs > alpha:
            continue
        if (flips <= alpha) != (p <= alpha):
            text = f"{row.label}: p is {p:.3g} by t and {flips:.3g} by sign flips, on different sides of {alpha:g}"
            yield "tests-disagree", text
