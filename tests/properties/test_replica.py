"""Whatever arrives, under every policy and memory mode: a request ends once, a block is never lost, time only grows."""

from array import array
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.serving.batch import Oracle, Sequence
from backends.serving.journal import Journal, replay
from backends.serving.plugins import Simulated
from backends.serving.replica import Replica
from harness.api import Request
from harness.registry import make, names

POLICIES = [
    "static:batch=3",
    "static:batch=3,pad=false",
    "orca:max_batch=3",
    "vllm-v0:max_seqs=6",
    "priority-preempt:frequency=0.1,max_seqs=6",
    "vllm-v0:max_batched_tokens=120",
    "sarathi:budget=32,max_seqs=8",
    "sarathi:budget=7,max_seqs=4",
    "sarathi:budget=48,max_seqs=8,low=8,stages=4,span_tokens=64",
    "tgi:max_waiting_tokens=3",
    "chunk-only:budget=24,max_seqs=6",
    "priority-preempt:frequency=0.1",
    "fastgen:budget=32,max_seqs=8",
    "fastgen:budget=64,max_seqs=4,max_tracked=12",
    "distserve-prefill:max_seqs=4,max_batched_tokens=90",
    "distserve-decode:max_seqs=5",
    "vllm-v1:budget=32,max_seqs=8",
    "vllm-v1:budget=12,max_seqs=6,long_prefill=5",
    "vllm-v1:budget=32,max_seqs=8,order=priority",
    "gmax:budget=32,max_seqs=6,interval=7,group=2",
    "online-priority:max_seqs=6",
    "stages",
    "ooc:max_seqs=6,tpot_s=0.04",
    "vllm-v1:budget=32,max_seqs=8,async_scheduling=true",
    "sglang:chunk=24,max_seqs=6,recv_interval=3",
    "sglang:chunk=24,max_seqs=6,overlap=false",
    "ltr:budget=32,max_seqs=6,interval=5",
    "autellix:budget=32,max_seqs=6,interval=5,quantum=8",
    "edf:budget=32,max_seqs=6,interval=5",
]
MEMORIES = [
    "paged:block_tokens=4,watermark=0",
    "paged:block_tokens=4,watermark=0.05",
    "paged:block_tokens=1,watermark=0",
    "reserve-max:max_tokens=150,block_tokens=4",
    "reserve-pow2:block_tokens=4",
    "reserve-oracle:block_tokens=4",
    "virtual:page_bytes=8KiB,watermark=0",
    "sparse:block_tokens=4",
]

requests_lists = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, 100), st.integers(1, 40)), min_size=1, max_size=25
).map(lambda rows: [Request(i, at / 8, p, o) for i, (at, p, o) in enumerate(sorted(rows))])


class Checked:
    """A driver that steps by one, checks everything after each call, and counts what ran."""

    def __init__(self, policy: str, memory: str, blocks: int) -> None:
        self.journal = Journal()
        self.replica = Replica(make("policies", policy), make("kv", memory), blocks, journal=self.journal)
        self.refused: list[int] = []
        self.done: list = []
        self.ran_tokens = 0
        self.recomputed = 0
        self.batches: list = []
        self.could_decode: list[int] = []

    def run(self, requests: list[Request]) -> None:
        waiting = sorted(requests, key=lambda r: r.scheduled_s)[::-1]
        now_s = 0.0
        replica = self.replica
        while True:
            while waiting and waiting[-1].scheduled_s <= now_s:
                request = waiting.pop()
                if replica.add(request, now_s) is not None:
                    self.refused.append(request.id)
            batch = replica.schedule(now_s)
            replica.check()
            if batch is None:
                assert not replica.waiting and not replica.running, "idle although something could run"
                if not waiting:
                    return
                now_s = waiting[-1].scheduled_s
                continue
            self.note(batch)
            now_s += 0.01 + 0.001 * batch.tokens()
            self.done += replica.commit(batch, array("d", (now_s,)))
            replica.check()

    def note(self, batch) -> None:
        sequences = [seq for seq, _ in batch.items(iter(self.replica.decoding))]
        assert len(sequences) == len(set(sequences)), "a sequence appears twice in a batch"
        for seq, n in batch.prefills:
            assert 0 < n <= seq.need()
        decodes = len(self.replica.decoding) if batch.decode_seqs else 0
        self.ran_tokens += sum(n for _, n in batch.prefills) + decodes
        self.batches.append(batch)
        self.could_decode.append(len(self.replica.decoding))


@pytest.mark.parametrize("policy", POLICIES)
@given(memory=st.sampled_from(MEMORIES), requests=requests_lists, blocks=st.integers(1, 60))
def test_every_request_ends_once_and_all_memory_comes_back(policy, memory, requests, blocks):
    """A lost request, a leaked block or a stuck queue would make every number of a run wrong."""
    size = make("kv", memory).block_tokens
    driver = Checked(policy, memory, blocks * 8 // size + 1)
    driver.run(requests)

    assert sorted(r.id for r in requests) == sorted(driver.refused + [seq.request.id for seq in driver.done])
    assert driver.replica.blocks.free == driver.replica.blocks.total
    for seq in driver.done:
        stamps = list(seq.token_s)
        assert seq._output == seq.emitted == len(stamps)
        assert stamps == sorted(set(stamps)), "token times must grow"
        assert seq.arrived_s <= seq.prefill_start_s < seq.prefill_end_s == stamps[0]
        if seq.decode_start_s is None:  # one token, or every further one came out of a recompute
            assert len(stamps) <= 1 + seq.preemptions
        else:
            assert stamps[0] <= seq.decode_start_s < stamps[min(1 + seq.preemptions, len(stamps) - 1)]
        assert seq.prompt + seq._output - 1 == seq.computed


@pytest.mark.parametrize("policy", POLICIES)
def test_tokens_that_ran_are_accounted_for(policy, draw, interpreted):
    """Scheduled tokens = prompt + output - 1 + what preemption made run again; otherwise work appears from nowhere
    (E11)."""
    requests = draw(40, rate_rps=20.0)
    driver = Checked(policy, "paged:block_tokens=4,watermark=0", 70)
    lost = []
    preempt = Replica.preempt

    class Counting(Replica):
        __slots__ = ()

        def preempt(self, batch, *who, **how):
            before = {s: s.computed for s in (*self.prefilling, *self.decoding, *self.parked)}
            preempt(self, batch, *who, **how)
            lost.append(before[batch.preempted[-1]])

    driver.replica.__class__ = Counting
    driver.run(requests)
    served = [Oracle.request(seq) for seq in driver.done]

    assert sum(r.prompt_tokens + r.output_tokens - 1 for r in served) + sum(lost) == driver.ran_tokens
    assert len(lost) == sum(seq.preemptions for seq in driver.done)
    assert sum(lost) == driver.replica.recomputed_tokens


def test_tight_memory_does_preempt(draw):
    """The tests above would prove nothing about preemption if it never happened."""
    driver = Checked("vllm-v0", "paged:block_tokens=4,watermark=0", 70)
    driver.run(draw(40, rate_rps=20.0))

    assert sum(seq.preemptions for seq in driver.done) > 5


@pytest.mark.parametrize("policy", POLICIES)
def test_the_journal_replays_to_the_same_batches(policy, draw):
    """If anything but the calls decided, no simulation of a real run could be exact."""
    requests, memory = draw(40, rate_rps=20.0), "paged:block_tokens=4,watermark=0"
    driver = Checked(policy, memory, 70)
    driver.run(requests)
    again = Journal()
    replica = Replica(make("policies", policy), make("kv", memory), 70, journal=again)
    done = replay(driver.journal.calls, {r.id: r for r in requests}, replica)

    assert driver.journal.decisions == again.decisions
    assert [list(seq.token_s) for seq in driver.done] == [list(seq.token_s) for seq in done]


def test_waste_per_sequence_is_less_than_a_block(draw):
    """Paged memory wastes at most size - 1 tokens a sequence, half a block on average (E10)."""
    size = 16
    driver = Checked("vllm-v0", f"paged:block_tokens={size},watermark=0", 4000)
    wastes = []
    note = driver.note

    def watch(batch):
        note(batch)
        for seq in driver.replica.decoding:
            held = driver.replica.blocks.blocks_for(seq.computed + 1) * size
            wastes.append(held - seq.computed - 1)

    driver.note = watch
    driver.run(draw(150, rate_rps=5.0, prompt=(50, 400), output=(40, 200)))

    assert min(wastes) >= 0
    assert max(wastes) <= size - 1
    assert (size - 1) / 2 == pytest.approx(sum(wastes) / len(wastes), rel=0.05)


def test_a_cancelled_request_gives_its_memory_back(draw):
    """Memory of people who hung up must serve the others."""
    replica = Replica(make("policies", "sarathi:budget=32,max_seqs=8"), make("kv", "paged"), 100)
    for request in draw(6, prompt=(40, 60), output=(5, 9)):
        replica.add(request, 0.0)
    for step in range(3):
        batch = replica.schedule(float(step))
        replica.commit(batch, (step + 0.5,))
    cancelled = [replica.cancel(i, 3.0) for i in range(6)]

    replica.check()
    assert all(cancelled)
    assert replica.cancel(0, 3.0) is None
    assert replica.blocks.free == replica.blocks.total
    assert replica.schedule(4.0) is None


@pytest.mark.parametrize(
    ("policy", "memory", "prompt", "output", "words"),
    [
        ("vllm-v0", "paged", 2000, 10, "needs KV memory for 2009 tokens, the replica has 1600"),
        ("vllm-v0:max_batched_tokens=100", "paged", 101, 10, "exceeds max_batched_tokens 100"),
        ("orca", "reserve-max:max_tokens=500", 400, 101, "exceed the reservation of 500"),
        ("orca", "reserve-max:max_tokens=1601", 4, 1, "needs KV memory for 1601 tokens"),
        ("sarathi", "paged", 0, 10, "at least 1 token"),
    ],
)
def test_what_can_never_fit_is_refused_when_it_arrives(policy, memory, prompt, output, words):
    """A request that can never run must not block the queue for ever."""
    replica = Replica(make("policies", policy), make("kv", memory), 100)

    assert words in replica.add(Request(0, 0.0, prompt, output), 0.0)
    assert replica.schedule(0.0) is None


def test_every_policy_and_memory_mode_is_covered():
    """A new policy or memory mode must come under these tests."""
    own = {name for name in names("policies") if isinstance(make("policies", name), Simulated)}  # tested apart
    assert set(names("policies")) == {spec.partition(":")[0] for spec in POLICIES} | own
    assert set(names("kv")) == {spec.partition(":")[0] for spec in MEMORIES}


def test_a_policy_that_asks_for_the_output_length_fails():
    """An online policy that knows the future would make its results worthless."""
    seq = Sequence(Request(0, 0.0, 3, 7), 0, 0.0)
    with pytest.raises(AttributeError):
        _ = seq.output_tokens  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="estimate it with a length predictor"):
        _ = seq.request.output_tokens

    assert Oracle.output_tokens(seq) == 7


@pytest.mark.parametrize("policy", {spec.partition(":")[0]: spec for spec in POLICIES}.values())
@given(requests=requests_lists, blocks=st.integers(20, 60))
@settings(max_examples=12, deadline=None)
def test_a_sequence_that_stops_early_equals_a_shorter_request(policy, requests, blocks, interpreted):
    """An answer that ends by itself must not cost more, nor less, than one of that many tokens."""
    short = Checked(policy, "paged:block_tokens=4,watermark=0", blocks * 2)
    short.run(requests)
    served = [r for r in requests if r.id not in short.refused]
    output_of = {r.id: r.output_tokens for r in served}
    long = Checked(policy, "paged:block_tokens=4,watermark=0", blocks * 2)
    longer = [replace(r, output_tokens=min(r.output_tokens + 7, blocks * 8 - r.prompt_tokens + 1)) for r in served]

    class Stopping(Replica):
        __slots__ = ()

        def commit(self, batch, end_s):
            done = Replica.commit(self, batch, end_s)
            ready = [s for s in (*self.decoding, *self.prefilling) if s.emitted == output_of[s.request.id]]
            return done + [self.stop(s.request.id, end_s[-1]) for s in ready]

    long.replica.__class__ = Stopping
    long.run(longer)

    assert {s.request.id: list(s.token_s) for s in short.done} == {s.request.id: list(s.token_s) for s in long.done}
    assert short.journal.decisions == long.journal.decisions
    assert output_of.keys() == {s.request.id for s in long.done}
    again = Journal()
    replay(
        long.journal.calls,
        {r.id: r for r in longer},
        Replica(make("policies", policy), make("kv", "paged:block_tokens=4,watermark=0"), blocks * 2, journal=again),
    )

    assert long.journal.decisions == again.decisions


def test_a_padded_batch_is_over_when_the_last_one_has_left():
    """The rows of a batch that is gone would slow the next one down for ever."""
    replica = Replica(make("policies", "static:batch=2"), make("kv", "paged"), 100)
    for i, output in enumerate((2, 50)):
        replica.add(Request(i, 0.0, 10, output), 0.0)
    for step in range(3):
        replica.commit(replica.schedule(float(step)), (step + 0.5,))

    assert (1, 1) == (len(replica.decoding), replica.decoding.padded_rows)

    replica.cancel(1, 3.0)

    assert (0, 0) == (replica.decoding.padded_rows, replica.decoding.padded_context)
