"""Pairing loses no run and takes none twice, whatever was stored."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from harness.experiments.capacity.capacity_json import CapacityAnswer
from harness.experiments.compare.pairing import Searched, match, schedule_of

RUNS = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from("ab"), st.sampled_from([1.0, 2.0])), min_size=1, max_size=8
)


def sources(side, rows):
    return [
        Searched(Path(f"{side}{i}"), {}, CapacityAnswer(spec={"policy": policy, "rate": rate}), seed)
        for i, (seed, policy, rate) in enumerate(rows)
    ]


@given(RUNS, RUNS)
def test_every_run_is_in_one_pair_or_alone(base_rows, head_rows):
    """A run that is counted twice makes the answer look surer than it is; one that is lost may be the bad one."""
    base, head = sources("base", base_rows), sources("head", head_rows)
    found = match(base, head)
    bases = [pair.base for pair in found.pairs] + [*found.alone_base]
    heads = [pair.head for pair in found.pairs] + [*found.alone_head]

    assert sorted(map(id, base)) == sorted(map(id, bases))
    assert sorted(map(id, head)) == sorted(map(id, heads))


@given(RUNS, RUNS)
def test_pairs_are_of_one_schedule_where_any_are(base_rows, head_rows):
    """A pair of two schedules compares traffic, not systems."""
    base, head = sources("base", base_rows), sources("head", head_rows)
    found = match(base, head)
    shared = {schedule_of(run) for run in base} & {schedule_of(run) for run in head}

    assert not shared or all(schedule_of(pair.base) == schedule_of(pair.head) for pair in found.pairs)
    for each in shared:
        least = min(sum(schedule_of(run) == each for run in side) for side in (base, head))
        assert least == sum(schedule_of(pair.base) == each for pair in found.pairs)


@given(RUNS)
def test_a_side_is_paired_with_itself(rows):
    """Comparing a folder with its copy must pair every run with its own copy, in any order."""
    base = sources("run", rows)
    pairs = match(base, [*reversed(base)]).pairs

    assert all((pair.base.seed, pair.base.info.spec) == (pair.head.seed, pair.head.info.spec) for pair in pairs)
    assert len(pairs) == len(base)
