"""What a report says of a run against a remote server: the client that measured, and the server's own view."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.compute as pc

from harness import cautions_answers
from harness.folder import Run
from harness.measure import in_summary
from harness.quantiles import quantile
from harness.remote_facts import column, compared_of, is_remote, most, senders_of, shared_share, stamps_of, total
from harness.resolution import floor_of
from reports import _numbers
from reports._clean import clean
from reports._facts import Facts, part


@dataclass(frozen=True, slots=True)
class Floor:
    """The client's own error of a metric, seconds: half of all and 99% of all stamps are nearer to the truth."""

    p50_s: float
    p99_s: float


@dataclass(frozen=True, slots=True)
class Side:
    """A quantity as the client and as the server tell it, printed; `apart` when they differ by more than is allowed."""

    name: str
    unit: str
    client: str
    server: str
    difference: str
    said: str
    apart: bool


def floors(info: Mapping[str, Any]) -> dict[str, Floor]:
    """Per metric the client's floor; empty where none was measured."""
    told = part(info, "floor")
    found = {}
    for metric, name in floor_of().items():
        p50_s, p99_s = (part(told, name).get(key) for key in ("p50_s", "p99_s"))
        if isinstance(p50_s, int | float) and isinstance(p99_s, int | float):
            found[metric] = Floor(max(0.0, float(p50_s)), max(0.0, float(p99_s)))
    return found


def client(run: Run) -> Facts:
    """How the client sent and read; empty for a run without senders."""
    if not is_remote(run):
        return ()
    return tuple((name, text) for name, text in _client(run) if text)


def line(run: Run) -> str:
    """The same in one line, for a terminal; of the floor, which stands in the table, only that it is missing."""
    if not is_remote(run):
        return ""
    senders, stamps = senders_of(run.info), stamps_of(run.info)
    texts = [_processes(run)]
    if senders:
        texts.append(f"{_numbers.share(most(senders, 'cpu_share_max'))} of a core in the busiest second")
    if stamps is not None:
        texts.append(f"stamps of the {stamps}")
    if any("read_lag_p99_s" in sender for sender in senders):
        texts.append(f"read {_numbers.seconds(most(senders, 'read_lag_p99_s'))} after arrival (p99)")
    missing = [] if floors(run.info) else [f"client floor {text}" for text in _floor(run.info)]
    return ", ".join([*texts, *missing])


def server(run: Run) -> tuple[Side, ...]:
    """What client and server say of the same quantities."""
    return tuple(_side(row) for row in compared_of(run.info))


def server_note(run: Run) -> str:
    """Where the server's own view comes from, or why there is none; empty for a run without a remote server."""
    if not is_remote(run):
        return ""
    told = part(run.info, "server")
    why = told.get("why")
    pages = told.get("metrics_url")
    if not told or not isinstance(pages, list) or not pages:
        reason = f" ({clean(why, 200)})" if why else ""
        return f"The server's own metrics were not read{reason}"
    where = f"{clean(', '.join(map(str, pages)), 300)}, read {_numbers.count(told.get('scrapes'), 'time')}"
    lost = told.get("failed")
    gaps = f", {_numbers.count(lost, 'reading')} failed" if lost else ""
    if not told.get("kind"):
        return f"From {where}{gaps}: no server that we know has such names"
    return f"{_who(run)} says of itself ({where}{gaps})"


def _who(run: Run) -> str:
    """The server, and whose names its metrics have where they are those of another."""
    kind = clean(part(run.info, "server").get("kind") or "the server", 40)
    own = clean(part(part(run.info, "backend"), "capabilities").get("kind") or kind, 40)
    return own if own == kind else f"{own}, in the words of {kind},"


def server_line(run: Run) -> str:
    """The server's own view in one line, for a terminal: what both sides tell."""
    sides = [side for side in server(run) if side.difference != "-"]
    if not sides:
        return f"{server_note(run)}."
    said = {side.said for side in sides}
    of_all = said.pop() if len(said) == 1 and not any(side.apart for side in sides) else None
    texts = []
    for side in sides:
        unit = f" {side.unit}" if side.unit in ("ms", "s") else ""
        aside = f", {side.said}" if of_all is None and side.said not in ("", "agree") else ""
        texts.append(f"{side.name} {side.server}{unit} (client {side.client}{aside})")
    return f"{_who(run)} says: {', '.join(texts)}" + (f"; {of_all}" if of_all not in (None, "", "agree") else "")


def _side(row: Mapping[str, Any]) -> Side:
    name, unit = clean(row.get("name") or "", 60), clean(row.get("unit") or "", 20)
    client, server, difference = (_value(row.get(key)) for key in ("client", "server", "difference"))
    said = {True: "agree", False: "differ"}.get(row["within"], "") if row.get("within") is not None else ""
    if why := clean(row.get("why") or "", 60):
        said = f"{said} ({why})" if said else f"not compared: {why}"
    shown = _numbers.unit_of([client, server]) if unit == "s" else ""
    return Side(
        name=name,
        unit=shown or ("" if unit in (name, "share") else unit),
        client=_printed(client, unit, shown),
        server=_printed(server, unit, shown),
        difference=_signed(difference, unit, shown),
        said=said,
        apart=row.get("within") is False,
    )


def _value(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _printed(value: float | None, unit: str, shown: str) -> str:
    if value is None:
        return "-"
    if unit == "s":
        return _numbers.in_unit(value, shown)
    if unit == "share":
        return _numbers.share(value)
    return _numbers.number(value) if value % 1 else f"{value:,.0f}"


def _signed(value: float | None, unit: str, shown: str) -> str:
    if value is None or value == 0:
        return "-" if value is None else "0"
    text = _printed(abs(value), unit, shown)
    return text if text.startswith("<") else f"{'-' if value < 0 else '+'}{text}"


def _client(run: Run) -> Iterator[tuple[str, str]]:
    yield "Senders", ", ".join(_sending(run))
    yield "Stamps", _stamps(run)
    yield "Read lag", ", ".join(_lag(run))
    yield "Client floor", ", ".join(_floor(run.info))
    yield "Connections", ", ".join(_connections(run))
    yield "HTTP status", _counted(run, "http_status")
    yield "Finish reason", _counted(run, "finish_reason")
    yield "Tokens counted by", _counted(run, "counted_by")
    yield "Answers", ", ".join(_answers(run))
    yield "First event", ", ".join(_first(run))
    if len(_values(run, "address")) > 1:
        yield "Addresses", _counted(run, "address")


def _sending(run: Run) -> Iterator[str]:
    senders = senders_of(run.info)
    yield _processes(run)
    if not senders:
        return
    yield f"busiest second {_numbers.share(most(senders, 'cpu_share_max'))} of a core"
    yield f"waited {_numbers.share(most(senders, 'run_wait_share'))} of the time for one"
    yield f"longest stall {_numbers.seconds(most(senders, 'stall_max_s'))}"
    if pause_s := most(senders, "gc_max_s"):
        yield f"garbage collection {_numbers.seconds(pause_s)} at most"


def _processes(run: Run) -> str:
    count = part(run.info, "client").get("senders")
    if not isinstance(count, int):
        count = len(senders_of(run.info)) or (0 if run.http is None else pc.count_distinct(run.http["sender"]).as_py())
    return _numbers.count(count, "sender")


def _stamps(run: Run) -> str:
    how = stamps_of(run.info)
    if how == "kernel":
        reads = column(run.http, "reads").sum()
        fell_back = total(senders_of(run.info), "process_stamps") or column(run.http, "process_stamps").sum()
        rest = f" (of {_numbers.share(fell_back / reads)} of the reads: of the process)" if reads and fell_back else ""
        return f"when the kernel received the bytes{rest}"
    return "when the process read the bytes: this platform does not tell when they came" if how == "process" else ""


def _lag(run: Run) -> Iterator[str]:
    senders = senders_of(run.info)
    for key, name in (("read_lag_p50_s", "p50"), ("read_lag_p99_s", "p99"), ("read_lag_max_s", "max")):
        if any(key in sender for sender in senders):
            yield (
                f"read {name} {_numbers.seconds(most(senders, key))} after arrival"
                if name == "p50"
                else (f"{name} {_numbers.seconds(most(senders, key))}")
            )
    if (shared := shared_share(run)) is not None:
        yield f"{_numbers.share(shared)} of the token events read with a later one"


def _floor(info: Mapping[str, Any]) -> Iterator[str]:
    found = floors(info)
    told = part(info, "floor")
    if not found:
        why = info.get("floor_why") or told.get("floor_why") or told.get("why")
        yield "not measured" + (f": {clean(why, 200)}" if why else "")
        return
    shown = [(metric.label, found[metric.name]) for metric in in_summary() if metric.name in found]
    errors = (f"{name} {pair(floor, _unit(floor))} {_unit(floor)}" for name, floor in shown)
    yield f"p50 / p99 of the client's error: {', '.join(errors)}"
    streams, rate, seconds = (_value(told.get(key)) for key in ("streams", "rate_rps", "seconds"))
    if streams is not None and rate is not None:
        yield f"at {_numbers.count(streams, 'stream')} and {_numbers.number(rate)} req/s"
    if seconds:
        yield f"measured for {_numbers.seconds(seconds)} before and after the run"


def _unit(floor: Floor) -> str:
    return _numbers.unit_of([floor.p99_s])


def pair(floor: Floor, unit: str) -> str:
    """Half of all and 99% of all, in `unit`: '0.02 / 0.09', two digits each."""
    values = [value_s * (1000.0 if unit == "ms" else 1.0) for value_s in (floor.p50_s, floor.p99_s)]
    texts = ["<0.001" if value < _numbers.LEAST else _numbers.number(value, 2, 3) for value in values]
    return texts[0] if texts[0] == texts[1] == "<0.001" else " / ".join(texts)


def _connections(run: Run) -> Iterator[str]:
    senders = senders_of(run.info)
    if any("connections_opened" in sender for sender in senders):
        yield f"{total(senders, 'connections_opened'):,.0f} opened"
    waited_s = column(run.http, "connect_s")
    if len(waited_s):
        longest = _numbers.seconds(quantile(waited_s, 0.99))
        yield f"{_numbers.count(len(waited_s), 'request')} waited for one (p99 {longest})"
    if resent := total(senders, "resent"):
        yield f"{_numbers.count(resent, 'request')} sent again on a fresh one"
    if files := most(senders, "open_files"):
        yield f"{files:,.0f} files open of {most(senders, 'open_files_limit'):,.0f}"


def _answers(run: Run) -> Iterator[str]:
    per_event = cautions_answers.tokens_per_event(run.requests)
    if np.isfinite(per_event):
        yield f"{_numbers.number(per_event)} tokens per event"
    short = cautions_answers.short_answers(run.requests)
    if short:
        yield f"{_numbers.share(short)} shorter than asked"
    planned, counted = (column(run.requests, name) for name in ("prompt_tokens", "prompt_tokens_server"))
    if len(counted) == len(planned) and planned.sum() > 0:
        apart = float(counted.sum() / planned.sum() - 1)
        longer = f"{_numbers.share(abs(apart))} {'longer' if apart > 0 else 'shorter'} than"
        yield f"prompts {longer if apart else 'as long as'} planned"
    cached = column(run.requests, "cached_tokens")
    if cached.sum() > 0 and counted.sum() > 0:
        yield f"{_numbers.share(float(cached.sum() / counted.sum()))} of the prompt tokens from the server's cache"


def _first(run: Run) -> Iterator[str]:
    before_s, after_s = cautions_answers.first_gaps_s(run)
    if before_s > cautions_answers.APART_S:
        yield f"{_numbers.seconds(before_s)} before the first token (median)"
    if after_s > cautions_answers.APART_S:
        yield f"first text of the answer {_numbers.seconds(after_s)} after the first token (median)"


def _values(run: Run, name: str) -> list[tuple[str, int]]:
    if run.http is None:
        return []
    rows = pc.value_counts(run.http[name]).to_pylist()
    found = [(clean(row["values"], 60), row["counts"]) for row in rows if row["values"] is not None]
    return sorted(found, key=lambda pair: (-pair[1], pair[0]))


def _counted(run: Run, name: str) -> str:
    return ", ".join(f"{value} ({n:,})" for value, n in _values(run, name)[:6])
