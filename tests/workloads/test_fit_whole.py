"""Whole sessions: what their prompts share is fitted and drawn, and halves of real traces predict each other."""

import json
import re
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from harness.errors import UsageError
from harness.stats import arrivals
from workloads import replay, trace_rows, traces
from workloads.fit import _laws, _verdict, _whole, _whole_draw, _whole_quality, command
from workloads.fit._whole_quality import Reuse
from workloads.fit.model import Model
from workloads.session_times import links_of
from workloads.trace_tools import cache

WEKA, MOONCAKE = "agentic/weka", "traces/mooncake/conversation_trace.jsonl"
BLOCK = 16


def made(rows, *, clock=None, **columns):
    """A trace of (at_s, session, blocks) in order of time; a block has 16 tokens, an answer 8."""
    at_s, session, blocks = zip(*rows, strict=True)
    names = {"session": pa.array(session, pa.int64())} if session[0] is not None else {}
    table = pa.table({
        "at_s": np.array(at_s, float),
        "prompt_tokens": [BLOCK * len(part) + 3 for part in blocks],
        "output_tokens": [8] * len(rows),
        "prefix_ids": pa.array(blocks, pa.list_(pa.int64())),
        **names,
        **columns,
    })  # fmt: skip
    facts = {"file": "made.parquet", "requests": len(rows), **({"clock": clock} if clock else {})}
    return traces.Trace(table, BLOCK, facts)


def chats(sessions=400, seed=0, span_s=20_000.0, gap_s=300.0, more=0.75, common=4):
    """Sessions that grow by 1 to 8 blocks a turn behind `common` blocks of all, cut where the trace ends."""
    rng = np.random.default_rng(seed)
    rows, block = [], common
    for number, start_s in enumerate(np.sort(rng.random(sessions)) * span_s):
        at_s, ids = float(start_s), list(range(common))
        while at_s < span_s:
            grown = int(rng.integers(1, 9))
            ids = [*ids, *range(block, block + grown)]
            block += grown
            rows.append((at_s, number, ids))
            if rng.random() > more:
                break
            at_s += float(rng.exponential(gap_s))
    return sorted(rows, key=lambda row: row[0])


@pytest.fixture(scope="module")
def model():
    """What is fitted to these sessions; fitting takes a second."""
    return command.fit(made(chats(seed=2)), mode="parametric", seeds=0)


def unnamed(rows):
    return [(at_s, None, ids) for at_s, _, ids in rows]


def measured(trace, own_clocks=False):
    return _whole.measure(_whole.chains_of(trace), None if own_clocks else float(trace.at_s[-1]))


def mean_of(law):
    """Mean of a law, between many ranks."""
    return float(_laws.at(law, (np.arange(100_000) + 0.5) / 100_000).mean())


def test_sessions_are_found_by_the_deepest_block_that_came_before():
    """Two turns of one user would be two users, or all users one because of the system prompt."""
    lists = [[0, 1, 2], [0, 5, 6], [0, 1, 2, 3], [0, 5, 7], [0, 9], [0, 1, 2, 3, 4]] + [[0, 100 + i] for i in range(6)]
    found = _whole.chains_of(made([(float(i), None, ids) for i, ids in enumerate(lists)]))

    assert [3, 2, 1, 1, 1, 1, 1, 1, 1] == np.bincount(found.session).tolist()
    assert [0, 2, 5, 1, 3] == found.rows[:5].tolist()
    assert [0, 3, 4, 0, 2] == found.kept[:5].tolist()
    assert {1} == set(found.common.tolist())


def test_sub_agents_do_not_come_between_the_turns_of_their_session():
    """A session would seem to restart whenever a sub-agent asks something."""
    rows = [(0.0, 7, [1, 2]), (1.0, 7, [8, 9]), (2.0, 7, [1, 2, 3]), (3.0, 4, [5])]
    found = _whole.chains_of(made(rows, agent=[None, "sub", None, None]))

    assert [3, 0, 2] == found.rows.tolist()
    assert [0, 0, 2] == found.kept.tolist()


def test_a_law_keeps_quantiles_and_the_mean_of_a_long_tail():
    """Contexts would grow by a few giant steps, or by none."""
    values = np.random.default_rng(3).lognormal(6, 1.5, 20_000)
    law = _laws.law(values)

    assert np.quantile(values, 0.5) == pytest.approx(float(_laws.at(law, 0.5)), rel=0.02)
    assert values.mean() == pytest.approx(mean_of(law), rel=0.05)


def test_a_law_of_counts_gives_each_count_its_share():
    """Most chats have one turn: interpolated turns would be two or three."""
    drawn = np.floor(
        _laws.at(_laws.counted(np.array([0.0, 0.7, 0.9, 1.0])), np.random.default_rng(0).random(50_000)) + 0.5
    )

    assert [0.7, 0.2, 0.1] == pytest.approx([np.mean(drawn == turns) for turns in (1, 2, 3)], abs=0.01)


@pytest.mark.parametrize("seed", range(3))
def test_turns_that_the_end_of_a_trace_hides_are_counted(seed):
    """Sessions of 4 turns would have 3 in a trace of half an hour, and as much less reuse."""
    rows = chats(1500, seed, span_s=1800.0, gap_s=400.0)
    seen = np.bincount([session for _, session, _ in rows]).mean()

    assert seen < 2.9
    turns = _whole_draw.turns_at(measured(made(rows)), (np.arange(1000) + 0.5) / 1000)
    assert 4.0 == pytest.approx(turns.mean(), abs=0.6)


def test_sessions_that_differ_are_not_taken_for_turns_that_differ():
    """Each session would be an average one: neither small ones nor large ones."""
    rng = np.random.default_rng(5)
    session = np.repeat(np.arange(200), 20)
    own = _laws.normal_scores(rng.standard_normal(200)[session] * 0.6 + rng.standard_normal(4000) * 0.8)
    alike = rng.standard_normal(4000)

    assert 0.6 == pytest.approx(_laws.by_session(own, session, 200)[0]["between"], abs=0.06)
    assert _laws.by_session(alike, session, 200)[0]["between"] < 0.15


def test_compactions_are_found_and_drawn():
    """Contexts would grow past what an agent takes, or be cut at random."""
    rows, block = [], 100
    for session in range(60):
        ids = list(range(20))
        for turn in range(30):
            grown = 10 + session % 5
            size = len(ids) + grown
            ids = [*ids, *range(block, block + grown)] if size <= 200 else [*range(20), *range(block, block + 20)]
            block += grown + 20
            rows.append((1000.0 * session + turn, session, ids))
    whole = measured(made(rows, clock="session"), own_clocks=True)
    drawn = _whole_draw.drawn(Model((), {"file": "made"}, {}, whole=whole), sessions=100, seed=2)
    blocks = drawn.table["prefix_ids"].combine_chunks().value_lengths().to_numpy()

    assert [190 * BLOCK, 200 * BLOCK] == pytest.approx(np.array(whole["limit_tokens"])[[0, -1]], abs=14 * BLOCK)
    assert {20.0} == set(whole["kept_blocks"])
    assert blocks.max() <= 201
    assert np.mean([len(part) for _, _, part in rows]) == pytest.approx(blocks.mean(), rel=0.1)


@pytest.mark.parametrize("named", [True, False])
def test_a_draw_reuses_and_hits_like_its_trace(named):
    """A cache would look useless, or better than it is."""
    rows = chats(seed=11)
    trace = made(rows if named else unnamed(rows))
    model = command.fit(trace, mode="parametric", seeds=2)
    found = model.quality["sessions"]

    assert found["reuse"]["trace"] > 0.5
    assert found["reuse"]["trace"] == pytest.approx(found["reuse"]["model"], abs=0.05)
    assert found["lru"]["trace"] == pytest.approx(found["lru"]["model"], abs=0.08)
    assert found["ks"]["turns"] < 0.08 and found["ks"]["prompt"] < 0.12
    assert "Prefix reuse agrees with the trace" in str(model.lines())

    far = {"lru": {**found["lru"], "model": [share + 0.031 for share in found["lru"]["trace"]]}, "ks": {"output": 0.3}}
    text = " ".join(
        _verdict.sentences({**model.quality, "sessions": {**found, **far, "ks": {**found["ks"], **far["ks"]}}})
    )
    limit = found["ks_limit"]["output"]
    assert 0.05 <= limit < 0.15
    assert "Prefix reuse DIFFERS FROM the trace" in text and "(off by at most 3.1 points, limit 3)" in text
    assert f"The law of outputs of whole sessions DIFFERS FROM the trace: KS distance 0.300 (limit {limit:.3f}" in text
    assert {check["name"] for check in model.quality["checks"]} >= {
        "Prefix reuse",
        "The law of pauses of whole sessions",
    }


def test_a_draw_names_each_block_of_each_prompt_and_follows_the_turn_before():
    """A simulator would count blocks that are not there, or send an answer before its question."""
    model = command.fit(made(chats(seed=4)), mode="parametric", seeds=0)
    drawn = _whole_draw.drawn(model, requests=1500, seed=3)
    table, again = drawn.table, _whole_draw.drawn(model, requests=1500, seed=3)
    parent = np.asarray(table["parent"].fill_null(-1))
    session = np.asarray(table["session"])
    blocks = table["prefix_ids"].combine_chunks().value_lengths().to_numpy()

    assert len(drawn) == 1500
    assert table.equals(again.table) and not table.equals(_whole_draw.drawn(model, requests=1500, seed=4).table)
    assert (np.diff(table["at_s"]) >= 0).all()
    assert (np.asarray(table["prompt_tokens"]) // BLOCK == blocks).all()
    assert (parent < np.arange(1500)).all()
    assert (session[parent[parent >= 0]] == session[parent >= 0]).all()
    assert {(0, 1, 2, 3)} == {tuple(ids[:4]) for ids in table["prefix_ids"].to_pylist() if len(ids) >= 4}


def test_a_draw_lasts_as_long_and_comes_as_often_as_requested(model):
    """`--rate` or `--duration` would be ignored."""
    slow, fast = (_whole_draw.drawn(model, duration_s=50_000.0, rate_rps=rate, seed=1) for rate in (0.05, 0.2))

    assert slow.at_s[-1] < 50_000
    assert (0.05, 0.2) == pytest.approx((slow.mean_rate_rps, fast.mean_rate_rps), rel=0.15)
    assert 0.2 * 5000 == pytest.approx(len(_whole_draw.drawn(model, duration_s=5000.0, rate_rps=0.2, seed=1)), rel=0.35)


def test_a_cause_that_the_trace_names_is_kept_apart():
    """A person's hours would be mixed with a tool's seconds at random."""
    rows = chats(600, seed=8)
    cause = ["person" if i % 3 == 0 else "tool" for i in range(len(rows))]
    delay_s = [500.0 if one == "person" else 5.0 for one in cause]
    whole = measured(made(rows, clock="session", cause=cause, delay_s=delay_s), own_clocks=True)
    parts = {part["cause"]: part for part in whole["pause"]["causes"]}

    assert {"person", "tool"} == parts.keys()
    assert ({500.0}, {5.0}) == tuple(set(parts[name]["law"]) for name in ("person", "tool"))
    assert 1 / 3 == pytest.approx(parts["person"]["share"], abs=0.05)
    assert 1.0 == whole["pause"]["step_s"]


def test_a_model_file_replays_whole_sessions(tmp_path, model):
    """What was fitted could not be run."""
    model.save(file := tmp_path / "model.json")
    loaded = replay.load(str(file), sessions="fitted:count=50", arrivals="closed:users=4,think=0", seed=5)
    rows = pa.concat_tables([*loaded.workload.start(np.random.default_rng(0))])

    assert model.whole == Model.load(file).whole
    assert 50 == len(rows["session"].unique())
    assert len(rows) == loaded.requests
    assert (rows["after"].combine_chunks().value_lengths().to_numpy() == 0).sum() == 4
    assert cache.replay(rows).ratio > 0.5


def test_a_model_without_whole_sessions_says_why(tmp_path):
    """A user would look for the mistake in the command line."""
    plain = made(unnamed(chats(seed=2)))
    plain = traces.Trace(plain.table.drop_columns(["prefix_ids"]), BLOCK, plain.facts)
    command.fit(plain, mode="parametric", seeds=0).save(file := tmp_path / "model.json")

    with pytest.raises(UsageError, match="names neither sessions"):
        replay.load(str(file))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("turns", [1.0, 2.0]), ("correlation", [[1.0]]), ("largest_tokens", 1e300), ("growth", None), ("pause", {}),
        ("roots", [{"share": 1.0, "blocks": 1e12, "like": 0, "same": 0}]), ("cuts", []), ("block_tokens", 0),
    ],
)  # fmt: skip
def test_damaged_figures_are_one_sentence(tmp_path, model, name, value):
    """A file from outside would end in a traceback, or take all memory."""
    model.save(file := tmp_path / "model.json")
    stored = json.loads(file.read_text())
    stored["whole_sessions"][name] = value
    file.write_text(json.dumps(stored))

    with pytest.raises(UsageError, match="is a damaged model"):
        Model.load(file)


def test_what_whole_sessions_leave_out_is_in_the_notes():
    """Sub-agents and classes of traffic would vanish without a word."""
    rows = chats(seed=9)
    agent = ["sub" if i % 40 == 39 else None for i in range(len(rows))]
    tag = ["api" if i % 2 else "chat" for i in range(len(rows))]
    text = str(command.fit(made(rows, agent=agent, tag=tag), mode="parametric", seeds=0).lines())

    assert re.search(r"too few sub-agents are left out of whole sessions: 3\d requests", text)
    assert "whole sessions have no tags; those of the trace are" in text


def held_out(fitted, other, seeds):
    """Draws of a model of one part beside the other part, and the parts beside each other: KS distances of turns,
    pauses, prompts and outputs, the share of blocks that repeat an earlier one, and of hits in each of five caches."""
    model = command.fit(fitted, mode="parametric", seeds=0)
    cached = Reuse.of(other, own_clocks=model.whole["own_clocks"])
    known = _whole_quality.numbers(other)

    def apart(trace):
        drawn = _whole_quality.numbers(trace)
        ks = [arrivals.distance(known[name], drawn[name]) for name in _whole_quality.NUMBERS]
        return SimpleNamespace(ks=ks, reuse=_whole_quality.share_again(trace.table), lru=cached.curve(trace))

    return [apart(_whole_quality.like(model, other, seed)) for seed in seeds], apart(fitted), cached.curve(other)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [2031, 2032, 2033])
def test_half_of_the_agents_sessions_predict_the_other_half(shared_data, seed):
    """The sessions drawn would be of other agents: other contexts, pauses or caches. Seeds are not those tried on."""
    trace = traces.read(str(shared_data / WEKA))
    units, sessions = trace_rows.conversations(trace.table)
    inside = np.isin(units, np.random.default_rng(seed).permutation(sessions)[: sessions // 2])
    one, other = (trace_rows.rows_of(trace, np.flatnonzero(rows)) for rows in (inside, ~inside))
    [draw], half, lru = held_out(one, other, [seed])
    turns, pause, prompt, output = draw.ks

    assert turns < half.ks[0] + 0.15
    assert pause < half.ks[1] + 0.08
    assert prompt < half.ks[2] + 0.20
    assert output < half.ks[3] + 0.10
    assert _whole_quality.share_again(other.table) == pytest.approx(draw.reuse, abs=0.03)
    assert np.abs(np.subtract(draw.lru, lru)).max() < np.abs(np.subtract(half.lru, lru)).max() + 0.2


@pytest.mark.nightly
@pytest.mark.parametrize("late", [False, True])
def test_half_of_a_trace_predicts_the_reuse_of_the_other_half(shared_data, late):
    """A cache sized by the generated trace would be too small or too large. Seeds are not those tried on."""
    parts = [traces.read(str(shared_data / MOONCAKE), None, traces.Slice(*part)) for part in ((0, 1800), (1800, None))]
    one, other = parts[::-1] if late else parts
    draws, half, lru = held_out(one, other, [77, 78])
    reuse = np.median([draw.reuse for draw in draws])

    assert _whole_quality.share_again(other.table) == pytest.approx(reuse, abs=0.03)
    assert lru == pytest.approx(np.median([draw.lru for draw in draws], axis=0), abs=0.05)
    assert all(draw.ks[i] < half.ks[i] + 0.06 for draw in draws for i in range(4))


def test_a_quality_is_measured_on_any_other_trace(model):
    """A fit could only be judged by what it was fitted to."""
    other = made(chats(seed=21, more=0.3))
    found = _whole_quality.measure(model, other, (1.0, 10.0), draws=2)

    assert found["ks"]["turns"] > 0.2
    assert found["reuse"]["model"] > found["reuse"]["trace"] + 0.1


def test_prompts_of_a_session_that_names_no_blocks_begin_with_those_before():
    """A cache would find nothing in a chat, or what was never sent; or requests outside of sessions would be chats."""
    columns = {
        "at_s": np.arange(6.0),
        "prompt_tokens": [40, 16, 90, 5, 33, 64],
        "output_tokens": [1] * 6,
        "session": pa.array([7, 3, 7, None, 7, 3], pa.int64()),
    }
    trace = traces.Trace(pa.table(columns), 512, {})
    found = _whole.with_blocks(trace)
    ids = found.table["prefix_ids"].to_pylist()
    few = traces.Trace(trace.table.set_column(3, "session", pa.array([1, 1, *[None] * 4], pa.int64())), 512, {})

    assert (BLOCK, [40, 16, 90, 33, 64]) == (found.block_tokens, found.table["prompt_tokens"].to_pylist())
    assert [2, 1, 5, 2, 4] == [len(one) for one in ids]
    assert ids[0] == ids[2][:2] and ids[1] == ids[4][:1]
    assert not set(ids[3]) & set(ids[2])  # shorter: its history was dropped
    assert not set(ids[2]) & set(ids[4])
    assert _whole.with_blocks(few) is few


def test_a_draw_has_its_rate_from_the_first_half_on(model):
    """Sessions would begin as fast as requests come, and their turns later come on top of them."""
    drawn = [_whole_draw.drawn(model, duration_s=3600.0, rate_rps=1.0, seed=seed) for seed in range(3)]
    halves = np.array([np.histogram(one.at_s, 2, (0, 3600))[0] for one in drawn])

    assert [1800, 1800] == pytest.approx(halves.mean(axis=0).tolist(), rel=0.05)
    assert all(abs(rows.sum() / 3600 - 1) < 0.05 for rows in halves)


def agents_at_work(sessions=60, seed=0, background=False, names=True):
    """Sessions of 8 turns; after the third and the fifth two agents of 3 turns start, for which the next turn waits."""
    rng = np.random.default_rng(seed)
    rows, parent, joins, agent, block, now_s = [], [], [], [], 1000, 0.0
    for session in range(sessions):
        ids, last, due = list(range(10)), None, []
        for turn in range(8):
            ids = [*ids, block]
            block += 1
            rows.append((now_s, session, ids))
            parent.append(last)
            joins.append([] if background else due)
            agent.append(None)
            last, due = len(rows) - 1, []
            ends_s = now_s + 5.0
            for number in (1, 2) if turn in (2, 4) else ():
                own, before = [*ids[:6], *range(block, block + 4)], last
                block += 4
                for step in range(3):
                    rows.append((now_s + 6.0 + 7.0 * step + number / 10, session, own[: 8 + step]))
                    parent.append(before)
                    joins.append([])
                    agent.append(f"helper_{turn}_{number}" if names else None)
                    before = len(rows) - 1
                due.append(before)
                ends_s = now_s + 30.0
            now_s = ends_s + float(rng.exponential(3.0)) + 0.5
    order = np.argsort([at_s for at_s, _, _ in rows], kind="stable").tolist()
    place = {row: i for i, row in enumerate(order)}
    columns = {
        "parent": pa.array([None if parent[i] is None else place[parent[i]] for i in order], pa.int64()),
        "joins": pa.array([[place[j] for j in joins[i]] for i in order], pa.list_(pa.int64())),
        "api_s": [5.0] * len(rows),
        **({"agent": pa.array([agent[i] for i in order], pa.string())} if names else {}),
    }
    return made([rows[i] for i in order], clock="session", **columns)


@pytest.mark.parametrize(("background", "names"), [(False, True), (True, True), (False, False)])
def test_branches_of_sessions_are_drawn_with_their_starts_and_joins(background, names):
    """Agents at work side by side would be drawn as none, and their sessions as one request after the other."""
    trace = agents_at_work(background=background, names=names)
    model = command.fit(trace, mode="parametric", seeds=0)
    drawn = _whole_draw.drawn(model, sessions=200, seed=1)
    again = [_whole.measure(_whole.chains_of(one), None) for one in (trace, drawn)]

    for figures in again:
        agents = figures["agents"]
        # without names the first of two goes on with its session, and the other one is the branch
        assert [2 if names else 1, 3] == [round(mean_of(law)) for law in (agents["each"], agents["chains"]["turns"])]
        assert (8 if names else 14) == pytest.approx(mean_of(figures["turns"]), abs=0.1)
        assert 0.45 == pytest.approx(mean_of(agents["kept"]), abs=0.1)
        assert (0.0 if background else 1.0) == agents["joined"]
    assert len(trace) / 60 == pytest.approx(len(drawn) / 200, rel=0.1)
    assert "left out" not in str(model.lines())

    table, links = drawn.table, links_of(drawn.table)
    ended_s, delay_s = drawn.at_s + np.asarray(table["api_s"]), np.asarray(table["delay_s"])
    waiting = np.flatnonzero(np.diff(links.starts))
    due_s = [ended_s[links.of(row)].max() + delay_s[row] for row in waiting]
    assert due_s == pytest.approx(drawn.at_s[waiting])
    assert background or np.sum(np.diff(links.starts) > 1) > 350
