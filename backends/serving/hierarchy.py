"""The memory hierarchy under the prefix caches of a cluster: tiers that store KV blocks beyond GPU memory.

What a prefix cache fills, or gives up, is written to the tiers; a request that waits gets those of its blocks that a
tier stores loaded before it runs. Both are transfers beside the steps of the replicas: a request whose blocks are on
their way keeps its place in the queue and lets others go first. It has memory for them from the start of the load on;
when they have come they are in the prefix cache, where the request finds them. What a tier stores is to be found once
it is written. A block that is given up is copied aside at once, so that no step waits for a write.
Source: Qin et al., Mooncake, FAST 2025, section 4; SGLang's HiCache (write-through and write-back).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import islice
from math import inf
from typing import TYPE_CHECKING

from backends.serving.batch import Phase, Sequence, VisibleRequest
from backends.serving.prefix_cache import PrefixCache, chain

if TYPE_CHECKING:
    from backends.serving.plugins import Tier
    from backends.serving.replica import Replica

COUNTS = ("hit_tokens", "loads", "load_bytes", "wait_s", "store_bytes", "evicted_blocks")
"""What is counted of a tier, in its order in run.json."""


@dataclass(slots=True, eq=False)
class Channel:
    """Transfers that share `bytes_per_s` equally; `event_s` is when the loop comes back to it.

    Source: Parekh, Gallager, IEEE/ACM ToN 1993 (virtual time): all transfers under way get as many bytes, so each ends
    when one that was always there would have got a number of bytes that is known at its start.
    """

    bytes_per_s: float
    event_s: float = inf
    _ends: list[tuple[float, int, Transit]] = field(default_factory=list)  # heap
    _served_bytes: float = 0.0  # of one that was always there,
    _at_s: float = 0.0  # at this time
    _number: int = 0

    def start(self, transit: Transit, size_bytes: float, now_s: float) -> None:
        """A transfer begins."""
        if self._ends:
            self._served_bytes += (now_s - self._at_s) * self.bytes_per_s / len(self._ends)
        else:
            self._served_bytes = 0.0
        self._at_s = now_s
        self._number += 1
        heappush(self._ends, (self._served_bytes + size_bytes, self._number, transit))

    @property
    def next_s(self) -> float:
        """When the first one ends if no other begins."""
        if not self._ends:
            return inf
        return self._at_s + (self._ends[0][0] - self._served_bytes) * len(self._ends) / self.bytes_per_s

    def ended(self, now_s: float) -> list[Transit]:
        """Those that are through by now, which leave."""
        through = []
        while (end_s := self.next_s) <= now_s:
            self._at_s = end_s
            self._served_bytes, _, transit = heappop(self._ends)
            through.append(transit)
        return through


@dataclass(slots=True, eq=False)
class TierMemory:
    """Room for `capacity` blocks, of a node or of all replicas; the least recently used ones make room.

    `counts`: tokens found of prompts that are looked up for the first time, loads of those and others, bytes of both
    ways, seconds of the loads, blocks that had to go.
    """

    capacity: int
    load: Channel
    store: Channel
    keys: OrderedDict[int, None] = field(default_factory=OrderedDict)
    on_way: set[int] = field(default_factory=set)  # of them, being written and not yet to be found
    was_stored: dict[int, bool] | None = None  # at the last report, of keys that changed since; None: no reports
    counts: dict[str, float] = field(default_factory=lambda: dict.fromkeys(COUNTS, 0))

    def __contains__(self, key: int) -> bool:
        return key in self.keys and key not in self.on_way

    def touch(self, keys: Iterable[int]) -> None:
        """Those that are stored have just been used, in this order."""
        for key in keys:
            if key in self.keys:
                self.keys.move_to_end(key)

    def put(self, keys: Iterable[int]) -> list[int]:
        """Room for these, used in this order, which are being written. Returns what had to go."""
        self.keys.update(dict.fromkeys(keys))
        self.on_way.update(keys)
        evicted = list(islice(self.keys, max(0, len(self.keys) - self.capacity)))
        self.forget(evicted)
        self.counts["evicted_blocks"] += len(evicted)
        return evicted

    def written(self, keys: Iterable[int]) -> None:
        """These are to be found from now on, unless they had to go meanwhile."""
        self._note(through := self.on_way.intersection(keys))
        self.on_way -= through

    def forget(self, keys: ListOf[int]) -> None:
        """These are not stored any more."""
        self._note(keys)
        self.on_way.difference_update(keys)
        for key in keys:
            del self.keys[key]

    def _note(self, keys: Iterable[int]) -> None:
        """Keep of keys that are about to change whether they were to be found at the last report."""
        if self.was_stored is not None:
            for key in keys:
                self.was_stored.setdefault(key, key in self)

    def reported(self, key: int) -> bool:
        """Whether a key was to be found at the last report; without reports, whether it is."""
        return key in self if self.was_stored is None else self.was_stored.get(key, key in self)


@dataclass(slots=True, eq=False)
class Level:
    """A tier as one replica reaches it."""

    tier: Tier
    memory: TierMemory
    load: Channel
    store: Channel
    block_bytes: float


@dataclass(slots=True, eq=False)
class Transit:
    """Blocks on their way: into a replica for the request that waits for them, or out of it (None).

    `cache` is that of the replica at the start, which has another one once it has failed. What is written is in the
    blocks of these ids, where ids are used, and makes `evicted` go.
    """

    replica: Replica
    cache: PrefixCache | None
    level: Level
    keys: list[int]
    request_id: int | None
    began_s: float
    ids: ListOf[int] = ()
    evicted: ListOf[int] = ()


class Hierarchy:
    """The tiers of a cluster by name, the fastest first; a block takes `block_bytes`."""

    def __init__(self, tiers: ListOf[tuple[str, Tier]], block_bytes: float) -> None:
        self._tiers = tiers
        self._block_bytes = block_bytes
        self._memories: list[dict[int, TierMemory]] = [{} for _ in tiers]  # by number of the node
        self._seen: dict[int, dict[Sequence, int]] = {}  # replica: preemptions of those that it has looked up
        self._under_way = 0
        self.queried_tokens = 0
        self._begun: list[Transit] = []  # for `carry`
        self.carry: Callable[[ListOf[Transit]], float | None] | None = None
        """Copies what begins at one instant for a replica, in place of channels: when that is done, as in `Mover`."""
        self.push: Callable[[float, int, Channel | Transit], None]  # come back with this at that time, for a replica
        self.memory_freed: Callable[[Replica], None]  # it may go on

    def attach(self, replica: Replica) -> None:
        """Give a replica its levels."""
        for (_, tier), memories in zip(self._tiers, self._memories, strict=True):
            channels = Channel(tier.load_bytes_per_s), Channel(tier.store_bytes_per_s)
            node = 0 if tier.replicas is None else replica.index // tier.replicas
            memory = memories.setdefault(node, TierMemory(int(tier.size_bytes // self._block_bytes), *channels))
            if tier.replicas is not None:  # else each replica has a link of its own
                channels = memory.load, memory.store
            replica.levels.append(Level(tier, memory, *channels, self._block_bytes))
        self._seen[replica.index] = {}

    # ---- around a batch -------------------------------------------------------------------------------------

    def fetch(self, replica: Replica, now_s: float) -> None:
        """Begin to load what tiers store of the requests that wait, as far as memory has room for their prompts.

        What is loaded for one that cannot be admitted would be given up to those that run, and loaded again.
        """
        assert replica.cache is not None
        if not replica.waiting or replica.swap:  # what is loaded would take the room of those that are swapped out
            return
        seen, reserved = self._seen[replica.index], replica.inbox.reserved
        for seq in [seq for seq, n in seen.items() if seq.phase is not Phase.WAITING or seq.preemptions != n]:
            del seen[seq]
        room = replica.room() if replica.running else replica.blocks.free
        for place, seq in enumerate(replica.waiting):
            blocks_on_way = reserved.get(seq._request.id, 0)
            room -= replica._blocks_at_admission(seq) - blocks_on_way
            # Blocks that running sequences hold take no room; only the head of the queue is looked up for them.
            if room < 0 and (place or room + replica.cache.look(seq) < 0):
                return
            # The head is looked up each time: what was loaded for it may have been given up since.
            if not blocks_on_way and (not place or seq not in seen):
                self._load(replica, seq, now_s)

    def _load(self, replica: Replica, seq: Sequence, now_s: float) -> None:
        """Begin to load what tiers store of a sequence, unless memory has no room for it."""
        assert replica.cache is not None
        keys, seen = replica.cache.findable(seq), self._seen[replica.index]
        parts = stored_below(replica.cache, replica.levels, keys)
        if parts and not replica.reserve(seq._request.id, sum(map(len, parts.values())), now_s, keys):
            return
        first = seq not in seen and not seq.preemptions
        self.queried_tokens += first * seq.prompt
        seen[seq] = seq.preemptions
        for level in replica.levels:
            level.memory.touch(reversed(keys))
        for level, stored in parts.items():
            counts = level.memory.counts
            counts["hit_tokens"] += first * len(stored) * replica.blocks.size
            counts["loads"] += 1
            counts["load_bytes"] += len(stored) * level.block_bytes
            transit = Transit(replica, replica.cache, level, stored, seq._request.id, now_s)
            self._start(level.load, transit, now_s)

    def write(self, replica: Replica, now_s: float) -> None:
        """Begin to write what the prefix cache has filled or given up since the last call."""
        assert replica.cache is not None
        filled, used, evicted, ids = replica.cache.changes()
        for place, level in enumerate(replica.levels):
            if level.tier.write == "through":
                self._put(replica, place, filled[::-1], ids, now_s)  # the end of a chain goes first
            level.memory.touch(used)
        if replica.levels[0].tier.write == "back":
            self._put(replica, 0, evicted, ids, now_s)
        if self.carry is not None and self._begun:
            begun, self._begun = self._begun, []
            if (end_s := self.carry(begun)) is not None:
                for transit in begun:
                    self.push(end_s, replica.index, transit)

    def _put(self, replica: Replica, place: int, keys: ListOf[int], ids: dict[int, int], now_s: float) -> None:
        """Begin to write these to the level at this place, used in this order, and what has to go to that below."""
        level, *below = replica.levels[place : place + 2]
        memory = level.memory
        if new := [key for key in dict.fromkeys(keys) if key not in memory.keys]:
            memory.counts["store_bytes"] += len(new) * level.block_bytes
            transit = Transit(replica, replica.cache, level, new, None, now_s, [ids[key] for key in new if ids])
            self._start(level.store, transit, now_s)
            transit.evicted = memory.put(new)
            if below and below[0].tier.write == "back":
                self._put(replica, place + 1, transit.evicted, ids, now_s)

    # ---- transfers ------------------------------------------------------------------------------------------

    def _start(self, channel: Channel, transit: Transit, now_s: float) -> None:
        self._under_way += 1
        if self.carry is not None:
            self._begun.append(transit)
            return
        channel.start(transit, len(transit.keys) * transit.level.block_bytes, now_s)
        self._wake(channel, transit.replica.index)

    def _wake(self, channel: Channel, index: int) -> None:
        if (next_s := channel.next_s) < channel.event_s:
            channel.event_s = next_s
            self.push(next_s, index, channel)

    def go_on(self, channel: Channel, index: int, now_s: float) -> None:
        """Transfers may be through, and arrive after the latency of their tier."""
        if channel.event_s == now_s:
            channel.event_s = inf
        for transit in channel.ended(now_s):
            self.push(now_s + transit.level.tier.latency_s, transit.replica.index, transit)
        self._wake(channel, index)

    def arrive(self, transit: Transit, now_s: float) -> None:
        """Blocks have arrived: a tier stores them, or the request that waits for them finds them in its replica."""
        replica, memory = transit.replica, transit.level.memory
        self._under_way -= 1
        is_up = transit.cache is replica.cache
        if transit.request_id is None:
            if is_up:
                memory.written(transit.keys)
            else:
                memory.forget([key for key in transit.keys if key in memory.on_way])
            return
        memory.counts["wait_s"] += now_s - transit.began_s
        if is_up:
            replica.insert_prefix(transit.keys, now_s, transit.request_id)
            self.memory_freed(replica)

    def lose(self, replica: Replica) -> None:
        """A replica is down, and with it the memories that are its own."""
        for memory in (level.memory for level in replica.levels if level.tier.replicas == 1):
            memory.forget([*memory.keys])

    def forget(self, replica: Replica, now_s: float) -> None:
        """Empty the tiers of a replica; what its prefix cache has just given up is not written either."""
        assert replica.cache is not None
        replica.cache.changes()
        for level in replica.levels:
            keys = [*level.memory.keys]
            level.memory.forget(keys)
            if self.carry is not None:
                self._under_way += 1
                self.carry([Transit(replica, replica.cache, level, [], None, now_s, evicted=keys)])

    def report(self) -> None:
        """What tiers store now is what routers with reports see until the next one."""
        for memory in (memory for by_node in self._memories for memory in by_node.values()):
            memory.was_stored = {}

    # ---- what came of it ------------------------------------------------------------------------------------

    def facts(self) -> list[dict[str, object]]:
        """What each tier did so far, for run.json, beside the tokens of all prompts that were looked up."""
        rows: list[dict[str, object]] = []
        for (name, _), by_node in zip(self._tiers, self._memories, strict=True):
            counts = {count: sum(memory.counts[count] for memory in by_node.values()) for count in COUNTS}
            rows.append({
                "name": name, "block_bytes": self._block_bytes, "queried_tokens": self.queried_tokens, **counts
            })  # fmt: skip
        return rows

    def check(self) -> None:
        """Integrity: no memory has more than it can store, and what is being written is under way."""
        memories = [memory for by_node in self._memories for memory in by_node.values()]
        assert all(len(memory.keys) <= memory.capacity for memory in memories)
        assert all(memory.on_way <= memory.keys.keys() for memory in memories)
        assert self._under_way or not any(memory.on_way for memory in memories)

    def __repr__(self) -> str:
        return f"<Hierarchy {', '.join(name for name, _ in self._tiers)}, {self._under_way} transfers>"


def stored_below(
    cache: PrefixCache, levels: ListOf[Level], keys: ListOf[int], *, reported: bool = False
) -> dict[Level, list[int]]:
    """Keys at the head of a chain that a prefix cache does not store, by the first level that does, or did when they
    were `reported`.
    """
    parts: dict[Level, list[int]] = {}
    memories: list[PrefixCache | TierMemory] = [cache, *(level.memory for level in levels)]
    in_cache, *in_levels = (memory.reported if reported else memory.__contains__ for memory in memories)
    for key in keys:
        if in_cache(key):
            continue
        level = next((level for level, stores in zip(levels, in_levels, strict=True) if stores(key)), None)
        if level is None:
            break
        parts.setdefault(level, []).append(key)
    return parts


def predicted_load(cache: PrefixCache | None, levels: ListOf[Level], request: VisibleRequest) -> tuple[int, float]:
    """Tokens of a prompt that tiers stored beyond the prefix cache at the last report (without reports: store now),
    and the seconds to load them over idle links.
    """
    if cache is None:
        return 0, 0.0
    size = cache.block_tokens
    keys = chain(request, size).keys[: (request.prompt_tokens - 1) // size]
    parts = stored_below(cache, levels, keys, reported=True)
    loads_s = [
        level.tier.latency_s + len(stored) * level.block_bytes / level.load.bytes_per_s
        for level, stored in parts.items()
    ]
    return size * sum(map(len, parts.values())), max(loads_s, default=0.0)
