"""How close sessions drawn from a model come to those of its trace: turns, pauses, lengths, and hits of caches."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from harness.data.lists import Floats
from harness.data.records import listed, places
from harness.stats import arrivals
from workloads import session_replay
from workloads.arrivals.closed import Closed
from workloads.fit import _verdict, _whole, _whole_draw
from workloads.session_times import ThinkOnly
from workloads.trace_tools.cache import distinct_blocks, replay

if TYPE_CHECKING:
    from workloads.fit.model import Model
    from workloads.traces import Trace

MOST_DRAWS, MOST_BLOCKS = 3, 400_000
"""Draws, and blocks of a trace whose hits are counted; of more, every n-th one of each prompt."""
CACHES = (1 / 256, 1 / 64, 1 / 16, 1 / 4, 1.0)
"""Sizes of the caches, as shares of the different blocks of the trace."""
USERS = 16
"""Sessions at once where they have clocks of their own."""
NUMBERS = ("turns", "pause", "prompt", "output")


def measure(model: Model, trace: Trace, widths_s: Sequence[float], draws: int = MOST_DRAWS) -> dict[str, Any]:
    """Plain data on sessions beside draws of a model (medians), which need not be fitted to the same trace.

    `draws`; `ks` distances of `NUMBERS`, `ks_limit` from which on they differ: beyond what draws are from one another,
    and `middle` [p50 of the trace, of the model]; `reuse` {`trace`, `model`}: share of the blocks of all prompts that
    repeat an earlier one; `lru` {`tokens` [of five caches], `trace` [share of hits], `model`}; `users` at once where
    sessions have clocks of their own, elsewhere `curve_distance`: root mean square of log2 of the dispersion, in bins
    of each width.
    """
    assert model.whole is not None
    trace = _whole.with_blocks(trace)
    cached, recorded = Reuse.of(trace, own_clocks=model.whole["own_clocks"]), numbers(trace)

    def measured(draw: Trace) -> tuple[float, list[float], Floats, dict[str, Floats]]:
        spread = arrivals.dispersion_curve(draw.at_s, widths_s)
        return share_again(draw.table), cached.curve(draw), spread, numbers(draw)

    # one after the other: a draw is as large as the trace
    each = [measured(like(model, trace, seed)) for seed in range(draws)]
    reuse, lru, spreads, drawn = zip(*each, strict=True)
    noise = [_ks(one, other) for one, other in combinations(drawn, 2)] or [[0.0] * len(NUMBERS)]
    limits = _verdict.SAME_KS + np.max(noise, axis=0)
    spread = arrivals.dispersion_curve(trace.at_s, widths_s)
    return {
        "draws": draws,
        "ks": dict(zip(NUMBERS, np.median([_ks(recorded, one) for one in drawn], axis=0), strict=True)),
        "ks_limit": dict(zip(NUMBERS, limits, strict=True)),
        "middle": {n: [np.median(recorded[n]), np.median([np.median(one[n]) for one in drawn])] for n in NUMBERS},
        "reuse": {"trace": share_again(trace.table), "model": np.median(reuse)},
        "lru": {"tokens": cached.tokens, "trace": cached.curve(trace), "model": np.median(lru, axis=0)},
        "users": USERS if cached.own_clocks else None,
        "curve_distance": None if cached.own_clocks else arrivals.curve_distance(np.median(spreads, axis=0), spread),
    }


def _ks(one: Mapping[str, Floats], other: Mapping[str, Floats]) -> list[float]:
    return [arrivals.distance(one[name], other[name]) for name in NUMBERS]


def like(model: Model, trace: Trace, seed: int) -> Trace:
    """A draw as long as a trace: of as many seconds, or as many sessions where they have clocks of their own."""
    assert model.whole is not None
    if model.whole["own_clocks"]:
        return _whole_draw.drawn(model, sessions=len(trace.table["session"].unique()), seed=seed)
    drawn = _whole_draw.drawn(model, duration_s=float(trace.at_s[-1]), seed=seed)
    if model.whole["found_by"] == "trace":
        return drawn
    # sessions of both are those that the prefix tree makes
    table = drawn.table.drop_columns(
        [n for n in ("session", "turn", "parent", "delay_s") if n in drawn.table.column_names]
    )
    return dataclasses.replace(drawn, table=table)


def numbers(trace: Trace) -> dict[str, np.ndarray]:
    """Sorted turns, pauses (s), prompts and outputs (tokens) of the sessions of a trace without their sub-agents."""
    chains = _whole.chains_of(trace, prompts=False)
    assert chains is not None
    columns = {
        "turns": np.bincount(chains.session),
        "pause": _whole.pauses(chains)[0],
        "prompt": chains.column("prompt_tokens"),
        "output": chains.column("output_tokens"),
    }
    return {name: np.sort(values.astype(np.float64)) for name, values in columns.items()}


def share_again(table: pa.Table) -> float:
    """Share of the blocks of all prompts that repeat an earlier one."""
    blocks = _blocks(table)
    return 1 - distinct_blocks(table) / blocks if blocks else 0.0


def _blocks(table: pa.Table) -> int:
    return int(pc.sum(pc.list_value_length(table["prefix_ids"])).as_py() or 0)


@dataclasses.dataclass(frozen=True, slots=True)
class Reuse:
    """Five caches in which traces of one kind are compared, the largest as large as the blocks of one of them."""

    tokens: Sequence[int]
    block_tokens: int
    every: int
    own_clocks: bool

    @classmethod
    def of(cls, trace: Trace, *, own_clocks: bool) -> Reuse:
        """Caches for a trace, and for others like it."""
        step = -(-_blocks(trace.table) // MOST_BLOCKS)
        size = distinct_blocks(trace.table) * trace.block_tokens
        return cls([int(share * size) for share in CACHES], trace.block_tokens, step, own_clocks)

    def curve(self, trace: Trace) -> list[float]:
        """Share of the blocks that are hits in each cache, in the order of the trace, or with 16 users at once."""
        table = _every(trace.table.select(["prefix_ids"]), self.every)
        if self.own_clocks:
            closed = Closed(users=USERS, think_s=0.0, law="fixed")
            placed = session_replay.place(trace, ThinkOnly(), session_replay.Sessions(order="file"), closed, 0).placed
            table = table.take(pa.array(placed.row))
        return [replay(table, max(tokens // self.block_tokens // self.every, 1)).ratio for tokens in self.tokens]


def _every(table: pa.Table, step: int) -> pa.Table:
    """Every n-th block of each prompt, from the first."""
    thinned = []
    for lists in table["prefix_ids"].chunks:  # not combined, which would copy them all
        counts = -(-np.asarray(lists.value_lengths()) // step)
        rows = np.repeat(np.asarray(lists.offsets)[:-1], counts) + step * places(counts)
        thinned.append(listed(counts, np.asarray(lists.values)[rows]))
    return pa.table({"prefix_ids": pa.chunked_array(thinned)})
