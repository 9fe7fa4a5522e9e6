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
    LengthRow,
    Parting,
    Row,
    RowVerdict,
    Side,
)
from harness.experiments.compare.gates import Gate
from harness.experiments.compare.pairing import Matched, Numbers, Pair, Source, schedule_of
from harness.experiments.compare.verdict import Series
from harness.metrics.measure import succeeded
from harness.metrics.objective import restored_slo
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
    stops = [each for each in differing if each.field not in settings.allowed]
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
    judged = None if stops or not pairs else _judged(pairs, cuts_s, settings, answered, shorter, in_turns=in_turns)
    own_slos = {pair.base.info.slo.text for pair in pairs}
    first = pairs[0].base if pairs else None
    every = _with_attempts(compared, attempts)
    valid = {pair.pair for pair in every if pair.valid}
    whole = all(pair.valid for pair in compared) and all(pair.pair in valid for pair in every)
    info = CompareAnswer(
        versions=dict(host.versions()),
        verdict="refused" if judged is None else judged.verdict if whole else "invalid",
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
        pairs=every,
        gates=[] if judged is None else judged.gates,
        shown=[] if judged is None else judged.shown,
        output_lengths=answered,
        exact=None if judged is None else judged.exact,
        differences=refusals.others(pairs),
        refused=[refusals.refusal(stop) for stop in stops],
        allowed_differences=[refusals.refusal(each) for each in differing if each.field in settings.allowed],
        notes=list(notes),
    )
    info = info.change(warnings=list(wording.warnings(info, matched)), exit_code=EXIT_CODES[info.verdict])
    return info.change(text=wording.sentence(info))


@dataclass(frozen=True, slots=True)
class _Judged:
    """Rows, verdict and, for simulators, where the runs part."""

    verdict: RowVerdict
    gates: list[GateRow]
    shown: list[Row]
    exact: Parting | None


def _judged(
    pairs: Sequence[Pair],
    cuts_s: Sequence[float],
    settings: Settings,
    answered: Sequence[LengthRow],
    shorter: Sequence[GateRow],
    *,
    in_turns: bool,
) -> _Judged:
    """The verdict. Where answers are `shorter`, no speed decides; where runs were not `in_turns`, none can."""
    virtual = all(map(refusals.is_virtual, pairs))
    runs = [side for pair in pairs for side in (pair.base, pair.head) if isinstance(side, Run)]
    fewest = min((len(run.requests) for run in runs), default=0)
    series = _series(pairs, cuts_s, settings.slo, {gate.quantity.name: gate.quantity for gate in settings.gates})
    names = {each.quantity.name for each in series}
    standing = gates.exact(gates.few_requests(fewest)) if virtual else gates.defaults(names)
    chosen = settings.gates or standing
    for gate in settings.gates:
        if gate.quantity.name not in names:  # it would never fire
            raise no_such("quantity to gate in these runs", gate.quantity.name, names)
    fails_otherwise = any(any(each.losses) for each in series if each.quantity.name == "failed")
    if fails_otherwise and "failed" not in {gate.quantity.name for gate in chosen}:
        # answering fewer requests is not better, whatever the gates are
        chosen += tuple(gate for gate in standing if gate.quantity.name == "failed")
    gated = [
        (gate, each)
        for point in dict.fromkeys(tuple(each.point.items()) for each in series)
        for gate in chosen
        for each in series
        if each.quantity.name == gate.quantity.name and tuple(each.point.items()) == point
    ]
    if not virtual:
        gated = [(gate, _with_steady(each, pairs, cuts_s)) for gate, each in gated]
    judge = verdict.exact if virtual else verdict.paired
    rows = list(shorter) or judge(gated, settings.alpha)
    if not in_turns:  # failures, shorter answers and what cannot be measured any more come from no other day
        rows = [
            structs.replace(row, verdict="inconclusive")
            if row.scale == "ratio" and not row.endless and not shorter
            else row
            for row in rows
        ]
    taken = set() if shorter else {gate.quantity.name for gate in chosen}
    by_chance = [] if shorter else [row for row in answered if any(row.losses)]
    rest = verdict.shown([each for each in series if each.quantity.name not in taken], settings.alpha)
    return _Judged(
        verdict=whole([row.verdict for row in rows]) if rows else "inconclusive",
        gates=rows,
        shown=[*by_chance, *rest],
        exact=_parted(pairs) if virtual else None,
    )


def _with_steady(series: Series, pairs: Sequence[Pair], cuts_s: Sequence[float]) -> Series:
    """A series with its steady losses, where each pair has one."""
    here = [(pair, cut_s) for pair, cut_s in zip(pairs, cuts_s, strict=True) if pair.point == series.point]
    found = [gates.steady(pair, series.quantity.name, cut_s) for pair, cut_s in here]
    return replace(series, steady=tuple(each for each in found if each is not None)) if all(found) else series


def _series(
    pairs: Sequence[Pair], cuts_s: Sequence[float], objective: Slo | None, gated: Mapping[str, gates.Quantity]
) -> list[Series]:
    """Every quantity at every point, in the order in which they come up; those that no run has are left out."""
    both = [(pair, *gates.both(pair, objective, cut_s)) for pair, cut_s in zip(pairs, cuts_s, strict=True)]
    found, held = [], any(map(gates.is_held_back, pairs))  # an unknown gate has no verdict, rather than no row
    for point in dict.fromkeys(tuple(pair.point.items()) for pair in pairs):
        here = [(base, head) for pair, base, head in both if tuple(pair.point.items()) == point]
        for name in dict.fromkeys(name for sides in here for side in sides for name in side):
            series = Series(
                gated.get(name) or gates.quantity(name),
                dict(point),
                tuple(base.get(name) for base, _ in here),
                tuple(head.get(name) for _, head in here),
            )
            found += [series] if series.is_there or held else []
    return found


def _parted(pairs: Sequence[Pair]) -> Parting:
    """How many rows of all pairs differ, and where the runs of the first pair that is not the same part."""
    found = [
        structs.replace(verdict.compared(pair.base, pair.head), pair=number)
        for number, pair in enumerate(pairs, 1)
        if not isinstance(pair.base, Numbers) and not isinstance(pair.head, Numbers)
    ]
    first = next((each for each in found if not each.identical), found[0])
    steps = [each.steps for each in found if each.steps is not None]
    return structs.replace(
        first,
        requests=sum(each.requests for each in found),
        requests_differ=sum(each.requests_differ for each in found),
        steps=sum(steps) if len(steps) == len(found) else None,
    )


def _pair(number: int, pair: Pair, cut_s: float, settings: Settings) -> ComparedPair:
    reasons = [*_reasons(pair.base, "base"), *_reasons(pair.head, "head")]
    if reasons and gates.late_alone(pair) and gates.decided_alike(pair, settings.gates, settings.slo, cut_s):
        reasons = []
    return ComparedPair(
        pair=number,
        point=dict(pair.point),
        seed=pair.base.seed if isinstance(pair.base, Numbers) else pair.base.info.seed,
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
    if isinstance(source, Numbers):
        return []
    if not source.complete and not source.info.source:
        return [f"{side}: the run did not finish"]
    if len(source.requests) and not succeeded(source.requests).any():
        return [f"{side}: no request ended well"]
    found = source.info.verdict
    return [f"{side}: {each}" for each in found.reasons or ["not valid"]] if found.valid is False else []


def _with_attempts(compared: list[ComparedPair], attempts: Sequence[ComparedPair]) -> list[ComparedPair]:
    """The pairs with the facts of the attempts that made them, and the attempts that failed, in their order."""
    if not attempts:
        return compared
    found: list[ComparedPair] = []
    for attempt in attempts:
        facts = {name: getattr(attempt, name) for name in _OF_ATTEMPT}
        path = Path(attempt.base_run)
        ours = [pair for pair in compared if path in (Path(pair.base_run), *Path(pair.base_run).parents)]
        found += [structs.replace(pair, **facts) for pair in ours] or [attempt]
    return found


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
