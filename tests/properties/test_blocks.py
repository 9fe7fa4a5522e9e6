"""The KV memory never loses, doubles or leaks a block."""

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from backends.serving.blocks import Blocks


class BlocksMachine(RuleBasedStateMachine):
    """Owners take, name, fork, write and give back blocks in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = Blocks(24, 4)
        self.owners: list[list] = []  # [count, table]

    @precondition(lambda self: self.blocks.free)
    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(1, self.blocks.free))
        self.blocks.take(count)
        self.owners.append([count, []])

    @precondition(lambda self: self.owners)
    @rule(data=st.data())
    def name(self, data: st.DataObject) -> None:
        owner = data.draw(st.sampled_from(self.owners))
        count = data.draw(st.integers(len(owner[1]), owner[0]))
        table = self.blocks.name(owner[1], count)
        assert count == len(table)

    @precondition(lambda self: self.owners)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        owner = data.draw(st.sampled_from(self.owners))
        self.blocks.name(owner[1], owner[0])
        self.owners.append([owner[0], self.blocks.fork(owner[1])])

    @precondition(lambda self: self.blocks.free and any(table for _, table in self.owners))
    @rule(data=st.data())
    def write(self, data: st.DataObject) -> None:
        owner = data.draw(st.sampled_from([o for o in self.owners if o[1]]))
        index = data.draw(st.integers(0, len(owner[1]) - 1))
        copied = self.blocks.writable(owner[1], index)
        if copied is not None:
            old, new = copied
            assert old != new == owner[1][index]

    @precondition(lambda self: self.owners)
    @rule(data=st.data())
    def give(self, data: st.DataObject) -> None:
        owner = self.owners.pop(data.draw(st.integers(0, len(self.owners) - 1)))
        self.blocks.give(*owner)

    @invariant()
    def whole(self) -> None:
        self.blocks.check()
        named = sum(len(table) for _, table in self.owners)
        assert named == self.blocks.references()
        distinct = {block for _, table in self.owners for block in table}
        unnamed = sum(count - len(table) for count, table in self.owners)
        assert self.blocks.total == self.blocks.free + len(distinct) + unnamed

    def teardown(self) -> None:
        for owner in self.owners:
            self.blocks.give(*owner)
        assert self.blocks.total == self.blocks.free


TestBlocksMachine = BlocksMachine.TestCase
TestBlocksMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_a_hundred_thousand_operations_lose_no_block():
    """A leak of one block in a long run would end as a server that admits nothing."""
    rng = random.Random(0)
    blocks = Blocks(500, 16)
    owners: list[list] = []
    for i in range(100_000):
        if owners and (blocks.free < 20 or rng.random() < 0.5):
            blocks.give(*owners.pop(rng.randrange(len(owners))))
        elif owners and rng.random() < 0.2:
            count, table = rng.choice(owners)
            blocks.name(table, count)
            owners.append([count, blocks.fork(table)])
        else:
            count = rng.randint(1, min(20, blocks.free))
            blocks.take(count)
            owners.append([count, []])
        if i % 1000 == 0:
            blocks.check()
    for owner in owners:
        blocks.give(*owner)

    blocks.check()
    assert blocks.total == blocks.free


def test_block_table_of_the_lecture_slides():
    """Alan Turing's six words fill block 7 and half of block 1; the ninth word opens block 5."""
    blocks = Blocks(8, 4, order=[7, 1, 5, 0, 2, 3, 4, 6])
    table: list[int] = []
    fills = []
    held = 0
    for tokens in (6, 7, 8, 9):
        need = blocks.blocks_for(tokens) - held
        blocks.take(need)
        held += need
        blocks.name(table, held)
        fills.append([(block, min(4, tokens - 4 * i)) for i, block in enumerate(table)])

    assert fills == [[(7, 4), (1, 2)], [(7, 4), (1, 3)], [(7, 4), (1, 4)], [(7, 4), (1, 4), (5, 1)]]


def test_two_requests_with_one_prompt_share_its_blocks():
    """Two 8-word prompts in blocks of 4 share two blocks and own one each: 4 blocks instead of 6."""
    blocks = Blocks(16, 4)
    blocks.take(2)
    first = blocks.name([], 2)
    second = blocks.fork(first)
    for table in (first, second):  # both write their ninth word
        blocks.take(1)
        blocks.name(table, 3)

    assert blocks.total - blocks.free == 4
    assert first[:2] == second[:2]
    assert blocks.references() == 6


def test_writing_into_a_shared_block_copies_it():
    """Without copy-on-write one sequence would read the other's tokens."""
    blocks = Blocks(4, 4)
    blocks.take(1)
    first = blocks.name([], 1)
    second = blocks.fork(first)

    assert (first[0], second[0]) == (second[0], first[0])
    assert blocks.writable(second, 0) == (0, 1)
    assert first == [0]
    assert second == [1]
    assert blocks.writable(second, 0) is None


@pytest.mark.parametrize(("total", "size"), [(0, 16), (16, 0)])
def test_memory_of_no_size_is_refused(total: int, size: int):
    """A replica without memory would wait for ever."""
    with pytest.raises(ValueError, match="at least 1"):
        Blocks(total, size)
