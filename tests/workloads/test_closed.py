"""Closed loops: users who wait for their answers, think, and ask again."""

from itertools import islice

import numpy as np
import pyarrow.compute as pc
import pytest

from harness.api import WARM_UP, Request
from harness.data.schedule import Schedule
from harness.registry import make
from workloads import catalog
from workloads.arrivals import closed
from workloads.arrivals.closed import Closed
from workloads.lengths.builtin import Fixed
from workloads.mixed import Mixed


def draw(loop: Closed, requests: int = 400, seed: int = 0, duration_s: float | None = None) -> Schedule:
    return Schedule.draw(Mixed(loop, Fixed()), seed=seed, requests=requests, duration_s=duration_s)


@pytest.mark.parametrize(
    "loop", [Closed(4, 1.0), Closed(7, 0.5, law="fixed"), Closed(3, 0.0), Closed(5, 2.0, ramp_s=60.0), Closed(1, 1.0)]
)
def test_every_user_has_one_request_at_a_time(loop: Closed) -> None:
    """If this failed, more requests would be under way than there are users, or fewer."""
    requests = list(draw(loop))
    chains = {r.id: r.id for r in requests if not r.after}
    for r in requests:
        for before in r.after:
            assert before in chains  # none waits twice for one answer
            chains[r.id] = chains.pop(before)

    assert loop.users == len([r for r in requests if not r.after]) == len(chains)
    assert list(range(400)) == [r.id for r in requests]
    assert all(len(r.after) <= 1 and r.session is None for r in requests)


def test_the_earliest_time_is_the_think_time_after_the_one_before_and_never_less_than_a_cycle() -> None:
    """If this failed, a duration would not bound a schedule, or users would be paced without saying so."""
    requests = list(draw(Closed(5, 0.2)))
    at = {r.id: r for r in requests}

    for r in requests:
        for before in r.after:
            assert max(r.delay_s, 0.05) == pytest.approx(r.scheduled_s - at[before].scheduled_s)


def test_a_duration_cuts_users_who_never_think() -> None:
    """If this failed, a run of a second would be drawn forever."""
    drawn = draw(Closed(2, 0.0, least_cycle_s=0.125), requests=10_000, duration_s=1.0)

    assert 2 * 8 == len(drawn)


def test_users_of_a_ramp_start_one_after_the_other() -> None:
    """If this failed, a ramp would be a crowd."""
    starts = [r.scheduled_s for r in draw(Closed(4, 1000.0, ramp_s=8.0, law="fixed"), requests=4)]

    assert [0.0, 2.0, 4.0, 6.0] == starts


def test_think_times_have_the_requested_mean() -> None:
    """If this failed, the load of a closed loop would not be what it says."""
    delay_s = draw(Closed(50, 3.0), requests=20_000).table["delay_s"].to_numpy()[1000:]

    assert 3.0 == pytest.approx(delay_s.mean(), rel=0.03)
    assert {2.0} == set(draw(Closed(3, 2.0, law="fixed")).table["delay_s"].to_numpy()[3:])


@pytest.mark.parametrize("chunk", [1, 64, 100_000])
@pytest.mark.parametrize("loop", [Closed(5, 1.0, ramp_s=3.0), Closed(8, 0.0)])
def test_users_do_not_depend_on_how_much_is_drawn_at_a_time(
    monkeypatch: pytest.MonkeyPatch, loop: Closed, chunk: int
) -> None:
    """If this failed, a seed would not name one schedule (G1)."""
    whole = draw(loop)
    monkeypatch.setattr(closed, "CHUNK", chunk)

    assert whole.sha256 == draw(loop).sha256


def test_times_are_those_of_the_schedule() -> None:
    """If this failed, the plug-in and the workload would tell two stories."""
    loop = Closed(5, 1.0)
    times = loop.times(np.random.default_rng(0))

    assert next(loop.cycles(np.random.default_rng(0))).at_s.tolist()[:100] == list(islice(times, 100))


def test_the_rate_is_not_known_before_the_answers() -> None:
    """If this failed, a report would compare a closed loop with a rate that was never promised."""
    loaded = catalog.load("chatbot", arrivals="closed:users=8,think=1s")

    assert loaded.rate_rps is None
    assert loaded.arrivals_rps is None
    assert loaded.gap_cdf is None
    assert "at the rate that the answers allow" in catalog.explain("fastgen-1200-60")


def test_a_closed_preset_can_be_run_with_other_arrivals() -> None:
    """If this failed, the memory mixes could not be tried under an open load."""
    assert 1.0 == catalog.load("decode-heavy", arrivals="poisson").rate_rps
    assert 3.0 == catalog.load("decode-heavy", arrivals="gamma:cv=2", rate_rps=3.0).rate_rps


@pytest.mark.parametrize("sessions", ["compound:stages=1/3/2,tool=2s", "geometric:mean=4,think=3s"])
@pytest.mark.parametrize("steady", [False, True])
def test_every_user_has_one_session_at_a_time(sessions: str, steady: bool) -> None:
    """Drawn agents were refused in a closed loop; or a user would begin a session before the one before ended."""
    loop = Closed(5, 7.0, ramp_s=10.0, law="fixed", steady=steady)
    drawn = Schedule.draw(Mixed(loop, Fixed(), make("sessions", sessions)), seed=1, requests=240)
    requests, waited = {r.id: r for r in drawn}, {b for r in drawn for b in r.after}
    begun: dict[int, Request] = {}
    for r in drawn:
        begun.setdefault(r.session, r)
    after = [r for r in begun.values() if r.after]

    assert loop.users == len(begun) - len(after)
    assert {0.0, 2.0, 4.0, 6.0, 8.0} == {r.scheduled_s for r in begun.values() if not r.after}
    for r in after:  # all answers of one other session that no request of it waits for
        (session,) = {requests[b].session for b in r.after}
        last = {b.id for b in drawn if b.session == session and b.id not in waited - {*r.after}}
        assert last <= {*r.after}
        assert (7.0, pytest.approx(7.0)) == (r.delay_s, r.scheduled_s - max(requests[b].scheduled_s for b in r.after))
    before = [next(iter({requests[b].session for b in r.after})) for r in after]
    assert len(before) == len(set(before))


def test_steady_users_are_in_the_middle_of_long_sessions() -> None:
    """Agents would all begin at once with short contexts, or be found in short sessions too often."""
    sessions = make("sessions", "geometric:mean=8,think=5s")
    drawn = [
        Schedule.draw(Mixed(Closed(300, 0.0, steady=True), Fixed(), sessions), seed=seed, requests=9000)
        for seed in range(4)
    ]
    left, warm = [], 0
    for schedule in drawn:
        table = schedule.table
        begun = table.filter(pc.equal(table["tag"], WARM_UP))
        warm += len(begun)
        assert {1} == set(begun["output_tokens"].to_pylist())
        assert {0.0} == set(begun["scheduled_s"].to_pylist())
        of = pc.is_in(table["session"], begun["session"].combine_chunks())
        left.append(len(table.filter(of)) / len(begun) - 1)

    # sessions have no memory: from any moment on as many requests follow as after a first one, at least one
    assert 8.0 == pytest.approx(np.mean(left), rel=0.08)
    assert 4 * 300 == warm
    with pytest.raises(ValueError, match="give --sessions"):
        Mixed(Closed(3, steady=True), Fixed())


def test_a_preset_with_sessions_runs_in_a_closed_loop() -> None:
    """N agents at once, each with sessions of the preset, were a wrong use."""
    loaded = catalog.load("coding-agent:limit=32000", arrivals="closed:users=4,think=0,ramp=30s,steady=on", seed=3)
    table = Schedule.draw(loaded.workload, seed=3, duration_s=600.0).table

    assert ("closed", None, "30s") == (loaded.timing, loaded.rate_rps, loaded.warmup)
    assert 4 <= len(table["session"].unique())
    assert 32_000 >= pc.max(pc.add(table["prompt_tokens"], table["output_tokens"])).as_py()
    assert 14_784 // 64 <= min(len(ids) for ids in table["prefix_ids"].to_pylist())
