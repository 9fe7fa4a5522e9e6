"""A mix of classes of traffic: each with arrivals, lengths, sessions and bounds of its own, merged in order of time."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice

import numpy as np
import pyarrow as pa

from harness.api import Arrivals, RateCurve
from harness.data.records import SCHEDULE, listed
from harness.stats.arrivals import OperationalTime
from workloads import mixed
from workloads.mixed import Mixed

_CLASSES = 0xC1A55  # marks the random streams of classes, apart from those that `Generator.spawn` counts from 0
SPLIT = 4096  # arrivals split at a time
LEAST_CHUNK = 16
"""Requests that the rarest class draws at first: of fewer, so many tables must be joined that it takes longer."""


@dataclass(frozen=True, slots=True)
class Blend:
    """The requests of all `classes`, numbered anew in order of time; ties in the order of the classes.

    Each class draws from streams named by its tag, so a class that is added or left out changes no other one's
    times (s) and lengths (tokens). With `arrivals`, one stream of arrivals is split at random by `weights`, and
    the arrivals of the classes are not used.
    """

    classes: tuple[Mixed, ...]
    arrivals: Arrivals | None = None
    weights: tuple[float, ...] = ()
    facts: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        tags = [c.tag for c in self.classes]
        if not tags or len(set(tags)) < len(tags):
            raise ValueError("a mix needs classes, each with a name of its own.")
        if self.arrivals is not None and len(self.weights) != len(tags):
            raise ValueError("shared arrivals need a weight for each class.")

    def start(self, rng: np.random.Generator) -> Iterator[pa.Table]:
        (shared_rng,) = rng.spawn(1)
        streams = [_of_class(rng, str(c.tag)) for c in self.classes]
        classes: Sequence[Mixed] = self.classes
        if self.arrivals is not None:
            split_arrivals = split(self.arrivals, self.weights, shared_rng)
            classes = [replace(c, arrivals=part) for c, part in zip(classes, split_arrivals, strict=True)]
        # first chunks about as long as one another, so that few requests are drawn too many
        rates_rps = [c.arrivals.mean_rate_rps * (c.sessions.mean_requests if c.sessions else 1.0) for c in classes]
        total_rps = sum(rates_rps)
        sizes = [max(LEAST_CHUNK, round(mixed.FIRST_CHUNK * rate_rps / total_rps)) for rate_rps in rates_rps]
        return merged([c.start(r, size) for c, r, size in zip(classes, streams, sizes, strict=True)])

    def as_recorded(self) -> Blend:
        """The same requests at the times that a recorder would see where answers take their nominal time."""
        return replace(self, classes=tuple(c.as_recorded() for c in self.classes))

    def describe(self) -> Mapping[str, object]:
        """Sources of the parts, class by class."""
        return self.facts


def _of_class(rng: np.random.Generator, tag: str) -> np.random.Generator:
    """A generator for one class: the same whatever other classes there are."""
    parent = rng.bit_generator.seed_seq
    assert isinstance(parent, np.random.SeedSequence)
    key = (*parent.spawn_key, _CLASSES, zlib.crc32(tag.encode()))
    return np.random.default_rng(np.random.SeedSequence(parent.entropy, spawn_key=key))


@dataclass(frozen=True, slots=True)
class SplitArrivals:
    """The arrivals of one class, split from a common stream."""

    stream: Iterator[float]
    mean_rate_rps: float
    operational_time: OperationalTime | None

    def times(self, rng: np.random.Generator) -> Iterator[float]:  # noqa: ARG002  # the split is drawn already
        return self.stream


def split(arrivals: Arrivals, weights: Sequence[float], rng: np.random.Generator) -> list[SplitArrivals]:
    """One stream of arrivals split at random: each goes to class i with probability weights[i] / sum(weights)."""
    shares = np.array(weights) / sum(weights)
    times_rng, split_rng = rng.spawn(2)
    times, cumulated = arrivals.times(times_rng), np.cumsum(shares)
    waiting: list[deque[float]] = [deque() for _ in shares]  # arrivals of each class that it has not taken yet

    def of(queue: deque[float]) -> Iterator[float]:
        while True:
            while queue:
                yield queue.popleft()
            if not (at_s := list(islice(times, SPLIT))):
                return
            # Without the last edge, so that the last class takes what rounding leaves of 1.
            takers = np.searchsorted(cumulated[:-1], split_rng.random(len(at_s)), side="right")
            for number, t in zip(takers.tolist(), at_s, strict=True):
                waiting[number].append(t)

    curve = arrivals.operational_time if isinstance(arrivals, RateCurve) else None
    return [
        SplitArrivals(of(queue), arrivals.mean_rate_rps * share, curve and partial(_part_of, curve, share))
        for queue, share in zip(waiting, shares.tolist(), strict=True)
    ]


def _part_of(curve: OperationalTime, share: float, times_s: np.ndarray) -> np.ndarray:
    return share * curve(times_s)


def merged(streams: Sequence[Iterator[pa.Table]]) -> Iterator[pa.Table]:
    """Several schedules as one, with new ids in order of time; chunks of the parts do not show."""
    parts = [_StreamBuffer(stream) for stream in streams]
    first = 0
    while parts := [part for part in parts if part.fill()]:
        until_s = min(part.last_s for part in parts)
        # Up to but without `until_s`: the part that ends there may have another row at the same time.
        ready = [(part, part.take(until_s)) for part in parts if part.first_s < until_s]
        rows = sum(len(table) for _, table in ready)
        if not rows:
            for part in parts:
                if part.last_s == until_s:
                    part.more()
            continue
        at_s = np.concatenate([table["scheduled_s"].to_numpy() for _, table in ready])
        order = np.argsort(at_s, kind="stable")
        ids = np.empty(rows, np.int64)
        ids[order] = np.arange(first, first + rows)
        ends = np.cumsum([len(table) for _, table in ready])
        renumbered = [
            part.renumbered(table, ids[end - len(table) : end]) for (part, table), end in zip(ready, ends, strict=True)
        ]
        yield pa.concat_tables(renumbered).take(order)
        first += rows


class _StreamBuffer:
    """One of the schedules that are merged, and the new ids of its rows."""

    def __init__(self, stream: Iterator[pa.Table]) -> None:
        self._stream = stream
        self._over = False
        self._table = SCHEDULE.empty_table()
        self._at_s = np.zeros(0)  # (rows,) of the table
        self._ids = np.zeros(0, np.int64)  # new id by old id
        self._given = 0

    @property
    def first_s(self) -> float:
        """When the next row is due; there must be one."""
        return float(self._at_s[0])

    @property
    def last_s(self) -> float:
        """No row to come is due before this."""
        return float("inf") if self._over else float(self._at_s[-1])

    def fill(self) -> bool:
        """Whether there are rows left; loads some if none is there."""
        while not len(self._table) and not self._over:
            self.more()
        return len(self._table) > 0

    def more(self) -> None:
        chunk = next(self._stream, None)
        if chunk is None:
            self._over = True
        else:
            self._table = pa.concat_tables((self._table, chunk))
            self._at_s = np.concatenate((self._at_s, chunk["scheduled_s"].to_numpy()))

    def take(self, until_s: float) -> pa.Table:
        """The rows due before `until_s`, which is not above `last_s`."""
        count = int(np.searchsorted(self._at_s, until_s))
        rows, self._table, self._at_s = self._table[:count], self._table[count:], self._at_s[count:]
        return rows

    def renumbered(self, table: pa.Table, ids: np.ndarray) -> pa.Table:
        """The rows, taken in order, with these ids, and with the new ids of those that they come after."""
        if self._given + len(ids) > len(self._ids):
            self._ids = np.concatenate((self._ids, np.empty(max(len(ids), len(self._ids)), np.int64)))
        self._ids[self._given : self._given + len(ids)] = ids
        self._given += len(ids)
        column = table["after"].combine_chunks()
        kind = SCHEDULE.field("after").type
        new = table.set_column(table.schema.get_field_index("id"), SCHEDULE.field("id"), pa.array(ids))
        if not len(table) or not len(old := column.flatten().to_numpy()):
            return new
        after = listed(column.value_lengths().to_numpy(), self._ids[old], kind)
        return new.set_column(table.schema.get_field_index("after"), SCHEDULE.field("after"), after)
