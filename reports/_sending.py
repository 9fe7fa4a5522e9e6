"""How the requests were sent, in words: rate, burstiness, the law of the gaps, and how late the client was."""

from collections.abc import Iterator, Mapping
from typing import Any

from reports import _numbers
from reports._clean import clean
from reports._facts import pairs, part

INSTANT_S = 1e-6
"""A schedule shorter than this comes at one instant: no clock of a network tells such gaps apart."""

APART = 0.1
"""From this share on, the dispersion of the sending is called another than that of the schedule, and the rate drawn
another than the one asked for."""


def at_once(info: Mapping[str, Any]) -> bool:
    """Whether all requests of the schedule, several, were due at one instant."""
    schedule = part(info, "schedule")
    span_s, requests = schedule.get("span_s"), schedule.get("requests")
    return isinstance(span_s, int | float) and span_s < INSTANT_S and requests not in (0, 1)


def rate(info: Mapping[str, Any], asked_rps: float | None) -> str:
    """'asked 12 req/s, drawn 11.8, achieved 11.9 req/s'; what is not known is left out.

    With sessions, all requests together come first and then the sessions; of a closed loop how many users it has.
    """
    told = part(info, "fidelity")
    after = part(told, "follow_ups")
    total = _known(part(told, "all"), "rps")
    achieved = [] if total is None else [f"achieved {_numbers.number(total)} req/s"]
    if after.get("closed"):
        return ", ".join([f"closed loop of {_numbers.count(told.get('scheduled'), 'user')}", *achieved])
    asked = [f"asked {_numbers.plain(asked_rps, 4)} req/s"] if asked_rps else []
    if after:
        sessions = ", ".join(_arrivals(info, _known(told, "requested_rps"), ""))
        return ", ".join([*asked, *achieved]) + (f"; sessions per second: {sessions}" if sessions else "")
    return ", ".join(_arrivals(info, asked_rps, " req/s"))


def _arrivals(info: Mapping[str, Any], asked_rps: float | None, unit: str) -> Iterator[str]:
    """Rates of what waits for no answer: asked, drawn, achieved."""
    told = part(info, "fidelity")
    if asked_rps:
        yield f"asked {_numbers.plain(asked_rps, 4)}{unit}"
        here = _known(told, "expected_rps")
        if here is not None and abs(here / asked_rps - 1) >= 0.005:
            yield f"in this stretch {_numbers.number(here)}"
    if at_once(info):
        yield "all at one instant"
        return
    drawn_rps, sent_rps = _known(told, "drawn_rps"), _known(told, "achieved_rps")
    if drawn_rps is not None and not part(info, "workload").get("recorded"):
        yield f"drawn {_numbers.number(drawn_rps)}"
    if sent_rps is not None:
        yield f"achieved {_numbers.number(sent_rps)}{unit}"


def offered(info: Mapping[str, Any], asked_rps: float | None) -> float | None:
    """Requests per second that a result speaks of: those asked for, or those that came where that is left open.

    Answers decide it where requests follow them, chance where the rate itself is random or few requests were drawn.
    """
    told = part(info, "fidelity")
    if part(told, "follow_ups"):
        return _known(part(told, "all"), "rps") or asked_rps
    drawn_rps = _known(told, "drawn_rps")
    if asked_rps is None or drawn_rps is None or at_once(info):
        return asked_rps
    apart = told.get("law") == "none" or abs(drawn_rps / asked_rps - 1) > APART
    return drawn_rps if apart else asked_rps


def fidelity(info: Mapping[str, Any]) -> str:
    """All about the sending but its rate; the stored line where a run holds no facts."""
    told = part(info, "fidelity")
    if source := part(info, "source"):
        return f"by {clean(source.get('tool'))}: how faithfully it sent what was due is not in its file"
    if told.get("sent") == 0:
        return "nothing was sent"
    if texts := list(_texts(told)):
        return ", ".join(texts)
    if line := told.get("line"):
        return clean(line, 600).removeprefix("sending: ")
    return pairs(told) or "The run ended before its sending could be judged."


def _texts(told: Mapping[str, Any]) -> Iterator[str]:
    yield from _spread(told)
    if (ks := _known(told, "ks")) is not None and (p := _known(told, "ks_p")) is not None:
        how = " in operational time" if told.get("law") == "operational" else ""
        yield f"gaps{how} KS {_numbers.number(ks, 2)} (p {_numbers.probability(p)})"
    elif told.get("law") == "none" and _known(told, "achieved_rps") and not part(told, "follow_ups").get("closed"):
        yield "no gap law declared"
    late = {k: told.get(f"lateness_{k}_s") for k in ("p50", "p99", "max")}
    if late["max"] == 0:
        yield "lateness 0"
    elif all(isinstance(v, int | float) for v in late.values()):
        yield "lateness " + ", ".join(f"{k} {_numbers.seconds(v)}" for k, v in late.items())
    due, sent = told.get("scheduled"), told.get("sent")
    if isinstance(due, int) and isinstance(sent, int) and sent < due:
        yield f"{due - sent:,} not sent"
    yield from _after(part(told, "follow_ups"))


def _spread(told: Mapping[str, Any]) -> Iterator[str]:
    """Spread of the gaps, dispersion and memory of the counts; of the schedule too, where it is another."""
    if (tick_s := _known(told, "tick_s")) is not None:
        yield f"stamps on a grid of {_numbers.limit(float(f'{tick_s:.3g}'))}, so gaps tell little"
    elif (cv := _known(told, "gap_cv")) is not None:
        yield f"gap CV {cv:,.2f}"
    sent, drawn = _by_width(told, "dispersion"), _by_width(part(told, "drawn"), "dispersion")
    if sent:
        yield f"dispersion {_slashed(sent)} in {' / '.join(sent)} s (Poisson 1)"
        if set(sent) == set(drawn) and any(abs(sent[k] - drawn[k]) > APART * max(drawn[k], 0.1) for k in sent):
            yield f"drawn {_slashed(drawn)}"
    if memory := _by_width(told, "autocorrelation"):
        yield f"lag-1 autocorrelation {_slashed(memory)}"


def _after(told: Mapping[str, Any]) -> Iterator[str]:
    sent, planned = told.get("sent"), told.get("planned")
    open_end = bool(told.get("closed") and told.get("not_sent"))  # users go on until the end: planned is an upper bound
    if isinstance(sent, int) and open_end:
        yield f"{_numbers.count(sent, 'follow-up')} sent"
        return
    if isinstance(sent, int) and isinstance(planned, int):
        yield f"{sent:,} of {_numbers.count(planned, 'follow-up')} sent"
    for key, said in (("dropped", "dropped after a failure"), ("not_sent", "not due before the end")):
        if isinstance(n := told.get(key), int) and n:
            yield f"{n:,} {said}"


def _by_width(told: Mapping[str, Any], key: str) -> dict[str, float]:
    return {clean(width, 12): v for width, v in part(told, key).items() if isinstance(v, int | float)}


def _slashed(values: Mapping[str, float]) -> str:
    return " / ".join(f"{value:z,.2f}" for value in values.values())


def _known(told: Mapping[str, Any], key: str) -> float | None:
    value = told.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
