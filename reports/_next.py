"""One thing to do after a run: finish it, mend it, or change what decides its result."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.failures import exceeded
from reports import _facts, _numbers, _system
from reports._clean import clean
from reports._facts import part

if TYPE_CHECKING:
    from harness.folder import Run
    from reports._rows import Result

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
    if part(run.info, "source"):
        return _foreign(run, result)
    again = _facts.commands(run)[-1]
    if not run.complete:
        return Advice("run it again", again)
    if not part(run.info, "verdict").get("valid", True) or exceeded(run.info):
        return Advice("remove the cause, then run it again", again)
    if not result.asked:
        return Advice("say what must be kept", f"{again} --slo ttft=0.25,tpot=0.1")
    if part(run.info, "resolution").get("undecided") is True and not result.overloaded:
        return _finer(run.info, again)
    asked_rps, recorded = part(run.info, "workload").get("rate_rps"), part(run.info, "workload").get("recorded")
    if result.kept and _facts.caution(run.info, "queue-grew") is not None:
        longer = _longer(run.info, again) if recorded else _doubled(run.info, "make the run longer", again)
        if longer is not None:
            return longer
    if not recorded and isinstance(asked_rps, int | float) and asked_rps > 0:
        return _rate(run.info, result, asked_rps, again)
    return (_longer(run.info, again) if result.kept else None) or _other_system(run.info, again)


TRIED = (0.5, 0.7, 0.85, 1.0, 1.2, 1.4)
"""Rates of a curve around the rate of a run, as parts of it."""

ENOUGH = 10_000
"""Requests at a point of a curve that are advised at most: thirty runs of a million would take an hour."""


def several_rates(run: Run) -> tuple[Advice, ...]:
    """What draws curves over the rate around this run; nothing where its rate is not ours to choose."""
    asked_rps = part(run.info, "workload").get("rate_rps")
    recorded = part(run.info, "workload").get("recorded")
    if part(run.info, "source") or recorded or not isinstance(asked_rps, int | float) or asked_rps <= 0:
        return ()
    config = f"--config {shlex.quote(clean(run.path / 'run.json', None))}"
    rates = ",".join(_numbers.option(asked_rps * share, 3) for share in TRIED)
    fewer = (
        f" --requests {ENOUGH}" if run.requests.num_rows > ENOUGH and not part(run.info, "spec").get("duration") else ""
    )
    return (
        Advice("measure the curve", f"bench sweep {config} --rate {rates} --seeds 5{fewer} --out curve"),
        Advice("find the highest rate that reaches the goal", f"bench capacity {config} --out capacity"),
    )


def _foreign(run: Run, result: Result) -> Advice:
    """What bench can do with the file of another tool, which it cannot run again."""
    file = shlex.quote(clean(run.path, None))
    if not part(run.info, "source").get("per_request"):
        return Advice("let the tool write its requests, then score them", f"bench slo {file} --slo ttft=0.25,tpot=0.1")
    if not result.asked:
        return Advice("say what must be kept", f"bench slo {file} --slo ttft=0.25,tpot=0.1")
    return Advice("see what other bounds would give", f"bench slo {file} --scale 0.25:4")


def _finer(info: Mapping[str, Any], again: str) -> Advice:
    """One sender more, where the warning advises that."""
    senders = part(info, "client").get("senders")
    more = (senders if isinstance(senders, int) else 1) + 1
    if "--senders" not in str((_facts.caution(info, "unresolved") or {}).get("remedy", "--senders")):
        return Advice("measure on a quieter machine, or send from another one", again)
    return Advice("measure more finely", f"{again} --senders {more}")


def _rate(info: Mapping[str, Any], result: Result, asked_rps: float, again: str) -> Advice:
    higher = result.kept and not result.overloaded
    rate = _numbers.option(asked_rps * (2 if higher else 0.5), 3)
    return Advice(f"try a {'higher' if higher else 'lower'} rate", f"{again} {_with_rate(part(info, 'spec'), rate)}")


def _with_rate(spec: Mapping[str, Any], rate: str) -> str:
    """The option that sets the rate: the arrivals may bring one of their own, which --rate would contradict."""
    arrivals = _system.parsed(spec.get("arrivals"))
    own = [key for key in ("rate", "rate_rps", "rate-rps") if arrivals is not None and key in arrivals.args]
    if arrivals is not None and own:
        arrivals.args[own[0]] = rate
        return f"--arrivals {shlex.quote(clean(arrivals, None))}"
    if arrivals is not None and arrivals.first is not None and arrivals.first[:1].isdigit():  # poisson:2, no FILE
        return f"--arrivals {shlex.quote(f'{clean(arrivals.name)}:rate={rate}')}"
    return f"--rate {rate}"


def _longer(info: Mapping[str, Any], again: str) -> Advice | None:
    """More of a recording, where the run has not sent all of it."""
    sent = part(info, "schedule").get("requests")
    provenance = part(part(info, "workload"), "provenance")
    there = {**part(provenance, "arrivals"), **provenance}.get("requests")
    if not isinstance(there, int) or not isinstance(sent, int) or sent >= there:
        return None
    return _doubled(info, "send more of it", again)


def _doubled(info: Mapping[str, Any], text: str, again: str) -> Advice | None:
    """A run twice as long."""
    for option, unit in (("duration", "s"), ("requests", "")):
        if isinstance(value := part(info, "spec").get(option), int | float):
            return Advice(text, f"{again} --{option} {_numbers.option(2 * value)}{unit}")
    return None


def _other_system(info: Mapping[str, Any], again: str) -> Advice:
    policy = _system.parsed(part(info, "backend").get("policy"))
    if policy is None:
        return Advice("try it on another system", f"{again} --backend sim")
    other = next(name for name in POLICIES if name != policy.name)
    return Advice("try another policy", f"{again} --policy {other}")
