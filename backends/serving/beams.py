"""Beam search of one request: which tokens its beams have in common, and the blocks that they need of KV memory.

After each token every beam goes on from one of those before, and what none goes on from is dropped. Blocks are counted
by references: a fork takes none, the first write to a shared one copies it. Source: Kwon et al., vLLM, SOSP 2023,
section 4.4.
"""

from __future__ import annotations

from backends.serving.plugins import draw


class Beams:
    """`width` beams whose parents are drawn evenly, the same for the same `seed`."""

    __slots__ = ("_seed", "common", "lines", "width")

    def __init__(self, width: int, seed: int) -> None:
        self.width = width
        self._seed = seed
        self.common = 0  # tokens of the answer that all beams begin with
        self.lines: list[tuple[int, ...]] = []  # of each stored token behind them, by beam: which it has of that place

    @property
    def stored(self) -> int:
        """Tokens of each beam that are stored."""
        return self.common + len(self.lines)

    def step(self) -> None:
        """One more token of each beam is stored; then beams are dropped and others forked."""
        width, first = self.width, self.stored * self.width
        parents = [draw(self._seed, first + i) * width >> 64 for i in range(width)]
        lines = [tuple([line[parent] for parent in parents]) for line in self.lines]
        lines.append(tuple(parents))
        while lines and len(set(lines[0])) == 1:
            del lines[0]
            self.common += 1
        self.lines = lines

    def tokens(self) -> int:
        """Different tokens that are stored."""
        return self.common + sum(len(set(line)) for line in self.lines)

    def blocks(self, prompt_tokens: int, size: int) -> int:
        """Blocks of `size` tokens that they hold with the prompt; the last one, partly full, is each beam's own."""
        behind = prompt_tokens + self.common
        split = sum(len(set(line)) for end, line in enumerate(self.lines, behind + 1) if end % size == 0)
        return behind // size + split + (self.width if (prompt_tokens + self.stored) % size else 0)
