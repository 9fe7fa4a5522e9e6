"""The KV memory never loses, doubles or leaks a block."""

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from backends.serving.blocks import Blocks


class BlocksMachine(RuleBasedStateMachine):
    """Owners take, name and give back blocks in any order."""

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
    def give(self, data: st.DataObject) -> None:
        owner = self.owners.pop(data.draw(st.integers(0, len(self.owners) - 1)))
        self.blocks.give(*owner)

    @invariant()
    def whole(self) -> None:
        self.blocks.check()
        named = [block for _, table in self.owners for block in table]
        assert len(named) == len(set(named))
        assert self.blocks.total == self.blocks.free + sum(count for count, _ in self.owners)

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


@pytest.mark.parametrize(("total", "size"), [(0, 16), (16, 0)])
def test_memory_of_no_size_is_refused(total: int, size: int):
    """A replica without memory would wait for ever."""
    with pytest.raises(ValueError, match="at least 1"):
        Blocks(total, size)
