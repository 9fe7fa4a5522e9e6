"""The report of `bench capacity`: capacities with their intervals, the curve, what binds, and the trials."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

from harness.api import Bound
from harness.data.codec import encode
from harness.data.host import busy
from harness.experiments.capacity.capacity_json import (
    CapacityAnswer,
    GoalCapacity,
    HorizonRuns,
    RunsNear,
    SearchCost,
)
from harness.experiments.capacity.conditions import MAX_REQUESTS, TOLERANCE
from harness.experiments.capacity.horizon import ALONE, HORIZON_S
from harness.experiments.capacity.trials import TRIALS_FOLDER as TRIALS
from harness.experiments.capacity.trials import Trial, folder_name
from harness.metrics.objective import JOINT, restored_slo
from harness.validity.remote import floors_s
from reports import _format
from reports._format import clean, percent
from reports._system import first, flat, part
from reports.answers import sweep
from reports.document import (
    Cell,
    Command,
    Document,
    Finding,
    Notice,
    Section,
    Table,
    figures_of,
    listed,
    notices,
)
from reports.study import Study, folders, of_capacity, share, trials

GOES_ON = "; with its --out it goes on from there"
RUNNING = "This search was killed or is still running. Rerun the command with the same --out to finish it."
FLOOR_SHARE = 0.1
"""Of a bound that the client's error may be, before it limits a search."""
MOST_ROWS = 200
"""Rows of the table of trials; all of them are in trials.parquet."""
FULL = {
    "prefill": "its prefill replicas are full",
    "decode": "its decode replicas are full",
    "decode memory": "the KV memory of its decode replicas is full",
    "memory": "its KV memory is full",
    "batch": "its replicas are busy all the time, with KV memory to spare",
}
"""What is full where a queue grows."""
LIMITED = 1.05
"""A capacity within this of what the system serves is limited by its throughput."""
VAGUE = 0.5
"""Half-width from which on an interval has no rate in its middle to speak of."""
CHECKED_BY, FRESH = 30, 100_000
"""Seeds of the sweep that checks an answer, and from which on: none of those of the search."""
SWEEP_RATES = 7
"""Rates of the sweep that is advised, each the same ratio above the one below it."""
_MARKS = {"carried": ("SUSTAINED", True), "not carried": ("NOT SUSTAINED", False), "unresolved": ("NOT DECIDED", None)}
_VERDICTS = {
    "carried": "sustained",
    "not carried": "not sustained",
    "unresolved": "not decided: no interval among the rates tried leaves it out",
}
_STATES = {"resolved": True, "unreachable": False}
_MAX_REQUESTS = re.compile(r"--max-requests (\d+)")


def document(info: CapacityAnswer, path: Path | None = None) -> Document:
    """The report of a search whose capacity.json is `info`; its trials are looked for in the folder `path`."""
    results = info.answers
    study = of_capacity(info, path) if path is not None else None
    stored = encode(info)
    mark, good = _mark(info)
    backend = first(info.backend, "backend", "name") or clean(info.spec.get("backend") or "a system", 60)
    goals = " and ".join(map(percent, info.searched_goals))
    other = info.definition not in (None, JOINT)
    scope = (f"goal {goals}" if goals else "", f"definition {clean(info.definition, 40)}" if other else "")
    groups = ("run", "traffic", "backend", "versions", "cost")
    return Document(
        title=f"Capacity of {backend} under {clean(info.workload or 'a workload', 100)}",
        subtitle=", ".join(filter(None, scope)),
        mark=mark,
        good=good,
        findings=tuple(
            Finding(
                headline(info, result),
                _MARKS[result.at.verdict][1] if result.at else _STATES.get(result.state),
                (*notes(info, result),),
            )
            for result in results
        ),
        numbers=tuple(_numbers(info, results)),
        key_facts=(*sweep.key_facts(info, study), ("Cost", _cost(info, info.cost) if info.cost else "")),
        warnings=tuple(_warnings(info, results)),
        sections=tuple(_sections(info, study, path)),
        next=Command(*advice(info)),
        commands=(rerun(info),),
        used=(
            ("clock", clean(info.clock or "")),
            *((f"{group}: {name}", value) for group in groups for name, value in flat(part(stored, group))),
        ),
    )


def _mark(info: CapacityAnswer) -> tuple[str, bool | None]:
    """The state of the first goal, of the search itself, or that not all goals are resolved."""
    results = info.answers
    if not results:
        return "NOT FINISHED", None
    if info.state == "interrupted":
        return "INTERRUPTED", None
    result = results[0]
    if result.at:
        return _MARKS[result.at.verdict]
    if result.state == "resolved" and any(other.state != "resolved" for other in results):
        return "PARTLY RESOLVED", None
    return result.state.upper(), _STATES.get(result.state)


def headline(info: CapacityAnswer, one: GoalCapacity) -> str:
    """One line: the rate with its interval, the bracket where there is no estimate, or that there is no such rate."""
    over = "" if one.horizon is None or not one.horizon.horizon_s else f" over {_format.span(one.horizon.horizon_s)}"
    windows = "" if info.windows is None else f" in {percent(info.windows)} of the runs"
    start = f"Capacity{over} at {percent(one.goal)}{windows}"
    unresolved = ", unresolved" if one.state == "unresolved" else ""
    if one.state == "unreachable":
        return f"{start}: 0 req/s, no rate is low enough"
    if one.capacity_rps is None:
        tried = info.curve or (info.cost is not None and info.cost.probes)
        nothing = "no rate tried is surely sustained or surely too high" if tried else "no rate was tried"
        return f"{start}: {_bracket(one) or nothing}{unresolved}"
    if one.low_rps is None or one.high_rps is None or one.half_width is None:
        without = "" if info.one_traffic else " (no interval)"
        return f"{start}: {_format.number(one.capacity_rps)} req/s{without}{unresolved}"
    if one.half_width > VAGUE:
        ends = f"between {_format.number(one.low_rps, 2)} and {_format.number(one.high_rps, 2)} req/s"
        return f"{start}: {ends} ({percent(info.confidence)} interval){unresolved}"
    half = (one.high_rps - one.low_rps) / 2
    digits = max(0, 1 - math.floor(math.log10(half))) if half > 0 else 3  # two digits of the half-width
    rate, low, high = (f"{value:,.{digits}f}" for value in (one.capacity_rps, one.low_rps, one.high_rps))
    interval = f"{low} .. {high}, +-{100 * one.half_width:.1f}%"
    return f"{start}: {rate} req/s ({percent(info.confidence)} interval {interval}){unresolved}"


def _numbers(info: CapacityAnswer, results: Sequence[GoalCapacity]) -> Iterator[tuple[str, str]]:
    """Of the first goal: the rate with its interval, per GPU, and what is served where more come."""
    if not results or results[0].capacity_rps is None:
        return
    result = results[0]
    yield f"capacity at {percent(result.goal)}", f"{_format.number(result.capacity_rps)} req/s"
    if result.low_rps is not None:
        yield f"{percent(info.confidence)} interval", _format.between(result.low_rps, result.high_rps)
    if result.per_gpu_rps is not None and (info.gpus or 0) > 1:
        yield "per GPU", f"{_format.number(result.per_gpu_rps)} req/s"
    if result.stable_rps is not None:
        yield "serves at most", f"{_format.number(result.stable_rps)} req/s"


def _tried(met: int | None, requests: int | None, seeds: int | None) -> str:
    """`met by 19 of 885 requests of 1 seed`; without a number short runs decided, as in a search over a horizon."""
    if not requests:
        return "in short runs"
    of = f"{_format.count(requests, 'request')} of {_format.count(seeds or 0, 'seed')}"
    return of if met is None else f"met by {met:,} of {of}"


def _bracket(one: GoalCapacity) -> str:
    """The rates that were tried on both sides of the goal; empty where there are none."""
    low, high = one.bracket_rps
    unsure = one.bracket is not None and False in (one.bracket.low_sure, one.bracket.high_sure)
    likely = "likely " if unsure else ""
    if low is not None and high is not None:
        return f"{likely}between {low:g} and {high:g} req/s"
    if low is not None:
        return f"{likely}above {low:g} req/s (no rate tried is surely too high)"
    return "" if high is None else f"{likely}below {high:g} req/s (no rate tried is surely sustained)"


def notes(info: CapacityAnswer, one: GoalCapacity) -> Iterator[str]:
    """What a result rests on: the verdict about --at, the binding bound, rate per GPU, and the trials."""
    if one.at:
        yield f"{one.at.rate_rps:g} req/s is {_VERDICTS[one.at.verdict]}."
    if one.binding:
        waits_s = None if one.horizon is None else one.horizon.waits_s
        if waits_s is not None and one.binding == str(Bound("ttft", waits_s)):
            yield "Waiting fails first as the rate grows, before any bound of the SLO."
        else:
            yield f"{clean(one.binding)} binds: it is the first bound to fail as the rate grows."
    if one.per_gpu_rps is not None and (info.gpus or 0) > 1:
        yield f"{_format.number(one.per_gpu_rps)} req/s per GPU ({info.gpus} GPUs)."
    if one.capacity_rps is not None and "gpus_at_start" in info.backend:
        yield "No rate per GPU: the router adds and gives up replicas, so each rate has GPUs of its own."
    if one.capacity_rps is not None and one.state != "unreachable":
        if info.one_traffic:
            yield "Measured on one recorded trace at several speeds; nothing is random, so there is no interval."
            return
        if one.horizon is not None:
            yield from _runs(one, one.horizon)
            return
        if one.requests:
            yield f"Of {one.seeds} trials with {one.requests:,} requests each (warm-up cut: {clean(info.run.warmup)})."
        else:
            yield f"Of {one.seeds} blocks of traffic below and above it, with a seed each."
    elif ends := one.bracket:
        low, high = (_tried(ends.low_met, ends.low_requests, ends.low_seeds),
                     _tried(ends.high_met, ends.high_requests, ends.high_seeds))  # fmt: skip
        sides = [
            f"{rate:g} req/s was {side}{', the queue grew' if grew else ''}, {tried}"
            f"{f' at it and {beyond}' if (rates or 1) > 1 else ''}{', too few to be sure' if sure is False else ''}"
            for rate, side, grew, tried, rates, beyond, sure in (
                (ends.low_rate_rps, "sustained", ends.low_grew, low, ends.low_rates, "above", ends.low_sure),
                (ends.high_rate_rps, "not sustained", ends.high_grew, high, ends.high_rates, "below", ends.high_sure),
            )
            if rate is not None
        ]
        yield f"No estimate, but rates that were tried: {'; '.join(sides)}."


def of_runs(over: HorizonRuns, near: RunsNear | None, goal: float) -> Iterator[str]:
    """Say what the runs over a horizon were, and those near the answer."""
    settled = f", after {_format.span(over.settle_s)} that fill the system" if over.settle_s else ", from an idle start"
    yield f"Of {_format.count(over.runs, 'run')} of {_format.span(over.horizon_s)} each{settled}."
    if near is not None:
        quarters = ", ".join(f"{100 * share:.3g}" for share in near.quarters)
        change = ""
        if near.quarters[-1] < near.quarters[0] - (1 - goal) / 2:
            change = ": still falling, longer runs have less"
        elif _starts_cold(near, goal):
            quarter_s = over.horizon_s / len(near.quarters)
            change = f": it starts cold, longer runs have more (--warmup {quarter_s:.0f}s leaves that out)"
        runs = _format.count(near.runs, "run")
        yield (
            f"By quarter of the run {quarters} % met the SLO in the {runs} near it{change}; in the worst "
            f"{_format.share(near.worst)}; {near.met:.0%} of them met the goal by themselves"
            f"{f', {near.collapsed:.0%} collapsed' if near.collapsed else ''}."
        )


def _starts_cold(near: RunsNear, goal: float) -> bool:
    """Whether the first quarter is the worst, as where caches fill or replicas are added."""
    return near.quarters[0] < near.quarters[-1] - (1 - goal) / 2


def _runs(one: GoalCapacity, over: HorizonRuns) -> Iterator[str]:
    """What the runs over a horizon were, and what limits the system."""
    yield from of_runs(over, one.near, one.goal)
    if (stable_rps := one.stable_rps) is not None and one.capacity_rps:
        limit = "the throughput is the limit" if stable_rps < LIMITED * one.capacity_rps else "the SLO is the limit"
        full = f", because {FULL[one.full]}" if one.full in FULL else ""
        yield f"At higher rates it serves at most {_format.number(stable_rps, 3)} req/s{full}: {limit}."
    if over.horizon_s < over.lasting_s and not (one.near is not None and _starts_cold(one.near, one.goal)):
        yield f"An upper bound for longer runs: a queue takes time to fill (--horizon {over.lasting_s:.6g}s)."
    if over.waits_s is not None:
        yield f"No bound is on waiting: a request that has not begun after {_format.seconds(over.waits_s)} is a miss."


def check(info: CapacityAnswer, one: GoalCapacity) -> str:
    """The sweep that repeats the definition: its mean attainment is the goal."""
    over = one.horizon
    if over is None or not one.capacity_rps:
        return ""
    slo = restored_slo(info.slo)
    if over.waits_s is not None:
        slo = replace(slo, bounds=(*slo.bounds, Bound("ttft", over.waits_s)))
    options = {
        "slo": str(slo),
        "rate": _format.option(one.capacity_rps, 4),
        "seed": str(int(str(info.spec.get("seed") or 0)) + FRESH),
        "seeds": str(CHECKED_BY),
        "duration": f"{over.settle_s + over.horizon_s:.6g}s",
        "warmup": f"{over.settle_s:.6g}s" if over.settle_s else "none",
    }
    return _command("sweep", info, options, leave_out=("goal", "requests", "warmup", "slo", "seed"))


def _warnings(info: CapacityAnswer, results: Sequence[GoalCapacity]) -> Iterator[Notice]:
    if not results:
        yield Notice(RUNNING, f"{rerun(info)} --out DIR, with the folder of this page as DIR")
    yield from notices(info.warnings)
    for result in results:
        if result.why:
            needs = f"It would take {clean(result.needs, 600)}" if result.needs else ""
            yield Notice(f"{percent(result.goal)} {result.state}: {clean(result.why, 600)}", needs)
    if (load := busy(info.host)) is not None and info.clock == "wall":
        yield Notice(
            f"This machine was busy before the search ({load}), so requests may have left late.",
            "Quiet it, or send from another one",
        )
    errors_s = floors_s(info.floor)
    for bound in restored_slo(info.slo).bounds:
        if errors_s.get(bound.metric, 0.0) > FLOOR_SHARE * bound.limit:
            error = f"{_format.seconds(errors_s[bound.metric])} (p99), {errors_s[bound.metric] / bound.limit:.0%}"
            yield Notice(
                f"The client limits this result: its own error is {error} of the bound {bound!s}.",
                "run the client on a quieter machine, or choose a wider bound",
            )
    if grown := [point for point in info.curve if point.overloaded]:
        rate = f"{_format.option(grown[0].rate_rps)} req/s"
        yield Notice(
            f"From {rate} on the queue grew throughout some trials; attainment there falls further in longer ones."
        )


def _sections(info: CapacityAnswer, study: Study | None, path: Path | None) -> Iterator[Section]:
    """The curve, what only stored runs hold, and how the capacity was searched."""
    results = info.answers
    drawn = () if study is None else figures_of("study", study, section="figures")
    yield Section("curve", "The curve", (*drawn, *_curve(info, results)))
    checks = [(entry, command) for entry in results if (command := check(info, entry))]
    name = "check: the mean attainment of these runs is the goal of"
    yield Section("check", "Check it", tuple(Command(f"{name} {percent(entry.goal)}", line) for entry, line in checks))
    if study is None or path is None:
        return
    if any(point.folders for point in study.systems[0].points):
        yield from (section for section in sweep.of_figures(study) if section.key != "figures")
    yield Section("search", "The search", _trials(path), detail=True)


def _curve(info: CapacityAnswer, results: Sequence[GoalCapacity]) -> Iterator[Table]:
    for result in results:
        if len(result.bounds) > 1:
            goal = f", goal {percent(result.goal)}" if len(results) > 1 else ""
            rows = tuple(
                (clean(bound.text), percent(bound.goal), _format.share(bound.attainment)) for bound in result.bounds
            )
            yield Table(f"bounds in the trials near the capacity{goal}", ("bound", "goal", "met by"), rows)
    if info.curve:
        yield curve_table(info)


def curve_of(info: CapacityAnswer) -> str:
    """What the curve is the share of: attainment of all bounds, of one, or the share within a percentile bound."""
    text = info.curve_of or JOINT
    if any(str(bound) == text and bound.percentile is not None for bound in restored_slo(info.slo).bounds):
        return f"share within {clean(text)}"
    return "attainment" if text == JOINT else f"attainment of {clean(text)}"


def curve_table(info: CapacityAnswer) -> Table:
    """Attainment by rate over whole trials."""
    value = curve_of(info).partition(" ")[0]
    rows = tuple(
        (
            f"{point.rate_rps:g}",
            str(point.seeds),
            *map(_format.share, (point.attainment, point.least, point.most)),
            f"in {point.overloaded}" if point.overloaded else "",
        )
        for point in info.curve
    )
    heads = ("rate (req/s)", "seeds", "within" if value == "share" else value, "least", "most", "queue grew")
    return Table(f"{curve_of(info)} by rate, as found", heads, rows)


def _trials(path: Path) -> tuple[Table, ...]:
    stored = folders(path)
    heads = ("trial", "kind", "rate (req/s)", "seed", "requests sent", "attainment", "waiting (s)")
    rows = [_trial(number, tried, stored) for number, tried in enumerate(trials(path), 1)]
    return listed("trials in the order in which they were made", heads, rows, MOST_ROWS, left=2)


def _trial(number: int, tried: Trial, stored: Mapping[str, Path]) -> tuple[str | Cell, ...]:
    key, name = tried.key, folder_name(tried.key)
    decided = tried.late or tried.passed is not None  # before its end, so that its attainment is none
    side = "late or held back" if tried.late else "met" if tried.passed else "missed"
    kind = side if tried.late else "whole trial"
    if key.goal is not None:
        kind = f"probe at {percent(key.goal)}{f': {side}' if decided else ''}"
    return (
        Cell(str(number), link=f"{TRIALS}/{quote(name)}/" if name in stored else None),
        kind,
        _format.option(key.rate_rps),
        str(key.seed),
        f"{tried.requests:,}",
        "-" if decided or not tried.by_request else _format.share(share(tried, JOINT)),
        _format.number(tried.wall_s, 2),
    )


def _cost(info: CapacityAnswer, spent: SearchCost) -> str:
    trials, probes = _format.count(spent.trials, "trial"), _format.count(spent.probes, "probe")
    text = f"{_format.count(spent.requests, 'request')} in {trials} and {probes}"
    if info.invalid:
        reason = clean(info.invalid[0], 300).rstrip(".")
        text += f" ({_format.count(len(info.invalid), 'trial')} not valid and left out: {reason})"
    sending = "" if info.clock == "virtual" else f", {_format.span(spent.system_s)} of traffic"
    return f"{text}{sending}; the search took {_format.span(spent.wall_s)}"


def rows(info: CapacityAnswer) -> Iterator[dict[str, object]]:
    names = ("goal", "state", "capacity_rps", "low_rps", "high_rps", "half_width", "per_gpu_rps", "seeds", "requests")
    for result in info.answers:
        low, high = result.bracket_rps
        yield {
            **{name: getattr(result, name) for name in names},
            "low_rate_rps": low,
            "high_rate_rps": high,
            "binding": result.binding,
        }


def advice(info: CapacityAnswer) -> tuple[str, str]:
    """What to do next, and the command that does it."""
    results = info.answers
    if not results or info.state == "interrupted":
        return f"finish the search{GOES_ON}", rerun(info)
    if info.exit_code in (3, 4):
        return f"remedy the cause{GOES_ON}", rerun(info)
    if all(result.state == "unreachable" for result in results):
        return "try bounds that can be met", rerun(info, slo="ttft=1,tpot=0.2")
    if limits := [int(match[1]) for result in results if (match := _MAX_REQUESTS.search(result.needs or ""))]:
        return f"decide what is open{GOES_ON}", rerun(info, **{"max-requests": str(max(limits))})
    if command := around(info):
        return "see latencies and stages around it", command
    if info.clock == "wall" or any("(--budget)" in (result.why or "") for result in results):
        return f"give the search more time{GOES_ON}", f"{rerun(info)} --budget 30min"
    probes = info.cost is not None and info.cost.probes
    if info.over_horizon and info.cost and info.cost.trials == len(ALONE) and not probes:
        goal = min(info.searched_goals)
        return "try a goal that is surely met without load", rerun(info, goal=percent(goal - min(goal, 1 - goal) / 2))
    if info.horizon_s is not None and not probes:
        return "let the runs last long enough for some requests", rerun(info, horizon=f"{HORIZON_S:g}s")
    if info.over_horizon:
        more = str(10 * (info.run.max_requests or MAX_REQUESTS))
        return f"give the search more requests{GOES_ON}", rerun(info, **{"max-requests": more})
    return f"begin at another rate{GOES_ON}", f"{rerun(info)} --rate-from 1"


def rerun(info: CapacityAnswer, **more: str) -> str:
    """The command that makes this search, with other values where `more` names them."""
    limit = info.run.max_requests
    options = {
        "goal": ",".join(map(percent, info.searched_goals)) or None,
        "definition": None if info.definition in (None, JOINT) else clean(info.definition),
        "tolerance": None if info.tolerance in (None, TOLERANCE.get(info.clock or "")) else percent(info.tolerance),
        "at": next((_format.option(result.at.rate_rps) for result in info.answers if result.at), None),
        "max-requests": None if limit is None or (info.over_horizon and limit == MAX_REQUESTS) else str(limit),
        "horizon": None if info.horizon_s is None else f"{info.horizon_s:.6g}s",
        "windows": None if info.windows is None else percent(info.windows),
    }
    default = [] if info.spec.get("seed") else ["seed"]
    if info.over_horizon or info.run.fixed is False:  # naming the default number would fix it
        default.append("requests")
    return _command("capacity", info, {**options, **more}, leave_out=default)


def around(info: CapacityAnswer) -> str:
    """A sweep over the rates around the capacities (or brackets) found; empty where there are none."""
    rates: list[float] = []
    for result in info.answers:
        bracket = [rate for rate in result.bracket_rps if rate]
        rates += [result.capacity_rps] if result.capacity_rps else bracket if len(bracket) > 1 else []
    if not rates:
        return ""
    low, high = 0.5 * min(rates), 1.3 * max(rates)
    spaced = [low * (high / low) ** (number / (SWEEP_RATES - 1)) for number in range(SWEEP_RATES)]
    rate = ",".join(_format.option(rate, 2) for rate in spaced)
    return _command("sweep", info, {"rate": rate}, leave_out=("goal", "requests", "seed"))


def _command(name: str, info: CapacityAnswer, own: Mapping[str, str | None], leave_out: Sequence[str]) -> str:
    """The options of the runs, then those of the command itself."""
    return sweep.command(name, {**{k: v for k, v in info.spec.items() if k not in leave_out}, **own})
