"""Open loops of sessions begin in their steady state: requests come at the stated rate from the first second on."""

import numpy as np
import pytest

from harness.data.schedule import Schedule
from workloads.arrivals.builtin import Poisson, Ramp, Spike
from workloads.blend import split
from workloads.lengths.builtin import Fixed as FixedLengths
from workloads.mixed import MOST_TASKS, Mixed
from workloads.sessions.builtin import Burstgpt, Fixed, Geometric
from workloads.sessions.coding_agent import CodingAgent
from workloads.sessions.compound import Compound
from workloads.sessions.deep_research import DeepResearch
from workloads.sessions.tool_calling import ToolCalling
from workloads.under_way import begun_rps, next_requests

SEEDS, SPAN_S, RATE_RPS = 6, 600.0, 20.0
FAR = 4.0  # standard errors


@pytest.mark.parametrize(
    "sessions",
    [Burstgpt(), Geometric(mean=5.5), Fixed(turns=4, think_s=400), Compound("1/3/1", tool_s=9), ToolCalling(),
     CodingAgent(think_cap_s=60.0), DeepResearch()],
    ids=lambda law: type(law).__name__,
)  # fmt: skip
def test_requests_come_at_the_rate_from_the_first_minute_on(sessions):
    """Users would get a fraction of the rate that they wanted, and less of it the longer sessions last."""
    workload = Mixed(Poisson(RATE_RPS / sessions.mean_requests), FixedLengths(10, 100), sessions).as_recorded()
    drawn = [Schedule.draw(workload, seed=seed, duration_s=SPAN_S).table["scheduled_s"] for seed in range(SEEDS)]
    minutes = np.array([np.bincount((at_s.to_numpy() / 60).astype(int), minlength=10) for at_s in drawn])

    for counts, span_s in ((minutes[:, 0], 60.0), (minutes[:, -1], 60.0), (minutes.sum(axis=1), SPAN_S)):
        mean = RATE_RPS * span_s
        assert abs(counts.mean() - mean) < FAR * max(counts.std(ddof=1), mean**0.5) / SEEDS**0.5


def test_what_is_left_of_a_session_under_way_keeps_its_links():
    """A join would wait for an answer from before the run, or for none of its parts."""
    workload = Mixed(Poisson(1.0), FixedLengths(300, 100), DeepResearch()).as_recorded()
    rows = (
        Schedule.draw(workload, seed=3, duration_s=600.0).table.select(["id", "session", "turn", "after"]).to_pylist()
    )
    of = {row["id"]: row for row in rows}
    before = [row for row in rows if row["session"] >= MOST_TASKS // 2]
    first = {row["session"]: row["id"] for row in reversed(before)}

    assert len(first) > 10 and all(row["turn"] for row in before)
    assert all(
        of[i]["session"] == row["session"] and of[i]["turn"] < row["turn"] for row in before for i in row["after"]
    )
    assert all(not of[i]["after"] for i in first.values())
    assert any(not row["after"] and row["id"] != first[row["session"]] for row in before)  # other branches
    assert all(len(row["after"]) < 2 or row["turn"] > 10 for row in before)  # reports join what is left


def test_a_gap_is_met_in_proportion_to_its_length_and_cut_anywhere():
    """Sessions would seem to be between two quick requests, or all at the beginning of a pause."""
    at_s, session = np.array([0.0, 10.0, 110.0, 0.0, 40.0]), np.array([0, 0, 0, 1, 1])
    rng = np.random.default_rng(0)
    rows, next_s, longer = next_requests(at_s, session, 200.0, (0.0, 1000.0), rng)
    parts = [next_requests(at_s, session, 200.0, window_s, rng) for window_s in ((0.0, 30.0), (30.0, 100.0))]

    assert not longer and [True, False] == [part[2] for part in parts]
    assert 200 * 150 / 2 == pytest.approx(len(rows), rel=0.03)
    assert [0, 10 / 150, 100 / 150, 0, 40 / 150] == pytest.approx(np.bincount(rows, minlength=5) / len(rows), abs=0.01)
    assert [5, 50, 20] == pytest.approx([next_s[rows == row].mean() for row in (1, 2, 4)], rel=0.05)
    assert len(rows) == pytest.approx(sum(len(part[0]) for part in parts), rel=0.03)
    assert all(
        (lo <= part[1]).all() and (part[1] <= hi).all()
        for part, (lo, hi) in zip(parts, ((0, 30), (30, 100)), strict=True)
    )


def test_sessions_began_at_the_rate_that_their_arrivals_have_at_first():
    """A ramp would begin with the traffic of its end."""
    ramp = Ramp(from_rps=0.5, to_rps=4, over_s=600)

    assert [0.5, 2.0] == pytest.approx([begun_rps(ramp), begun_rps(Spike(rate_rps=2))], rel=1e-3)
    assert [0.125, 0.375] == pytest.approx(
        [begun_rps(part) for part in split(ramp, (1, 3), np.random.default_rng(0))], rel=1e-3
    )


def test_tasks_with_a_deadline_begin_in_the_run():
    """Half a task would meet any deadline of the whole."""
    workload = Mixed(Poisson(4.0), FixedLengths(10, 100), Compound("1/3/1", tool_s=9, deadline_s=60.0))
    table = Schedule.draw(workload, seed=0, duration_s=60.0).table

    assert table["session"].to_numpy().max() < MOST_TASKS // 2
