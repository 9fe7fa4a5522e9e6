"""Several senders send one schedule: everything once, and what waits for an answer where the answer comes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.api import Request
from harness.data.records import scheduled_table
from harness.data.schedule import Schedule, digest, links
from harness.runner.remote.split import EVENTS_PER_SENDER, events_rps, most_at_once, requests_rps, sender_count, share


def scheduled(requests: list[Request]) -> Schedule:
    """A schedule of some requests."""
    table = scheduled_table(requests)
    return Schedule(table, digest(table))


@st.composite
def schedules(draw) -> Schedule:
    """Rows with sessions, and links to rows above them."""
    requests = []
    for i in range(draw(st.integers(1, 40))):
        session = draw(st.none() | st.integers(0, 5))
        after = draw(st.lists(st.integers(0, i - 1), max_size=2, unique=True)) if i else []
        requests.append(Request(i, float(i), 5, 5, session=session, after=tuple(after)))
    return scheduled(requests)


@given(schedules(), st.integers(1, 5))
def test_every_request_is_sent_once(schedule, count):
    """A request in no share would vanish, one in two would double the load."""
    ids = [i for k in range(count) for i in share(schedule, k, count).table["id"].to_pylist()]

    assert list(range(len(schedule))) == sorted(ids)


@given(schedules(), st.integers(2, 5))
def test_a_session_and_what_waits_stay_together(schedule, count):
    """A sender would wait for ever for an answer that came to another."""
    table = schedule.table
    where = {i: k for k in range(count) for i in share(schedule, k, count).table["id"].to_pylist()}
    child, parent = links(table)
    sessions: dict[int, set[int]] = {}
    for i, session in enumerate(table["session"].to_pylist()):
        if session is not None:
            sessions.setdefault(session, set()).add(where[i])

    assert [where[p] for p in parent.tolist()] == [where[c] for c in child.tolist()]
    assert {1} >= {len(senders) for senders in sessions.values()}


@given(schedules(), st.integers(1, 5))
def test_rows_keep_their_order(schedule, count):
    """A sender that takes its rows in order would send a later one first."""
    for k in range(count):
        assert (np.diff(share(schedule, k, count).table["id"].to_numpy()) > 0).all()


def test_single_requests_go_in_turn():
    """A burst would leave from one sender while the others are idle."""
    schedule = scheduled([Request(i, 0.1 * i, 5, 5) for i in range(7)])

    assert [[0, 3, 6], [1, 4], [2, 5]] == [share(schedule, k, 3).table["id"].to_pylist() for k in range(3)]


def test_one_sender_has_the_schedule_itself():
    """A copy of a long schedule would cost its memory twice."""
    schedule = scheduled([Request(0, 0.0, 5, 5)])

    assert share(schedule, 0, 1) is schedule


def test_more_senders_than_requests_leave_some_without_work():
    """An empty share would end in an error instead of a sender that is done at once."""
    assert 0 == len(share(scheduled([Request(0, 0.0, 5, 5)]), 2, 3))


def test_senders_grow_with_the_events(monkeypatch):
    """One Python process would get more than a core can send."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)), raising=False)

    assert [1, 1, 2, 7] == [sender_count(None, n * EVENTS_PER_SENDER) for n in (0.0, 1.0, 1.1, 100.0)]
    assert 3 == sender_count("3", 0.0)


def test_one_core_has_one_sender(monkeypatch):
    """A machine with one core would have none left."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0}, raising=False)

    assert 1 == sender_count("auto", 1e9)


@pytest.mark.parametrize(("span_s", "expected"), [(10.0, 10.0), (0.0, 100.0)])
def test_events_are_counted_over_the_span(span_s, expected):
    """The number of senders would follow from a wrong rate."""
    schedule = scheduled([Request(0, 0.0, 5, 50), Request(1, span_s, 5, 50)])

    assert expected == events_rps(schedule)


@given(schedules())
def test_no_more_requests_are_under_way_than_chains_allow(schedule):
    """Too few connections would be opened ahead, and the client be measured with too few streams."""
    most, ended, under_way = most_at_once(schedule.table), set(), {}
    for request in schedule:
        ready = {r.id: r for r in schedule if set(r.after) <= ended and r.id not in ended}
        under_way = max(under_way, ready, key=len)
        ended.add(request.id)

    assert len(under_way) <= most <= len(schedule)


def test_users_who_wait_ask_no_faster_than_they_are_answered():
    """A few users would be met with hundreds of connections, and the client's floor be that of hundreds of streams."""
    users = [Request(i, 0.05 * (i // 5), 5, 5, after=(i - 5,) if i >= 5 else ()) for i in range(1000)]
    alone = [Request(i, 0.01 * i, 5, 5) for i in range(1001)]

    assert (5, 2.5) == (most_at_once(scheduled(users).table), requests_rps(scheduled(users), 2.0))
    assert (1001, 100.1) == (most_at_once(scheduled(alone).table), requests_rps(scheduled(alone), 2000.0))
    assert (0, 0.0) == (most_at_once(scheduled([]).table), requests_rps(scheduled([]), 1.0))
