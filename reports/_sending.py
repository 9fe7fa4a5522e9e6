"""How the requests were sent, in words: burstiness, the law of the gaps, and how late the client was."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from reports import _numbers
from reports._clean import clean
from reports._facts import pairs, part

INSTANT_S = 1e-6
"""A schedule shorter than this comes at one instant: no clock of a network tells such gaps apart."""


def at_once(info: Mapping[str, Any]) -> bool:
    """Whether all requests of the schedule, several, were due at one instant."""
    schedule = part(info, "schedule")
    span_s, requests = schedule.get("span_s"), schedule.get("requests")
    return isinstance(span_s, int | float) and span_s < INSTANT_S and requests not in (0, 1)


def rate(info: Mapping[str, Any], asked_rps: float | None) -> str:
    """'asked 12 req/s, achieved 11.9 req/s'; what is not known is left out."""
    sent_rps = part(info, "fidelity").get("achieved_rps")
    texts = [f"asked {_numbers.plain(asked_rps, 4)} req/s"] if asked_rps else []
    if at_once(info):
        texts.append("all at one instant")
    elif isinstance(sent_rps, int | float):
        texts.append(f"achieved {_numbers.number(sent_rps)} req/s")
    return ", ".join(texts)


def fidelity(info: Mapping[str, Any]) -> str:
    """All about the sending but its rate; the stored line where a run holds no facts."""
    told = part(info, "fidelity")
    if told.get("sent") == 0:
        return "nothing was sent"
    if texts := list(_texts(told)):
        return ", ".join(texts)
    if line := told.get("line"):
        return clean(line, 600).removeprefix("sending: ")
    return pairs(told) or "The run ended before its sending could be judged."


def _texts(told: Mapping[str, Any]) -> Iterator[str]:
    spread = {clean(s, 12): v for s, v in part(told, "dispersion").items() if isinstance(v, int | float)}
    if spread:
        shown = ", ".join(f"{value:,.2f} in {scale} s" for scale, value in spread.items())
        yield f"dispersion {shown} (variance / mean of arrivals; 1 = Poisson)"
    if isinstance(ks := told.get("ks"), int | float) and isinstance(p := told.get("ks_p"), int | float):
        yield f"gaps against their law KS {_numbers.number(ks, 2)} (p {_numbers.probability(p)})"
    late = {k: told.get(f"lateness_{k}_s") for k in ("p50", "p99", "max")}
    if late["max"] == 0:
        yield "lateness 0"
    elif all(isinstance(v, int | float) for v in late.values()):
        yield "lateness " + ", ".join(f"{k} {_numbers.seconds(v)}" for k, v in late.items())
    due, sent = told.get("scheduled"), told.get("sent")
    if isinstance(due, int) and isinstance(sent, int) and sent < due:
        yield f"{due - sent:,} not sent"
