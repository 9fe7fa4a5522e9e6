"""The verdict of a run in words: its state, the answer about the SLO, warm-up, intervals, checks, and the next step."""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from harness.data.folder import Run
from harness.data.run_json import RunInfo, Within
from harness.validity.work_done import exceeded
from reports import _data, _format, _system
from reports._format import clean, sentence
from reports._rows import Result
from reports.document import Command

KNEE = "Near the knee one run decides nothing (see bench capacity)."
"""The remark on every statement about one rate."""
FIND_CAPACITY = "find the capacity with its interval"
EXAMPLE_SLO = "ttft=0.25,tpot=0.1"

VALID, OVERLOADED, FAILED = "VALID", "OVERLOADED", "BACKEND FAILED"
_ENDS = {"running": "It was killed, or is still running: ", "interrupted": ""}


@dataclass(frozen=True, slots=True)
class Mark:
    """Whether the goal was reached, in capitals, and whether that is good or bad; None where nothing is proven."""

    text: str
    good: bool | None


def state(run: Run) -> tuple[str, str]:
    """The state of the run in capitals, and the sentence that begins with it."""
    verdict = run.info.verdict
    reasons = [sentence(reason, 400) for reason in verdict.reasons]
    if not run.complete:
        how = _ENDS.get(clean(run.info.state or ""), "It ended early: ")
        planned = (run.info.schedule.requests or 0) if run.schedule is None else run.schedule.num_rows
        out_of = f" of {planned:,} planned" if planned else ""
        text = f"{how}requests recorded: {run.requests.num_rows:,}{out_of}. All figures are of these alone."
        word, reason = "INTERRUPTED" if run.info.state == "interrupted" else "NOT FINISHED", " ".join([text, *reasons])
    elif not verdict:
        word, reason = "NOT JUDGED", "The run holds no verdict."
    elif not verdict.valid:
        word, reason = "NOT VALID", " ".join(reasons) or sentence(verdict.text, 600)
    elif (failed := exceeded(run.info)) is not None:
        word, reason = FAILED, sentence(failed, 600)
    elif (grown := run.info.warning("overload")) is not None:
        grew = clean(grown.message or "", 600).removeprefix("overloaded: ")
        word, reason = OVERLOADED, f"{sentence(grew, 600)} {sentence(grown.remedy, 400)}".strip()
    else:
        # of 'valid, with 2 warnings (late-client, few)' what follows the comma
        head, _, warned = clean(verdict.text or "", 300).partition(", ")
        if warned and head.lower() == "valid":
            return VALID, f"{VALID}, {warned.rstrip('.')}."
        word, reason = VALID, "All checks of the run passed."
    return word, f"{word}: {reason}"


def mark(run: Run, result: Result) -> Mark:
    """Whether the run reached the goal of its SLO."""
    word, _ = state(run)
    if word == OVERLOADED:
        return Mark(OVERLOADED, good=False)
    if word != VALID or result.total == 0:
        return Mark("NOTHING PROVEN", None)
    if not result.bounded:
        return Mark("NO GOAL GIVEN", None)
    if run.info.resolution.undecided:
        return Mark("UNRESOLVED", None)
    short = result.attainment is not None and result.attainment < result.goal
    missed = "GOAL MISSED" if short else "BOUND BROKEN"
    return Mark("GOAL REACHED" if result.passed else missed, result.passed)


def answer(run: Run, result: Result) -> str:
    """The result in a sentence: how many requests met the SLO, and what that says about the goal."""
    info = run.info
    valid = info.verdict.valid is not False and state(run)[0] != FAILED
    if result.total == 0:
        return "Nothing can be scored." if info.source else "No request was recorded."
    requests = _format.count(result.total, "request")
    noun = "request" if result.rate_rps == 1 else "requests"
    rate = f" at {_format.plain(result.rate_rps, 4)} {noun} per second" if result.rate_rps else ""
    ended_well = f"{result.ok:,} of {requests} ended well{rate}"
    undecided = info.resolution.undecided and not result.overloaded
    broken = " and ".join(result.broken)
    if not result.bounded:
        return f"{ended_well}; no SLO was given."
    # an older run calls a queue that grew overload
    grew = result.passed and any(info.warning(code) is not None for code in ("queue-grew", "overload"))
    lost = "what was still unanswered has no record" if info.state == "running" else "the run was ended early"
    if result.attainment is None:  # all bounds are on percentiles of the run
        start, goal = ended_well, "the SLO"
        end = f"misses {goal}, as it breaks {broken}" if broken else f"meets {goal}"
    else:
        part_of = "" if run.complete else " recorded so far"
        what = "the bounds on single requests" if info.summary.percentiles_passed else "the SLO"
        start = f"{_format.share(result.attainment, result.goal)} of {requests}{part_of} met {what}{rate}"
        goal, reaches = f"the goal of {result.goal * 100:g}%", result.attainment >= result.goal
        end = f"{'reaches' if reaches else 'misses'} {goal}"
        if broken:
            end += f", {'but' if reaches else 'and'} breaks {broken}, so the SLO is missed"
    decided = run.complete and valid and not result.overloaded and not info.resolution.undecided
    if not valid:
        end = f"this proves nothing about {goal}"
    elif not run.complete:
        end = f"no answer about {goal}, as {lost}"
    elif undecided:
        end = f"{_open_by(info)} leaves open whether that {end}"
    elif grew:
        end += " so far, but the queue was growing: a longer run may miss it"
    return f"{start}: {end}." + (f" {KNEE}" if decided and result.attainment is not None else "")


def _open_by(info: RunInfo) -> str:
    """What leaves open whether the SLO is met."""
    if info.warning("held-back") is None:
        return "the client's own error"
    shares = info.resolution.attainment
    between = "" if shares is None else f" ({_format.share(shares[0])} to {_format.share(shares[1])} met it)"
    return f"a stream that was held back on its way{between}"


def warmup(run: Run) -> str:
    """'12 of 2,200 requests, due in the first 16.0 s, are not measured (mser5)'; empty where none was requested."""
    cut = run.info.warmup
    total = _format.count(run.requests.num_rows, "request")
    if not cut.stationary:
        return f"no place to cut was found ({clean(cut.rule)}), so all of {total} are measured"
    if cut.rule == "none":
        return ""
    if not cut.requests:
        return f"nothing to cut was found ({clean(cut.rule)}), so all of {total} are measured"
    are = "is" if cut.requests == 1 else "are"
    return (
        f"{cut.requests:,} of {total}, due before {_format.seconds(cut.at_s)}, {are} not measured ({clean(cut.rule)})"
    )


def interval(info: RunInfo) -> str:
    """The intervals within the run, or the sentence that says why there are none; empty where neither is stored."""
    within, summary = info.within, info.summary
    # an interval of attainment is to be expected where there are bounds on single requests
    bounded = bool(summary.bounds) and summary.attainment is not None
    parts = list(_intervals(within, bounded=bounded))
    if parts and within.metrics:
        parts[-1] += f" ({_sure(within)} within this run; other seeds may differ by more)"
    return "; ".join([*parts, clean(within.why_not, 400)] if within.why_not else parts)


def _intervals(within: Within, *, bounded: bool) -> Iterator[str]:
    if within.at_least is not None:
        least = _format.share(within.at_least)
        yield f"attainment at least {least} ({_sure(within)})"
    elif within.attainment:
        yield f"attainment {_format.share(within.attainment.low)} to {_format.share(within.attainment.high)}"
    elif within.metrics and bounded:
        yield "attainment without an interval: fewer than 1% of the requests miss, or meet"
    for name, bands in within.metrics.items():
        ranges = []
        for word, ends in (("mean", bands.mean), ("p99", bands.p99)):
            if ends is not None:
                unit = _format.unit_of(ends)
                low, high = (_format.in_unit(end_s, unit) for end_s in ends)
                ranges.append(f"{word} {low} to {high} {unit}")
        if ranges:
            yield f"{_data.label(name)} {', '.join(ranges)}"


def _sure(within: Within) -> str:
    return f"{100 * (within.confidence or 0.95):g}%"


def advice(run: Run, result: Result) -> Command | None:
    """Return what to do next, and the command that does it; None where the traffic has no rate to search over."""
    info, rerun = run.info, _system.commands(run)[-1]
    if info.source:  # the file of another tool, which bench cannot run again
        score = f"bench slo {shlex.quote(clean(run.path, None))}"
        if info.source.per_request and result.bounded:
            return Command("see what other bounds would give", f"{score} --scale 0.25:4")
        text = "set an SLO" if info.source.per_request else "let the tool write its requests, then score them"
        return Command(text, f"{score} --slo {EXAMPLE_SLO}")
    if not run.complete:
        return Command("run it again", rerun)
    undecided = info.resolution.undecided and not result.overloaded
    if info.verdict.valid is False or exceeded(info) or undecided:
        return Command("remove the cause, then run it again", rerun)
    if not result.bounded:
        return Command("set an SLO", f"{rerun} --slo {EXAMPLE_SLO}")
    listed = info.workload.recorded and (not info.spec.get("trace") or info.spec.get("scale"))
    if listed or not info.workload.rate_rps:
        return None
    return Command(FIND_CAPACITY, rerun.replace("bench run", "bench capacity", 1))
