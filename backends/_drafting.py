"""The engine's drafts: n-gram lookup (prompt lookup decoding) and what verification made of them.

Source: Saxena, Prompt Lookup Decoding, 2023 (apoorvumang/prompt-lookup-decoding). It needs no second model, and is
right wherever an answer repeats itself or its prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from harness.api import Piece

if TYPE_CHECKING:
    from backends.serving.replica import Replica
    from backends.serving.sequence import Sequence


def looked_up(tokens: np.ndarray, ngram: int, count: int) -> list[int]:
    """Up to `count` tokens that followed the last `ngram` of `tokens` (n,) when they last occurred before; or none."""
    n = len(tokens)
    if count < 1 or n <= ngram:
        return []
    windows = np.lib.stride_tricks.sliding_window_view(tokens[:-1], ngram)  # (n - ngram, ngram)
    found = np.flatnonzero((windows == tokens[n - ngram :]).all(axis=1))
    if not len(found):
        return []
    first = int(found[-1]) + ngram
    drafts: list[int] = tokens[first : first + count].tolist()
    return drafts


@dataclass(slots=True)
class Drafting:
    """The drafts of one step, by sequence, and where the rows that verify them stand."""

    drafts: dict[Sequence, list[int]]
    _first: dict[Sequence, int] = field(default_factory=dict)
    _right: dict[Sequence, int] = field(default_factory=dict)

    @staticmethod
    def of(replica: Replica, token_ids: Mapping[int, np.ndarray]) -> Drafting:
        """Draft what the replica has made room for; it will keep what `kept` finds right."""
        group = replica.drafts
        assert group is not None
        drafts = {
            seq: looked_up(token_ids[seq.request.id][: seq.prompt + seq.emitted], group.ngram, room)
            for seq, room in group.members.items()
        }
        made = Drafting(drafts)
        group.kept = made.right
        return made

    def with_pieces(self, pieces: list[Piece], piece: Callable[[Sequence, int, int], Piece]) -> list[Piece]:
        """`pieces`, and behind them a row for each draft: `piece(sequence, number, token)`."""
        rows = list(pieces)
        for seq, tokens in self.drafts.items():
            self._first[seq] = len(rows)
            rows += [piece(seq, nth, token) for nth, token in enumerate(tokens, 1)]
        return rows

    def kept(self, seq: Sequence, token: int, sampled: ListOf[int | None], ends: frozenset[int]) -> list[int]:
        """What a sequence says in this step: the drafts that were right, and the model's token after them.

        `token` is what the model says after what it had; nothing follows a token of `ends`.
        """
        said = [token]
        for nth, draft in enumerate(self.drafts.get(seq, ())):
            if said[-1] != draft or draft in ends:
                break
            after = sampled[self._first[seq] + nth]
            assert after is not None
            said.append(after)
        self._right[seq] = len(said) - 1
        return said

    def right(self, seq: Sequence, _: int) -> int:
        """How many of its drafts a sequence keeps."""
        return self._right[seq]
