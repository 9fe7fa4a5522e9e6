"""Trials that are ended early: the side they report must be that of the whole trial."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.api import RequestRecord
from harness.data.records import to_table
from harness.experiments.capacity.conditions import conditions, kept_all, shares
from harness.experiments.place.task import missed
from harness.metrics.slo import parse


def record(number: int, ttft_s: float, tpot_s: float, tokens: int = 3, status: str = "ok") -> RequestRecord:
    """A request due at its number in seconds."""
    first_s = number + ttft_s
    times = tuple(first_s + k * tpot_s for k in range(tokens)) if status == "ok" else ()
    return RequestRecord(number, float(number), float(number), times, None, 10, len(times), tokens, status)  # type: ignore[arg-type]  # a status


@given(
    st.integers(0, 2**32 - 1), st.floats(0.05, 0.3), st.sampled_from(["ttft=0.2,tpot=0.1", "p90:ttft=0.2,tpot=0.1"]),
    st.sampled_from(["joint", "separate"]),
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_early_and_late_decisions_agree(seed: int, share: float, slo_text: str, definition: str) -> None:
    """A rate would count as sustained that the whole trial shows is not."""
    rng, slo = np.random.default_rng(seed), parse(slo_text)
    wanted = conditions(slo, 0.9, definition)  # type: ignore[arg-type]  # one of its names
    slow = rng.random((60, 2)) < share / 2
    records = [
        record(i, 0.3 if slow[i, 0] else 0.2, 0.2 if slow[i, 1] else 0.01, status="rejected" if i == 7 else "ok")
        for i in range(60)
    ]

    found = missed(iter(records), slo, wanted, 60)

    assert kept_all(shares(to_table(records), slo), wanted) == (found is None)
    assert found in {None, *slo_text.split(",")}


def test_records_are_taken_only_until_it_is_certain() -> None:
    """An overloaded trial would be simulated to its end, which costs most of a search."""
    slo = parse("ttft=0.2")
    coming = iter([record(i, 0.5, 0.01) for i in range(100)])

    assert "ttft=0.2" == missed(coming, slo, conditions(slo, 0.9, "joint"), 100)
    assert 89 == len([*coming])


@pytest.mark.parametrize(
    ("limit", "missed_bound"), [("itl_p99=0.1", "itl_p99=0.1"), ("ttft@chat=0.2,ttft=0.5", "ttft=0.5")]
)
def test_other_bounds_are_scored_as_a_table(limit: str, missed_bound: str) -> None:
    """A bound that records cannot be counted by would be left out."""
    slo = parse(limit)
    wanted = conditions(slo, 0.9, "joint")

    assert missed([record(i, 0.1, 0.01) for i in range(20)], slo, wanted, 20) is None
    assert missed_bound == missed([record(i, 0.6, 0.2) for i in range(20)], slo, wanted, 20)


def test_one_token_has_no_time_per_token_to_miss() -> None:
    """Answers of one token would fail every bound on TPOT."""
    slo = parse("tpot=0.1")

    assert missed([record(0, 9.0, 0.0, tokens=1)], slo, conditions(slo, 0.9, "joint"), 1) is None
