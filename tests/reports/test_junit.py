"""A run as test cases: green only where the run proves it."""

import xml.etree.ElementTree as ET
from typing import Any

import pytest

from reports.junit import Junit

LOOSE = "ttft=30,p99:tpot=10"


def outcomes(run: Any) -> dict[str, str]:
    """Of each case what became of it, and its message."""
    suite = ET.fromstring(Junit().render(run))  # noqa: S314  our own text
    return {
        case.get("name", ""): " ".join([child.tag, child.get("message", "")]) if (child := next(iter(case), None))
        is not None else "passed"
        for case in suite.iter("testcase")
    }  # fmt: skip


def test_what_is_kept_passes(make_run):
    """A good run would be red."""
    assert {"valid", "attainment", "ttft=30", "p99:tpot=10"} == set(outcomes(make_run(failed=0, slo=LOOSE)))
    assert {"passed"} == set(outcomes(make_run(failed=0, slo=LOOSE)).values())


def test_a_broken_percentile_tells_its_value(make_run):
    """'- of the requests met it' does not show how far off the bound was."""
    found = outcomes(make_run(failed=0, slo="p99:tpot=0.001"))["p99:tpot=0.001"]

    assert found.startswith("failure it is ")
    assert found.endswith(" ms")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"verdict": {"valid": True, "overloaded": True}}, "the queue grew all through the run"),
        ({"verdict": {"valid": True, "unresolved": True}}, "the client's own error leaves it open"),
        ({"verdict": {"valid": False, "reasons": ["Late."]}}, "the run is not valid"),
        ({"failures": {"exceeded": True, "said": "9 of 99 failed."}}, "the backend failed"),
        ({"complete": False}, "the run did not finish"),
    ],
)
def test_what_is_kept_is_not_green_where_the_run_cannot_prove_it(make_run, changes, why):
    """A pull request would be green although its run was overloaded, cut short, or its server had failed."""
    found = outcomes(make_run(failed=0, slo=LOOSE, **changes))

    assert all(found[name].startswith("skipped ") and why in found[name] for name in ("attainment", "ttft=30"))


def test_a_failed_backend_and_a_run_that_is_not_valid_are_errors(make_run):
    """Exit codes 3 and 4 would show as green tests."""
    failed = {"exceeded": True, "said": "9 of 99 requests failed."}

    assert "error 9 of 99 requests failed." == outcomes(make_run(failures=failed))["backend"]
    assert "error Late." == outcomes(make_run(verdict={"valid": False, "reasons": ["Late."]}))["valid"]
