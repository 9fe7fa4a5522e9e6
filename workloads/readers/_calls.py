"""Calls of agents: what one of them is in a trace, and which of them follow which, by their spans and times."""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from harness.data.records import INTS, listed
from workloads.readers._requests import MORE, Marked, Requests, empty

SAME_S = 1e-6
"""Stamps that lie no further apart are of one moment: dates are written to a microsecond."""
DEEPEST = 64
"""Spans around a call that are looked at, the outermost first."""
INSIDE = "a call inside of another call, which is counted"
TWICE = "a call that the file holds twice"


@dataclass(slots=True)
class Call:
    """A call of a model, or what else a file tells of agents: `dropped` says why that is no request.

    `at` is its start, in units of the file. The other names are those of `Requests` and of its columns `MORE`. A file
    tells what a call waits for by numbers of calls: `parent_row` (the turn before) and `joins`, after which it comes
    `delay_s`. Or times tell it, and spans: `chat` names that of the call, `inside` those around it, the outermost
    first, as far as the file knows them there.
    """

    at: float
    api_s: float | None
    prompt: int
    output: int
    session: str | None = None
    tag: str | None = None
    ids: Sequence[int] | np.ndarray = ()
    agent: str | None = None
    common_tokens: int = 0
    parent_row: int | None = None
    joins: list[int] = field(default_factory=list)
    delay_s: float = 0.0
    cause: str | None = None
    chat: str | None = None
    inside: tuple[str, ...] = ()
    row: int = 0  # of its block
    number: int = 0  # of the call in its row; -1 where there is no text of it
    dropped: str | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def end_s(self) -> float:
        """When its answer had ended, where stamps are seconds."""
        return self.at + (self.api_s or 0.0)


def blank(row: int) -> Call:
    """What stands for a row that cannot be used."""
    return Call(0, 0.0, 0, 0, row=row)


def of_calls(
    calls: Sequence[Call], stamp: str, per_s: float, prompt: str, output: str, *, by_times: bool, **more: Any
) -> Requests:
    """The requests of a block; `prompt` and `output` are what the file calls these, `more` other fields."""

    def numbers(name: str) -> Any:
        return np.array([getattr(call, name) for call in calls], np.int64)

    def column(name: str, kind: pa.DataType) -> pa.Array:
        return pa.array([getattr(call, name) for call in calls], kind)

    graph, more_names = {"parent_row": pa.int64(), "joins": INTS}, ["delay_s", "cause"]
    if by_times:
        graph, more_names = {"chat": pa.string(), "inside": pa.list_(pa.string())}, []
    # each as whole numbers: beside an empty list, numbers from 2**53 on would be rounded
    ids = np.concatenate([np.zeros(0, np.int64), *(np.asarray(call.ids, np.int64) for call in calls)])
    return Requests(
        stamp,
        numbers("at") if more.get("dated") else np.array([call.at for call in calls], np.float64),
        per_s,
        numbers("prompt"),
        numbers("output"),
        drops=(
            *_marked(calls, lambda call: [call.dropped] if call.dropped else []),
            *empty(prompt, numbers("prompt"), output, numbers("output")),
        ),
        session=column("session", pa.string()),
        tag=column("tag", pa.string()),
        prefix_ids=listed(np.array([len(call.ids) for call in calls], np.int64), ids),
        notes=_marked(calls, lambda call: call.notes),
        expanded=True,
        rows=numbers("row"),
        numbers=numbers("number"),
        more={n: column(n, MORE[n]) for n in MORE if n in (*more_names, "api_s", "agent", "common_tokens")},
        **{name: column(name, kind) for name, kind in graph.items()},
        **more,
    )


def _marked(calls: Sequence[Call], texts_of: Callable[[Call], list[str]]) -> Marked:
    texts = dict.fromkeys(text for call in calls for text in texts_of(call))
    return tuple((text, np.array([text in texts_of(call) for call in calls])) for text in texts)


def followed(requests: Requests) -> Requests:
    """The requests, in order of time, with what each waits for, where times are to tell it.

    A call follows those of its session that had ended when it began, but for those that others of these followed: an
    interval order, reduced. Calls in different spans are compared by the spans that differ, so while two agents work
    side by side, no call of the one follows one of the other, and what comes after both joins the last calls of both.
    Of what a call follows, what ended last is the turn before. Calls that overlap stay side by side.
    """
    if requests.session is None or not requests.by_times or not len(requests):
        return requests
    rows, live = range(len(requests)), requests.live
    begins_s = ((requests.at - requests.at[0]) / requests.per_s).tolist()
    lasts_s = requests.more["api_s"].fill_null(0.0).to_pylist()
    ends_s = [begin + lasts for begin, lasts in zip(begins_s, lasts_s, strict=True)]
    names = [*rows] if requests.chat is None else [name or row for row, name in enumerate(requests.chat.to_pylist())]
    inside = [()] * len(rows) if requests.inside is None else requests.inside.to_pylist()
    outer: dict[Any, Any] = {inner: outer for around in inside for outer, inner in pairwise(around)}
    outer |= {name: around[-1] if around else None for name, around in zip(names, inside, strict=True)}
    row_of = dict(zip(reversed(names), reversed(rows), strict=True))
    paths = [_path(name, outer) for name in names]
    begin_s: dict[Any, float] = defaultdict(lambda: math.inf)  # with all that is inside: work in the background may
    end_s: dict[Any, float] = defaultdict(lambda: -math.inf)  # outlast the span that started it
    for row in rows:
        for span in (names[row], *paths[row]):
            begin_s[span], end_s[span] = min(begin_s[span], begins_s[row]), max(end_s[span], ends_s[row])

    nested, twice = np.zeros(len(rows), bool), np.zeros(len(rows), bool)
    tops = [(*_path(name, outer), name)[0] for name in requests.session.to_pylist()]
    sessions = [outer.get(top) or top for top in tops]  # that of a sub-agent is a part of its parent's
    agents = requests.more["agent"].to_pylist() if "agent" in requests.more else [None] * len(rows)
    tokens = zip(requests.prompt_tokens.tolist(), requests.output_tokens.tolist(), strict=True)
    outlines = zip(sessions, begins_s, ends_s, tokens, strict=True)
    copies: set[object] = set()
    branches: dict[tuple[Any, Any], dict[Any, None]] = defaultdict(dict)  # spans with calls inside of another
    for row, outline in zip(rows, outlines, strict=True):
        if live[row]:
            calls = [row_of[span] for span in paths[row] if span in row_of and live[row_of[span]]]
            nested[row] = any(ends_s[call] >= ends_s[row] - SAME_S for call in calls)
            twice[row] = row_of[names[row]] != row or (requests.chat is not None and outline in copies)
            copies.add(outline)
            if not nested[row] and not twice[row]:
                for around, span in pairwise((None, *paths[row], names[row])):
                    branches[sessions[row], around][span] = None
            teams = [agents[row_of[span]] for span in paths[row] if span in row_of and agents[row_of[span]]]
            agents[row] = agents[row] or (teams[-1] if len(teams) > 1 else None)  # the outermost is the session's own

    waits: list[list[int]] = [[] for _ in rows]

    def place(session: str, around: Any, before: list[int], done: list[tuple[float, float, list[int]]]) -> list[int]:
        """Tell the calls in a span what they wait for, at least for those `before`; returns the last ones."""
        for span in sorted(branches.get((session, around), ()), key=begin_s.__getitem__):
            follows = _latest(done, begin_s[span]) or before
            row, itself = row_of.get(span), []
            if row is not None and live[row]:
                waits[row], itself = follows, [(ends_s[row], begins_s[row], [row])]
            insort(done, (end_s[span], begin_s[span], place(session, span, follows, itself)))
        return _latest(done, math.inf)

    for session in dict.fromkeys(sessions):
        if session is not None:
            place(session, None, [], [])
    waits = [sorted(calls, key=lambda call: (ends_s[call], call)) for calls in waits]
    return replace(
        requests,
        session=pa.array(sessions, pa.string()),
        chat=None,
        inside=None,
        prefix_ids=requests.prefix_ids if requests.prefix_ids and len(requests.prefix_ids.flatten()) else None,
        parent_row=pa.array([calls[-1] if calls else None for calls in waits], pa.int64()),
        joins=pa.array([sorted(calls[:-1]) for calls in waits], INTS) if any(calls[1:] for calls in waits) else None,
        drops=(*requests.drops, (INSIDE, nested), (TWICE, twice)),
        more={**requests.more, **({"agent": pa.array(agents, pa.string())} if any(agents) else {})},
    )


def _path(span: Any, outer: Mapping[Any, Any]) -> tuple[Any, ...]:
    """The spans around one, the outermost first; what the file does not hold is passed over."""
    path: dict[Any, None] = {}
    while (span := outer.get(span)) in outer and span not in path:
        path[span] = None
    return tuple(reversed(path))[:DEEPEST]


def _latest(done: list[tuple[float, float, list[int]]], by_s: float) -> list[int]:
    """Of branches in order of their ends (end, begin, last calls), those that had ended by then and that no other
    of these followed: their last calls."""
    ended, last_s, last = [], -math.inf, -1
    for place in range(bisect_right(done, (by_s + SAME_S, math.inf)) - 1, -1, -1):
        end_s, begin_s, _ = done[place]
        if end_s <= last_s + SAME_S:  # so had all before it
            break
        ended.append(place)
        if begin_s > last_s:
            last_s, last = begin_s, place
    return [call for place in ended if done[place][0] > last_s + SAME_S or place == last for call in done[place][2]]
