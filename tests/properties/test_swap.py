"""Preemption by swapping: nothing is lost on the way to host memory and back, and nothing is computed twice."""

from array import array
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.serving.blocks import Swap
from backends.serving.journal import Journal, replay
from backends.serving.replica import Replica
from backends.sim import Sim
from harness.api import Extra, Request
from harness.registry import make

POLICIES = ["static:batch=3", "orca:max_batch=5", "vllm-v0:max_seqs=6", "sarathi:budget=32,max_seqs=8",
            "tgi:max_waiting_tokens=3", "chunk-only:budget=24,max_seqs=6", "fastgen:budget=32,max_seqs=8",
            "vllm-v1:budget=32,max_seqs=8",
            "vllm-v1:budget=12,max_seqs=6,long_prefill=5", "gmax:budget=32,max_seqs=4,interval=5",
            "autellix:budget=32,max_seqs=4,interval=5,quantum=8"]  # fmt: skip

requests_lists = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, 60), st.integers(1, 60)), min_size=4, max_size=20
).map(lambda rows: [Request(i, at / 8, p, o) for i, (at, p, o) in enumerate(sorted(rows))])


class Driver:
    """Steps a replica that swaps, and copies what each sequence has stored as its driver would."""

    def __init__(self, policy: str, blocks: int, host: int, memory: str = "paged:block_tokens=4,watermark=0") -> None:
        self.journal = Journal()
        self.swap = Swap(host)
        self.replica = Replica(
            make("policies", policy), make("kv", memory), blocks, journal=self.journal, swap=self.swap
        )
        self.done: list = []
        self.tokens = self.out = self.back = 0
        self.admitted_beside_swapped = 0
        self.pages: dict[int, tuple[int, int]] = {}  # page -> (request, number of the block)
        self.host: dict[int, int] = {}  # request -> blocks kept

    def run(self, requests: list[Request]) -> None:
        waiting, now_s, replica = sorted(requests, key=lambda r: r.scheduled_s)[::-1], 0.0, self.replica
        while True:
            while waiting and waiting[-1].scheduled_s <= now_s:
                replica.add(waiting.pop(), now_s)
            swapped_before = len(self.swap)
            batch = replica.schedule(now_s)
            replica.check()
            if batch is None:
                assert not replica.waiting and not replica.running and not len(self.swap), "idle beside work"
                if not waiting:
                    return
                now_s = waiting[-1].scheduled_s
                continue
            self.carry(batch)
            new = [seq for seq, n in batch.prefills if seq.computed == 0 and seq.admitted >= 0]
            self.admitted_beside_swapped += bool(swapped_before and [s for s in new if s.prefill_start_s == now_s])
            now_s += 0.01 + 0.001 * batch.tokens()
            self.done += replica.commit(batch, array("d", (now_s,)))
            replica.check()

    def carry(self, batch) -> None:
        for seq, table in sorted(batch.swaps, key=lambda one: one[1] is None):
            i = seq.request.id
            if table is not None:
                assert [(i, n) for n in range(len(table))] == [self.pages[page] for page in table]
                self.host[i] = len(table)
                self.out += 1
            else:
                for n, page in enumerate(self.replica.table(seq)[: self.host.pop(i)]):
                    self.pages[page] = (i, n)
                self.back += 1
        for seq, n in batch.items(iter(self.replica.decoding)):
            table, size = self.replica.table(seq), self.replica.blocks.size
            for number in range(seq.computed // size):  # what it reads must be its own
                assert (seq.request.id, number) == self.pages[table[number]]
            for number in range(seq.computed // size, (seq.computed + n - 1) // size + 1):
                self.pages[table[number]] = (seq.request.id, number)
            self.tokens += n


@pytest.mark.parametrize("policy", POLICIES)
@given(requests=requests_lists, blocks=st.integers(32, 45), host=st.sampled_from([0, 7, 500]))
@settings(max_examples=10, deadline=None)
def test_what_is_swapped_out_comes_back_as_it_was(policy, requests, blocks, host):
    """A sequence that reads another one's KV after a swap would say something else (E9, K03.b)."""
    driver = Driver(policy, blocks, host)
    driver.run(requests)
    served = [seq.request for seq in driver.done]

    assert {r.id for r in requests} == {r.id for r in served}
    assert (driver.replica.blocks.total, host) == (driver.replica.blocks.free, driver.swap.free)
    assert driver.out == driver.back
    assert not driver.host
    assert driver.admitted_beside_swapped == 0, "none is admitted while others wait in host memory"
    assert all(seq._output == len(seq.token_s) == len(set(seq.token_s)) for seq in driver.done)
    if host == 0:
        assert driver.out == 0


@pytest.mark.parametrize("policy", ["orca:max_batch=8", "vllm-v0", "vllm-v1:budget=64,max_seqs=16"])
def test_swapped_decodes_are_not_computed_again(policy, draw):
    """Recomputed tokens would be charged beside the copies that were to save them (E11)."""
    requests = draw(40, rate_rps=20.0, prompt=(1, 20), output=(20, 60))
    driver = Driver(policy, 60, 10_000)
    driver.run(requests)
    once = sum(r.prompt_tokens + r.output_tokens - 1 for r in requests)

    assert driver.out > 5
    if policy == "vllm-v0":  # its prompts run whole, so all preempted sequences decode
        assert once == driver.tokens
    assert once <= driver.tokens < 1.1 * once


def test_who_left_first_comes_back_first(draw):
    """A sequence could starve in host memory while later ones come and go."""
    driver = Driver("vllm-v0", 60, 10_000)
    driver.run(draw(40, rate_rps=20.0, prompt=(1, 20), output=(20, 60)))
    order = [swap for decision in driver.journal.decisions for swap in decision.swapped]
    left = [i for i, out in order if out]

    assert len(left) > 5
    queue: list[int] = []
    for i, out in order:
        if out:
            queue.append(i)
        else:
            assert queue.pop(0) == i


def test_the_journal_of_a_replica_that_swaps_replays(draw):
    """If anything but the calls decided, no simulation of a real run could be exact."""
    requests = draw(40, rate_rps=20.0, output=(20, 60))
    driver = Driver("sarathi:budget=64,max_seqs=16", 70, 30)
    driver.run(requests)
    again = Journal()
    replica = Replica(make("policies", "sarathi:budget=64,max_seqs=16"),
                      make("kv", "paged:block_tokens=4,watermark=0"), 70, journal=again, swap=Swap(30))  # fmt: skip
    replay(driver.journal.calls, {r.id: r for r in requests}, replica)

    assert driver.out > 0
    assert driver.journal.decisions == again.decisions


def test_a_swapped_sequence_that_is_cancelled_leaves_no_trace(draw):
    """People who hang up while they are swapped out must not fill host memory for ever."""
    replica = Replica(make("policies", "vllm-v0"), make("kv", "paged:block_tokens=4,watermark=0"), 40, swap=Swap(99))
    for request in draw(8, prompt=(15, 20), output=(40, 50)):
        replica.add(request, 0.0)
    step = 0
    while not len(replica.swap):
        replica.commit(replica.schedule(float(step)), (step + 0.5,))
        step += 1
        assert step < 1000
    gone = [replica.cancel(i, float(step)) for i in range(8)]

    replica.check()
    assert all(gone)
    assert (99, 40) == (replica.swap.free, replica.blocks.free)


TINY = [
    {"policy": "vllm-v0"},
    {"policy": "vllm-v1:budget=12,max_seqs=3"},
    {"policy": "vllm-v1", "prefix_cache": "on", "tiers": "dram:size=10MB,write=back+ssd:size=60MB"},
    {"policy": "orca", "prefix_cache": "on", "tiers": "pool"},
    {"policy": "sarathi:budget=32,max_seqs=8", "link": "100Mbps"},
    {"policy": "gmax:interval=5", "lora": "slots=1"},
    {"policy": "static:batch=3", "lora": "slots=1", "link": "100Mbps"},
    {"policy": "vllm-v0", "speculate": "k=3,alpha=0.7"},
]


@pytest.mark.parametrize("number", range(160))
def test_every_request_of_a_tiny_cluster_ends(number):
    """What has been handed on, is swapped out or loses its memory could wait for one another for ever."""
    draw, cluster = Random(number), TINY[number % len(TINY)]
    count = draw.randint(4, 20)
    sim = Sim(kv_blocks=count, kv=f"paged:block_tokens=4,watermark={draw.choice([0, 0.1])}",
              preempt=draw.choice(["swap", "swap:blocks=6"]), handoff=draw.choice(["push", "push", "pull"]),
              prefill=str(draw.randint(1, 2)), decode=str(draw.randint(1, 2)),
              latency="linear:base_s=0.0625,prefill_token_s=0.0001", **cluster)  # fmt: skip
    requests = []
    for i in range(draw.randint(4, 25)):
        prompt, shared = draw.randint(1, 4 * count), draw.randrange(4)
        ids = tuple(100 * draw.randrange(3) + block for block in range(min(shared, prompt // 4)))
        extra = Extra(model=draw.choice("ab")) if "lora" in cluster else None
        requests.append(Request(i, 0.02 * draw.randrange(40), prompt, draw.randint(1, 3 * count), ids, 4, extra=extra))
    records = list(sim.simulate(sorted(requests, key=lambda request: request.scheduled_s)))
    sim.cluster.check()

    assert sorted(record.request_id for record in records) == [request.id for request in requests]
    assert all(r.output_tokens == r.output_tokens_asked for r in records if r.status == "ok")
    assert all(r.error for r in records if r.status != "ok"), "it is refused with a reason"
    assert all(replica.blocks.free == replica.blocks.total for replica in sim.cluster.replicas)
