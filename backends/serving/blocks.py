"""Blocks: the KV memory of a replica in units of a fixed number of tokens, with reference counts.

Counting comes first, identity later: `take` and `give` move counts, and ids are drawn from the free list only
for a block table (an executor, a fork). So a step of the simulator costs no work per block, and the
engine sees the same counts with real ids. Invariant: free + held == total, and every id is in the pool or held. The
core's hot path moves `free` itself.
Source: Kwon et al., vLLM, SOSP 2023 (block tables, reference counts, copy-on-write).
"""

from collections.abc import Iterable


class Blocks:
    """`total` blocks of `size` tokens; `free` of them are unowned."""

    __slots__ = ("_ids", "_order", "_refs", "free", "size", "total")

    def __init__(self, total: int, size: int, order: Iterable[int] | None = None) -> None:
        """`order` is the order in which ids are handed out, default 0, 1, 2, ..."""
        if total < 1 or size < 1:
            raise ValueError(f"blocks and their size must be at least 1, got {total} blocks of {size} tokens")
        self.total = total
        self.size = size
        self.free = total
        self._order: Iterable[int] = range(total) if order is None else order
        self._ids: list[int] | None = None  # made when the first one is drawn: a simulator never asks for them
        self._refs: dict[int, int] = {}

    @property
    def _pool(self) -> list[int]:
        if self._ids is None:
            self._ids = list(self._order)[::-1]
        return self._ids

    def blocks_for(self, tokens: int) -> int:
        """Blocks that `tokens` tokens fill, the last one perhaps partly."""
        return -(-tokens // self.size)

    def take(self, count: int) -> None:
        """Take `count` free blocks. The caller has checked `free`."""
        assert 0 <= count <= self.free, (count, self.free)
        self.free -= count

    def give(self, count: int, table: list[int]) -> None:
        """Give back `count` blocks, of which those in `table` have ids; `table` is emptied.

        A block shared with another table only loses one reference.
        """
        named = len(table)
        assert named <= count
        self.free += count - named
        for block in reversed(table):
            refs = self._refs.pop(block)
            if refs > 1:
                self._refs[block] = refs - 1
            else:
                self._pool.append(block)
                self.free += 1
        table.clear()

    def name(self, table: list[int], count: int) -> list[int]:
        """Draw ids until `table` names all `count` blocks of its owner; returns the table."""
        while len(table) < count:
            block = self._pool.pop()
            self._refs[block] = 1
            table.append(block)
        return table

    def fork(self, table: list[int]) -> list[int]:
        """A second table over the same blocks (all named); each block gains one reference."""
        for block in table:
            self._refs[block] += 1
        return list(table)

    def writable(self, table: list[int], index: int) -> tuple[int, int] | None:
        """Make block `index` of `table` private before it is written: (old id, new id) to copy, or None.

        Copy-on-write: a block with more than one reference is replaced by a fresh one. The caller has checked
        that one block is free.
        """
        old = table[index]
        if self._refs[old] == 1:
            return None
        self.take(1)
        new = self._pool.pop()
        self._refs[new] = 1
        self._refs[old] -= 1
        table[index] = new
        return old, new

    def references(self) -> int:
        """Sum of all reference counts of named blocks."""
        return sum(self._refs.values())

    def check(self) -> None:
        """Integrity: free + held == total, and no id is lost or doubled."""
        assert 0 <= self.free <= len(self._pool) <= self.total  # ids in the pool are free, or owed to an owner
        assert len(self._refs) + len(self._pool) == self.total
        assert not self._refs.keys() & set(self._pool)
        assert len(set(self._pool)) == len(self._pool)
        assert all(refs > 0 for refs in self._refs.values())

    def __repr__(self) -> str:
        return f"<Blocks {self.free}/{self.total} free of {self.size} tokens>"
