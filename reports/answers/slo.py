"""The answer of `bench slo`: runs under other objectives, scales, planes, groups and the definitions of others."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.metrics.measure import headline
from reports import _format
from reports._format import clean, in_markdown
from reports.answers import _curve
from reports.answers._curve import PLAIN, Look
from reports.answers._slo_tables import (
    Rows,
    csv,
    curve_tables,
    differ,
    groups,
    overview,
    plane,
    profiles,
    scale,
    scores,
    tokens,
)

__all__ = ["csv", "markdown", "text"]

Info = Mapping[str, Any]

LACKS = {
    "sent_s": "the file tells no time of sending, so there are no rates",
    "scheduled_s": "the file tells no time at which a request was due: TTFT and E2E count from sending",
    "token_n": "the file does not tell how many tokens came in each event, so there is no goodput in tokens",
}
"""What an answer cannot have of a file of another tool."""
APART = 3
"""Runs that are told one by one; of more there is one table, and curves where they have several rates."""


def text(info: Info, look: Look = PLAIN) -> str:
    """The answer for a terminal, at most 100 columns."""
    blocks = []
    for part in _parts(info):
        if isinstance(part, str):
            blocks.append(_wrapped(part))
        else:
            title = f"{look.bold(part.title)}\n" if part.title else ""
            table = _curve.text(part.heads, part.rows, left=part.left, look=look)
            blocks.append(title + table + "".join(_wrapped(note) for note in part.notes))
    if look.curve:  # before the sentence that says what to do next
        blocks[-1:-1] = [_curve.drawn(curve, blocks=look.blocks) for curve in _drawn(info)]
    return "\n".join(block.rstrip("\n") + "\n" for block in blocks if block.strip())


def markdown(info: Info) -> str:
    """The answer for a job summary or an issue."""
    blocks = []
    for part in _parts(info):
        if isinstance(part, str):
            blocks.append(in_markdown(part, None) + "\n")
        else:
            title = f"**{in_markdown(part.title, None)}**\n\n" if part.title else ""
            notes = "".join(f"- {in_markdown(note, None)}\n" for note in part.notes)
            blocks.append(title + _curve.markdown(part.heads, part.rows, left=part.left) + (notes and f"\n{notes}"))
    return "\n".join(blocks)


def _parts(info: Info) -> Iterator[str | Rows]:
    """Sentences and tables, in order."""
    runs = info["runs"]
    if len(runs) <= APART:
        for run in runs:
            yield from of_run(run, info)
    else:
        yield f"{len(runs)} runs, {sum(run['measured'] for run in runs):,} measured requests"
        yield overview(runs, info)
        yield from _left_out(runs, info)
    for curve in info["curves"]:
        yield from curve_tables(curve)
    yield from warnings(runs)


def _left_out(runs: Sequence[Info], info: Info) -> Iterator[str]:
    """That parts of what was asked are not shown of so many runs."""
    slos = [slo for run in runs for slo in run["slos"]]
    scales = not info["curves"] and any(slo["scale"] and slo["scale"]["factors"] for slo in slos)
    if scales or any(slo["tokens"] for slo in slos) or any(r["plane"] or r["groups"] or r["profiles"] for r in runs):
        yield (
            f"scales, planes, groups, tokens and profiles of single runs are shown for up to {APART} runs; "
            "--format csv and json have those of all"
        )


def of_run(run: Info, info: Info) -> Iterator[str | Rows]:
    """Sentences and tables of one run, the first of which names it."""
    yield opening(run)
    if not run["measured"]:
        yield "no request is left to score"
        return
    yield _flow(run, info)
    yield from (LACKS[name] for name in LACKS if name in run["missing"])
    yield scores(run, info)
    yield from _remarks(run)
    for slo in run["slos"]:
        yield from scale(slo)
        yield from tokens(slo, untold=run["failed"] if run["source"] else 0)
    yield from plane(run)
    yield from (groups(one) for one in run["groups"])
    yield from profiles(run)


def opening(run: Info) -> str:
    """What a run is, and of how many requests."""
    backend = clean(str((run["spec"] or {}).get("backend") or "").partition(":")[0], 30)
    tool = clean((run["source"] or {}).get("tool") or "", 30)
    if tool:
        what = f"{clean(run['name'], 60)} of {tool}"
    else:
        what = " on ".join(part for part in (clean(run["workload"] or run["name"], 60), backend) if part)
    rate = run["rate_rps"] or run["scheduled_rps"]
    parts = [what, f"{_format.number(rate)} req/s", _format.count(run["measured"], "measured request")]
    if run["left_out"]:
        parts.append(f"{run['left_out']:,} before the cut")
    if run["seed"] is not None:
        parts.append(f"seed {clean(run['seed'], 20)}")
    return f"{', '.join(parts)} ({clean(run['path'], 100)})"


def _time(value_s: float | None, never: str) -> str:
    return never if value_s is None else _format.seconds(value_s)


def _flow(run: Info, info: Info) -> str:
    never = "never" if info["failed_as_infinite"] and run["failed"] else "-"
    latencies = ", ".join(
        f"{m.label} " + ", ".join(f"{at} {_time(run['latencies'][m.name][at], never)}" for at in ("p50", "p99"))
        for m in headline()
        if m.name in run["latencies"]
    )
    return (
        f"throughput {_format.number(run['throughput_rps'])} req/s, output {_format.number(run['output_tps'])} "
        f"tokens/s, failed {run['failed']:,}; {latencies}"
    )


def _remarks(run: Info) -> Iterator[str]:
    """What stands behind the scores in a sentence each."""
    for slo in run["slos"]:
        if slo["binding"] is not None and differ(slo["bounds"]):
            yield f"{clean(slo['text'])}: {clean(slo['binding'])} binds"
        yield from _crossings(slo, run["goals"])
        for found in slo["capacities"]:
            yield _capacity(found)
        if (told := slo["resolution"]) is not None and told["unresolved"]:
            names = clean(", ".join(told["unresolved"]))
            shares = " and ".join(map(_format.share, told["attainment"] or ()))
            between = f"; attainment lies between {shares}" if shares else ""
            yield f"{clean(slo['text'])}: unresolved within the client's own error: {names}{between}"
        if (found := slo["tasks"]) is not None:
            yield (
                f"{clean(slo['text'])}: {_format.share(found['attainment'])} of {found['tasks']:,} tasks kept it as a "
                f"whole, {_format.number(found['goodput_tasks_rps'])} tasks/s; a task counts once in "
                f"{_format.number(found['goodput_users_rps'])} good tasks and single requests/s"
            )


def _crossings(slo: Info, goals: Sequence[float]) -> Iterator[str]:
    if slo["scale"] is None:
        return
    said = []
    for goal, at in zip(goals, slo["scale"]["crossings"], strict=True):
        said.append(f"{goal * 100:g}% of the requests are within it {_from(at)}")
    for name, at in slo["scale"]["holds_from"].items():
        said.append(f"{clean(name)} holds {_from(at)}")
    yield f"{clean(slo['text'])}: {', '.join(said)} (every bound times the scale)"


def _from(scale: float | None) -> str:
    return "at no scale" if scale is None else f"from scale {_format.number(scale)} on"


def _capacity(found: Info) -> str:
    rate, low, high = (found[key] for key in ("capacity_rps", "low_rps", "high_rps"))
    goal = f"{found['goal'] * 100:g}%"
    if rate is None:
        ends = [(found.get("bracket") or {}).get(f"{end}_rate_rps") for end in ("low", "high")]
        tried = f"between {ends[0]:g} and {ends[1]:g} req/s, " if all(ends) else ""
        return f"capacity at {goal}: {tried}unresolved by the search in this folder"
    between = "" if low is None or high is None else f" ({_format.number(low)} to {_format.number(high)})"
    return f"capacity at {goal}: {_format.number(rate)} req/s{between}, by the search in this folder"


def warnings(runs: Sequence[Info]) -> Iterator[str]:
    """What a reader must know of the runs."""
    bad = [run for run in runs if run["valid"] is False]
    if bad:
        reason = f": {clean(bad[0]['reasons'][0], 300)}" if bad[0]["reasons"] else ""
        more = "" if len(bad) == 1 else f"; {len(bad) - 1} more"
        yield f"warning: {clean(bad[0]['path'], 100)} is not valid{reason}{more}"
    growing = sum(run["overloaded"] for run in runs)
    if growing:
        who = "the queue" if len(runs) == 1 else f"the queue of {_format.count(growing, 'run')}"
        yield f"warning: {who} grew all through: latencies tell how long the run was"
    open_ones = sum(run["state"] not in (None, "finished") for run in runs if not run["source"])
    if open_ones:
        yield f"warning: {_format.count(open_ones, 'run')} did not finish; what was kept is scored"
    if len(runs) == 1 and runs[0]["measured"]:
        how = "" if runs[0]["source"] else " (bench sweep --seeds 5)"
        again = f"near a goal, repeat it with other seeds{how}"
        yield f"one run does not tell how its traffic happened to be drawn: {again}"


def _drawn(info: Info) -> Iterator[_curve.Curve]:
    """Attainment over the SLO scale of the first run, or over the rate of several."""
    for curve in info["curves"][:1]:
        points = [(p["rate_rps"], p["attainment"]["mean"]) for p in curve["points"] if p["attainment"]]
        yield _curve.Curve(points, info["runs"][0]["goals"], f"{clean(curve['slo'])} over the rate", "req/s")
    for run in info["runs"][:1] if not info["curves"] else ():
        for slo in run["slos"][:1]:
            found = slo["scale"] or {"factors": [], "attainment": []}
            points = [*zip(found["factors"], found["attainment"], strict=True)]
            yield _curve.Curve(points, run["goals"], f"{clean(slo['text'])} over the SLO scale", "x", log=True)


def _wrapped(sentence: str) -> str:
    return "\n".join(textwrap.wrap(sentence, _curve.TABLE_WIDTH, subsequent_indent="  ")) + "\n"
