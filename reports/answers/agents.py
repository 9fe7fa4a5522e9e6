"""The report of `bench agents`: how many agents each tier allows, per GPU, kW and dollar, and the trials behind it."""

import math
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from harness.data.codec import encode
from harness.experiments.agents.agents_json import AgentsAnswer, AgentTrial, TierAgents
from harness.metrics.objective import JOINT, parse_slo
from reports import _format, _system
from reports._format import clean, number
from reports._system import flat, versions
from reports.answers.capacity import of_runs
from reports.document import Document, Finding, Notice, Section, Table, notices

MORE = "A wider --tolerance, or more --max-requests or --budget, with the same --out."
RESUME = "Rerun the command with the same --out to resume; without --out it starts again."
_DEFINITIONS = (
    (
        "agent",
        "a user in a closed loop of sessions: each request its think time after the answers before",
    ),
    (
        "agents at a tier",
        "the most with which the mean share within each bound is its goal: 95% for p95:ttft=5",
    ),
    ("slowest decile", "tokens per second that nine tenths of the requests reach after their first token"),
    (
        "interval",
        "of 95%, in whole agents: holds where the mean over all such sessions crosses the goal",
    ),
    ("per kW", "of the power given for an endpoint, or the makers' limits of all GPUs of a simulated system"),
)


def document(info: AgentsAnswer, path: Path | None = None) -> Document:  # noqa: ARG001  # it has no figures
    """The report of a search for agents."""
    finished = info.state == "finished"
    states = [answer.state for answer in info.answers]
    mark = {"running": "NOT FINISHED", "interrupted": "INTERRUPTED"}.get(info.state or "", "")
    if not mark:
        mark = "FOUND" if {*states} == {"resolved"} else "TIER NOT MET" if "unreachable" in states else "UNRESOLVED"
    model, hardware = (info.backend.get(name) for name in ("model", "hardware"))
    if model and hardware:
        system = f"{clean(model, 60)} on {clean(hardware, 60)}"
    else:
        system = _system.system(info.backend, {}) or clean(info.spec.get("backend") or "a server", 120)
    return Document(
        title=f"Agents on {system}",
        subtitle=f"Agents replay sessions of {clean(info.workload, 60)}, one after the other",
        mark=mark,
        good=True if mark == "FOUND" else False if mark == "TIER NOT MET" else None,
        findings=tuple(
            Finding(_finding(answer), None if answer.state == "unresolved" else answer.state == "resolved",
                    (*_notes(info, answer), *(() if finished else (RESUME,))))
            for answer in info.answers
        ),
        key_facts=tuple(_key_facts(info, system)),
        warnings=tuple(_warnings(info)),
        sections=(
            Section("tiers", "Agents at each tier", (_tiers(info),)),
            Section("trials", "Trials", (_trials(info),)),
        ),
        used=(*flat(info.spec), *versions(info.versions)),
        definitions=_DEFINITIONS,
    )  # fmt: skip


def _finding(one: TierAgents) -> str:
    tier = clean(one.tier, 100)
    if one.agents is None:
        sides = f" {one.met:,} agents met it." if one.met else ""
        if one.met and one.missed:
            sides = f" Between {one.met:,} and {one.missed:,} agents."
        return f"{tier}: {clean(one.why or 'not known', 200)}{sides}"
    over = "" if one.horizon is None else f" over {_format.span(one.horizon.horizon_s)}"
    unresolved = ", unresolved" if one.state == "unresolved" else ""
    return f"{tier}: {_agents(one)}{over} (95% interval {_interval(one, ' .. ')}){unresolved}."


def _notes(info: AgentsAnswer, one: TierAgents) -> Iterator[str]:
    """Say what an answer rests on."""
    if one.binding:
        yield f"{clean(one.binding, 60)} binds: it is the first bound to fail as agents are added."
    if one.horizon is not None:
        goals = {str(bound): bound.percentile for bound in parse_slo(one.tier).bounds}
        percentile = goals.get(one.binding or "")
        yield from of_runs(one.horizon, one.near, info.goal if percentile is None else percentile / 100)


def _agents(one: TierAgents) -> str:
    """The whole number that meets the tier: below where its share of requests crosses the goal."""
    return "-" if one.agents is None else f"{math.floor(one.agents):,} agents"


def _interval(one: TierAgents, between: str) -> str:
    ends = one.low, one.high
    return "-" if None in ends else between.join(f"{n:,}" for n in (math.floor(ends[0] or 0), math.ceil(ends[1] or 0)))


def _whole(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _key_facts(info: AgentsAnswer, system: str) -> Iterator[tuple[str, str]]:
    yield "System", system
    yield "Step times", _system.step_times((), info.backend)
    if "trace" in info.spec:  # a preset has its think times and contexts in its name
        turns, scale = (info.spec.get(name) for name in ("turns", "scale"))
        yield "Think times", clean(turns, 60)
        yield "Contexts", clean(scale or "as recorded", 60)
    yield (
        "Trials",
        (
            f"{len(info.trials)} of {_format.seconds(info.horizon_s)} each, {info.requests:,} requests, "
            f"{_format.seconds(info.wall_s)}"
        ),
    )


def _warnings(info: AgentsAnswer) -> Iterator[Notice]:
    yield from notices(info.warnings)
    for answer in info.answers:
        if answer.why and answer.agents is not None:
            yield Notice(f"{clean(answer.tier, 100)} {answer.state}: {clean(answer.why, 300)}", MORE)
    edges = {agents for answer in info.answers for agents in (answer.met, answer.missed)}
    late = [trial for trial in info.trials if trial.settled < 1 and trial.users in edges]
    if late:
        worst = min(late, key=lambda trial: trial.settled)
        yield Notice(
            f"With {worst.users:,} agents {1 - worst.settled:.0%} of the prompts sent ahead were not answered before "
            "the trial counted, so its caches were still cold.", "Observe longer: --horizon.",
        )  # fmt: skip
    if info.invalid:
        left_out = _format.count(len(info.invalid), "trial")
        yield Notice(f"{left_out} left out, because nothing can be concluded: {clean(info.invalid[-1], 300)}", RESUME)


def _tiers(info: AgentsAnswer) -> Table:
    heads = ("tier", "agents", "95% interval", "per GPU", "per kW", "USD per agent-hour", "req/s", "met", "missed",
             "binds")  # fmt: skip
    rows = tuple(
        (
            clean(row.tier, 100), _agents(row).partition(" ")[0], _interval(row, " to "), number(row.per_gpu),
            number(row.per_kw), number(row.usd_per_agent_hour), number(row.requests_rps),
            _whole(row.met), _whole(row.missed), clean(row.binding or "-", 60),
        )
        for row in info.answers
    )  # fmt: skip
    return Table("Agents at each tier", heads, rows, words=1, narrow=("req/s", "met", "missed", "USD per agent-hour"))


def _trials(info: AgentsAnswer) -> Table:
    judged = {text for tier in info.tiers for text in _judged(tier)}
    texts = [text for text in dict.fromkeys(s.text for t in info.trials for s in t.shares) if text in judged]
    heads = ("agents", "trials", "requests", "TTFT p95 (s)", "slowest decile (tokens/s)", "output (tokens/s)",
             "found in cache", *(f"within {text}" for text in texts))  # fmt: skip
    rows = []
    for users, group in groupby(sorted(info.trials, key=lambda trial: trial.users), key=lambda trial: trial.users):
        repeats = list(group)
        rows.append((
            f"{users:,}", f"{len(repeats)}", f"{sum(trial.requests for trial in repeats):,}",
            _mean(repeats, "ttft_p95_s"), _mean(repeats, "speed_p10"), _mean(repeats, "output_tps"),
            _format.share(_mean_of(repeats, "cache_found")), *(_share(repeats, text) for text in texts),
        ))  # fmt: skip
    narrow = ("output (tokens/s)", "requests", "found in cache", *heads[7:])
    return Table("Trials by number of agents, means over seeds", heads, tuple(rows), left=0, narrow=narrow)


def _judged(tier: str) -> Iterator[str]:
    """The names of the shares that decide a tier."""
    bounds = parse_slo(tier).bounds
    yield from (str(bound) for bound in bounds if bound.percentile is not None)
    if any(bound.percentile is None for bound in bounds):
        yield f"{JOINT}: {tier}"


def _mean_of(trials: list[AgentTrial], name: str) -> float | None:
    values = [value for trial in trials if (value := getattr(trial, name)) is not None]
    return sum(values) / len(values) if values else None


def _mean(trials: list[AgentTrial], name: str) -> str:
    return number(_mean_of(trials, name))


def _share(trials: list[AgentTrial], text: str) -> str:
    shares = [trial.share(text) for trial in trials]
    total = sum(share.of for share in shares)
    return _format.share(sum(share.met for share in shares) / total if total else None)


def rows(info: AgentsAnswer) -> Iterator[dict[str, Any]]:
    for answer in info.answers:
        yield dict(encode(answer))
