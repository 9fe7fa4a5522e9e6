"""Shared prefixes: how many there are, how long, how popular; and the one place where ids of blocks are made.

An id is a whole number of 63 bits, so that it fits a column of int64 and is never negative:

    bits 60-62  space: 0 as recorded in a trace, 1 shared prefixes, 2 sessions
    bits 24-59  owner: number of the prefix or of the session
    bits  0-23  block of that owner, counted from 0

Ids of two spaces, two owners or two blocks are never equal. Equal ids name equal tokens (see `workloads.content`).
"""

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Annotated, NamedTuple

import numpy as np
import pyarrow as pa
from msgspec import Meta

from harness.bounds import LARGEST_TOKENS, Share, Tokens, check
from harness.data.records import SCHEDULE, listed, places
from harness.spec import joined

_BLOCK_BITS, _OWNER_BITS, _NUMBER_BITS = 24, 36, 20
MOST_BLOCKS, MOST_OWNERS, MOST_PREFIXES = 1 << _BLOCK_BITS, 1 << _OWNER_BITS, 1 << _NUMBER_BITS
MOST_GROUPS = 1 << (_OWNER_BITS - _NUMBER_BITS)


class Space(IntEnum):
    """Owner of a block's name. A trace keeps the ids that it has (below 2**60 in all known traces)."""

    RECORDED = 0
    SHARED = 1
    SESSION = 2


class Run(NamedTuple):
    """Per request (n of them) `counts` consecutive blocks of `owners` in one space, from block `first` on."""

    space: Space
    owners: np.ndarray  # (n,) int64
    counts: np.ndarray  # (n,) int64; 0 where a request has none
    first: np.ndarray | int = 0  # (n,) int64


def id_lists(*runs: Run) -> pa.ListArray:
    """The list of ids of each request: its blocks of the first run, then of the next, and so on.

    Raises ValueError outside the layout above.
    """
    counts = np.stack([np.asarray(run.counts, np.int64) for run in runs], axis=1)  # (n, runs)
    starts = np.stack([first_ids(run) for run in runs], axis=1)  # (n, runs)
    flat = counts.ravel()
    ids = places(flat) + np.repeat(starts.ravel(), flat)
    return listed(counts.sum(axis=1), ids, SCHEDULE.field("prefix_ids").type)


def first_ids(run: Run) -> np.ndarray:
    """(n,) id of the first block of each request. Raises ValueError outside the layout above."""
    owners, counts = np.asarray(run.owners, np.int64), np.asarray(run.counts, np.int64)
    first = np.broadcast_to(np.asarray(run.first, np.int64), counts.shape)
    if len(owners) and not (owners.min() >= 0 and owners.max() < MOST_OWNERS):
        raise ValueError(f"The owner of a block must be between 0 and {MOST_OWNERS - 1}, got {owners.max()}.")
    if len(counts) and not (min(counts.min(), first.min()) >= 0 and (first + counts).max() <= MOST_BLOCKS):
        raise ValueError(f"Blocks must be between 0 and {MOST_BLOCKS - 1}, got {counts.max()} blocks at once.")
    return np.asarray((int(run.space) << (_BLOCK_BITS + _OWNER_BITS)) | (owners << _BLOCK_BITS) | first)


@dataclass(frozen=True, slots=True)
class Prefixes:
    """`count` prefixes (system prompts, tool descriptions), of which a `share` of the requests has one each.

    Prefix k (from 0) is chosen with probability proportional to 1 / (k + 1)**`zipf`; zipf = 0 makes all equally
    popular. `tokens` is their length, or several joined by '/': prefix k has length number k modulo how many
    there are. Lengths are exact: a prefix is named in blocks of `block_tokens` where they fill it, else as one
    block of its whole length (see `block_tokens_of`). `group` keeps several sets of prefixes in one mix apart.
    Source of the popularity: Zipf's law, as in Breslau et al., Web Caching and Zipf-like Distributions, INFOCOM 1999.
    """

    count: Annotated[int, Meta(ge=1, le=MOST_PREFIXES)] = 1
    tokens: str = "341"
    zipf: Annotated[float, Meta(ge=0, le=10, description="0 makes all prefixes equally popular")] = 1.0
    block_tokens: Tokens = 16
    share: Share = 1.0
    group: Annotated[int, Meta(ge=0, le=MOST_GROUPS - 1)] = 0
    lengths_tokens: tuple[int, ...] = field(init=False, repr=False, compare=False)
    cumulated: np.ndarray = field(init=False, repr=False, compare=False)  # (count,) probability of numbers <= k

    def __post_init__(self) -> None:
        check(self)
        weights = np.arange(1, self.count + 1) ** -float(self.zipf)
        object.__setattr__(self, "lengths_tokens", _lengths(self.tokens))
        object.__setattr__(self, "cumulated", np.cumsum(weights) / weights.sum())

    def draw(self, rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Number (n,) int64 of the prefix of each request, and whether it has one at all (n,) bool.

        Every request takes two draws, so the stream does not depend on how many are drawn at a time.
        """
        uniform = rng.random((n, 2))
        # Without the last edge, so that the last prefix takes what rounding leaves of 1.
        numbers = np.searchsorted(self.cumulated[:-1], uniform[:, 0], side="right")
        return numbers.astype(np.int64), uniform[:, 1] < self.share

    def length_tokens(self, numbers: np.ndarray) -> np.ndarray:
        """(n,) length of each prefix, tokens."""
        return np.asarray(np.array(self.lengths_tokens)[numbers % len(self.lengths_tokens)])

    def block_tokens_of(self, numbers: np.ndarray) -> np.ndarray:
        """(n,) tokens of a block of each prefix: the `prefix_block_tokens` of a request that has it."""
        lengths = self.length_tokens(numbers)
        return np.where(lengths % self.block_tokens == 0, self.block_tokens, lengths)

    def run(self, numbers: np.ndarray, has_prefix: np.ndarray) -> Run:
        """The blocks of each request's prefix, for `id_lists`; none where it is not `has_prefix`."""
        blocks = self.length_tokens(numbers) // self.block_tokens_of(numbers)
        return Run(Space.SHARED, (self.group << _NUMBER_BITS) | numbers, np.where(has_prefix, blocks, 0))


def _lengths(text: str) -> tuple[int, ...]:
    lengths = joined(text, "tokens", int, "80/341")
    for length in lengths:
        if not 1 <= length <= LARGEST_TOKENS:
            raise ValueError(f"tokens must be between 1 and {LARGEST_TOKENS:,}, got {length}.")
    return lengths
