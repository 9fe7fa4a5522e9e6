"""The verdict: what makes a run prove nothing, and what a reader must know."""

import pyarrow as pa
import pytest

from harness.api import Request
from harness.cli.list import glossary
from harness.data.records import schedule_chunk, scheduled_table, to_table
from harness.data.schedule import Schedule
from harness.validity import steady_state
from harness.validity.checks import LATE_S, LATE_SHARE, TOO_LATE_S, TOO_LATE_SHARE, judge


@pytest.fixture(scope="module")
def run(traffic, record):
    """`run(n, **changes)`: a schedule and its records, sent on time unless changed; a function is called with i."""

    def make(n=200, **changes):
        schedule = Schedule.draw(traffic(), seed=0, requests=n)
        rows = []
        for i, r in enumerate(schedule):
            late = changes.get("late_s", lambda _: 0.0)(i)
            status = changes.get("status", lambda _: "ok")(i)
            sent = r.scheduled_s + late
            rows.append(
                record(i, scheduled_s=r.scheduled_s, sent_s=sent, tokens=[sent + 0.1, sent + 0.2], status=status)
            )
        return to_table(rows), schedule.table

    return make


def codes(verdict):
    return [w.code for w in verdict.warnings]


def messages(verdict):
    return [reason.message for reason in verdict.reasons]


@pytest.mark.parametrize("clock", ["wall", "virtual"])
def test_a_good_run_is_valid_without_a_word(run, clock):
    """A reader would learn to skip the warnings."""
    found = judge(*run(), clock=clock)

    assert found.valid
    assert "valid" == found.text
    assert ([], []) == (found.reasons, found.warnings)


def test_one_request_given_up_does_not_spoil_the_run_of_a_closed_loop(record):
    """A user whose answer never came asks no more: the answers to all others would prove nothing."""
    schedule = scheduled_table([Request(i, i / 10, 8, 2, after=(i - 2,) if i > 1 else ()) for i in range(12)])
    rows = [record(i, scheduled_s=i / 10, sent_s=i / 10, tokens=[i + 0.1, i + 0.2]) for i in range(0, 12, 2)]
    given_up = record(1, scheduled_s=0.1, sent_s=0.1, tokens=[], status="timeout")

    assert [] == judge(to_table([*rows, given_up]), schedule).reasons
    lost = messages(judge(to_table([*rows[:2], given_up]), schedule))
    assert ["4 of 12 scheduled requests have no record, first request 4."] == lost


def test_what_an_interrupted_run_did_not_send_is_counted(run):
    """Ctrl-C would make every run invalid, or hide what is missing."""
    rows, schedule = run()
    found = judge(rows.slice(0, 190), schedule, interrupted=True)

    assert found.valid
    assert ["interrupted"] == codes(found)
    assert "10 of 200 scheduled requests were not sent" in found.warnings[0].message


def test_follow_ups_need_no_place_in_the_schedule(run, record):
    """Every run with sessions would be invalid."""
    rows, schedule = run()
    later = to_table([record(500, turn=1, session=1, scheduled_s=60.0)])
    found = judge(rows.from_batches([*rows.to_batches(), *later.to_batches()]), schedule)

    assert found.valid


def test_a_follow_up_without_a_record_is_missed_unless_the_window_ended_before(run, record):
    """Turns of a conversation could be lost without a word; or every run of a minute with sessions would be invalid."""
    rows, schedule = run()
    last, at_s = (schedule[name][-1].as_py() for name in ("id", "scheduled_s"))
    ended_s = rows["token_s"][-1].as_py()[-1]
    later = schedule_chunk(
        1, id=[last + 1], scheduled_s=[at_s + 5.0], prompt_tokens=[1], output_tokens=[1], after=[[last]], delay_s=[5.0]
    )
    whole = pa.concat_tables([schedule, later])

    assert not judge(rows, whole).valid
    assert judge(rows, whole, window_s=ended_s + 5.0).valid
    assert not judge(rows, whole, window_s=ended_s + 5.1).valid


@pytest.mark.parametrize(
    ("late_every", "late_s", "valid", "expected"),
    [
        (1000, 0.020, True, []),
        (50, 0.020, True, ["late-client"]),
        (1, 0.009, True, []),
        (25, 0.060, True, ["late-client"]),
        (10, 0.060, False, ["late-client"]),
        (10, 0.040, True, ["late-client"]),
    ],
)
def test_a_late_client_is_a_warning_and_a_very_late_one_is_not_valid(run, late_every, late_s, valid, expected):
    """The load generator's own stalls would be charged to the server, or hidden."""
    rows, schedule = run(late_s=lambda i: late_s if i % late_every == 3 % late_every else 0.0)
    found = judge(rows, schedule)

    assert valid == found.valid
    assert expected == codes(found)
    assert all(w.remedy for w in found.warnings)
    assert codes(judge(rows, schedule, clock="virtual")) == []


def test_a_client_that_is_late_for_a_third_does_not_look_clean(run):
    """30% of the requests more than 10 ms late, p99 39 ms: 'VALID, all checks passed' hid it."""
    found = judge(*run(late_s=lambda i: 0.039 if i % 10 < 3 else 0.0))

    assert found.valid
    assert "valid, with 1 warning (late-client)" == found.text
    assert "late by more than 10 ms for 30.0% of the requests (p99 39.0 ms" in found.warnings[0].message


def test_the_words_about_lateness_are_those_of_the_rules():
    """`bench explain` would call a run untrustworthy that the verdict calls valid."""
    terms, *_ = glossary()
    allowed = f"more than {LATE_SHARE:.0%} of the requests leave more than {LATE_S * 1000:.0f} ms late"
    spoilt = f"more than {TOO_LATE_SHARE:.0%}", f"more than {TOO_LATE_S * 1000:.0f} ms late"

    assert allowed.replace("%", " %") in terms["lateness"]
    for name in ("lateness", "verdict"):
        assert all(words.replace("%", " %") in terms[name] for words in spoilt)


def test_warnings_are_counted_in_the_verdict(run):
    """'All checks of the run passed' would stand below two warnings."""
    found = judge(*run(n=60, status=lambda i: "error" if i == 5 else "ok"))

    assert "valid, with 2 warnings (failed, few-requests)" == found.text


def test_failures_are_counted_in_a_warning(run):
    """Failures would show only to those who look for them."""
    rows, schedule = run(status=lambda i: "timeout" if i % 10 == 0 else "error" if i == 5 else "ok")
    found = judge(rows, schedule)

    assert found.valid
    assert ["failed"] == codes(found)
    assert "21 of 200 requests failed (1 error, 20 timeout)" in found.warnings[0].message


def test_a_run_without_one_good_answer_is_not_valid(run):
    """4 of 4 requests failed, and the exit code is 0: guidellm."""
    rows, schedule = run(status=lambda _: "error")

    assert "No request ended well, so nothing was measured." in messages(judge(rows, schedule))


def test_good_answers_before_the_cut_alone_are_not_valid(run):
    """A server that broke after its warm-up would be reported as one that never answered, or pass."""
    rows, schedule = run(status=lambda i: "ok" if i < 50 else "error")
    found = judge(rows, schedule, cut=steady_state.find(rows, "50"))

    assert "No request after the warm-up ended well, so nothing was measured." in messages(found)


def test_an_empty_table_is_not_valid(table):
    """Nothing would be a perfect run."""
    assert not judge(table(0)).valid


@pytest.mark.parametrize(("n", "expected"), [(99, ["few-requests"]), (100, [])])
def test_few_requests_are_a_warning(run, n, expected):
    """p99 of twenty requests would be compared to the digit."""
    assert expected == codes(judge(*run(n=n)))


def test_a_growing_queue_is_a_warning_but_valid(record):
    """A mean latency would be printed that depends on when one stopped waiting."""
    rows = to_table([record(i, scheduled_s=i / 10, tokens=[i / 5 + 0.1, i / 5 + 0.3]) for i in range(300)])
    found = judge(rows)

    assert found.valid
    assert ["overload"] == codes(found)
    assert "overloaded: the queue grew by" in found.warnings[0].message


@pytest.mark.parametrize(("met", "expected"), [(None, "overload"), (False, "overload"), (True, "queue-grew")])
def test_a_growing_queue_is_overload_only_where_the_slo_is_missed(record, met, expected):
    """A burst at 0.97 of the capacity would hide the latencies of a run that met its SLO."""
    rows = to_table([record(i, scheduled_s=i / 10, tokens=[i / 5 + 0.1, i / 5 + 0.3]) for i in range(300)])
    found = judge(rows, met=met)

    assert [expected] == codes(found)
    assert (expected == "overload", True) == (found.overloaded, found.queue_grew)


def test_a_start_of_all_at_once_is_no_queue_that_grew_in_no_time(record):
    """'60 requests in 0 s' would be reported as a rate."""
    rows = to_table([record(i, scheduled_s=0.0, tokens=[i / 5 + 0.1, i / 5 + 0.3]) for i in range(60)])
    found = judge(rows)

    assert "overload" in codes(found)
    assert found.text.startswith("overloaded: all requests were due at once, so latencies")
