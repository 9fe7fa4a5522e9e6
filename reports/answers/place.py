"""The report of `bench place`: the best of each algorithm, every candidate with its interval, what was left out."""

from collections.abc import Iterator
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from harness.data.codec import encode, inner
from harness.experiments.place.place_json import PlaceAnswer, PlaceCost, PlacedUnit
from reports import _format, figures
from reports._format import clean
from reports._system import flat
from reports.document import Block, Document, Figure, Finding, Notice, Section, Table

RESUME = "Rerun the command with the same --out to resume; without --out it starts again."
MOST_ROWS, MOST_ROWS_ON_PAGE = 12, 100
"""Candidates of each kind that are shown; all of them are in the JSON."""
_KINDS = {"colocated": "colocated replicas", "pair": "pairs", "prefill": "prefill alone", "decode": "decode alone"}
_UNIT = ("algorithm", "tp,pp", "GPU", "GPUs", "req/s", "req/s per GPU")
_DEFINITIONS = (
    ("tp, pp", "GPUs that share one stage, and pipeline stages of one replica; a replica has tp x pp GPUs"),
    ("P, D", "a replica that prefills only, and one that decodes only"),
    ("rate per GPU", "the highest rate at which enough requests meet the SLO, over the GPUs of the unit"),
    ("interval", "holds the mean over all traffic of this kind with 95%, by Student's t over the seeds"),
    (">=", "no rate was shown to be too high; the rate is the highest that was tried"),
    ("misses above it", "the condition that is not met at the next higher rate that was tried"),
)


def document(info: PlaceAnswer, path: Path | None = None) -> Document:
    """The report of a placement whose place.json is `info`; with `path` that of a page, with figures."""
    query, finished = info.query, info.cost is not None and not info.cost.left
    hardware = " or ".join(clean(name, 40) for name in query.hardware)
    conditions = f"{clean(query.slo, 200)}, {clean(query.conditions, 40)}, goal {query.goal}"
    workload = f"{clean(query.workload, 80)}, {query.requests} requests a trial"
    mark, good, text = _verdict(info)
    return Document(
        title=f"Placement of {clean(query.model or 'a model', 60)} on {query.nodes} x {query.gpus_per_node} {hardware}",
        subtitle=conditions,
        mark=mark,
        good=good,
        findings=(Finding(text, good, () if finished else (RESUME,)),),
        key_facts=(
            ("Workload", workload),
            ("Planner", clean(query.planner, 40)),
            *([("Cost", _cost(info.cost))] if info.cost else []),
        ),
        warnings=tuple(Notice(f"{clean(one.message, None)}.") for one in info.warnings),
        sections=tuple(_sections(info, path is not None)) if info.cost else (),
        used=(
            *flat(inner(encode(info), "asked")),
            *((f"version of {name}", clean(v, 80)) for name, v in info.versions.items()),
        ),
        definitions=_DEFINITIONS,
    )


def _verdict(info: PlaceAnswer) -> tuple[str, bool | None, str]:
    """The state in capitals, whether that is good news, and the best placement in one line."""
    if info.cost is None:
        return "NOT FINISHED", None, "The placement is not finished."
    left = info.cost.left
    mark = "INTERRUPTED" if left else "PLACED" if info.best else "SLO NOT MET"
    if not info.best:
        text = "Interrupted before any placement was known." if left else "No placement meets the SLO at any rate."
        return mark, False, text
    best, objective = info.best[0], info.objective
    interval = "" if best.low_per_gpu_rps is None else f" (95%: {_interval(best)})"
    value = "" if objective.name == "gpu" else f", {_number(best.value)} {objective.unit}"
    start = f"Interrupted with {left} candidates left; best so far" if left else "Best"
    rate = f"{_at_least(best)}{_number(best.rate_per_gpu_rps)} req/s per GPU{interval}{value}"
    return mark, True, f"{start}: {clean(best.name)} on {best.gpus:,} x {clean(best.hardware)}, {rate}."


def _cost(spent: PlaceCost) -> str:
    left = f"; {spent.left} candidates left" if spent.left else ""
    return (
        f"{spent.candidates:,} candidates, {spent.trials:,} trials, {spent.requests:,} requests, "
        f"{_format.seconds(spent.wall_s)}{left}"
    )


def _sections(info: PlaceAnswer, on_page: bool) -> Iterator[Section]:
    if on_page:
        unit = info.objective.unit
        title = None if info.objective.name == "gpu" else f"{unit[:1].upper()}{unit[1:]} of each placement"
        drawn: tuple[Block, ...] = tuple(
            Figure(key, title or row.title, partial(row.draw, info)) for key, row in figures.of("place").items()
        )
        yield Section("figures", "Comparison", drawn)
    candidates = tuple(_candidates(info, MOST_ROWS_ON_PAGE if on_page else MOST_ROWS))
    reasons: dict[tuple[str, str], list[str]] = {}
    for one in info.skipped:
        reasons.setdefault((clean(one.hardware), clean(one.reason, None)), []).append(clean(one.name))
    skipped = tuple((", ".join(names), *of) for of, names in reasons.items())
    for key, heading, blocks in (
        ("best", "Best of each algorithm", tuple(_best(info))),
        ("candidates", "Candidates", candidates),
        ("skipped", "Left out", (Table("left out", ("tp,pp", "GPU", "reason"), skipped, 2, 1),) if skipped else ()),
    ):
        if blocks:
            yield Section(key, heading, blocks)


def _best(info: PlaceAnswer) -> Iterator[Table]:
    """The best of each algorithm beside the first, what is as good as these, and replicas for the rate of --rate."""
    best = info.best
    if not best:
        return
    first = best[0]
    objective = _objective(info)
    rows = tuple(
        (
            *_unit(one),
            _number(one.mean_per_gpu_rps),
            _interval(one),
            *(_number(one.value) for _ in objective),
            f"{first.value / one.value:.3g}x" if one.value > 0 else "-",
        )
        for one in best
    )
    ratio = f"{first.algorithm} / this"
    yield Table("best of each algorithm", (*_UNIT, "mean per GPU", "95% interval", *objective, ratio), rows, 3)
    relations = (("ties", "equal, on no fewer GPUs"), ("not_apart", "not separated by the seeds"))
    if near := tuple(
        (one.algorithm, clean(other.name), clean(other.hardware), f"{other.gpus:,}",
         _number(other.rate_per_gpu_rps), relation)
        for one in best for key, relation in relations for other in getattr(one, key)
    ):  # fmt: skip
        heads = ("algorithm", "tp,pp", "GPU", "GPUs", "req/s per GPU", "beside the best")
        yield Table("as good as the best of its algorithm", heads, near, 3, 1)
    if whole := [(one.algorithm, one.replicated) for one in best if one.replicated]:
        target = f"{_number(whole[0][1].target_rps)} req/s"
        replicas = tuple(
            (
                algorithm,
                " and ".join(f"{member.count} x {clean(member.name)}" for member in one.members),
                f"{one.gpus:,}",
                _number(one.rate_rps),
                "yes" if one.fits else "no",
            )
            for algorithm, one in whole
        )
        columns = ("algorithm", "replicas", "GPUs", "sustained (req/s)", "fits the cluster")
        yield Table(f"replicas for {target}", columns, replicas, 2)


def _candidates(info: PlaceAnswer, most: int) -> Iterator[Table]:
    """A table for each algorithm and kind of replica."""
    objective = _objective(info)
    for (algorithm, kind), group in groupby(info.candidates, key=lambda one: (one.algorithm, one.kind)):
        every = [*group]
        more = f" (the best {most} of {len(every)})" if len(every) > most else ""
        rows = tuple(
            (*_unit(one), _interval(one), one.binding or "-", *(_number(one.value) for _ in objective))
            for one in every[:most]
        )
        heads = (*_UNIT, "95% interval", "misses above it", *objective)
        yield Table(f"{algorithm}: {_KINDS[kind]}{more}", heads, rows, 3)


def _objective(info: PlaceAnswer) -> tuple[str, ...]:
    """The head of a column for the objective where that is not the rate per GPU."""
    return () if info.objective.name == "gpu" else (info.objective.unit,)


def _unit(one: PlacedUnit) -> tuple[str, ...]:
    rates = (f"{_at_least(one)}{_number(rate)}" for rate in (one.rate_rps, one.rate_per_gpu_rps))
    return (one.algorithm, clean(one.name), clean(one.hardware), f"{one.gpus:,}", *rates)


def _at_least(one: PlacedUnit) -> str:
    """The mark of a rate where none was shown to be too high."""
    return ">= " if one.at_least else ""


def _interval(one: PlacedUnit) -> str:
    if one.low_per_gpu_rps is None or one.high_per_gpu_rps is None:
        return "-"
    return f"{_format.number(one.low_per_gpu_rps)} to {_format.number(one.high_per_gpu_rps)}"


def _number(value: float) -> str:
    return _format.number(value, 4)


def rows(info: PlaceAnswer) -> Iterator[dict[str, Any]]:
    """A row per candidate, rates in requests per second."""
    for one in encode(info).get("candidates", ()):
        yield {name: value for name, value in one.items() if not isinstance(value, dict)}
