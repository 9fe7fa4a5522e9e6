"""Sessions: turns and think times as people have them, prompts that grow and share what they should, compound tasks."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.api import Request
from harness.data.schedule import Schedule
from harness.registry import find, make, names
from harness.spec import text_of
from workloads import catalog, mixed, traces
from workloads.arrivals.builtin import Gamma, Poisson
from workloads.content.tokens import Tokens
from workloads.lengths.builtin import Fixed as FixedLengths
from workloads.lengths.builtin import Lognormal
from workloads.mixed import Mixed, Streams, Tasks, pairs_from
from workloads.prefixes import Prefixes
from workloads.sessions.builtin import THINK_S, Burstgpt, Fixed, Geometric
from workloads.sessions.compound import Compound

TASKS = 20_000
SEEDS = range(20)


def tasks(sessions: Any, count: int = TASKS, seed: int = 0, lengths: Any = None) -> Tasks:
    sizes, delays, pairs = np.random.default_rng(seed).spawn(3)
    lengths = FixedLengths() if lengths is None else lengths
    drawn: Tasks = sessions.tasks(count, Streams(sizes, delays, pairs_from(lengths.pairs(pairs))))
    return drawn


def draw(sessions: Any, requests: int = 400, seed: int = 0, **parts: Any) -> list[Request]:
    workload = Mixed(Poisson(1.0), Lognormal(), sessions, **parts)
    return list(Schedule.draw(workload, seed=seed, requests=requests))


def by_session(requests: list[Request]) -> dict[int | None, list[Request]]:
    found: dict[int | None, list[Request]] = {}
    for request in requests:
        found.setdefault(request.session, []).append(request)
    return found


def turn_facts(sessions: Any) -> dict[str, Any]:
    """Medians over 20 seeds of the statistics of test F1."""
    sizes = [tasks(sessions, 3000, seed).sizes for seed in SEEDS]
    going_on = [[float((s > k).sum() / max(1, (s >= k).sum())) for k in range(1, 5)] for s in sizes]
    shares = [[float((s == k).mean()) for k in (1, 2)] for s in sizes]
    return {
        "shares": np.median(shares, axis=0),
        "p75_p90": np.median([np.quantile(s, [0.75, 0.9], method="inverted_cdf") for s in sizes], axis=0),
        "going_on": np.median(going_on, axis=0),
    }


def think_facts(sessions: Any) -> tuple[float, float]:
    """Medians over 20 seeds of the median think time and the share below 300 s."""
    think_s = [t.delay_s[t.turn > 0] for t in (tasks(sessions, 2000, seed) for seed in SEEDS)]
    return float(np.median([np.median(x) for x in think_s])), float(np.median([(x < 300).mean() for x in think_s]))


def as_turns_of_burstgpt(facts: dict[str, Any]) -> bool:
    """F1: P(1) = .356 and P(2) = .206 within .02, p75 = 4 and p90 = 9 within 1, continuation rises for k = 1..4."""
    return bool(
        np.all(np.abs(facts["shares"] - [0.356, 0.206]) <= 0.02)
        and np.all(np.abs(facts["p75_p90"] - [4, 9]) <= 1)
        and np.all(np.diff(facts["going_on"]) > 0)
    )


def as_think_times_of_burstgpt(facts: tuple[float, float]) -> bool:
    """F2: p50 from 110 to 155 s, share below 300 s .660 within .03."""
    return 110 <= facts[0] <= 155 and abs(facts[1] - 0.660) <= 0.03


def test_conversations_have_as_many_turns_as_those_of_burstgpt() -> None:
    """If this failed, conversations would be shorter or longer than people's are (F1)."""
    assert as_turns_of_burstgpt(turn_facts(Burstgpt()))


def test_a_geometric_number_of_turns_goes_on_with_the_same_probability() -> None:
    """If this failed, the toy would not be the toy it says it is, and F1 would fail it for another reason."""
    sizes = tasks(Geometric(mean=4.18)).sizes
    going_on = np.array([(sizes > k).sum() / (sizes >= k).sum() for k in range(1, 5)])

    np.testing.assert_allclose(1 - 1 / 4.18, going_on, atol=0.02)


def test_people_think_as_long_as_those_of_burstgpt() -> None:
    """If this failed, follow-ups would come too early or too late (F2)."""
    assert as_think_times_of_burstgpt(think_facts(Burstgpt()))


def test_the_long_tail_of_burstgpt_has_its_published_means() -> None:
    """If this failed, the parts of the law that no quantile fixes would not be those that the docstrings state."""
    sessions = Burstgpt()
    sizes = tasks(sessions, 100_000).sizes

    assert 4.18 == pytest.approx(sessions.mean_requests, abs=0.02)
    assert sessions.mean_requests == pytest.approx(sizes.mean(), abs=0.1)
    assert 31 == pytest.approx(np.quantile(sizes, 0.99), abs=2)
    assert 436 >= sizes.max() > 100
    steps = zip(THINK_S, THINK_S[1:], strict=False)
    mean_s = sum((p1 - p0) * (x1 - x0) / math.log(x1 / x0) for (p0, x0), (p1, x1) in steps)
    assert 5709 == pytest.approx(mean_s, rel=0.01)


def test_think_scale_shortens_every_think_time_alike() -> None:
    """If this failed, a short run could not be made to see follow-ups without changing who comes back."""
    whole, short = tasks(Burstgpt(), 500), tasks(Burstgpt(think_scale=0.01), 500)

    np.testing.assert_allclose(whole.delay_s / 100, short.delay_s)
    np.testing.assert_array_equal(whole.sizes, short.sizes)


def named(request: Request, vocab_size: int = 50_000) -> np.ndarray:
    """The tokens of a prompt that it shares by name."""
    length = min(request.prompt_tokens, len(request.prefix_ids) * request.prefix_block_tokens)
    return Tokens(seed=3).token_ids(request, vocab_size)[:length]


@pytest.mark.nightly
@pytest.mark.parametrize("sessions", [Fixed(turns=4), Burstgpt(truncate_at_tokens=None), Fixed(4, block_tokens=1)])
def test_a_prompt_begins_with_the_prompt_before_it(sessions: Any) -> None:
    """If this failed, a prefix cache would find nothing in a conversation, or what never was there."""
    conversations = [turns for turns in by_session(draw(sessions)).values() if len(turns) > 1]
    assert conversations

    for turns in conversations:
        for before, after in zip(turns, turns[1:], strict=False):
            earlier, later = named(before), named(after)

            assert before.prompt_tokens == len(earlier)
            assert before.prompt_tokens + before.output_tokens < len(later)
            np.testing.assert_array_equal(earlier, later[: len(earlier)])


def test_sessions_of_other_people_share_nothing() -> None:
    """If this failed, every cache would look better than it is."""
    ids = [set().union(*(r.prefix_ids for r in turns)) for turns in by_session(draw(Burstgpt())).values()]

    assert sum(len(i) for i in ids) == len(set().union(*ids))


def test_follow_ups_come_after_the_turn_before_and_no_earlier_than_they_can() -> None:
    """If this failed, people would ask on before they have an answer."""
    requests = draw(Burstgpt(think_scale=0.01))
    at = {r.id: r for r in requests}

    for r in requests:
        under_way = r.session is not None and r.session >= mixed.MOST_TASKS // 2
        assert len(r.after) == (r.turn > 0) or under_way
        for parent in r.after:
            assert (r.session, r.turn - 1) == (at[parent].session, at[parent].turn)
            assert at[parent].scheduled_s + r.delay_s == r.scheduled_s


def test_a_tool_delays_the_next_stage() -> None:
    """If this failed, the time of a tool would be lost."""
    rows = tasks(Compound("1/2/1", tool_s=1.5), 1)

    assert [0, 1.5, 1.5, 1.5] == rows.delay_s.tolist()


def test_workers_of_a_task_share_its_context_and_nothing_else() -> None:
    """If this failed, parallel calls would each compute the common context, or share their own questions."""
    workload = Mixed(Poisson(1.0), FixedLengths(300, 100), Compound("1/3/1", deadline_s=60.0))  # none is under way
    requests = list(Schedule.draw(workload, seed=0, requests=5))
    planner, *workers, join = (named(r) for r in requests)

    assert (300, 384, 384, 384) == (len(planner), *(len(w) for w in workers))  # 400 tokens fill 6 blocks of 64
    for worker in workers:
        np.testing.assert_array_equal(workers[0], worker)
        np.testing.assert_array_equal(planner, worker[:300])
        np.testing.assert_array_equal(worker, join[:384])
    assert 300 + 100 + 3 * 400 + 300 == len(join)


def test_a_deadline_stands_on_every_request_of_the_task() -> None:
    """If this failed, a scheduler could not know when a task must be done."""
    assert {20.0} == {r.slo_task_s for r in draw(Compound("1/2", deadline_s=20.0), requests=30)}


@pytest.mark.parametrize("chunks", [(1, 1), (7, 50), (256, 65_536), (4096, 4096)])
@pytest.mark.parametrize("sessions", [None, Burstgpt(think_scale=0.1), Geometric(), Compound(tool_s=3.0)])
def test_the_schedule_does_not_depend_on_how_much_is_drawn_at_a_time(
    monkeypatch: pytest.MonkeyPatch, sessions: Any, chunks: tuple[int, int]
) -> None:
    """If this failed, a seed would not name one schedule (G1)."""
    workload = Mixed(Poisson(2.0), Lognormal(), sessions, Prefixes(count=3, tokens="128", block_tokens=64))
    whole = Schedule.draw(workload, seed=5, requests=700)
    monkeypatch.setattr(mixed, "FIRST_CHUNK", chunks[0])
    monkeypatch.setattr(mixed, "CHUNK", chunks[1])

    assert whole.sha256 == Schedule.draw(workload, seed=5, requests=700).sha256


def test_sessions_leave_times_and_lengths_of_the_plain_workload_alone() -> None:
    """If this failed, `--sessions` would change the people who come, and not only what they do."""
    plain = list(Schedule.draw(Mixed(Poisson(1.0), Lognormal()), seed=0, requests=100))
    talking = [r for r in draw(Fixed(turns=1), 100) if not r.after]

    assert [(r.scheduled_s, r.prompt_tokens) for r in plain] == [(r.scheduled_s, r.prompt_tokens) for r in talking]


def test_changing_the_arrivals_leaves_the_conversations_alone() -> None:
    """If this failed, two arrival processes would be compared on different conversations."""
    one, two = (
        by_session(list(Schedule.draw(Mixed(arrivals, Lognormal(), Burstgpt(think_scale=0.001)), seed=3, requests=600)))
        for arrivals in (Poisson(1.0), Gamma(2.0, cv=3.0))
    )
    whole = [s for s in list(one)[:100] if s in two and len(one[s]) == len(two[s])]

    assert len(whole) > 80
    for session in whole:
        for a, b in zip(one[session], two[session], strict=True):
            assert (a.prompt_tokens, a.output_tokens, a.delay_s) == (b.prompt_tokens, b.output_tokens, b.delay_s)


def test_a_shared_prefix_comes_before_the_history() -> None:
    """If this failed, a system prompt would be lost in a conversation, or not be shared between them."""
    requests = draw(Fixed(turns=2), prefixes=Prefixes(count=1, tokens="128", block_tokens=64))
    plain = draw(Fixed(turns=2))

    assert [r.prompt_tokens + 128 for r in plain] == [r.prompt_tokens for r in requests]
    assert 1 == len({r.prefix_ids[:2] for r in requests})
    assert [r.prefix_ids for r in plain] == [r.prefix_ids[2:] for r in requests]


def test_a_prefix_that_does_not_fill_the_blocks_of_sessions_is_refused() -> None:
    """If this failed, blocks of two sizes would be named as one, and nothing would be shared where it should."""
    with pytest.raises(ValueError, match="multiple of their blocks of 64 tokens"):
        Mixed(Poisson(1.0), Lognormal(), Fixed(), Prefixes(tokens="341"))


@pytest.mark.parametrize("name", names("sessions"))
def test_every_plug_in_keeps_its_promises(name: str) -> None:
    """If this failed, a new kind of session would break schedules."""
    kind = find("sessions", name)
    member = make("sessions", name)
    drawn = tasks(member, 4000)
    rows = np.arange(len(drawn.turn))
    spread = drawn.sizes.std() / np.sqrt(len(drawn.sizes))

    assert member == make("sessions", text_of(member, name))
    assert "Source:" in (kind.__doc__ or "")
    assert member.mean_requests == pytest.approx(drawn.sizes.mean(), abs=4 * spread + 1e-9)
    assert all(len(column) == drawn.sizes.sum() for column in drawn[1:])
    assert np.all(drawn.parent[drawn.parents > 0] + drawn.parents[drawn.parents > 0] <= rows[drawn.parents > 0])
    assert np.all((drawn.turn == 0) == (drawn.parents == 0))
    assert drawn.delay_s.min() >= 0
    assert min(drawn.prompt_tokens.min(), drawn.output_tokens.min()) >= 1


def test_a_schedule_read_as_a_trace_keeps_the_size_of_its_blocks(tmp_path: Path) -> None:
    """Shared prefixes of 80 tokens would count as 512 when a run is looked at with the tools for traces."""
    loaded = catalog.load("fixed:prompt=100,output=5", prefixes="shared:count=3,tokens=80")
    Schedule.draw(loaded.workload, seed=0, requests=50).save(tmp_path / "schedule.parquet")
    trace = traces.read(str(tmp_path / "schedule.parquet"), None, traces.Slice())

    assert 16 == trace.block_tokens
    assert [180] * 50 == trace.table["prompt_tokens"].to_pylist()
    assert {5} == {len(ids) for ids in trace.table["prefix_ids"].to_pylist()}
