"""The answer of `bench compare`: pairs, rows and the verdict on them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from msgspec import structs

from harness.api import Slo
from harness.data import host
from harness.data.codec import Facts, alike, encode, inner
from harness.data.folder import Run
from harness.errors import no_such
from harness.experiments.compare import gates, lengths, refusals, verdict, wording
from harness.experiments.compare.compare_json import (
    CachedShares,
    CompareAnswer,
    ComparedPair,
    GateRow,
    Parting,
    Side,
)
from harness.experiments.compare.gates import Gate
from harness.experiments.compare.pairing import Matched, Pair, Searched, Source, schedule_of
from harness.experiments.compare.verdict import Series
from harness.metrics.measure import succeeded
from harness.metrics.objective import parse_slo, restored_slo
from harness.stats.paired import ALPHA, whole

EXIT_CODES: Mapping[str, int] = {
    "improved": 0, "equivalent": 0, "regressed": 1, "refused": 4, "invalid": 4, "inconclusive": 5,
}  # fmt: skip
"""Exit code of each verdict."""


_OF_ATTEMPT = ("pair", "seed", "order", "repeated", "schedule_hash", "why", "unusual", "exact", "base_s", "head_s")
"""Facts of an attempt that its runs do not have."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How to compare: gates (empty: the default ones), one-sided alpha, the differences that are allowed.

    `slo` scores both sides again, `warmup` cuts both again; None takes those of the runs. `goal` chooses among the
    goals of a search.
    """

    gates: tuple[Gate, ...] = ()
    alpha: float = ALPHA
    allowed: frozenset[str] = frozenset()
    slo: Slo | None = None
    goal: float | None = None
    warmup: str | None = None


def settings(
    gate: str | None, alpha: float | None, allow_different: str | None, slo: str | None, goal: float | None,
    warmup: str | None,
) -> Settings:  # fmt: skip
    """How to compare, from the options. Raises UsageError."""
    return Settings(
        gates=gates.parse(gate) if gate else (),
        alpha=ALPHA if alpha is None else alpha,
        allowed=refusals.checked(allow_different or ""),
        slo=None if slo is None else parse_slo(slo, goal=Slo().goal if goal is None else goal),
        goal=goal,
        warmup=warmup,
    )


def compare(
    matched: Matched,
    settings: Settings,
    *,
    base: str = "base",
    head: str = "head",
    attempts: Sequence[ComparedPair] = (),
    interim: Sequence[int] = (),
    notes: Sequence[str] = (),
) -> CompareAnswer:
    """The answer on these pairs. `base` and `head` are the names of the sides.

    `attempts` are those of a comparison that made its runs: their facts go into the pairs, and attempts that failed are
    listed beside them. `interim` are the numbers of pairs after which a verdict was requested.
    """
    pairs = matched.pairs
    differing = refusals.found(matched, rescored=settings.slo is not None)
    stops = [diff for diff in differing if diff.field not in settings.allowed]
    cuts_s = [gates.cut_s(pair, settings.warmup) for pair in pairs]
    compared = [
        _pair(number, pair, cut_s, settings) for number, (pair, cut_s) in enumerate(zip(pairs, cuts_s, strict=True), 1)
    ]
    answered = [] if stops or not pairs else lengths.compared(pairs, cuts_s, settings.alpha)
    other_work = [lengths.different(row) for row in answered if row.change != "same"]
    differing += other_work
    shorter: list[GateRow] = []
    if refusals.OUTPUT_LENGTHS not in settings.allowed:
        shorter = [gate for row in answered if (gate := lengths.gated(row)) is not None]
        longer = any(row.change == "longer" for row in answered)
        stops += other_work if longer else []  # not the same work
    exact = bool(pairs) and all(map(refusals.is_virtual, pairs))
    # pairs that were made for the comparison are logged in turns, also where a tool stores no start times
    in_turns = exact or bool(attempts) or refusals.TURNS in settings.allowed or refusals.in_turns(pairs)
    own_slos = {pair.base.info.slo.text for pair in pairs}
    first = pairs[0].base if pairs else None
    all_pairs = _with_attempts(compared, attempts)
    valid = {pair.pair for pair in all_pairs if pair.valid}
    info = CompareAnswer(
        versions=dict(host.versions()),
        verdict="refused",
        mode="exact" if exact else "paired",
        in_turns=in_turns,
        alpha=settings.alpha,
        interim=list(interim),
        base=_side(base, [pair.base for pair in pairs]),
        head=_side(head, [pair.head for pair in pairs]),
        workload=None if first is None else alike([_workload(pair.base) or {} for pair in pairs]) or None,
        slo=str(settings.slo) if settings.slo else own_slos.pop() if len(own_slos) == 1 else None,
        goal=settings.goal or (settings.slo or (Slo() if first is None else restored_slo(first.info))).goal,
        rescored=settings.slo is not None,
        warmup=settings.warmup,
        pairs=all_pairs,
        gates=[],
        shown=[],
        output_lengths=answered,
        exact=None,
        differences=refusals.others(pairs),
        refused=[refusals.refusal(stop) for stop in stops],
        allowed_differences=[refusals.refusal(diff) for diff in differing if diff.field in settings.allowed],
        notes=list(notes),
    )
    if pairs and not stops:
        info = _judged(info, pairs, cuts_s, settings, shorter)
        if not all(pair.valid for pair in compared) or any(pair.pair not in valid for pair in all_pairs):
            info = info.change(verdict="invalid")
    info = info.change(warnings=list(wording.warnings(info, matched)), exit_code=EXIT_CODES[info.verdict])
    return info.change(text=wording.sentence(info))


def _judged(
    info: CompareAnswer, pairs: Sequence[Pair], cuts_s: Sequence[float], settings: Settings, shorter: Sequence[GateRow]
) -> CompareAnswer:
    """The answer with its rows, its verdict and, for simulators, where the runs part.

    Where answers are `shorter`, no speed decides; where runs were not made in turns, none can.
    """
    virtual = all(map(refusals.is_virtual, pairs))
    runs = [side for pair in pairs for side in (pair.base, pair.head) if isinstance(side, Run)]
    fewest = min((len(run.requests) for run in runs), default=0)
    series = _series(pairs, cuts_s, settings.slo, {gate.quantity.name: gate.quantity for gate in settings.gates})
    names = {measured.quantity.name for measured in series}
    standing = gates.exact(gates.few_requests(fewest)) if virtual else gates.defaults(names)
    chosen = settings.gates or standing
    for gate in settings.gates:
        if gate.quantity.name not in names:  # it would never fire
            raise no_such("quantity to gate in these runs", gate.quantity.name, names)
    fails_otherwise = any(any(measured.losses) for measured in series if measured.quantity.name == "failed")
    if fails_otherwise and "failed" not in {gate.quantity.name for gate in chosen}:
        # answering fewer requests is not better, whatever the gates are
        chosen += tuple(gate for gate in standing if gate.quantity.name == "failed")
    gated = [
        (gate, measured)
        for point in dict.fromkeys(tuple(measured.point.items()) for measured in series)
        for gate in chosen
        for measured in series
        if measured.quantity.name == gate.quantity.name and tuple(measured.point.items()) == point
    ]
    if not virtual:
        gated = [(gate, _with_steady(measured, pairs, cuts_s)) for gate, measured in gated]
    judge = verdict.exact if virtual else verdict.paired
    rows = list(shorter) or judge(gated, settings.alpha)
    if not info.in_turns:  # failures, shorter answers and what cannot be measured any more come from no other day
        rows = [
            structs.replace(row, verdict="inconclusive")
            if row.scale == "ratio" and not row.endless and not shorter
            else row
            for row in rows
        ]
    gate_names = set() if shorter else {gate.quantity.name for gate in chosen}
    by_chance = [] if shorter else [row for row in info.output_lengths if any(row.losses)]
    rest = verdict.shown([measured for measured in series if measured.quantity.name not in gate_names], settings.alpha)
    return info.change(
        verdict=whole([row.verdict for row in rows]) if rows else "inconclusive",
        gates=rows,
        shown=[*by_chance, *rest],
        exact=_parted(pairs) if virtual else None,
    )


def _with_steady(series: Series, pairs: Sequence[Pair], cuts_s: Sequence[float]) -> Series:
    """A series with its steady losses, where each pair has one."""
    at_point = [(pair, cut_s) for pair, cut_s in zip(pairs, cuts_s, strict=True) if pair.point == series.point]
    losses = [gates.steady(pair, series.quantity.name, cut_s) for pair, cut_s in at_point]
    return replace(series, steady=tuple(loss for loss in losses if loss is not None)) if all(losses) else series


def _series(
    pairs: Sequence[Pair], cuts_s: Sequence[float], objective: Slo | None, gated: Mapping[str, gates.Quantity]
) -> list[Series]:
    """Every quantity at every point, in the order in which they come up; those that no run has are left out."""
    scored = [(pair, *gates.both(pair, objective, cut_s)) for pair, cut_s in zip(pairs, cuts_s, strict=True)]
    rows, held = [], any(map(gates.is_held_back, pairs))  # an unknown gate has no verdict, rather than no row
    for point in dict.fromkeys(tuple(pair.point.items()) for pair in pairs):
        at_point = [(base, head) for pair, base, head in scored if tuple(pair.point.items()) == point]
        for name in dict.fromkeys(name for sides in at_point for side in sides for name in side):
            series = Series(
                gated.get(name) or gates.quantity(name),
                dict(point),
                tuple(base.get(name) for base, _ in at_point),
                tuple(head.get(name) for _, head in at_point),
            )
            rows += [series] if series.is_there or held else []
    return rows


def _parted(pairs: Sequence[Pair]) -> Parting:
    """How many rows of all pairs differ, and where the runs of the first pair that is not the same part."""
    partings = [
        structs.replace(verdict.compared(pair.base, pair.head), pair=number)
        for number, pair in enumerate(pairs, 1)
        if not isinstance(pair.base, Searched) and not isinstance(pair.head, Searched)
    ]
    first = next((parting for parting in partings if not parting.identical), partings[0])
    steps = [parting.steps for parting in partings if parting.steps is not None]
    return structs.replace(
        first,
        requests=sum(parting.requests for parting in partings),
        requests_differ=sum(parting.requests_differ for parting in partings),
        steps=sum(steps) if len(steps) == len(partings) else None,
    )


def _pair(number: int, pair: Pair, cut_s: float, settings: Settings) -> ComparedPair:
    reasons = [*_reasons(pair.base, "base"), *_reasons(pair.head, "head")]
    if reasons and gates.late_alone(pair) and gates.decided_alike(pair, settings.gates, settings.slo, cut_s):
        reasons = []
    return ComparedPair(
        pair=number,
        point=dict(pair.point),
        seed=pair.base.seed if isinstance(pair.base, Searched) else pair.base.info.seed,
        schedule_hash=schedule_of(pair.base),
        base_run=str(pair.base.path),
        head_run=str(pair.head.path),
        valid=not reasons,
        reasons=reasons,
        cut_s=cut_s,
        cached=CachedShares(gates.cached_share(pair.base, cut_s), gates.cached_share(pair.head, cut_s)),
    )


def _reasons(source: Source, side: str) -> list[str]:
    """Why a run proves nothing; empty for one that is valid."""
    if isinstance(source, Searched):
        return []
    if not source.complete and not source.info.source:
        return [f"{side}: the run did not finish"]
    if len(source.requests) and not succeeded(source.requests).any():
        return [f"{side}: no request ended well"]
    validity = source.info.verdict
    return [f"{side}: {reason}" for reason in validity.reasons or ["not valid"]] if validity.valid is False else []


def _with_attempts(compared: list[ComparedPair], attempts: Sequence[ComparedPair]) -> list[ComparedPair]:
    """The pairs with the facts of the attempts that made them, and the attempts that failed, in their order."""
    if not attempts:
        return compared
    all_pairs: list[ComparedPair] = []
    for attempt in attempts:
        facts = {name: getattr(attempt, name) for name in _OF_ATTEMPT}
        path = Path(attempt.base_run)
        attempt_pairs = [pair for pair in compared if path in (Path(pair.base_run), *Path(pair.base_run).parents)]
        all_pairs += [structs.replace(pair, **facts) for pair in attempt_pairs] or [attempt]
    return all_pairs


def _side(label: str, runs: Sequence[Source]) -> Side:
    system = alike([run.info.backend for run in runs])  # of baselines of several systems, no header names one for all
    return Side(label=label, runs=list(dict.fromkeys(str(run.path) for run in runs)), system=system)


def _workload(source: Source) -> Facts | None:
    """What was sent, as run.json has it."""
    if isinstance(source, Run):
        return encode(source.info).get("workload")
    if source.search is None or source.search.workload is None:
        return None
    return {**inner(encode(source.search), "traffic"), "name": source.search.workload}
