"""Blocks: the KV memory of a replica in units of a fixed number of tokens.

Counting comes first, identity later: `take` and `give` move counts, and ids are drawn from the free list only
for the block table of an executor. So a step of the simulator costs no work per block, and the engine sees the same
counts with real ids. Blocks that several sequences share are those of the prefix cache. Invariant: free + held ==
total, and every id is in the pool or held. The core's hot path moves `free` itself.
Source: Kwon et al., vLLM, SOSP 2023 (block tables).
"""

from collections.abc import Iterable


class Blocks:
    """`total` blocks of `size` tokens; `free` of them are unowned."""

    __slots__ = ("_ids", "_named", "_order", "free", "size", "total")

    def __init__(self, total: int, size: int, order: Iterable[int] | None = None) -> None:
        """`order` is the order in which ids are handed out, default 0, 1, 2, ..."""
        if total < 1 or size < 1:
            raise ValueError(f"blocks and their size must be at least 1, got {total} blocks of {size} tokens")
        self.total = total
        self.size = size
        self.free = total
        self._order: Iterable[int] = range(total) if order is None else order
        self._ids: list[int] | None = None  # made when the first one is drawn: a simulator never asks for them
        self._named: set[int] = set()  # ids that an owner has

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
        """Give back `count` blocks, of which those in `table` have ids; `table` is emptied."""
        assert len(table) <= count
        self.free += count
        if table:
            self._named.difference_update(table)
            self._pool.extend(reversed(table))
            table.clear()

    def name(self, table: list[int], count: int) -> list[int]:
        """Draw ids until `table` names all `count` blocks of its owner; returns the table."""
        while len(table) < count:
            block = self._pool.pop()
            self._named.add(block)
            table.append(block)
        return table

    def check(self) -> None:
        """Integrity: free + held == total, and no id is lost or doubled."""
        assert 0 <= self.free <= len(self._pool) <= self.total  # ids in the pool are free, or owed to an owner
        assert len(self._named) + len(self._pool) == self.total
        assert not self._named & set(self._pool)
        assert len(set(self._pool)) == len(self._pool)

    def __repr__(self) -> str:
        return f"<Blocks {self.free}/{self.total} free of {self.size} tokens>"
