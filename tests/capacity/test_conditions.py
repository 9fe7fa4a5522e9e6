"""The conditions of a capacity, and when a probe is decided."""

import numpy as np
import pytest

from harness.api import RequestRecord
from harness.data.records import to_table
from harness.experiments.capacity.conditions import Condition, Share, conditions, missed_unloaded, shares, tells
from harness.metrics.objective import JOINT, parse_slo, score


def bound(text):
    return parse_slo(text).bounds[0]


@pytest.fixture
def table():
    """Fifty requests of five tokens, some of them slow or failed."""
    rng = np.random.default_rng(1)
    records = []
    for i in range(50):
        stamps = (0.1 * i + np.cumsum(rng.exponential(0.05, 5))).tolist()
        status = "error" if i % 17 == 3 else "ok"
        records.append(RequestRecord(i, 0.1 * i, 0.1 * i, stamps, None, 10, 5, 5, status))
    return to_table(records)


def test_shares_are_those_of_the_score(table):
    """A search would follow another definition than bench run prints."""
    slo = parse_slo("ttft=0.06,tpot=0.05")
    scored = score(table, slo)

    assert [scored.attainment, *(bound.attainment for bound in scored.bounds)] == [
        share.met / share.of for share in shares(table, slo)
    ]


def test_a_percentile_holds_just_when_that_share_of_the_values_is_within_the_bound(table):
    """Capacity under p99:itl=... would be another one than the p99 that is printed."""
    for limit in np.linspace(0.02, 0.4, 39):
        slo = parse_slo(f"p50:itl={limit}")
        share = shares(table, slo)[1]

        assert share.mask is None
        assert score(table, slo).bounds[0].passed == (share.met / share.of >= 0.5)


def test_joint_asks_for_all_bounds_at_once_and_separate_for_each():
    """DistServe's capacity would be compared with one that asks for more."""
    slo = parse_slo("ttft=0.25,tpot=0.1,p99:itl=0.2")

    assert (Condition(JOINT, 0.95), Condition(bound("p99:itl=0.2"), 0.99)) == conditions(slo, 0.95, "joint")
    assert (
        Condition(bound("ttft=0.25"), 0.95),
        Condition(bound("tpot=0.1"), 0.95),
        Condition(bound("p99:itl=0.2"), 0.99),
    ) == conditions(slo, 0.95, "separate")


@pytest.mark.parametrize(("met", "of", "good", "decided"), [
    (12, 12, True, False), (29, 29, True, True), (35, 51, True, False), (8, 12, False, True), (9, 12, False, False),
])  # fmt: skip
def test_a_side_rests_on_enough_requests(met: int, of: int, good: bool, decided: bool) -> None:
    """Twelve requests were called 'goal met' where 69 % of 51 met it."""
    assert decided == tells(met, of, 0.9, good=good)


def test_a_bound_that_is_missed_without_load_is_named_with_what_was_measured() -> None:
    """The user would guess which bound is out of reach, and by how much."""
    assert "meet ttft=0.25 (90% have to; their median is 1.18 s)" in missed_unloaded(
        Share(bound("ttft=0.25"), 0, 8, None, 1.18), 0.9
    )
    assert "their p99 is 0.3 s" in missed_unloaded(Share(bound("p99:ttft=0.25"), 6, 8, None, 0.3), 0.99)
