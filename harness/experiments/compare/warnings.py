"""What a reader of a comparison must know beside its verdict; each with a remedy."""

from collections.abc import Iterator, Sequence

from harness.data.run_json import Warned
from harness.experiments.compare import gates, lengths, verdict
from harness.experiments.compare.compare_json import (
    CachedShares,
    CompareAnswer,
    ComparedPair,
    GateRow,
    LengthRow,
    Refusal,
)
from harness.experiments.compare.pairing import Matched, Numbers

CACHED = 0.01
"""Difference of the shares of cached prompt tokens above which a warning is given [ours]."""

FLIPS = 7
"""Pairs from which on a test by sign flips can reach p = 0.01 at all."""


def found(info: CompareAnswer, matched: Matched) -> Iterator[Warned]:
    """The warnings of an answer that has its rows."""
    yield from _alone(matched, [stop.field for stop in info.refused])
    yield from _allowed(info.allowed_differences)
    yield from _of_runs(matched, info.pairs)
    yield from _unknown(info.gates)
    yield from _lengths(info.output_lengths)
    yield from _missed(info)
    yield from _hidden(info)
    yield from _less_load(info.gates)
    if info.mode == "paired":
        yield from _outliers(info)
        yield from _sign_flips(info.gates, info.alpha)


def _warning(code: str, message: str, remedy: str = "") -> Warned:
    return Warned(code=code, message=message, remedy=remedy)


def _alone(matched: Matched, refused: Sequence[str]) -> Iterator[Warned]:
    for side, every in (("base", matched.alone_base), ("head", matched.alone_head)):
        alone = [run for run in every if not isinstance(run, Numbers)]
        if alone and not (side == "base" and "runs" in refused):
            names = ", ".join(f"'{run.path}'" for run in alone[:3]) + (", ..." if len(alone) > 3 else "")
            yield _warning(
                "unpaired",
                f"{len(alone)} of the runs of the {side} found no partner of the same schedule: {names}",
                "run the other side with the same traffic and seed",
            )
        seeds = [str(run.seed) for run in every if isinstance(run, Numbers)]
        if seeds:
            yield _warning("unpaired", f"seeds that only the {side} has are left out: {', '.join(seeds)}")


def _allowed(differences: Sequence[Refusal]) -> Iterator[Warned]:
    for each in differences:
        yield _warning(
            "allowed-difference",
            f"compared although {each.message}",
            "part of what is shown may come from that",
        )


def _of_runs(matched: Matched, pairs: Sequence[ComparedPair]) -> Iterator[Warned]:
    """Overload, caches that helped one side, TTFT counted from sending, and searches without their tolerance."""
    sides = [run for pair in matched.pairs for run in (pair.base, pair.head)]
    runs = [run for run in sides if not isinstance(run, Numbers)]
    count = sum(run.info.verdict.grew for run in runs)
    if count:
        yield _warning(
            "overloaded",
            f"the queue grew all through {count} of {len(runs)} runs: their latencies tell how long the run was",
            "compare at a lower rate, or compare capacities (bench capacity on both sides)",
        )
    valid = {pair.base_run for pair in pairs if pair.valid}
    late = sum(gates.late_alone(pair) for pair in matched.pairs if str(pair.base.path) in valid)
    if late:
        yield _warning(
            "late-requests",
            f"requests of {late} of {len(matched.pairs)} pairs left late; they decide no gate, counted from when they "
            "were due or from when they were sent",
            "quiet the machine, or send from another one",
        )
    for pair in pairs:
        shares = pair.cached or CachedShares()
        base, head = shares.base, shares.head
        if base is not None and head is not None and abs(head - base) > CACHED:
            yield _warning(
                "cached-tokens",
                f"pair {pair.pair}: {base:.0%} of the prompt tokens came from a cache in the base, {head:.0%} in "
                "the head",
                "a warm cache favours who runs second; start both sides with the same cache, or salt the contents",
            )
    if any("scheduled_s" in run.info.source.missing for run in runs):
        yield _warning(
            "ttft-from-sending",
            "the files do not tell when requests were due, so TTFT counts from sending and hides a late client",
            "compare runs of bench, or files that hold scheduled times",
        )
    searches = {str(run.path): run.search for run in sides if isinstance(run, Numbers) and run.search is not None}
    for path, search in searches.items():
        if any(found.state == "unresolved" for found in search.answers):
            yield _warning(
                "unresolved",
                f"the search in '{path}' did not reach its tolerance",
                "the capacities of its seeds count all the same; give it more seeds",
            )


def _unknown(gates: Sequence[GateRow]) -> Iterator[Warned]:
    for row in gates:
        missing = len(row.losses) - row.pairs
        if missing:
            yield _warning(
                "not-measured",
                f"{row.label} could not be compared in {missing} of {len(row.losses)} pairs",
                "see which requests failed in these runs, and whether their streams were held back",
            )


def _lengths(rows: Sequence[LengthRow]) -> Iterator[Warned]:
    for row in rows:
        if (message := lengths.warning(row)) is not None:
            yield _warning(
                "output-lengths", message, "make more pairs, or let both sides take ignore_eos for equal lengths"
            )


def _missed(info: CompareAnswer) -> Iterator[Warned]:
    """Bounds on percentiles that runs miss: no default gate is on them."""
    for name in dict.fromkeys(row.metric for row in info.shown if row.metric.startswith(gates.MISSED)):
        rows = [row.values for row in info.shown if row.metric == name]
        base, head = (
            [value for values in rows for value in getattr(values, side) if value is not None]
            for side in ("base", "head")
        )
        if sum(base) or sum(head):
            yield _warning(
                "percentile-missed",
                f"the bound {name.removeprefix(gates.MISSED)} is missed in {sum(base):.0f} of {len(base)} runs of the "
                f"base and in {sum(head):.0f} of {len(head)} of the head",
                "a bound on a percentile decides no default gate; name one, such as --gate p99:itl=2%:5%",
            )


def _hidden(info: CompareAnswer) -> Iterator[Warned]:
    """Of simulators: rows that differ although no gate says so."""
    exact = info.exact
    if exact and not exact.identical and all(row.verdict == "equivalent" for row in info.gates):
        yield _warning(
            "rows-differ",
            "no gated metric is different, but the runs are not the same",
            "see the first request and the first step that differ",
        )


def _outliers(info: CompareAnswer) -> Iterator[Warned]:
    """Pairs that are still unlike the others, and pairs that were made again with one side always the slower one."""
    for row in info.gates:
        for place in verdict.unusual([row]):
            yield _warning(
                "outlier",
                f"{row.label}: pair {place + 1} is unlike the others, or was slowed down in some part",
                "it stays in; look at what else the machine did then",
            )


def _less_load(gates: Sequence[GateRow]) -> Iterator[Warned]:
    for row in gates:
        if row.metric == "failed" and row.verdict == "improved" and row.change_pct is not None:
            yield _warning(
                "less-load",
                f"{-row.change_pct:.3g} points fewer requests failed in the head: it did more work",
                "a slower head may be that work; compare at a rate that both sides serve",
            )


def _sign_flips(gates: Sequence[GateRow], alpha: float) -> Iterator[Warned]:
    for row in gates:
        flips, p = row.p_signflip, row.p_mean
        if flips is None or p is None or row.pairs < FLIPS or (flips <= alpha) == (p <= alpha):
            continue
        if 2.0**-row.pairs > alpha:
            continue
        yield _warning(
            "tests-disagree",
            f"{row.label}: p is {p:.3g} by t and {flips:.3g} by sign flips, on different sides of {alpha:g}",
            "the losses are not normal, or the difference is at the edge; make more pairs",
        )
