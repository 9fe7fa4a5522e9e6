"""How the requests were sent, in words: rate, burstiness, the law of the gaps, and how late the client was.

What a report says of a run against a remote server: the client that measured, and the server's own view.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc
from msgspec import UNSET

from harness.data.folder import Run
from harness.data.lists import number
from harness.data.run_json import Compared, Curve, Fidelity, FloorError, FollowUps, RunInfo
from harness.metrics.measure import headline
from harness.metrics.quantiles import quantile
from harness.validity import client_warnings
from harness.validity.remote import (
    column,
    floor_of,
    is_remote,
    most,
    shared_share,
    stamps_of,
    total,
)
from reports import _format
from reports._format import clean
from reports._system import Facts, first, part
from reports.document import Cell

NAMED_HOSTS = 4
INSTANT_S = 1e-6
"""A schedule shorter than this comes at one instant: no clock of a network tells such gaps apart."""

APART = 0.1
"""From this share on, the dispersion of the sending is called another than that of the schedule, and the rate drawn
another than the requested one."""


def at_once(info: RunInfo) -> bool:
    """Whether all requests of the schedule, several, were due at one instant."""
    span_s = info.schedule.span_s
    return isinstance(span_s, int | float) and span_s < INSTANT_S and info.schedule.requests not in (0, 1)


def requested(info: RunInfo) -> float | None:
    """The requested rate, where there is one (req/s)."""
    rate_rps = info.workload.rate_rps
    return float(rate_rps) if rate_rps is not None and rate_rps > 0 else None


def rate(info: RunInfo) -> str:
    """'requested 12 req/s, drawn 11.8, achieved 11.9 req/s'; what is not known is left out.

    With sessions, all requests together come first and then the sessions; of a closed loop how many users it has.
    """
    sending, after, requested_rps = info.fidelity, info.fidelity.follow_ups, requested(info)
    total = None if sending.all is None else sending.all.rps
    achieved = [] if total is None else [f"achieved {_format.number(total)} req/s"]
    if after is not None and after.closed:
        return ", ".join([f"closed loop of {_format.count(sending.scheduled, 'user')}", *achieved])
    if after:
        sessions = ", ".join(_arrivals(info, sending.requested_rps, ""))
        requested_text = [f"requested {_format.plain(requested_rps, 4)} req/s"] if requested_rps else []
        return ", ".join([*requested_text, *achieved]) + (f"; sessions per second: {sessions}" if sessions else "")
    return ", ".join(_arrivals(info, requested_rps, " req/s"))


def _arrivals(info: RunInfo, requested_rps: float | None, unit: str) -> Iterator[str]:
    """Rates of what waits for no answer: requested, drawn, achieved."""
    if requested_rps:
        yield f"requested {_format.plain(requested_rps, 4)}{unit}"
        stretch_rps = info.fidelity.expected_rps
        if stretch_rps is not None and abs(stretch_rps / requested_rps - 1) >= 0.005:
            yield f"in this stretch {_format.number(stretch_rps)}"
    if at_once(info):
        yield "all at one instant"
        return
    drawn_rps, sent_rps = info.fidelity.drawn_rps, info.fidelity.achieved_rps
    if drawn_rps is not None and not info.workload.recorded:
        yield f"drawn {_format.number(drawn_rps)}"
    if sent_rps is not None:
        yield f"achieved {_format.number(sent_rps)}{unit}"


def offered(info: RunInfo) -> float | None:
    """Requests per second that a result speaks of: those requested, or those that came where that is left open.

    Answers decide it where requests follow them, chance where the rate itself is random or few requests were drawn.
    """
    sending, requested_rps = info.fidelity, requested(info)
    if sending.follow_ups:
        return (sending.all.rps if sending.all else None) or requested_rps
    drawn_rps = sending.drawn_rps
    if requested_rps is None or drawn_rps is None or at_once(info):
        return requested_rps
    differs = sending.law == "none" or abs(drawn_rps / requested_rps - 1) > APART
    return drawn_rps if differs else requested_rps


def fidelity(info: RunInfo) -> str:
    """All about the sending but its rate."""
    sending = info.fidelity
    if info.source:
        return f"by {clean(info.source.tool)}: how faithfully it sent what was due is not in its file"
    if sending.sent == 0:
        return "nothing was sent"
    if texts := list(_texts(sending)):
        origin = info.workload.provenance
        expected = first(origin, "expected") or first(part(origin, "arrivals"), "expected")
        return ", ".join(texts) + (f"; expected {expected}" if expected else "")
    return "The run ended before its sending could be judged."


def _texts(sending: Fidelity) -> Iterator[str]:
    # Spread of the gaps, dispersion and memory of the counts; of the schedule too, where it is another.
    if sending.tick_s is not None:
        yield f"stamps on a grid of {_format.limit(float(f'{sending.tick_s:.3g}'))}, so gaps are imprecise"
    elif sending.gap_cv is not None:
        yield f"gap CV {sending.gap_cv:,.2f}"
    sent, drawn = _by_width(sending.dispersion), _by_width(sending.drawn.dispersion)
    if sent:
        yield f"dispersion {_slashed(sent)} in {' / '.join(sent)} s (Poisson 1)"
        if set(sent) == set(drawn) and any(abs(sent[k] - drawn[k]) > APART * max(drawn[k], 0.1) for k in sent):
            yield f"drawn {_slashed(drawn)}"
    if memory := _by_width(sending.autocorrelation):
        yield f"lag-1 autocorrelation {_slashed(memory)}"
    if sending.ks is not None and sending.ks_p is not None:
        how = " in operational time" if sending.law == "operational" else ""
        yield f"gaps{how} KS {_format.number(sending.ks, 2)} (p {_format.probability(sending.ks_p)})"
    elif sending.law == "none" and sending.achieved_rps and not (sending.follow_ups and sending.follow_ups.closed):
        yield "no gap law declared"
    late = {"p50": sending.lateness_p50_s, "p99": sending.lateness_p99_s, "max": sending.lateness_max_s}
    if late["max"] == 0:
        yield "lateness 0"
    elif None not in late.values():
        yield "lateness " + ", ".join(f"{k} {_format.seconds(v)}" for k, v in late.items())
    if sending.scheduled is not None and sending.sent is not None and sending.sent < sending.scheduled:
        yield f"{sending.scheduled - sending.sent:,} not sent"
    if sending.follow_ups is not None:
        yield from _after(sending.follow_ups)


def _after(sending: FollowUps) -> Iterator[str]:
    open_end = sending.closed and sending.not_sent  # users go on until the end: planned is an upper bound
    if sending.sent is not None and open_end:
        yield f"{_format.count(sending.sent, 'follow-up')} sent"
        return
    if sending.sent is not None and sending.planned is not None:
        yield f"{sending.sent:,} of {_format.count(sending.planned, 'follow-up')} sent"
    if sending.dropped:
        yield f"{sending.dropped:,} dropped after a failure"
    if sending.not_sent:
        yield f"{sending.not_sent:,} not due before the end"


def _by_width(curve: Curve) -> dict[str, float]:
    return {clean(width, 12): value for width, value in curve.items() if value is not None}


def _slashed(values: Mapping[str, float]) -> str:
    return " / ".join(f"{value:z,.2f}" for value in values.values())


@dataclass(frozen=True, slots=True)
class Floor:
    """The client's own error of a metric, seconds: half of all and 99% of all stamps are nearer to the truth."""

    p50_s: float
    p99_s: float


def floors(info: RunInfo) -> dict[str, Floor]:
    """Per metric the client's floor; empty where none was measured."""
    by_metric = {}
    for metric, name in floor_of().items():
        error = info.floor.error(name) if info.floor else FloorError()
        if error.p50_s is not None and error.p99_s is not None:
            by_metric[metric] = Floor(max(0.0, float(error.p50_s)), max(0.0, float(error.p99_s)))
    return by_metric


def client(run: Run) -> Facts:
    """How the client sent and read; empty for a run without senders."""
    if not is_remote(run):
        return ()
    return tuple((name, text) for name, text in _client(run) if text)


def server_note(run: Run) -> str:
    """Where the server's own view comes from, or why there is none; empty for a run without a remote server."""
    if not is_remote(run):
        return ""
    metrics = run.info.server
    if not metrics.metrics_url:
        reason = f" ({clean(metrics.why, 200)})" if metrics.why else ""
        return f"The server's own metrics were not read{reason}"
    pages = f"{clean(', '.join(metrics.metrics_url), 300)}, read {_format.count(metrics.scrapes or 0, 'time')}"
    gaps = f", {_format.count(metrics.failed, 'reading')} failed" if metrics.failed else ""
    if not metrics.kind:
        return f"From {pages}{gaps}: no known server has such names"
    return f"{clean(run.info.capabilities.get('kind') or metrics.kind, 40)} reports of itself ({pages}{gaps})"


def side(row: Compared) -> tuple[str | Cell, ...]:
    """What client and server say of the same quantity: name, unit, both values, their difference, and a note."""
    name, unit = clean(row.name or "", 60), clean(row.unit or "", 20)
    client, server, difference = row.client, row.server, row.difference
    note = "" if row.within is None else "agree" if row.within else "differ"
    if why := clean(row.why or "", 60):
        note = f"{note} ({why})" if note else f"not compared: {why}"
    printed_unit = _format.unit_of([client, server]) if unit == "s" else ""
    delta = Cell(_signed(difference, unit, printed_unit), good=False if row.within is False else None)
    sides = (_printed(client, unit, printed_unit), _printed(server, unit, printed_unit))
    return name, printed_unit or ("" if unit in (name, "share") else unit), *sides, delta, note


def _printed(value: float | None, unit: str, shown: str) -> str:
    if value is None:
        return "-"
    if unit == "s":
        return _format.in_unit(value, shown)
    if unit == "share":
        return _format.share(value)
    return _format.number(value) if value % 1 else f"{value:,.0f}"


def _signed(value: float | None, unit: str, shown: str) -> str:
    if value is None or value == 0:
        return "-" if value is None else "0"
    text = _printed(abs(value), unit, shown)
    return text if text.startswith("<") else f"{'-' if value < 0 else '+'}{text}"


def _client(run: Run) -> Iterator[tuple[str, str]]:
    yield "Senders", ", ".join(_sending(run))
    yield "Stamps", _stamps(run)
    yield "Read lag", ", ".join(_lag(run))
    yield "Connections", ", ".join(_connections(run))
    yield "HTTP status", _counted(run, "http_status")
    yield "Finish reason", _counted(run, "finish_reason")
    yield "Tokens counted by", _counted(run, "counted_by")
    yield "Answers", ", ".join(_answers(run))
    if follow_ups := total(run.info.client.per_sender, "follow_ups"):
        repeating = total(run.info.client.per_sender, "repeating")
        whose = "a made-up" if run.info.spec.get("history") == "recorded" else "the server's own"
        yield "Histories", f"{repeating:,.0f} of {follow_ups:,.0f} follow-ups repeat {whose} answer"
    if len(_values(run, "address")) > 1:
        yield "Addresses", _counted(run, "address")


def _sending(run: Run) -> Iterator[str]:
    senders = run.info.client.per_sender
    yield _processes(run)
    if not senders:
        return
    yield f"busiest second {_format.share(most(senders, 'cpu_share_max'))} of a core"
    yield f"waited {_format.share(most(senders, 'run_wait_share'))} of the time for one"
    yield f"longest stall {_format.seconds(most(senders, 'stall_max_s'))}"


def _processes(run: Run) -> str:
    facts = run.info.client
    count = len(facts.per_sender) if facts.senders is None else facts.senders
    if not count and facts.senders is None and run.http is not None:
        count = pc.count_distinct(run.http["sender"]).as_py()
    hosts = [sender for sender in facts.per_sender if sender.host]  # on other machines
    if not hosts:
        return _format.count(count, "sender")
    names = [*dict.fromkeys(clean(sender.host, 60) for sender in hosts)]
    host_names = ", ".join(names) if len(names) <= NAMED_HOSTS else f"{len(names)} hosts"
    clock_error = _format.seconds(most(hosts, "clock_error_s"))
    return f"{_format.count(count, 'sender')} on {host_names} (clocks known to {clock_error})"


def _stamps(run: Run) -> str:
    how = stamps_of(run.info)
    if how == "kernel":
        reads = column(run.http, "reads").sum()
        fell_back = total(run.info.client.per_sender, "process_stamps") or column(run.http, "process_stamps").sum()
        rest = f" (of {_format.share(fell_back / reads)} of the reads: of the process)" if reads and fell_back else ""
        return f"when the kernel received the bytes{rest}"
    return "when the process read the bytes: this platform does not tell when they came" if how == "process" else ""


def _lag(run: Run) -> Iterator[str]:
    senders = run.info.client.per_sender
    for key, name in (("read_lag_p50_s", "p50"), ("read_lag_p99_s", "p99"), ("read_lag_max_s", "max")):
        if any(getattr(sender, key) is not UNSET for sender in senders):
            yield (
                f"read {name} {_format.seconds(most(senders, key))} after arrival"
                if name == "p50"
                else (f"{name} {_format.seconds(most(senders, key))}")
            )
    if (shared := shared_share(run)) is not None:
        yield f"{_format.share(shared)} of the token events read with a later one"


def floor_text(info: RunInfo) -> str:
    """The client's floor of the metrics in the summary, or that none was measured, and why."""
    by_metric = floors(info)
    texts = [f"{metric.label} {_format.seconds(floor.p50_s)} (p50), {_format.seconds(floor.p99_s)} (p99)"
             for metric in headline() if (floor := by_metric.get(metric.name)) is not None]  # fmt: skip
    return "; ".join(texts) or "not measured" + (f": {clean(info.floor_why, 200)}" if info.floor_why else "")


def pair(floor: Floor, unit: str) -> str:
    """Half of all and 99% of all, in `unit`: '0.02 / 0.09', two digits each."""
    values = [value_s * (1000.0 if unit == "ms" else 1.0) for value_s in (floor.p50_s, floor.p99_s)]
    texts = ["<0.001" if value < _format.LEAST else _format.number(value, 2, 3) for value in values]
    return texts[0] if texts[0] == texts[1] == "<0.001" else " / ".join(texts)


def _connections(run: Run) -> Iterator[str]:
    senders = run.info.client.per_sender
    if any(sender.connections_opened is not UNSET for sender in senders):
        yield f"{total(senders, 'connections_opened'):,.0f} opened"
    waited_s = column(run.http, "connect_s")
    if len(waited_s):
        longest = _format.seconds(quantile(waited_s, 0.99))
        yield f"{_format.count(len(waited_s), 'request')} waited for one (p99 {longest})"
    if resent := total(senders, "resent"):
        yield f"{_format.count(resent, 'request')} sent again on a fresh one"


def _answers(run: Run) -> Iterator[str]:
    per_event = client_warnings.tokens_per_event(run.requests)
    if np.isfinite(per_event):
        yield f"{_format.number(per_event)} tokens per event"
    short = client_warnings.short_answers(run.requests)
    if short:
        yield f"{_format.share(short)} shorter than requested"
    cached, counted = column(run.requests, "cached_tokens"), column(run.requests, "prompt_tokens_server")
    if cached.sum() > 0 and counted.sum() > 0:
        yield f"{_format.share(float(cached.sum() / counted.sum()))} of the prompt tokens from the server's cache"


def prompts(run: Run) -> str:
    """How far the prompts that the server counted are from their planned tokens, request by request."""
    counted, planned = (number(run.requests, name) for name in ("prompt_tokens_server", "prompt_tokens"))
    off = np.abs(counted / planned - 1)[np.isfinite(counted) & (planned > 0)]
    if not off.any():
        return "as long as planned" if len(off) else ""
    middle, worst = (_format.share(quantile(off, q)) for q in (0.5, 0.99))
    return f"off by {middle} of the planned tokens at the median, p99 {worst}"


def in_flight(run: Run) -> str:
    """How many requests waited because the run allows no more in flight, and how long; empty where it allows any."""
    most = run.info.spec.get("max-in-flight")
    waited_s = column(run.requests, "cap_wait_s")
    if most is None or not len(waited_s):
        return "" if most is None else f"at most {clean(most)}, for which no request waited"
    which = f"{len(waited_s):,} of {_format.count(run.requests.num_rows, 'request')}"
    return f"at most {clean(most)}, for which {which} waited, {_format.seconds(quantile(waited_s, 0.5))} at the median"


def _values(run: Run, name: str) -> list[tuple[str, int]]:
    if run.http is None:
        return []
    rows = pc.value_counts(run.http[name]).to_pylist()
    counted = [(clean(row["values"], 60), row["counts"]) for row in rows if row["values"] is not None]
    return sorted(counted, key=lambda pair: (-pair[1], pair[0]))


def _counted(run: Run, name: str) -> str:
    return ", ".join(f"{value} ({n:,})" for value, n in _values(run, name)[:6])
