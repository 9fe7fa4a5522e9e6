"""The report of `bench place`: the recommendation with its runners-up, every candidate, what was left out."""

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from harness.data.codec import encode, inner
from harness.experiments.place.place_json import BestUnit, PlaceAnswer, PlaceCost, PlacedUnit
from reports import _format, _system
from reports._format import clean, percent
from reports._system import flat, versions
from reports.answers.agents import RESUME
from reports.document import Command, Document, Finding, Section, Table, listed, notices

MOST_ROWS, MOST_ROWS_ON_PAGE = 12, 100
"""Candidates of each kind that are shown; all of them are in the JSON."""
UNDECIDED = 5
"""Exit code of a search that ended without a verdict."""
MOST_NAMES = 8
"""Names of what was left out for one reason."""
_SHAPE = re.compile(r"\((\d+),(\d+)((?:,\w+=\d+)*)\)")
_UNIT = ("deployment", "GPU", "GPUs", "req/s", "req/s per GPU")
_TAKEN = {"gpu": None, "cost": "$ per hour", "power": "watts"}
_SIDES = {True: "meets", False: "misses", None: "not decided"}
_PAID = {"cost": "cost", "power": "power"}
_DEFINITIONS = (
    ("(tp, pp)", "GPUs that share one stage, and pipeline stages of one replica; a replica has tp x pp GPUs"),
    ("P, D", "a replica that prefills only, and one that decodes only"),
    ("meets the SLO", "the mean share of requests over runs at the requested rate"),
    ("if slower", "the same with TTFT and TPOT longer, as far as the latency model was off on public results"),
    ("$ per 1M input", "what all GPUs cost, over the tokens of all prompts; of answers: $ per 1M output"),
    ("rate per GPU", "the highest rate at which enough requests meet the SLO, over the GPUs of the unit"),
    ("interval", "holds the mean over all traffic of this kind with 95%, by Student's t over the seeds"),
    (">=", "no rate was shown to be too high; the rate is the highest that was tried"),
)


def document(info: PlaceAnswer, path: Path | None = None) -> Document:
    """The report of a placement whose place.json is `info`; with `path` that of a page, with more rows."""
    query, finished = info.query, info.cost is not None and not info.cost.left
    hardware = " or ".join(clean(name, 40) for name in query.hardware)
    goal = "-" if query.goal is None else percent(query.goal)
    conditions = f"{clean(query.slo, 200)}, {clean(query.conditions, 40)}, goal {goal}"
    workload = clean(query.workload or query.trace, 80)
    mark, good, text = _verdict(info)
    return Document(
        title=f"Placement of {clean(query.model or 'a model', 60)} on {query.nodes} x {query.gpus_per_node} {hardware}",
        subtitle=conditions,
        mark=mark,
        good=good,
        findings=(Finding(text, good, () if finished else (RESUME,)), *_if_slower(info)),
        key_facts=(
            ("Workload", workload),
            ("Step times", _system.step_times(info.step_times, {})),
            ("Cost", _cost(info.cost, "cheaper ones" if info.best else "others") if info.cost else ""),
        ),
        warnings=notices(info.warnings),
        sections=tuple(_sections(info, path is not None)) if info.cost else (),
        used=(
            *flat(inner(encode(info), "asked")),
            *versions(info.versions),
        ),
        definitions=_DEFINITIONS,
    )


def _verdict(info: PlaceAnswer) -> tuple[str, bool | None, str]:
    """The state in capitals, whether that is good news, and the best placement in one line."""
    if info.cost is None:
        return "NOT FINISHED", None, "The placement is not finished."
    stopped = info.state == "interrupted"
    undecided = not info.best and info.exit_code == UNDECIDED
    mark = "INTERRUPTED" if stopped else "PLACED" if info.best else "NOT DECIDED" if undecided else "SLO NOT MET"
    if not info.best:
        rate = "any rate" if info.target_rps is None else f"{info.target_rps:g} req/s in this cluster"
        if stopped:
            return mark, False, "Interrupted before any placement was known."
        if undecided:
            return mark, None, f"No deployment that was run surely meets the SLO at {rate}."
        why = "" if info.candidates else ": by step times and KV memory alone none does, so none was run"
        return mark, False, f"No deployment meets the SLO at {rate}{why}."
    best, objective = info.best[0], info.objective
    start = "Interrupted; best so far" if info.state == "interrupted" else "Best"
    system = f"{_named(best.name)} on {best.gpus:,} x {clean(best.hardware)}"
    sides = [sum(group.count for group in best.groups if group.role == role) for role in ("prefill", "decode")]
    if best.algorithm == "high" and all(sides):
        system += f" (prefill to decode {sides[0]}:{sides[1]})"
    if best.attainment is not None:
        between = "" if best.attainment_low is None else f" (95%: {_share_interval(best)})"
        share = f"{_format.share(best.attainment)} of requests meet the SLO{between} at {best.rate_rps:g} req/s"
        money = "" if best.per_million_tokens is None else (
            f"${_number(best.taken or 0)} per hour, ${_number(best.per_million_tokens)} per million output tokens, "
        )  # fmt: skip
        start = start if info.state == "interrupted" or objective.name not in _TAKEN else "Cheapest"
        return mark, True, f"{start}: {system}, {money}{share}."
    interval = "" if best.low_per_gpu_rps is None else f" (95%: {_interval(best)})"
    value = "" if objective.name == "gpu" else f", {_number(best.value)} {objective.unit}"
    rate = f"{_at_least(best)}{_number(best.rate_per_gpu_rps)} req/s per GPU{interval}{value}"
    return mark, True, f"{start}: {system}, {rate}."


def _if_slower(info: PlaceAnswer) -> Iterator[Finding]:
    """Whether the recommendation meets the SLO with the known error of the step times too, or what does."""
    best = next(iter(info.best), None)
    if best is None or best.holds is None or best.with_error is None:
        return
    errors = (("TTFT", best.ttft_error), ("TPOT", best.tpot_error))
    longer = " and ".join(f"{name} {error:.0%}" for name, error in errors if error) + " longer"
    why = "the median error of step times on the nearest measurements"
    if best.holds:
        yield Finding(f"It holds with {longer}, {why}: then {_format.share(best.with_error)} meet the SLO.", True)
        return
    sure = next((unit for unit in info.best if unit.holds), None)
    instead = "No deployment that was run holds then." if sure is None else (
        f"{_named(sure.name)} on {sure.gpus:,} x {clean(sure.hardware)} holds then ({_format.share(sure.with_error)})."
    )  # fmt: skip
    yield Finding(f"With {longer}, {why}, only {_format.share(best.with_error)} meet the SLO. {instead}", False)


def _cost(spent: PlaceCost, others: str) -> str:
    skipped = f"; {spent.left} {others} that may meet the SLO were not run" if spent.left else ""
    candidates = _format.count(spent.candidates, "candidate")
    return f"{candidates}, {spent.requests:,} requests, {_format.seconds(spent.wall_s)}{skipped}"


def _sections(info: PlaceAnswer, on_page: bool) -> Iterator[Section]:
    yield Section("best", "Recommendation and alternatives", tuple(_best(info)) if info.best else ())
    candidates = tuple(_candidates(info, MOST_ROWS_ON_PAGE if on_page else MOST_ROWS)) if info.candidates else ()
    reasons: dict[tuple[str, str], list[str]] = {}
    for entry in info.skipped:
        reasons.setdefault((clean(entry.hardware), clean(entry.reason, None)), []).append(_named(entry.name))
    skipped = tuple((_some(names), *cause) for cause, names in reasons.items())
    yield Section("candidates", "Candidates", candidates)
    yield Section("skipped", "Left out", listed("left out", ("tp,pp", "GPU", "reason"), skipped, len(skipped), 2, 1))


def _some(names: list[str]) -> str:
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def _best(info: PlaceAnswer) -> Iterator[Table | Command]:
    """The recommendation first, what it takes, what stands beside it, and the command that confirms it."""
    best, objective = info.best, info.objective
    columns = _columns(info, best)
    if (head := _TAKEN.get(objective.name)) is not None:
        columns[head] = [_number(placed.taken or 0.0) for placed in best]
    if best[0].per_million_tokens is not None:
        columns["$ per 1M input"] = [_number(placed.per_million_input_tokens or 0.0) for placed in best]
        columns["$ per 1M output"] = [_number(placed.per_million_tokens or 0.0) for placed in best]
    if any(placed.with_error is not None for placed in best):
        columns["if slower"] = [_format.share(placed.with_error) for placed in best]
    columns["beside the first"] = ["", *(_beside(info, placed) for placed in best[1:])]
    yield Table("the first is recommended", tuple(columns), tuple(zip(*columns.values(), strict=True)), 2, 1)
    if best[0].command:
        yield Command("Confirm it", clean(best[0].command, None))


def _columns(info: PlaceAnswer, units: Sequence[PlacedUnit]) -> dict[str, list[str]]:
    """What placements are described by: the unit, and what its objective goes by with the interval of that."""
    columns = {head: [_unit(placed)[place] for placed in units] for place, head in enumerate(_UNIT)}
    if info.target_rps is not None:
        columns["meets the SLO"] = [_format.share(placed.attainment or 0.0) for placed in units]
        columns["95% interval"] = [_share_interval(placed) for placed in units]
    else:
        columns["95% interval"] = [_interval(placed) for placed in units]
        if info.objective.name != "gpu":
            columns[info.objective.unit] = [_number(placed.value) for placed in units]
    return columns


def _beside(info: PlaceAnswer, one: BestUnit) -> str:
    first = info.best[0]
    if one.name in first.not_apart:
        return "not distinguishable"
    if one.taken and first.taken and one.attainment is not None:
        more = one.taken / first.taken - 1
        return f"{more:+.0%} {_PAID.get(info.objective.name, 'GPUs')}" if more else "takes as much"
    return f"{one.value / first.value:.3g} times the value" if first.value else "-"


def _candidates(info: PlaceAnswer, most: int) -> Iterator[Table]:
    """A table for each algorithm and kind of replica; of a requested rate one of all deployments that were run."""
    groups = {"deployments that were run, the cheapest first": [*info.candidates]}
    if info.target_rps is None:
        ordered = sorted(info.candidates, key=lambda one: one.algorithm)
        groups = {f"{name}: rates of short runs": [*group] for name, group in groupby(ordered, lambda u: u.algorithm)}
    for caption, units in groups.items():
        columns = _columns(info, units)
        if info.target_rps is not None:
            columns["the goal"] = [_SIDES[placed.meets] for placed in units]
        columns["binding bound"] = [clean(placed.binding or "-") for placed in units]
        printed = {head: column for head, column in columns.items() if set(column) - {"-"}}
        yield from listed(caption, tuple(printed), [*zip(*printed.values(), strict=True)], most, 2)


def _named(name: str) -> str:
    """`P(2,1)`, the name of a deployment in papers and files, as P(TP=2 PP=1)."""
    return _SHAPE.sub(lambda found: f"(TP={found[1]} PP={found[2]}{found[3].replace(',', ' ').upper()})", clean(name))


def _unit(one: PlacedUnit) -> tuple[str, ...]:
    rates = (f"{_at_least(one)}{_number(rate)}" for rate in (one.rate_rps, one.rate_per_gpu_rps))
    return (_named(one.name), clean(one.hardware), f"{one.gpus:,}", *rates)


def _at_least(one: PlacedUnit) -> str:
    """The mark of a rate where none was shown to be too high."""
    return ">= " if one.at_least else ""


def _interval(one: PlacedUnit) -> str:
    return _format.between(one.low_per_gpu_rps, one.high_per_gpu_rps)


def _share_interval(one: PlacedUnit) -> str:
    return _format.between(one.attainment_low, one.attainment_high, _format.share)


def _number(value: float) -> str:
    return _format.number(value, 4)


def rows(info: PlaceAnswer) -> Iterator[dict[str, Any]]:
    """A row per candidate, rates in requests per second."""
    for candidate in encode(info).get("candidates", ()):
        yield {name: value for name, value in candidate.items() if not isinstance(value, dict)}
