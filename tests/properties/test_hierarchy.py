"""Tiers under the prefix caches lose nothing, find what an independent cache finds, and share their bandwidth."""

import json
from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from functools import cache
from itertools import takewhile
from pathlib import Path
from random import Random

import pytest

from backends.serving.cluster import give_model
from backends.serving.hierarchy import Channel, Hierarchy
from backends.serving.journal import Journal, replay
from backends.serving.prefix_cache import chain
from backends.serving.routing import Send
from backends.sim import Sim
from harness.api import Extra, Request
from harness.catalog import kv_bytes_per_token, model
from harness.errors import UsageError

SIZE = 16
BLOCK_BYTES = SIZE * kv_bytes_per_token(model("opt-13b"))
CONVERSATION = Path(__file__).parents[3] / "shared/data/traces/mooncake/conversation_trace.jsonl"


def blocks(count):
    """Bytes of so many blocks."""
    return count * BLOCK_BYTES


TIERS = [
    f"dram:size={blocks(30)}",
    f"dram:size={blocks(30)},write=back",
    f"dram:size={blocks(8)},pcie=300MBps+ssd:size={blocks(60)},latency=50ms",
    f"dram:size={blocks(9)},replicas=2,write=back+pool:size={blocks(80)},latency=10ms",
    f"ssd:size={blocks(40)},write=through,load=100MBps,store=80MBps",
    "pool:load=500MBps",
]
CLUSTERS = [
    {"replicas": 1, "policy": "vllm-v1"},
    {"replicas": 3, "policy": "sarathi", "router": "prefix-aware"},
    {"replicas": 2, "policy": "vllm-v0", "preempt": "swap"},
    {"replicas": 2, "policy": "vllm-v1", "pp": 2},
    {"replicas": 2, "policy": "sglang:chunk=96"},
    {"replicas": 2, "policy": "vllm-v1", "router": "reported-queue:report_s=300ms"},
    {"replicas": 2, "policy": "vllm-v1", "fail": "replica:1@1s..2s,requeue"},
    {"prefill": "2", "decode": "2", "policy": "vllm-v1", "link": "1Gbps"},
    {"replicas": 2, "policy": "vllm-v1", "lora": "slots=1"},
    {"replicas": 2, "policy": "semi-pd"},
]


def drawn(number):
    """Requests that begin alike, a cluster and its tiers."""
    draw = Random(number)
    cluster, requests = draw.choice(CLUSTERS), []
    for i in range(draw.randint(5, 40)):
        family, shared = draw.randrange(4), draw.randint(0, 9)
        prompt = max(1, SIZE * shared + draw.randint(-8, 60))
        ids = tuple(100 * family + block for block in range(shared))
        extra = Extra(model=draw.choice("ab")) if "lora" in cluster else None
        at_s = i * draw.choice([0.0, 0.05, 0.2])
        requests.append(Request(i, at_s, prompt, draw.randint(1, 60), ids, SIZE, extra=extra))
    return sorted(requests, key=lambda r: r.scheduled_s), cluster, draw.choice(TIERS)


@cache
def simulated(number):
    requests, cluster, tiers = drawn(number)
    sim = Sim(prefix_cache="on", kv_blocks=24, tiers=tiers, journal=True,
              latency="linear:base_s=0.0625,prefill_token_s=0.0001", **cluster)  # fmt: skip
    records = sorted(sim.simulate(requests), key=lambda record: record.request_id)
    sim.cluster.check()
    return sim, records


@pytest.mark.parametrize("number", range(48))
def test_nothing_is_lost_with_tiers(number):
    """Every request ends once with all its tokens, memory and bytes balance, journals replay."""
    requests, (sim, records) = drawn(number)[0], simulated(number)

    assert sorted(r.id for r in requests) == [record.request_id for record in records]
    assert all(len(r.token_s) == r.output_tokens_asked for r in records if r.status == "ok")
    assert all(r.cached_tokens < r.prompt_tokens for r in records if r.cached_tokens is not None)
    assert not sim.cluster.hierarchy._under_way
    loads = sum(row["loads"] for row in sim.describe()["tiers"])
    assert loads <= len(records) + sum(record.preemptions for record in records), "the same blocks again and again"
    for row in sim.describe()["tiers"]:
        assert row["hit_tokens"] // SIZE * BLOCK_BYTES <= row["load_bytes"]
        assert row["load_bytes"] % BLOCK_BYTES == 0
    assert sum(row["hit_tokens"] for row in sim.describe()["tiers"]) <= sim.cluster.hierarchy.queried_tokens
    for replica in sim.cluster.replicas:
        assert replica.blocks.free == replica.blocks.total, replica
        assert not replica.inbox.reserved
        if replica.pipeline is None:
            core = sim._parts[0].core
            adapters = None if sim.adapted is None else sim.adapted.adapters(model(sim.model), sim._parts[0].shape)
            again = core.replica(core.memory(), 24, replica.index, Journal(), adapters=adapters)
            give_model(again, sim.cluster.members[replica.index])
            replay(replica.journal.calls, {r.id: r for r in requests}, again)

            assert replica.journal.decisions == again.journal.decisions


@pytest.mark.parametrize("number", range(24))
def test_leaps_equal_steps_with_tiers(number):
    """A leap past a block that is given up, or a request that could find one, would move blocks at other times."""
    requests, cluster, tiers = drawn(number)
    outcomes, batches = [], []
    for leap in (False, True):
        sim = Sim(prefix_cache="on", kv_blocks=24 if number % 2 else 300, tiers=tiers, journal=True, leap=leap,
                  latency="linear:base_s=0.0625,prefill_token_s=0.0001", **cluster)  # fmt: skip
        records = sorted(sim.simulate(requests), key=lambda record: record.request_id)
        steps = sim.steps_table().sort_by([("replica", "ascending"), ("start_s", "ascending")])
        outcomes.append((records, steps, sim.describe()["tiers"]))
        batches.append(sum(call.kind == "schedule" for r in sim.cluster.replicas for call in r.journal.calls))

    assert outcomes[0] == outcomes[1]
    assert batches[0] >= batches[1]
    if cluster == CLUSTERS[0] and not number % 2:
        assert batches[0] > 2 * batches[1], "with room for all nothing is given up"


def test_the_draws_hold_what_they_are_about():
    """Draws without loads, evictions, preemptions or failures would prove nothing."""
    seen = Counter()
    for number in range(48):
        sim, records = simulated(number)
        seen["preempted"] += sum(record.preemptions for record in records)
        for row in sim.describe()["tiers"]:
            seen.update({f"{row['name']} {count}": row[count] > 0 for count in ("loads", "evicted_blocks")})

    assert min(seen[f"{name} loads"] for name in ("dram", "ssd", "pool")) >= 3, seen
    assert min(seen[f"{name} evicted_blocks"] for name in ("dram", "ssd")) >= 3, seen
    assert seen["preempted"] > 20


@dataclass
class Comparing:
    """Sends requests by turns, and compares what views say is stored with all that was stored at the report."""

    report_s: float
    stored: dict = field(default_factory=dict)  # (replica, time): keys of its prefix cache, and of each of its tiers
    counts: Counter = field(default_factory=Counter)

    @property
    def tick_s(self):
        return self.report_s

    def tick(self, now_s, view):
        """At the same instants as reports, and right behind them."""
        self.keep(now_s, view)
        return ()

    def keep(self, now_s, view):
        for shown in view.replicas:
            replica = shown._replica
            replica.cache._settle()
            tiers = [set(level.memory.keys) - level.memory.on_way for level in replica.levels]
            self.stored[shown.index, now_s] = set(replica.cache._index), set().union(*tiers)

    def decide(self, request, now_s, view):
        if not self.report_s:
            self.keep(now_s, view)
        for shown in view.replicas:
            at_s = shown.reported_s if self.report_s else now_s
            if (shown.index, at_s) in self.stored:  # one that came up is shown without a report
                self.compare(request, shown, *self.stored[shown.index, at_s])
        open_ = view.open()
        return Send(open_[request.id % len(open_)].index)

    def compare(self, request, shown, cached, below):
        keys = chain(request, SIZE).keys
        prefix = list(takewhile(cached.__contains__, keys))
        found = list(takewhile((cached | below).__contains__, keys[: (request.prompt_tokens - 1) // SIZE]))

        assert SIZE * len(prefix) == shown.prefix_tokens(request)
        assert SIZE * len(set(found) - cached) == shown.tier_load(request)[0]
        self.counts["cached"] += bool(prefix)
        self.counts["in tiers"] += bool(set(found) - cached)
        self.counts["old"] += cached != set(shown._replica.cache._index)


def compared(number, report_s):
    """What a router compared on replicas of a drawn system, one of which fails."""
    requests, router = drawn(number)[0], Comparing(report_s)
    tiers = (f"dram:size={blocks(12)}", f"dram:size={blocks(20)},write=back", TIERS[2], None)[number % 4]
    sim = Sim(prefix_cache="on", kv_blocks=24, tiers=tiers, replicas=3, policy="vllm-v1",
              router="reported-queue", fail="replica:1@0.8s..1.3s,requeue",
              latency="linear:base_s=0.0625,prefill_token_s=0.0001")  # fmt: skip
    sim.cluster.router = router
    ended = list(sim.simulate(requests))

    assert len(requests) == len(ended)
    return router.counts


@pytest.mark.parametrize("report_s", [0.0, 0.137, 0.53])
def test_what_a_router_sees_of_stored_blocks_is_as_old_as_its_reports(report_s):
    """A router with old queues and fresh caches would be better than any that can be built."""
    counts = sum((compared(number, report_s) for number in range(12)), Counter())

    assert min(counts["cached"], counts["in tiers"]) > 25
    assert (counts["old"] > 50) == (report_s > 0)


class Lru:
    """An independent cache of keys."""

    def __init__(self, capacity):
        self.capacity, self.keys = capacity, OrderedDict()

    def use(self, keys):
        """Store or touch, the end of a chain first; what had to go."""
        for key in reversed(keys):
            self.keys[key] = None
            self.keys.move_to_end(key)
        return [self.keys.popitem(last=False)[0] for _ in range(len(self.keys) - self.capacity)]


def independent(chains, capacities):
    """Share of all blocks that each of several caches in a row finds; each gets all that is used."""
    levels, hits = [Lru(capacity) for capacity in capacities], [0] * len(capacities)
    for keys in chains:
        for key in keys:
            level = next((level for level, cache in enumerate(levels) if key in cache.keys), None)
            if level is None:
                break
            hits[level] += 1
        for level in levels:
            # the GPU has a block more of each request, with the token that is computed
            level.use([*keys, object()] if level is levels[0] else keys)
    total = sum(map(len, chains))
    return [hit / total for hit in hits]


def one_by_one(chains, size, gpu_blocks, tiers, block_bytes):
    """Share of all blocks that the prefix cache and each tier find of requests that never overlap."""
    requests = [Request(i, 1000.0 * i, size * len(keys) + 1, 1, tuple(keys), size) for i, keys in enumerate(chains)]
    sim = Sim(prefix_cache="on", kv=f"paged:block_tokens={size},watermark=0", kv_blocks=gpu_blocks, policy="vllm-v1",
              latency="linear", max_model_len=200_000, log_steps=False,
              tiers="+".join(f"{name}:size={count * block_bytes}" for name, count in tiers))  # fmt: skip
    cached = sum(record.cached_tokens for record in sim.simulate(requests))
    total = size * sum(map(len, chains))
    tier_hits = [row["hit_tokens"] for row in sim.describe()["tiers"]]
    return [(cached - sum(tier_hits)) / total, *(hit / total for hit in tier_hits)]


@pytest.mark.parametrize("number", range(6))
def test_each_tier_finds_what_an_independent_cache_finds(number):
    """A hit rate that is off by a point moves every conclusion about the size of a tier."""
    draw = Random(number)
    chains = []
    for _ in range(300):
        family, turn = min(draw.randrange(40), draw.randrange(40)), draw.randint(1, 12)
        chains.append([1000 * family + block for block in range(turn)])
    capacities = [draw.randint(13, 20), draw.randint(20, 60), draw.randint(80, 300)]
    expected = independent(chains, capacities)
    obtained = one_by_one(chains, SIZE, capacities[0], [("dram", capacities[1]), ("pool", capacities[2])], BLOCK_BYTES)

    assert expected == pytest.approx(obtained, abs=0.001)


def test_tiers_find_what_an_independent_cache_finds_on_the_trace_of_mooncake():
    """The published hit rates are of this trace; 0.1 point of each tier."""
    if not CONVERSATION.exists():
        pytest.skip("the conversation trace of Mooncake is not beside the project")
    with CONVERSATION.open() as lines:
        chains = [json.loads(line)["hash_ids"] for _, line in zip(range(1500), lines, strict=False)]
    capacities = [300, 2_000, 8_000]
    obtained = one_by_one(chains, 512, 300, [("dram", 2_000), ("pool", 8_000)],
                          512 * kv_bytes_per_token(model("opt-13b")))  # fmt: skip

    assert independent(chains, capacities) == pytest.approx(obtained, abs=0.001)


@pytest.mark.parametrize("number", range(5))
def test_transfers_share_the_bandwidth(number):
    """Against a simulation in small steps: each gets its share of what is under way."""
    draw, channel = Random(number), Channel(100.0)
    starts = sorted((draw.uniform(0, 5), draw.uniform(1, 200), i) for i in range(12))
    ends, waiting = {}, list(starts)
    while waiting or channel.next_s < float("inf"):
        if waiting and waiting[0][0] <= channel.next_s:
            at_s, size, i = waiting.pop(0)
            channel.start(i, size, at_s)
        else:
            now_s = channel.next_s
            ends |= dict.fromkeys(channel.ended(now_s), now_s)
    left, now_s, step_s, expected = {}, 0.0, 1e-3, {}
    while len(expected) < len(starts):
        left |= {i: size for at_s, size, i in starts if now_s - step_s < at_s <= now_s}
        share = 100.0 * step_s / max(1, len(left))
        left = {i: size - share for i, size in left.items()}
        now_s += step_s
        expected |= {i: now_s for i, size in left.items() if size <= 0}
        left = {i: size for i, size in left.items() if size > 0}

    assert expected == pytest.approx(ends, abs=0.05)


def test_a_request_waits_for_its_blocks_while_others_run():
    """A load that stopped the replica, or took no time, would make tiers look worse or better than they are."""
    chain = tuple(range(64))
    requests = [
        Request(0, 0.0, 1025, 1, chain, SIZE),
        Request(1, 100.0, 1800, 200, (), SIZE),  # takes nearly all memory
        Request(2, 200.0, 1025, 2, chain, SIZE),
        Request(3, 200.0, 50, 2, (), SIZE),
    ]
    sim = Sim(prefix_cache="on", kv_blocks=130, policy="vllm-v1", tiers="dram:pcie=1GBps,latency=10ms",
              latency="linear:base_s=0.01,prefill_token_s=0.0001,decode_seq_s=0")  # fmt: skip
    records = {record.request_id: record for record in sim.simulate(requests)}
    row, late = sim.describe()["tiers"][0], records[2]
    load_s = row["load_bytes"] / 1e9 + 0.01

    assert 1024 == late.cached_tokens
    assert 200.0 == records[3].prefill_start_s, "the other one does not wait"
    assert late.prefill_start_s >= 200.0 + load_s
    assert late.prefill_start_s == pytest.approx(200.0 + load_s, abs=0.03)
    assert late.token_s[0] - late.prefill_start_s == pytest.approx(0.01 + 0.0001, abs=1e-9)
    assert 1 == row["loads"]
    assert row["load_bytes"] > 50 * BLOCK_BYTES
    assert load_s == pytest.approx(row["wait_s"])


@pytest.mark.parametrize("number", [2, 32])
def test_nothing_is_loaded_while_anyone_is_swapped_out(number, monkeypatch):
    """Loads took the last blocks of who was to come back, who gave up those that were loaded, and so on without end."""
    load = Hierarchy._load

    def checked(self, replica, seq, now_s):
        assert not replica.swap
        load(self, replica, seq, now_s)

    monkeypatch.setattr(Hierarchy, "_load", checked)
    sim = Sim(prefix_cache="on", kv_blocks=16, policy="vllm-v0", preempt="swap", tiers=TIERS[2],
              latency="linear:base_s=0.0625,prefill_token_s=0.0001")  # fmt: skip

    assert len(drawn(number)[0]) == len(list(sim.simulate(drawn(number)[0])))
    assert sim.describe()["swapped_blocks"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tiers": "dram"}, "give prefix_cache=on"),
        ({"tiers": "drum", "prefix_cache": "on"}, "Did you mean 'dram'"),
        ({"tiers": "dram:size=0B", "prefix_cache": "on"}, "must be above 0"),
        ({"tiers": "pool:load=5m", "prefix_cache": "on"}, "must be a rate such as 25Gbps"),
        ({"tiers": "dram++ssd", "prefix_cache": "on"}, "No tier"),
    ],
)
def test_wrong_tiers_are_refused_with_a_sentence(fields, message):
    with pytest.raises(UsageError, match=message):
        Sim(**fields)
