"""Metrics of a whole run on tables whose values are counted by hand."""

from dataclasses import replace

import numpy as np
import pytest

from harness import registry
from harness.api import Exchange, RequestRecord, RunTables, SentPrompt, Step
from harness.data.records import http_table, steps_table, to_table
from harness.errors import UsageError
from harness.metrics.measure import run_metrics
from harness.metrics.objective import parse_slo

NAMES = registry.names("run_metrics")


def step(replica, start_s, end_s, running, free):
    return Step(replica, start_s, end_s, 0, running, 100, 0, running, free)


def tables(ends_s=(1.0,), *, steps=(), exchanges=None, pieces=1, step_w=(), **columns):
    """Requests due at 0 that end then, with the steps cut into pieces."""
    records = [
        RequestRecord(
            i, 0.0, 0.0, [0.5, end_s], None, 10, 2, columns.get("requested", [2] * len(ends_s))[i],
            columns.get("status", ["ok"] * len(ends_s))[i], exchange=None if exchanges is None else exchanges[i],
        ) for i, end_s in enumerate(ends_s)
    ]  # fmt: skip
    cut = np.array_split(np.arange(len(steps)), pieces)
    return RunTables(
        to_table(records),
        lambda *_: (steps_table([steps[i] for i in piece]) for piece in cut if len(piece)),
        None if exchanges is None else http_table(records),
        step_w=step_w,
    )


def value(name, run):
    return run_metrics()[name].of(run).tolist()


@pytest.mark.parametrize("pieces", [1, 3])
def test_energy_is_the_limit_of_the_gpus_while_steps_run(pieces):
    """A side with other GPUs would cost as much as the first, and idle time as much as work."""
    rows = [step(0, 0, 1, 1, 90), step(1, 2, 5, 1, 90), step(2, 2, 4, 1, 90)]  # the last one was added later
    run = tables([1.0, 2.0], steps=rows, pieces=pieces, step_w=(700.0, 300.0))

    assert [(700 + 3 * 300 + 2 * 300) / 4] == value("energy", run)
    assert [] == value("energy", tables([1.0], steps=rows))


def test_answer_comes_after_reasoning():
    """A server that streams reasoning apart, one that only counts it, one without, and an answer cut at the budget."""
    exchanges = [
        Exchange(first_content_s=3.0),
        Exchange(first_content_s=0.5, reasoning_tokens=7),
        Exchange(first_content_s=0.5, reasoning_tokens=0),
        Exchange(first_content_s=None, reasoning_tokens=9),
    ]
    run = tables([4.0, 4.0, 4.0, 4.0], exchanges=exchanges)

    assert [3.0, 0.5] == value("ttft_answer", run)
    assert [] == value("ttft_answer", tables([4.0]))


@pytest.mark.parametrize("name", NAMES)
def test_a_metric_of_a_run_keeps_the_contract(name):
    """`bench explain` and every summary read these."""
    metric = registry.make("run_metrics", name)
    run = tables([])

    assert metric is run_metrics()[metric.name]
    assert np.empty(0).tolist() == metric.of(run).tolist()
    assert np.float64 == metric.of(tables([1.0, 2.0, 3.0], requested=[1, 2, 3], steps=[step(0, 0, 1, 1, 5)])).dtype
    assert "Source:" in metric.about
    assert metric.unit


def test_no_slo_bounds_a_run():
    """A share would be read as seconds."""
    with pytest.raises(UsageError, match="No latency metric named 'working_set'"):
        parse_slo("working_set=0.1")


def prompts(*rows):
    """Prompts at these times, of these blocks of four tokens; the last value tells whether they are measured."""
    found = [SentPrompt(at_s, np.array(blocks), 4, 4 * len(blocks) + 1, 3, measured) for at_s, blocks, measured in rows]
    return replace(tables([1.0] * len(rows)), prompts=lambda: iter(found))


def test_what_came_before_counts_prompts_of_the_warm_up_and_stops_at_the_first_new_block():
    """A cache could not have found a block that stands behind a new one, and would have kept those of the warm-up."""
    run = prompts((0.0, [1, 2, 3], False), (1.0, [1, 2, 9], True), (2.0, [1, 7, 3], True))

    assert [pytest.approx((2 + 1) * 4 / 26)] == value("cache_best", run)
    assert [] == value("cache_best", tables())


def test_what_came_before_counts_answers_to_the_last_token_where_a_follow_up_has_them():
    """Twice the prefill that a chat needs would look like all that a cache could save."""
    found = [
        SentPrompt(0.0, np.array([1, 2, 3, 4]), 4, 6, 7, True),
        SentPrompt(1.0, np.array([1, 2, 3, 4]), 4, 15, 2, True),
    ]
    run = replace(tables([1.0] * 2), prompts=lambda: iter(found))

    assert [13 / 21] == value("cache_best", run)
    assert [6 / 21] == value("cache_prompts", run)
    assert [] == value("cache_prompts", prompts((0.0, [1, 2], True), (1.0, [1, 2], True)))


def test_the_working_set_is_of_whole_windows():
    """Half a window would make a cache look large enough."""
    run = prompts((0.0, [1, 2], True), (200.0, [2, 3], True), (310.0, [4], True), (650.0, [5, 6], True))

    assert [12.0, 4.0] == value("working_set", run)
    assert [8.0] == value("working_set", prompts((0.0, [1, 2], True)))


def test_blocks_count_with_the_tokens_that_they_have():
    """Where classes of traffic have blocks of other sizes, all would count as large as the largest."""
    found = [SentPrompt(float(at), np.array(ids), size, 100, 3, True) for at, ids, size in
             ((0, [1, 2], 4), (1, [1, 2], 4), (2, [7], 64), (3, [7], 64))]  # fmt: skip
    run = replace(tables([1.0] * 4), prompts=lambda: iter(found))

    assert [(2 * 4 + 64) / 400] == value("cache_best", run)
    assert [2 * 4 + 64.0] == value("working_set", run)


def test_what_the_cache_found_is_of_answers_that_tell():
    """Answers without a word about the cache would count as misses."""
    records = [
        RequestRecord(i, 0.0, 0.0, [0.5, 1.0], None, 10, 2, 2, "ok", cached_tokens=c) for i, c in enumerate((8, 0))
    ]
    run = replace(prompts((0.0, [1], True)), requests=to_table(records))

    assert [0.4] == value("cache_found", run)
    assert [] == value(
        "cache_found", replace(run, requests=to_table([replace(r, cached_tokens=None) for r in records]))
    )


def sessions(*rows):
    """Requests of sessions: session, turn, when due, when its two tokens came, tokens of 100 that were cached."""
    records = [
        RequestRecord(i, due_s, due_s, tokens, None, 100, 2, 2, "ok", session=session, turn=turn, cached_tokens=cached)
        for i, (session, turn, due_s, tokens, cached) in enumerate(rows)
    ]
    return replace(prompts((0.0, [1], True)), requests=to_table(records))


def test_what_agents_see_of_a_run():
    """Half of a session would pass for a short one, and prompts from the cache for work."""
    run = sessions(
        (0, 0, 0.0, [1.0, 1.5], 0), (0, 1, 3.5, [4.0, 4.1], 80), (1, 4, 1.0, [1.1, 1.2], 60),
        (2, 0, 9.0, [9.1, 9.2], 10), (3, 0, 2.0, [2.5, 2.6], 50), (3, 1, 3.6, [3.7, 3.8], 90),
    )  # fmt: skip

    # the first and the last of 1 and 2 were not both seen; the longest pause is 2 s
    assert [4.1, pytest.approx(1.8)] == value("session_time", run)
    assert [pytest.approx((100 + 20 + 40 + 90 + 50 + 10) / 9)] == value("new_prompt_tps", run)
    assert [pytest.approx(290 / 9)] == value("cached_prompt_tps", run)
    assert [pytest.approx(1 / np.quantile([0.5, 0.1, 0.1, 0.1, 0.1, 0.1], 0.9))] == value("slow_decile", run)
    assert [[], [], [], []] == [
        value(name, tables()) for name in ("session_time", "new_prompt_tps", "cached_prompt_tps", "slow_decile")
    ]


def test_tiers_count_together():
    """A quarter and an eighth of the prompts from two tiers, and 3 s of 4 loads."""
    tiers = [{"queried_tokens": 800, "hit_tokens": 200, "loads": 3, "wait_s": 1.0},
             {"queried_tokens": 800, "hit_tokens": 100, "loads": 1, "wait_s": 2.0}]  # fmt: skip
    run = replace(tables(), tiers=tiers)

    assert [0.375] == value("tier_hits", run)
    assert [0.75] == value("tier_wait", run)
    assert [] == value("tier_hits", tables())
