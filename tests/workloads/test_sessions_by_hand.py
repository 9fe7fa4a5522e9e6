"""Sessions and timelines against the plainest possible loops over the same numbers."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from workloads.mixed import Streams, Timeline, earliest_s
from workloads.sessions.builtin import conversations
from workloads.sessions.compound import Compound

LENGTHS = st.tuples(st.integers(1, 40), st.integers(1, 40))


def streams(pairs: list[tuple[int, int]]) -> Streams:
    columns = np.array(pairs, np.int64).reshape(-1, 2).T
    rng = np.random.default_rng(0)
    return Streams(rng, rng, lambda n: (columns[0, :n], columns[1, :n]))


@settings(max_examples=150, deadline=None)
@given(st.data(), st.lists(st.integers(1, 6), min_size=1, max_size=5), st.none() | st.integers(1, 200))
def test_history_is_what_a_loop_over_the_turns_would_keep(
    data: st.DataObject, sizes: list[int], limit: int | None
) -> None:
    """If this failed, prompts would hold other tokens than the history that was kept."""
    pairs = data.draw(st.lists(LENGTHS, min_size=sum(sizes), max_size=sum(sizes)))
    drawn = conversations(np.array(sizes), streams(pairs), np.zeros, limit, 8)
    remaining, prompts = iter(pairs), []
    for size in sizes:
        history: list[int] = []  # tokens of each turn that is kept, its answer included
        for _ in range(size):
            new, answer = next(remaining)
            while limit is not None and history and sum(history) + new > limit:
                history.pop(0)
            prompts.append(sum(history) + new)
            history.append(new + answer)

    assert prompts == drawn.prompt_tokens.tolist()


@settings(max_examples=150, deadline=None)
@given(st.data(), st.lists(st.integers(1, 6), min_size=1, max_size=5), st.none() | st.integers(1, 200))
def test_prompts_share_blocks_if_and_only_if_they_begin_at_the_same_turn(
    data: st.DataObject, sizes: list[int], limit: int | None
) -> None:
    """If this failed, a cache would find text where there is none, or miss what is there."""
    pairs = data.draw(st.lists(LENGTHS, min_size=sum(sizes), max_size=sum(sizes)))
    drawn = conversations(np.array(sizes), streams(pairs), np.zeros, limit, 8)
    row = 0
    for size in sizes:
        new, answer = (np.array(x) for x in zip(*pairs[row : row + size], strict=True))
        before = np.concatenate(([0], np.cumsum(new + answer)))
        begins = [
            int(np.flatnonzero(before == before[k] + new[k] - drawn.prompt_tokens[row + k])[0]) for k in range(size)
        ]  # the turn at which the prompt of each turn begins
        ids = [
            set(range(f, f + n))
            for f, n in zip(drawn.first_block[row : row + size], drawn.blocks[row : row + size], strict=True)
        ]
        for i in range(size):
            for k in range(i):
                assert bool(ids[i] & ids[k]) == (size > 1 and begins[i] == begins[k])
        row += size


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=4),
    st.integers(1, 3),
    st.sampled_from(["context", "answers", "nothing"]),
    st.data(),
)
def test_prompts_of_a_task_hold_what_a_loop_over_its_stages_would(
    widths: list[int], count: int, inherit: str, data: st.DataObject
) -> None:
    """If this failed, later stages would be longer or shorter than what they were given."""
    size = sum(widths)
    pairs = data.draw(st.lists(LENGTHS, min_size=size * count, max_size=size * count))
    task = Compound("/".join(map(str, widths)), inherit=inherit)  # type: ignore[arg-type]  # sampled
    drawn = task.tasks(count, streams(pairs))
    remaining, expected, parents = iter(pairs), [], []
    for number in range(count):
        held, first = 0, number * size
        before: list[int] = []
        for width in widths:
            stage = [next(remaining) for _ in range(width)]
            expected += [held + new for new, _ in stage]
            parents += [before] * width
            before, first = list(range(first, first + width)), first + width
            answers, whole = sum(a for _, a in stage), sum(n + a for n, a in stage)
            held = {"context": held + whole, "answers": answers, "nothing": 0}[inherit]

    assert expected == drawn.prompt_tokens.tolist()
    assert parents == [list(range(p, p + n)) for p, n in zip(drawn.parent, drawn.parents, strict=True)]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 5), st.integers(1, 4), st.floats(0, 5)), min_size=1, max_size=12), st.data())
def test_a_timeline_is_a_sort_by_time_and_order_of_making(
    tasks: list[tuple[float, int, float]], data: st.DataObject
) -> None:
    """If this failed, requests would come out of order, or wait for others than their own."""
    start_s = np.sort(np.array([t for t, _, _ in tasks]))
    rows: list[tuple[float, int, int]] = []  # time, number of making, number of the one before
    for (_, turns, think_s), begin in zip(tasks, start_s.tolist(), strict=True):
        for turn in range(turns):
            rows.append((begin if turn == 0 else rows[-1][0] + think_s, len(rows), len(rows) - 1 if turn else -1))
    expected = sorted(rows)
    number_of = {made: i for i, (_, made, _) in enumerate(expected)}

    line, at, found = Timeline(), 0, []
    while at < len(tasks):
        until = min(len(tasks), at + data.draw(st.integers(1, 4)))
        made = [r for r in rows if sum(n for _, n, _ in tasks[:at]) <= r[1] < sum(n for _, n, _ in tasks[:until])]
        columns = {
            "at_s": np.array([t for t, _, _ in made]),
            "parent": np.array([p for _, _, p in made]),
            "parents": np.array([int(p >= 0) for _, _, p in made]),
        }
        found.append(line.add(columns, np.inf if until == len(tasks) else float(start_s[until - 1])))
        at = until

    assert [t for t, _, _ in expected] == np.concatenate([f["at_s"] for f in found]).tolist()
    assert list(range(len(rows))) == np.concatenate([f["id"] for f in found]).tolist()
    assert [number_of[p] for _, _, p in expected if p >= 0] == np.concatenate([f["after"] for f in found]).tolist()
    assert f"<Timeline 0 waiting, {len(rows)} given>" == repr(line)


def test_a_stage_is_as_early_as_the_last_of_those_it_waits_for() -> None:
    """If this failed, a join could be due before one of its parts."""
    tasks = Compound("2/1", tool_s=1.0).tasks(2, streams([(1, 1)] * 6))
    later = tasks._replace(delay_s=np.array([0, 0, 1.0, 0, 0, 1.0]))

    assert [5, 5, 6, 7, 7, 8] == earliest_s(later, np.repeat([5.0, 7.0], 3)).tolist()
