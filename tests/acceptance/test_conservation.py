"""The rows on what may never be lost: they hold of a run, and fail of the same run with one thing wrong."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from acceptance.topics import conservation
from acceptance.topics.conservation import Seen, watched
from backends.serving.journal import Decision


@pytest.fixture(scope="module")
def run() -> Seen:
    """A run that preempts."""
    return watched("vllm-v1:budget=48,max_seqs=8", conservation.MEMORIES[0], blocks=40)


def steps(run: Seen, **changed: Callable[[list[Any]], list[Any]]) -> Seen:
    """The run with some columns of its steps changed."""
    return replace(run, steps={**run.steps, **{name: change(run.steps[name]) for name, change in changed.items()}})


def lost(run: Seen) -> Seen:
    """A request never ends."""
    return replace(run, records=run.records[:-1])


def doubled(run: Seen) -> Seen:
    """A request ends twice."""
    return replace(run, records=[*run.records, run.records[0]])


def early(run: Seen) -> Seen:
    """A first token comes when its request does."""
    first = run.records[0]
    return replace(run, records=[replace(first, token_s=[first.scheduled_s, *first.token_s[1:]]), *run.records[1:]])


def twice(run: Seen) -> Seen:
    """A sequence is twice in a batch."""
    return replace(run, decisions=[*run.decisions, Decision((0, 0), (), ())])


def uncounted(run: Seen) -> Seen:
    """A step computes one token more than it reports."""
    return steps(run, prefill_tokens=lambda tokens: [tokens[0] + 1, *tokens[1:]])


def overdrawn(run: Seen) -> Seen:
    """More blocks are in use than there are."""
    return steps(run, free_blocks=lambda free: [-1, *free[1:]])


def idle(run: Seen) -> Seen:
    """The second step begins late."""
    return steps(run, start_s=lambda start: [start[0], start[1] + 1e-3, *start[2:]])


@pytest.mark.parametrize(
    ("damage", "broken"),
    [(lost, "_lost"), (doubled, "_lost"), (early, "_too_early"), (twice, "_misformed"), (uncounted, "_unaccounted"),
     (overdrawn, "_overdrawn"), (idle, "_idle")],
)  # fmt: skip
def test_a_row_fails_where_something_is_wrong(run, damage, broken):
    """A row that cannot fail says nothing."""
    judge = getattr(conservation, broken)

    assert not judge(run)
    assert judge(damage(run))


def test_the_run_is_one_in_which_things_could_go_wrong(run):
    """Nothing is proved of memory that never runs short."""
    assert sum(record.preemptions for record in run.records) > 0
    assert max(run.steps["waiting"]) > 0
