"""Sessions of a trace at other starts: what a request waits for, who starts what, and that nothing vanishes."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from backends.sim import Sim
from harness.api import Loaded
from harness.data.dependencies import Releases
from harness.data.records import to_table
from harness.data.schedule import Schedule, links
from harness.stats.arrivals import Law
from harness.validity.fidelity import fidelity
from workloads import replay
from workloads.trace_tools import write

AGENTS = [  # session, at, prompt, output, parent, joins, delay, api, agent, blocks
    ("a", 0.0, 200, 8, None, [], 0.0, 4.0, None, [1, 2, 3]),
    ("a", 5.0, 100, 8, 0, [], 1.0, 20.0, "s1", [9]),
    ("a", 6.0, 100, 8, 0, [], 2.0, 10.0, "s2", [9, 10]),
    ("a", 30.0, 300, 8, 0, [1, 2], 5.0, 5.0, None, [1, 2, 3, 4]),
    ("a", 135.0, 350, 8, 3, [], 100.0, 5.0, None, [1, 2, 3, 4, 5]),
    ("b", 200.0, 130, 8, None, [], 0.0, 1.0, None, [21, 22]),
    ("b", 211.0, 200, 8, 5, [], 10.0, 1.0, None, [21, 22, 23]),
    ("c", 300.0, 64, 8, None, [], 0.0, 1.0, None, [31]),
]  # fmt: skip
LEADING = 128
"""Tokens of tools and system prompt of the sessions' own agents."""


@pytest.fixture
def agents(tmp_path: Path) -> str:
    """Three sessions, the first with two sub-agents, in a converted trace."""
    names = (
        "session",
        "at_s",
        "prompt_tokens",
        "output_tokens",
        "parent",
        "joins",
        "delay_s",
        "api_s",
        "agent",
        "prefix_ids",
    )
    columns: dict[str, Any] = dict(zip(names, map(list, zip(*AGENTS, strict=True)), strict=True))
    columns["joins"] = pa.array(columns["joins"], pa.list_(pa.int64()))
    columns["common_tokens"] = [LEADING if agent is None else 64 for agent in columns["agent"]]
    metadata = {"bench.block_tokens": "64", "bench.source": '{"clock": "session"}'}
    pq.write_table(pa.table(columns).replace_schema_metadata(metadata), file := tmp_path / "agents.parquet")
    return str(file)


def drawn(path: str, **options: Any) -> tuple[Loaded, pa.Table]:
    """The workload, and its schedule."""
    loaded = replay.load(path, **options)
    return loaded, Schedule.draw(loaded.workload, seed=0).table


def rows(table: pa.Table, *names: str) -> list[tuple[Any, ...]]:
    """Values of some columns, row by row."""
    return list(zip(*(table[name].to_pylist() for name in names), strict=True))


def test_by_default_sessions_come_one_at_a_time(agents: str) -> None:
    """Sessions with clocks of their own would start at times that mean nothing."""
    loaded, table = drawn(agents)

    assert [
        (0.0, [], 0.0), (1.0, [0], 1.0), (2.0, [0], 2.0), (7.0, [0, 1, 2], 5.0), (107.0, [3], 100.0),
        (107.0, [4], 0.0), (117.0, [5], 10.0), (117.0, [6], 0.0),
    ] == rows(table, "scheduled_s", "after", "delay_s")  # fmt: skip
    assert ("closed", None) == (loaded.timing, loaded.rate_rps)


def test_files_made_of_such_sessions_keep_their_clocks(agents: str, tmp_path: Path) -> None:
    """A converted and scaled corpus would be replayed at stamps that mean nothing."""
    first, second = (str(tmp_path / name) for name in ("first.parquet", "second.parquet"))
    write.convert(agents, first, scale="context:340")
    write.convert(first, second, scale="compress:2")
    loaded, table = drawn(second)

    assert "closed" == loaded.timing
    assert [0.0, 0.5, 1.0, 2.5, 50.0, 0.0, 5.0, 0.0] == table["delay_s"].to_pylist()


def test_think_times_are_capped_and_counted(agents: str) -> None:
    """A person who went home would keep the run waiting for hours, or their absence would vanish silently."""
    loaded, table = drawn(agents, turns="think-only:cap=8s")

    assert [0, 1, 2, 5, 8, 0, 8, 0] == table["delay_s"].to_pylist()
    assert {"cap_s": 8.0, "capped": 2, "of": 8, "cut_s": 94.0} == loaded.provenance["think_cap"]


def test_recorded_turns_wait_for_no_answer(agents: str) -> None:
    """A slow system would be spared the load that it had."""
    _, table = drawn(agents, turns="recorded", arrivals="constant", rate_rps=1.0, sessions="recorded:order=file")

    assert [[]] * 8 == table["after"].to_pylist()
    starts = {s: min(t for x, t in rows(table, "session", "scheduled_s") if x == s) for s in (0, 1, 2)}
    assert [0, 5, 6, 30, 135] == pytest.approx(
        [t - starts[0] for s, t in rows(table, "session", "scheduled_s") if s == 0]
    )
    assert 8 / 3 == pytest.approx(starts[1] - starts[0])


def test_turns_as_if_answers_took_half_of_their_time(agents: str) -> None:
    """A replay against a system twice as fast would be paced by the old one."""
    _, table = drawn(agents, turns="api-scaled:scale=0.5", sessions="recorded:order=file")
    whole = [t for s, t in rows(table, "session", "scheduled_s") if s == 0]

    assert [0, 3, 4, 3 + 10 + 5, 18 + 2.5 + 100] == whole
    assert [[]] * 5 == table["after"].to_pylist()[:5]


def test_users_have_one_session_after_the_other(agents: str) -> None:
    """Two users would have three sessions at once, or a session would start before all of the last one had ended."""
    _, table = drawn(agents, arrivals="closed:users=2,think=3s,law=fixed", sessions="recorded:order=file")
    first = {s: next(row for row in rows(table, "session", "id", "after", "delay_s") if row[0] == s) for s in (0, 1, 2)}
    last_of_b = max(i for s, i in rows(table, "session", "id") if s == 1)

    assert [[], []] == [first[0][2], first[1][2]]
    assert ([last_of_b], 3.0) == first[2][2:]


def test_recorded_sessions_of_users_wait_for_the_session_before(agents: str) -> None:
    """Recorded times need a start, and that of a user's second session follows from the answers to the first."""
    _, table = drawn(agents, turns="recorded", arrivals="closed:users=1,think=0", sessions="recorded:order=file")
    b = [(after, delay) for s, after, delay in rows(table, "session", "after", "delay_s") if s == 1]

    assert [([0, 1, 2, 3, 4], 0.0), ([0, 1, 2, 3, 4], 11.0)] == b


def test_sessions_that_come_again_share_nothing_with_themselves(agents: str) -> None:
    """The second pass would find all of its prompts in the cache."""
    loaded, table = drawn(agents, arrivals="closed:users=1", sessions="recorded:passes=3")
    ids = [{i for names in table["prefix_ids"].to_pylist()[k : k + 8] for i in names} for k in (0, 8, 16)]

    assert 24 == len(table) == loaded.requests
    assert {"when sessions come again": 16} == loaded.provenance["added"]
    assert 9 == len(set(table["session"].to_pylist()))
    assert not ids[0] & ids[1] | ids[1] & ids[2]


def test_a_sample_is_of_whole_sessions_and_named(agents: str) -> None:
    """Parts of sessions would be replayed, or the rest would be missing without a word."""
    loaded, table = drawn(agents, sessions="recorded:count=2", seed=3)
    there = set(table["session"].to_pylist())

    assert sorted(s for s, *_ in AGENTS if "abc".index(s) in there) == sorted(
        "abc"[s] for s in table["session"].to_pylist()
    )
    assert 8 == len(table) + sum(loaded.provenance["left_out"].values())
    assert 2 == len(there)


def test_the_rate_is_that_of_the_sessions_drawn(agents: str) -> None:
    """A sample of short sessions would come at another rate than the one given."""
    loaded, table = drawn(agents, arrivals="constant", rate_rps=3.0, sessions="recorded:count=2", seed=3)

    assert 3.0 == pytest.approx(loaded.rate_rps)
    assert 3.0 * 2 / len(table) == pytest.approx(loaded.arrivals_rps)


def test_a_session_starts_in_the_middle_with_a_warm_cache(agents: str) -> None:
    """Every run would begin with short contexts, or with a cache that no real system has."""
    loaded, table = drawn(
        agents, arrivals="closed:users=1,think=0", sessions="recorded:order=file,begin_least=0.8,begin_most=0.8,count=1"
    )

    assert [("warm-up", 300, 1, [], 0.0), (None, 350, 8, [0], 100.0)] == rows(
        table, "tag", "prompt_tokens", "output_tokens", "after", "delay_s"
    )
    assert {
        "before the start of a session in the middle": 4,
        "of sessions that were not drawn": 3,
    } == loaded.provenance["left_out"]
    assert {"to warm the cache": 1} == loaded.provenance["added"]
    assert "1" == loaded.warmup
    assert 8 + 1 - 7 == len(table)


def test_a_start_among_sub_agents_goes_back_to_a_turn_of_the_session(agents: str) -> None:
    """A sub-agent would be resumed, whose parent waits for it in vain."""
    spec = "recorded:order=file,begin_least=0.5,begin_most=0.5,count=1"
    _, table = drawn(agents, arrivals="closed:users=1,think=0", sessions=spec)

    assert 5 == len(table)
    assert "warm-up" not in table["tag"].to_pylist()


def test_steady_users_are_in_the_middle_of_long_sessions_and_never_run_out(agents: str) -> None:
    """Users who all begin a session at once would have short contexts together, and then long ones."""
    counts, begun = [], 0
    for seed in range(40):
        loaded, table = drawn(agents, arrivals="closed:users=4,think=0,steady=on", duration_s=1000.0, seed=seed)
        warm = table["tag"].to_pylist().count("warm-up")
        begun += warm
        counts.append(len(table))
        ends = {}
        for row, (at_s, waits) in enumerate(rows(table, "scheduled_s", "after")):
            user = row if not waits else ends[waits[0]][0]
            ends[row] = (user, at_s)
        last = {user: max(at_s for one, at_s in ends.values() if one == user) for user, _ in ends.values()}
        assert 4 == len(last)
        assert 0 == loaded.provenance["left_out"].get("of sessions that were not drawn", 0) or len(table) > 4

    assert begun > 40  # of 160 first sessions
    assert len(set(counts)) > 5


def test_arrivals_of_a_time_find_sessions_under_way(agents: str) -> None:
    """A run of minutes would begin without sessions, and have a quarter of its rate."""
    options = {"arrivals": "poisson", "rate_rps": 0.3 * 8 / 3, "turns": "think-only"}
    begun, under_way = len(drawn(agents, **options)[1]), []
    for seed in range(30):
        loaded, table = drawn(agents, **options, duration_s=200.0, seed=seed)
        first = {session: row for row, session in reversed([*enumerate(table["session"].to_pylist())])}
        under_way.append(len(first) - 3)
        facts: dict[str, Any] = dict(loaded.provenance)
        turns, after = table["turn"].to_pylist(), table["after"].to_pylist()

        assert all((turns[row] > 0) == (session >= 3) and not after[row] for session, row in first.items())
        assert "bench warm-up" not in table["tag"].to_pylist()
        assert begun == 8 == len(table) - facts.get("added", {}).get("when sessions come again", 0)
        assert pytest.approx(0.8) == loaded.rate_rps
    assert 0.3 * (135 + 11) / 3 == pytest.approx(np.mean(under_way), rel=0.2)


def test_sessions_share_their_common_prefix(agents: str) -> None:
    """Every session would pay for the tools and the system prompt that all have in common."""
    _, table = drawn(agents, sessions="recorded:common=0.5,order=file")
    ids = table["prefix_ids"].to_pylist()

    assert 1 == len({names[0] for names in (ids[0], ids[3], ids[5], ids[7])})
    assert ids[1][0] != ids[0][0]  # half of 64 tokens is no block
    assert ids[0][1:] == [2, 3]
    assert ids[5][1:] == [22]


def test_a_prompt_that_begins_otherwise_shares_nothing_common(agents: str, tmp_path: Path) -> None:
    """A prompt with another system prompt would hit the cache, which it did not."""
    table = pq.read_table(agents)
    ids = table["prefix_ids"].to_pylist()
    ids[4] = [77, 2, 3, 4, 5]
    pq.write_table(
        table.set_column(table.column_names.index("prefix_ids"), "prefix_ids", pa.array(ids)),
        file := tmp_path / "b.parquet",
    )
    _, replayed = drawn(str(file), sessions="recorded:common=1,order=file")

    assert [77, 2, 3, 4, 5] == replayed["prefix_ids"].to_pylist()[4]


def test_other_traces_are_replayed_by_their_think_times(tmp_path: Path) -> None:
    """A trace of chats could not be replayed by users who wait for their answers."""
    file = tmp_path / "chats.csv"
    file.write_text("at_s,prompt_tokens,output_tokens,session\n0,10,5,a\n2,20,5,b\n9,30,5,a\n", encoding="utf-8")
    loaded, table = drawn(str(file), turns="think-only")

    assert [(0.0, [], 0.0), (2.0, [], 0.0), (9.0, [0], 9.0)] == rows(table, "scheduled_s", "after", "delay_s")
    assert "from request to request" in loaded.provenance["think_times"]


def test_a_list_of_lengths_takes_any_arrivals(tmp_path: Path) -> None:
    """A trace without times could be replayed at no rate."""
    file = tmp_path / "lengths.csv"
    file.write_text("at_s,prompt_tokens,output_tokens\n0,10,5\n0,20,5\n0,30,5\n", encoding="utf-8")
    loaded, table = drawn(str(file), arrivals="constant", rate_rps=2.0, sessions="recorded:order=file")

    assert [0.5, 1.0, 1.5] == pytest.approx(
        np.diff(table["scheduled_s"], prepend=table["scheduled_s"][0].as_py() - 0.5).cumsum()
    )
    assert [10, 20, 30] == table["prompt_tokens"].to_pylist()
    assert 2.0 == loaded.rate_rps


def test_order_and_think_times_are_exact_in_a_run(agents: str) -> None:
    """The simulator would send a request before an answer that it needs, or after another think time."""
    loaded = replay.load(agents, arrivals="closed:users=2,think=3s,law=fixed", turns="think-only:cap=50s")
    schedule = Schedule.draw(loaded.workload, seed=0)
    sim = Sim(model="llama3.1-8b", hardware="h100", prefix_cache="on")
    records = {r.request_id: r for r in sim.simulate(schedule.planned(), Releases(schedule, lambda _: None))}
    child, parent = links(schedule.table)

    assert 8 == len(records)
    for row, delay in enumerate(schedule.table["delay_s"].to_pylist()):
        ends = [records[int(p)].token_s[-1] for p in parent[child == row]]
        if ends:
            assert max(ends) + delay == records[row].sent_s


@pytest.mark.parametrize(("options", "closed"), [
    ({"arrivals": "closed:users=2,think=0"}, True), ({"arrivals": "poisson", "rate_rps": 1.0}, False),
])  # fmt: skip
def test_users_of_sessions_are_a_closed_loop_in_the_result(agents: str, options: dict[str, Any], closed: bool) -> None:
    """The users of a run would be reported as a rate of sessions, all of which come at one instant."""
    schedule = Schedule.draw(replay.load(agents, **options).workload, seed=0)
    records = [*Sim(model="llama3.1-8b", hardware="h100").simulate(schedule.planned(), Releases(schedule, print))]
    found = fidelity(schedule.table, to_table(records), Law(None)).follow_ups

    assert found is not None
    assert closed == found.closed
