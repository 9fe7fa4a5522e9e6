"""How far the numbers of a run go, in words: what was left out to warm up, intervals within the run, the checks.

One thing to do after a run: finish it, mend it, or change what decides its result.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.data.folder import Run
from harness.data.run_json import RunInfo, Within
from harness.validity.work_done import exceeded
from reports import _data, _format, _system
from reports._format import clean
from reports._system import part

if TYPE_CHECKING:
    from harness.data.folder import Run
    from reports._rows import Result


KNEE = "Near the knee one run decides nothing (see bench capacity)."
"""What must be said of every statement about one rate."""


@dataclass(frozen=True, slots=True)
class Checked:
    """One check of the run: its name, its state, what was found, and the remedy."""

    name: str
    state: str
    said: str
    remedy: str
    failed: bool


def warmup(run: Run) -> str:
    """'12 of 2,200 requests, due in the first 16.0 s, are not measured (mser5)'; empty where nothing was asked for."""
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
    told, summary = info.within, info.summary
    # an interval of attainment is to be expected where there are bounds on single requests
    asked = bool(summary.bounds) and summary.attainment is not None
    parts = list(_intervals(told, asked=asked))
    if parts and told.metrics:
        parts[-1] += f" ({_sure(told)} within this run; other seeds may differ by more)"
    return "; ".join([*parts, clean(told.why_not, 400)] if told.why_not else parts)


def attained(info: RunInfo) -> str:
    """'90.3% to 91.9% within this run (95%)': the interval of attainment, or that it has none; empty where unknown."""
    told = info.within
    if told.attainment:
        low, high = _format.share(told.attainment.low), _format.share(told.attainment.high)
        return f"{low} to {high} within this run ({_sure(told)}; other seeds may differ by more)"
    if told.at_least is not None:
        return f"at least {_format.share(told.at_least)} ({_sure(told)}, if requests were independent)"
    return "without an interval" if told else ""


def checks(info: RunInfo) -> tuple[Checked, ...]:
    """The checks of a run, in the order of reading."""
    found = []
    for told in info.checks or ():
        texts = (told.check, told.state, told.said, told.remedy)
        name, state, said, remedy = (clean(text or "", 600) for text in texts)
        shown = "not checked" if state == "unknown" else state
        found.append(Checked(name, shown, said, remedy, state == "failed"))
    return tuple(found)


def _intervals(told: Within, *, asked: bool) -> Iterator[str]:
    if told.at_least is not None:
        least = _format.share(told.at_least)
        yield f"attainment at least {least} ({_sure(told)}, if requests were independent)"
    elif told.attainment:
        yield f"attainment {_format.share(told.attainment.low)} to {_format.share(told.attainment.high)}"
    elif told.metrics and asked:
        yield "attainment without an interval: fewer than 1% of the requests miss, or meet"
    for name, of in told.metrics.items():
        known = []
        for word, ends in (("mean", of.mean), ("p99", of.p99)):
            if ends is not None:
                unit = _format.unit_of(ends)
                low, high = (_format.in_unit(end_s, unit) for end_s in ends)
                known.append(f"{word} {low} to {high} {unit}")
        if known:
            yield f"{_data.label(name)} {', '.join(known)}"


def _sure(told: Within) -> str:
    return f"{100 * (told.confidence or 0.95):g}%"


POLICIES = ("sarathi", "vllm-v0")
"""Our default and its best-known rival: whoever used one is shown the other."""


@dataclass(frozen=True, slots=True)
class Advice:
    """What to do, and the command that does it: one line, fit to be copied."""

    text: str
    command: str

    def __str__(self) -> str:
        return f"{self.text}: {self.command}"


def advice(run: Run, result: Result) -> Advice:
    """A sentence and a command which `bench` takes, and which changes something."""
    if run.info.source:
        return _foreign(run, result)
    again = _system.commands(run)[-1]
    if not run.complete:
        return Advice("run it again", again)
    if run.info.verdict.valid is False or exceeded(run.info):
        return Advice("remove the cause, then run it again", again)
    if not result.asked:
        return Advice("say what must be kept", f"{again} --slo ttft=0.25,tpot=0.1")
    if run.info.resolution.undecided and not result.overloaded:
        return _finer(run.info, again)
    asked_rps, recorded = run.info.workload.rate_rps, run.info.workload.recorded
    if result.kept and run.info.warning("queue-grew") is not None:
        longer = _longer(run.info, again) if recorded else _doubled(run.info, "make the run longer", again)
        if longer is not None:
            return longer
    if not recorded and asked_rps is not None and asked_rps > 0:
        return _rate(run.info, result, asked_rps, again)
    return (_longer(run.info, again) if result.kept else None) or _other_system(run.info, again)


TRIED = (0.5, 0.7, 0.85, 1.0, 1.2, 1.4)
"""Rates of a curve around the rate of a run, as parts of it."""

ENOUGH = 10_000
"""Requests at a point of a curve that are advised at most: thirty runs of a million would take an hour."""


def several_rates(run: Run) -> tuple[Advice, ...]:
    """What draws curves over the rate around this run; nothing where its rate is not ours to choose."""
    asked_rps = run.info.workload.rate_rps
    if run.info.source or run.info.workload.recorded or asked_rps is None or asked_rps <= 0:
        return ()
    config = f"--config {shlex.quote(clean(run.path / 'run.json', None))}"
    rates = ",".join(_format.option(asked_rps * share, 3) for share in TRIED)
    fewer = f" --requests {ENOUGH}" if run.requests.num_rows > ENOUGH and not run.info.spec.get("duration") else ""
    return (
        Advice("measure the curve", f"bench sweep {config} --rate {rates} --seeds 5{fewer} --out curve"),
        Advice("find the highest rate that reaches the goal", f"bench capacity {config} --out capacity"),
    )


def _foreign(run: Run, result: Result) -> Advice:
    """What bench can do with the file of another tool, which it cannot run again."""
    file = shlex.quote(clean(run.path, None))
    if not run.info.source.per_request:
        return Advice("let the tool write its requests, then score them", f"bench slo {file} --slo ttft=0.25,tpot=0.1")
    if not result.asked:
        return Advice("say what must be kept", f"bench slo {file} --slo ttft=0.25,tpot=0.1")
    return Advice("see what other bounds would give", f"bench slo {file} --scale 0.25:4")


def _finer(info: RunInfo, again: str) -> Advice:
    """One sender more, where the warning advises that."""
    more = (1 if info.client.senders is None else info.client.senders) + 1
    warned = info.warning("unresolved")
    if warned is not None and "--senders" not in (warned.remedy or ""):
        return Advice("measure on a quieter machine, or send from another one", again)
    return Advice("measure more finely", f"{again} --senders {more}")


def _rate(info: RunInfo, result: Result, asked_rps: float, again: str) -> Advice:
    higher = result.kept and not result.overloaded
    rate = _format.option(asked_rps * (2 if higher else 0.5), 3)
    return Advice(f"try a {'higher' if higher else 'lower'} rate", f"{again} {_with_rate(info.spec, rate)}")


def _with_rate(spec: Mapping[str, object], rate: str) -> str:
    """The option that sets the rate: the arrivals may bring one of their own, which --rate would contradict."""
    arrivals = _system.parsed(spec.get("arrivals"))
    own = [key for key in ("rate", "rate_rps", "rate-rps") if arrivals is not None and key in arrivals.args]
    if arrivals is not None and own:
        arrivals.args[own[0]] = rate
        return f"--arrivals {shlex.quote(clean(arrivals, None))}"
    if arrivals is not None and arrivals.first is not None and arrivals.first[:1].isdigit():  # poisson:2, no FILE
        return f"--arrivals {shlex.quote(f'{clean(arrivals.name)}:rate={rate}')}"
    return f"--rate {rate}"


def _longer(info: RunInfo, again: str) -> Advice | None:
    """More of a recording, where the run has not sent all of it."""
    sent, provenance = info.schedule.requests, info.workload.provenance
    there = {**part(provenance, "arrivals"), **provenance}.get("requests")
    if not isinstance(there, int) or sent is None or sent >= there:
        return None
    return _doubled(info, "send more of it", again)


def _doubled(info: RunInfo, text: str, again: str) -> Advice | None:
    """A run twice as long."""
    for option, unit in (("duration", "s"), ("requests", "")):
        if isinstance(value := info.spec.get(option), int | float):
            return Advice(text, f"{again} --{option} {_format.option(2 * value)}{unit}")
    return None


def _other_system(info: RunInfo, again: str) -> Advice:
    policy = _system.parsed(info.backend.get("policy"))
    if policy is None:
        return Advice("try it on another system", f"{again} --backend sim")
    other = next(name for name in POLICIES if name != policy.name)
    return Advice("try another policy", f"{again} --policy {other}")
