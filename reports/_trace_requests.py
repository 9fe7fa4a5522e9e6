"""Requests as trace events: each an asynchronous slice with its phases inside, and when it left the client.

Requests share two names, so that viewers pack those that met their SLO, and those that missed it, on common tracks;
their number stands in the arguments.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from reports._format import clean
from reports._stages import ENDS, Shown

Event = dict[str, Any]
Row = Mapping[str, Any]
CLIENT, SENDER = 1, 1
"""Process and thread of what the client did."""

REQUEST, MISSED = "request", "request, missed its SLO"
CATEGORY = "request"
_INSTANT_US = 1.0
"""How wide a sending is drawn: an instant cannot begin an arrow. Never up to the next one."""


def us(time_s: float) -> float:
    """Seconds as microseconds, to the nanosecond: more the viewers do not keep."""
    return round(time_s * 1e6, 3)


def names(shown: Shown) -> Iterator[Event]:
    """What the client's tracks are called."""
    yield _name("process_name", {"name": "client: requests"})
    yield _name("process_labels", {"labels": shown.note.replace(",", "")})
    yield _name("process_sort_index", {"sort_index": 0})
    yield _name("thread_name", {"name": "sending"})


def events(shown: Shown) -> Iterator[Event]:
    """Every request, and its sending."""
    for row in shown.rows:
        common = {"cat": CATEGORY, "id2": {"local": f"0x{int(row['request_id']) + 1:x}"}, "pid": CLIENT, "tid": SENDER}
        begin, end, name = row["scheduled_s"], _over(row), MISSED if row["met"] is False else REQUEST
        yield {"ph": "b", "ts": us(begin), "name": name, **common, "args": _arguments(row)}
        for phase, start, stop in phases(row):
            yield {"ph": "b", "ts": us(start), "name": phase, **common}
            yield {"ph": "e", "ts": us(stop), "name": phase, **common}
        yield {"ph": "e", "ts": us(end), "name": name, **common}
    yield from _sendings(shown)


def _name(name: str, args: Event) -> Event:
    return {"ph": "M", "pid": CLIENT, "tid": SENDER, "name": name, "args": args}


def phases(row: Row) -> list[tuple[str, float, float]]:
    """(name, from, to) in seconds, one after the other, as far as the backend stamped them."""
    sent, first, last = row["sent_s"], row["first_s"], row["last_s"]
    found = [("late", row["scheduled_s"], sent)] if sent is not None and sent > row["scheduled_s"] else []
    if sent is None:
        return found
    start, end = row.get("prefill_start_s"), row.get("prefill_end_s")
    if start is None or end is None:
        found.append(("to first token", sent, first if first is not None else _over(row)))
    else:
        found += [("queue", sent, start), ("prefill", start, end)]
    if row.get("handoff_start_s") is not None and row.get("handoff_end_s") is not None:
        found.append(("hand-off", row["handoff_start_s"], row["handoff_end_s"]))
    if first is not None and last is not None and last > first:
        found.append(("decode", max(first, found[-1][2]), last))
    over = _over(row)
    return [(name, a, min(b, over)) for name, a, b in found if min(b, over) > a]


def _over(row: Row) -> float:
    """When a request was over, whatever became of it."""
    times = [row[name] for name in ("last_s", *ENDS) if row.get(name) is not None]
    return float(max(times))


def _arguments(row: Row) -> Event:
    """What is known of a request; texts from outside as one harmless line."""
    args = {
        "request": row["request_id"],
        "status": clean(row["status"], 40),
        "prompt_tokens": row["prompt_tokens"],
        "output_tokens": row["output_tokens"],
        "cached_tokens": row.get("cached_tokens"),
        "replica": row.get("replica"),
        "preemptions": row.get("preemptions"),
        "session": row.get("session"),
        "turn": row.get("turn") if row.get("session") is not None else None,
        "class": None if row.get("tag") is None else clean(row["tag"], 80),
        "error": None if row.get("error") is None else clean(row["error"]),
        "TTFT (ms)": _ms(row["first_s"], row["scheduled_s"]),
        "E2E (ms)": _ms(row["last_s"], row["scheduled_s"]),
        "kept its SLO": None if row["met"] is None else "yes" if row["met"] else "no",
    }
    return {name: value for name, value in args.items() if value is not None}


def _ms(end_s: float | None, start_s: float) -> float | None:
    return None if end_s is None else round((end_s - start_s) * 1e3, 6)


def _sendings(shown: Shown) -> Iterator[Event]:
    """A slice as narrow as can be seen for each sending, from which the arrow to its batches begins."""
    sent = sorted((row for row in shown.rows if row["sent_s"] is not None), key=lambda row: row["sent_s"])
    at = [us(row["sent_s"]) for row in sent]
    for row, ts, after in zip(sent, at, [*at, float("inf")][1:], strict=True):
        where = {"pid": CLIENT, "tid": SENDER, "ts": ts}
        args = {"request": row["request_id"], "late (ms)": _ms(row["sent_s"], row["scheduled_s"])}
        yield {"ph": "X", "name": "send", "cat": "sending", "dur": min(_INSTANT_US, after - ts), "args": args, **where}
        if row.get("prefill_start_s") is not None:
            yield {"ph": "s", **arrow(row), **where}


def arrow(row: Row) -> Event:
    """What makes the ends of an arrow belong together."""
    return {"name": "request", "cat": "flow", "id": int(row["request_id"]) + 1}
