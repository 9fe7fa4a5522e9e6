"""A backend that fails is distinguished from one that is overloaded."""

import pytest

from harness.api import Outcome
from harness.data.run_json import Resolution, RunInfo
from harness.runner.run import exit_code, why
from harness.validity.work_done import exceeded, failures


def statuses(**counts):
    return [status for status, n in counts.items() for _ in range(n)]


@pytest.mark.parametrize(
    ("counts", "overloaded", "at_most", "expected"),
    [
        ({"ok": 99, "error": 1}, False, None, False),
        ({"ok": 98, "error": 2}, False, None, True),
        ({"ok": 98, "truncated": 2}, False, None, True),
        ({"ok": 98, "timeout": 2}, False, None, True),
        ({"ok": 98, "timeout": 2}, True, None, False),
        ({"ok": 98, "error": 2}, True, None, True),
        ({"ok": 20, "rejected": 80}, False, None, False),
        ({"ok": 20, "dropped": 40, "cancelled": 40}, False, None, False),
        ({"ok": 95, "error": 5}, False, 0.05, False),
        ({"ok": 71, "error": 29}, False, 0.29, False),
        ({"ok": 99, "error": 1}, False, 0.0, True),
        ({"error": 4}, False, None, True),
    ],
)
def test_failures_count_unless_load_explains_them(table, counts, overloaded, at_most, expected):
    """A broken server would pass for a slow one, or a server that turns requests away for a broken one."""
    status = statuses(**counts)
    found = failures(table(len(status), status=status), "sim", overloaded=overloaded, at_most=at_most)

    assert expected is found.exceeded


@pytest.mark.parametrize(("at_most", "expected"), [(None, False), (0.01, True)])
def test_planned_failures_count_only_against_a_share_that_is_given(table, at_most, expected):
    """An experiment on failures would end as if the backend were broken."""
    found = failures(table(4, status=statuses(ok=2, error=2)), "sim:fail=[replica:1@1s,requeue],replicas=2",
                     overloaded=False, at_most=at_most)  # fmt: skip

    assert expected is found.exceeded
    assert 2 == found.requests


def test_the_sentence_says_what_failed_and_what_is_allowed(table):
    """Exit code 3 would come without a word."""
    found = failures(table(40, status=statuses(ok=36, error=3, timeout=1)), "sim", overloaded=False)

    assert exceeded(RunInfo.of({}).change(failures=found)) == (
        "4 of 40 requests (10.0%) failed for another reason than load (3 error, 1 timeout); --max-failed allows 1%. "
        "See the errors, or allow more."
    )
    assert exceeded(RunInfo.of({})) is None


def test_the_sentence_quotes_an_error_of_the_backend(table):
    """'7 of 8 failed' of a search that ends does not tell that its prompts are too long for the server."""
    status, error = ["ok", "rejected", "error", "error"], [None, "busy", "HTTP 400: 4,242 tokens are too many", "x"]
    found = failures(table(4, status=status, error=error), "sim", overloaded=False)

    assert found.text is not None
    assert found.text.endswith("--max-failed allows 1%. The first: 'HTTP 400: 4,242 tokens are too many'.")


@pytest.mark.parametrize(
    ("valid", "share", "attainment", "expected"),
    [(True, 0.02, 0.95, 3), (False, 0.02, 0.95, 3), (True, 0.01, 0.95, 0), (True, 0.01, 0.5, 1), (False, 0.0, 0.5, 4)],
)
def test_a_failed_backend_comes_before_every_other_verdict(table, valid, share, attainment, expected):
    """A night in which the server broke would read as a regression of its speed."""
    failed = round(100 * share)
    failed_info = failures(table(100, status=statuses(ok=100 - failed, error=failed)), "sim", overloaded=False)
    summary = {"attainment": attainment, "bounds": []}
    info = RunInfo.of({"verdict": {"valid": valid, "overloaded": False}, "summary": summary}).change(
        failures=failed_info
    )
    outcome = Outcome("finished", 100, 0, 0)

    assert expected == exit_code(info, outcome, 0.9)
    assert (expected in (1, 3)) == (why(expected, info, outcome, 0.9) is not None)


@pytest.mark.parametrize(
    ("attainment", "passed", "expected"),
    [
        (0.9896, True, "exit code 1: 98.96% of the requests met the SLO (--fail-under 0.99)."),
        (0.5, False, "exit code 1: 50% of the requests met the SLO and p99:ttft=1 is missed (--fail-under 0.99)."),
        (1.0, False, "exit code 1: p99:ttft=1 is missed (--fail-under 0.99)."),
        (None, False, "exit code 1: p99:ttft=1 is missed (--fail-under 0.99)."),
    ],
)
def test_exit_code_1_names_what_was_missed(attainment, passed, expected):
    """The message names what was missed: the SLO, a bound on a percentile, or both."""
    bound = {"text": "p99:ttft=1", "metric": "ttft", "percentile": 99.0, "passed": passed}
    summary = {"attainment": attainment, "bounds": [bound]}
    info = RunInfo.of({"summary": summary, "verdict": {"valid": True, "overloaded": False}})
    outcome = Outcome("finished", 100, 0, 0)

    assert 1 == exit_code(info, outcome, 0.99)
    assert expected == why(1, info, outcome, 0.99)


def test_fail_under_goes_by_percentiles_where_there_is_nothing_else():
    """Without a share of requests every such run would end with 1, or every one with 0."""
    bounds = [{"text": "p99:ttft=1", "metric": "ttft", "percentile": 99.0, "passed": True}]
    summary = {"attainment": None, "bounds": bounds}
    info = RunInfo.of({"summary": summary, "verdict": {"valid": True, "overloaded": False}})
    unsure = info.change(resolution=Resolution(kept=(True, False)))
    outcome = Outcome("finished", 100, 0, 0)

    assert (0, 5) == (exit_code(info, outcome, 0.99), exit_code(unsure, outcome, 0.99))
    assert "a bound on a percentile is met or missed" in (why(5, unsure, outcome, 0.99) or "")
