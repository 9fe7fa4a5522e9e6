"""Follow-ups leave when the answers they wait for have ended, and not one of them is lost."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from harness.api import Request, RequestRecord, Status
from harness.data.dependencies import Releases
from harness.data.records import schedule_chunk, scheduled_table, to_table
from harness.data.schedule import Rows, Schedule
from harness.errors import UsageError
from harness.metrics.measure import metrics


class Given:
    """A workload that is a list of requests."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self.requests = requests

    def start(self, rng: np.random.Generator) -> Iterator[pa.Table]:  # noqa: ARG002  # nothing is random here
        yield scheduled_table(self.requests)

    def describe(self) -> dict[str, object]:
        return {}


def schedule(*requests: Request) -> Schedule:
    return Schedule.draw(Given(requests), seed=0)


def turn(i: int, *after: int, at_s: float = 0.0, delay_s: float = 0.0, session: int | None = 7) -> Request:
    return Request(i, at_s, 10, 5, session=session, turn=len(after), after=after, delay_s=delay_s)


def ended(request: Request, at_s: float, status: Status = "ok") -> RequestRecord:
    ok = status == "ok"
    return RequestRecord(
        request.id, request.scheduled_s, request.scheduled_s, [at_s] if ok else [], None, 10, 5, 5, status,
        session=request.session, ended_s=None if ok else at_s,
    )  # fmt: skip


def releases(drawn: Schedule, end_s: float | None = None) -> tuple[Releases, list[RequestRecord]]:
    dropped: list[RequestRecord] = []
    return Releases(drawn, dropped.append, end_s), dropped


def test_a_turn_leaves_its_think_time_after_the_answer():
    """The user would ask before having read, or the pause would count from the question."""
    drawn = schedule(turn(0), turn(1, 0, at_s=2.0, delay_s=2.0))
    follow, _ = releases(drawn)

    assert [0] == [r.id for r in drawn.planned()]
    assert [(1, 5.5)] == [(r.id, r.scheduled_s) for r in follow(ended(turn(0), 3.5))]


def test_a_turn_never_leaves_before_its_own_time():
    """A replayed conversation would run ahead of its recording where the system is faster."""
    follow, _ = releases(schedule(turn(0), turn(1, 0, at_s=20.0)))

    assert [20.0] == [r.scheduled_s for r in follow(ended(turn(0), 3.5))]


def test_a_join_waits_for_the_last_of_its_branches():
    """The last stage of a task would begin with half of its input."""
    plan, left, right, join = turn(0), turn(1, 0), turn(2, 0), turn(3, 1, 2, delay_s=0.5)
    follow, _ = releases(schedule(plan, left, right, join))

    assert [1, 2] == [r.id for r in follow(ended(plan, 1.0))]
    assert [] == follow(ended(right, 9.0))
    assert [(3, 9.5)] == [(r.id, r.scheduled_s) for r in follow(ended(left, 4.0))]


def test_what_follows_a_failure_is_dropped_and_recorded():
    """Turns of a broken conversation would vanish from the table, and attainment would be too good."""
    requests = (turn(0), turn(1, 0), turn(2, 1), turn(3, 1, 2))
    follow, dropped = releases(schedule(*requests))

    assert [] == follow(ended(requests[0], 1.0, "timeout"))
    assert [1, 2, 3] == sorted(record.request_id for record in dropped)
    assert {"dropped"} == {record.status for record in dropped}
    assert "request 0 of its session was timeout" == dropped[0].error


def test_what_would_have_been_due_after_the_end_is_not_dropped():
    """Turns of next week would miss their objectives today, and stretch the run from which rates are computed."""
    follow, dropped = releases(schedule(turn(0), turn(1, 0, delay_s=1.0), turn(2, 1, delay_s=600.0)), end_s=5.0)

    assert [] == follow(ended(turn(0), 1.0, "timeout"))
    assert [1] == [record.request_id for record in dropped]
    assert 1 == follow.held_back


def test_a_closed_loop_user_goes_on_after_a_failure():
    """One failed request would silence its user for the rest of the run."""
    first, second = turn(0, session=None), turn(1, 0, session=None, delay_s=1.0)
    follow, dropped = releases(schedule(first, second))

    assert [(1, 4.0)] == [(r.id, r.scheduled_s) for r in follow(ended(first, 3.0, "error"))]
    assert [] == dropped


def test_nothing_leaves_after_the_end_of_the_window_and_it_is_counted():
    """A run of a minute would last as long as its longest session."""
    follow, _ = releases(schedule(turn(0), turn(1, 0, delay_s=2.0)), end_s=5.0)

    assert [] == follow(ended(turn(0), 3.0))
    assert 1 == follow.held_back


@pytest.mark.parametrize(
    ("requests", "message"),
    [
        ((turn(0, 1), turn(1)), "comes after a request that does not stand above it"),
        ((turn(0), turn(1, 5)), "comes after a request that does not stand above it"),
        ((turn(0), turn(0)), "two requests the id 0"),
        ((turn(0), turn(1, 0, delay_s=-1.0)), "delay of -1 s"),
    ],
)
def test_a_schedule_that_cannot_be_followed_is_refused(requests: tuple[Request, ...], message: str):
    """A run would hang on a request that waits for itself."""
    with pytest.raises(UsageError, match=message):
        schedule(*requests)


def test_a_schedule_with_follow_ups_is_stored_whole(tmp_path):
    """A repeated run would have no conversations, or others."""
    drawn = schedule(turn(0), replace(turn(1, 0, delay_s=2.0), slo_task_s=9.0))
    drawn.save(tmp_path / "s.parquet")

    assert list(drawn) == list(Schedule.load(tmp_path / "s.parquet"))


def test_a_row_read_alone_is_the_row(traffic):
    """A follow-up would be sent with the class, bounds or prefixes of its neighbour."""
    drawn = Schedule.draw(traffic(), seed=0, requests=300)
    rows = Rows(drawn.table)

    assert list(drawn) == [rows.at(i) for i in range(300)]


def test_a_chunk_of_columns_equals_the_same_requests():
    """Workloads that draw columns and those that list requests would send different things."""
    columns = schedule_chunk(
        2, id=[0, 1], scheduled_s=np.array([0.0, 1.0]), prompt_tokens=[3, 4], output_tokens=[5, 6], after=[[], [0]]
    )

    assert scheduled_table([Request(0, 0.0, 3, 5), Request(1, 1.0, 4, 6, after=(0,))]).equals(columns)


@pytest.mark.parametrize(("columns", "message"), [({"at": [1]}, "no column at"), ({"id": [1, 2]}, "2 values for 1")])
def test_a_chunk_that_does_not_fit_is_refused(columns: dict[str, object], message: str):
    """A slip in a workload would shift one column against the others."""
    given = {"id": [1], "scheduled_s": [0.0], "prompt_tokens": [1], "output_tokens": [1], **columns}
    with pytest.raises(ValueError, match=message):
        schedule_chunk(1, **given)


def test_a_task_takes_from_its_first_request_to_its_last_token(record):
    """A compound request would keep its deadline because each of its calls is quick."""
    table = to_table(
        [
            record(0, session=1, scheduled_s=0.0, tokens=[1.0, 2.0]),
            record(1, session=1, scheduled_s=2.0, tokens=[3.0, 7.5]),
            record(2, session=2, scheduled_s=1.0, tokens=[2.0, 3.0]),
            record(3, session=2, scheduled_s=4.0, tokens=[], status="dropped"),
            record(4, scheduled_s=1.0),
        ]
    )

    np.testing.assert_equal([7.5, 7.5, np.inf, np.inf, np.nan], metrics()["task"].of(table))


def test_a_task_that_has_begun_is_finished_after_the_window():
    """A task cut in two would count as quick, because its last stage is not there."""
    begun = replace(turn(0), slo_task_s=9.0)
    follow, _ = releases(schedule(begun, replace(turn(1, 0, delay_s=2.0), slo_task_s=9.0)), end_s=4.0)

    assert [1] == [r.id for r in follow(ended(begun, 3.0))]


def test_a_long_session_that_fails_is_dropped_to_its_end():
    """One error in a conversation of hundreds of turns would end the whole run with a RecursionError."""
    turns = [turn(i, *range(max(0, i - 1), i), at_s=float(i)) for i in range(2000)]
    follow, dropped = releases(schedule(*turns))

    assert [] == follow(ended(turns[0], 3.5, "error"))
    assert list(range(1, 2000)) == [record.request_id for record in dropped]
    assert {"dropped"} == {record.status for record in dropped}


def test_a_task_with_a_deadline_is_never_cut_out_of_the_schedule():
    """A task of which only the first call fits before the end would keep any deadline."""
    task = [replace(turn(i, *([i - 1] if i else []), at_s=2.0 * i), slo_task_s=9.0) for i in range(4)]
    other = replace(turn(9, at_s=4.5, session=8), slo_task_s=9.0)
    late = replace(turn(10, 3, at_s=12.0), slo_task_s=9.0)
    rows = Given([*task[:3], other, task[3], late])

    assert [0, 1, 2, 3] == [r.id for r in Schedule.draw(rows, seed=0, duration_s=3.0)]
    assert [0, 1, 2, 3] == [r.id for r in Schedule.draw(rows, seed=0, requests=2)]
    assert [0, 1] == [
        r.id for r in Schedule.draw(Given([replace(r, slo_task_s=None) for r in task]), seed=0, requests=2)
    ]
