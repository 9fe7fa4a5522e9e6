"""The prefix cache gives the computed blocks of those that begin alike, and no others, whatever arrives."""

from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.latency.abc import Abc
from backends.serving.batch import VisibleRequest
from backends.serving.journal import Journal, replay
from backends.serving.prefix_cache import CHAINS, chain
from backends.serving.replica import Replica
from backends.sim import Sim
from backends.simulator.core import Core
from harness.api import Request
from harness.registry import make, names
from replay._leaps import leapt

SIZE = 4
POLICIES = ["static:batch=3", "static:batch=3,pad=false", "orca:max_batch=3", "vllm-v0:max_seqs=6",
            "sarathi:budget=9,max_seqs=6", "vllm-v1:budget=9,max_seqs=6", "tgi:max_waiting_tokens=3",
            "chunk-only:budget=9",
            "fastgen:budget=9"]  # fmt: skip
COST = "linear:base_s=0.0625,prefill_token_s=0.0009765625,decode_seq_s=0"


def replica(policy="sarathi:budget=64,max_seqs=8", blocks=40, journal=None, memory=f"paged:block_tokens={SIZE}"):
    return Replica(make("policies", policy), make("kv", memory), blocks, journal=journal, prefix_cache=True)


def alike(rows, each=SIZE):
    """Requests that share as many leading blocks as the rows say: (arrival, prompt, output, shared, family)."""
    return [
        Request(i, at / 8, p, o, tuple(family * 100 + b for b in range(shared)), each)
        for i, (at, p, o, shared, family) in enumerate(sorted(rows))
    ]


ROWS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, 60), st.integers(1, 30), st.integers(0, 12), st.integers(0, 2)),
    min_size=1,
    max_size=20,
)


def run(one, requests, watch=None):
    """Serve all requests step by step, checking after every call; returns the sequences that ended."""
    left, now_s, done = sorted(requests, key=lambda r: r.scheduled_s)[::-1], 0.0, []
    while left or one.waiting or one.running:
        while left and left[-1].scheduled_s <= now_s:
            assert one.add(left.pop(), now_s) is None
        batch = one.schedule(now_s)
        one.check()
        if batch is None:
            assert not one.waiting, "idle although something could run"
            now_s = left[-1].scheduled_s
            continue
        if watch is not None:
            watch(batch)
        now_s += 0.01 + 0.001 * batch.tokens()
        done += one.commit(batch, array("d", (now_s,)))
        one.check()
    return done


@pytest.mark.parametrize("policy", POLICIES)
@given(rows=ROWS, blocks=st.integers(24, 60), each=st.sampled_from([1, 3, SIZE, 10]))
@settings(max_examples=20, deadline=None)
def test_nothing_is_lost_and_no_more_is_found_than_was_computed(policy, rows, blocks, each):
    """A block lost or given to two, or a hit on uncomputed content, would corrupt the cache (E9, K16.b, K16.c)."""
    requests, computed, journal = alike(rows, each), set(), Journal()
    one = replica(policy, blocks, journal)

    def watch(batch):
        for seq, _ in batch.prefills:
            if seq.prefill_start_s == batch.start_s:
                shared = chain(seq.request, SIZE, seq._output).keys

                assert set(shared[: seq.cached_tokens // SIZE]) <= computed, "found before anybody computed it"
                assert 0 < seq.prompt - seq.cached_tokens
        for seq in (*one.prefilling, *one.decoding):
            computed.update(chain(seq.request, SIZE, seq._output).keys)

    done = run(one, requests, watch)

    assert sorted(r.id for r in requests) == sorted(s.request.id for s in done)
    assert all(s.emitted == s._output for s in done)
    assert blocks == one.blocks.free
    assert not one.cache._holds, "the cache remembers sequences that are gone"
    again = Journal()
    replay(journal.calls, {r.id: r for r in requests}, replica(policy, blocks, again))

    assert journal.decisions == again.decisions


@given(
    rows=st.lists(st.lists(st.integers(0, 3), max_size=6), min_size=2, max_size=8),
    each=st.integers(1, 7),
    size=st.integers(1, 5),
    cut=st.integers(0, 6),
)
@settings(max_examples=60, deadline=None)
def test_two_chains_agree_as_far_as_the_contents_do(rows, each, size, cut):
    """Blocks of a prompt would be served to another one, or not be found: contents written out token by token."""
    requests = [Request(i, 0.0, max(1, each * len(r) + 3 - cut), 1, tuple(r), each) for i, r in enumerate(rows)]
    requests = [r for r in requests if each * len(r.prefix_ids) < r.prompt_tokens + each]  # nothing of the answer named
    contents = [[(one, j) for one in r.prefix_ids for j in range(each)][: r.prompt_tokens] for r in requests]
    chains = [chain(VisibleRequest(r), size, r.output_tokens).keys for r in requests]

    assert [len(text) // size for text in contents] == [len(keys) for keys in chains]
    for left, a in zip(contents, chains, strict=True):
        for right, b in zip(contents, chains, strict=True):
            for n in range(1, min(len(a), len(b)) + 1):
                assert (left[: n * size] == right[: n * size]) is (a[n - 1] == b[n - 1])


@pytest.mark.parametrize("prompt", [1, 15, 16, 17, 100, 341])
def test_an_identical_prompt_computes_at_most_one_block(prompt):
    """A repeated prompt would be computed twice; and something must run for its first token (K16.d, S40)."""
    ids = tuple(range(-(-prompt // 16)))
    sim = Sim(prefix_cache="on", policy="vllm-v0")
    first, second = sim.simulate([Request(i, 50.0 * i, prompt, 3, ids, 16) for i in range(2)])

    assert (0, (prompt - 1) // 16 * 16) == (first.cached_tokens, second.cached_tokens)
    assert 1 <= prompt - second.cached_tokens <= 16


def test_a_hit_costs_what_is_left_of_the_prompt():
    """The stored tokens would be computed again, or be read for nothing: b (n - h) + c (n^2 - h^2) (K16.a)."""
    model = Abc()
    n, h = 1000, 496
    ids = tuple(range(31))
    _, second = Sim(prefix_cache="on", policy="vllm-v0", latency="abc").simulate(
        [Request(i, 50.0 * i, n, 1, ids, 16) for i in range(2)]
    )
    whole, head, none = (model.step_s([(tokens, 0)], 0, 0) for tokens in (n, h, 0))

    assert h == second.cached_tokens
    assert none + whole - head == pytest.approx(second.token_s[0] - second.prefill_start_s)


def test_a_conversation_finds_the_answer_too_where_its_blocks_are_named():
    """Each turn of a chat would compute the answer before it again, although its KV is there."""
    first, second = Request(0, 0.0, 20, 30, tuple(range(12)), SIZE), Request(1, 50.0, 60, 3, tuple(range(15)), SIZE)
    _, after = Sim(prefix_cache="on", policy="vllm-v0", kv=f"paged:block_tokens={SIZE}").simulate([first, second])

    assert 48 == after.cached_tokens, "20 + 30 tokens, of which the last is not stored: 12 full blocks"


def test_the_end_of_a_sequence_goes_before_its_head():
    """Taking the head first would make all the rest of what is stored useless."""
    one = replica(blocks=10, memory=f"paged:block_tokens={SIZE},watermark=0")
    shared = Request(0, 0.0, 6 * SIZE, 1, tuple(range(6)), SIZE)
    run(one, [shared])  # 6 of 10 blocks are stored
    run(one, [Request(1, 0.0, 7 * SIZE, 1)])  # takes the 4 others and 3 of the 6
    keys = chain(VisibleRequest(shared), SIZE).keys

    assert 3 * SIZE == one.cache.stored_tokens(keys)


def test_who_was_preempted_finds_what_it_had_computed():
    """A preempted sequence would compute all of its own again although its blocks were not taken."""
    one = replica("orca", 12)
    one.add(Request(0, 0.0, 6 * SIZE, 9), 0.0)
    one.commit(one.schedule(0.0), (0.1,))
    batch = one.schedule(0.2)
    one.commit(batch, (0.3,))
    one.preempt(batch)
    again = one.schedule(0.4)

    assert [(2, 6 * SIZE)] == again.loads, "7 blocks for one prompt and two tokens: six are full"


def test_who_leaves_the_queue_takes_nothing_along():
    """A request that found its prefix and hung up before it ran would leave blocks behind that do not exist."""
    one = replica("orca:max_batch=1", 40)
    for i in range(3):
        one.add(Request(i, 0.0, 3 * SIZE + 1, 9, (1, 2, 3), SIZE), 0.0)
    one.commit(one.schedule(0.0), (0.1,))
    one.policy = make("policies", "vllm-v0:max_batched_tokens=1")
    one.commit(one.schedule(0.1), (0.2,))
    for i in range(3):
        assert one.cancel(i, 0.3)
        one.check()

    assert 40 == one.blocks.free
    assert 3 * SIZE == one.cache.stored_tokens(
        chain(VisibleRequest(Request(0, 0.0, 99, 1, (1, 2, 3), SIZE)), SIZE).keys
    )


def test_copies_of_one_content_stand_in_for_one_another():
    """Two equal prompts computed side by side: when the first copy goes the second must be found, not lost."""
    one = replica(blocks=40, policy="orca")
    run(one, [Request(i, 0.0, 3 * SIZE + 1, 1, (1, 2, 3), SIZE) for i in range(2)])

    assert 40 == one.blocks.free
    assert [1, 1, 1] == [len(copies) for copies in one.cache._copies.values()]
    first = list(one.cache._index.values())
    run(one, [Request(9, 0.0, 34 * SIZE, 1)])  # takes the 34 others: both copies of the last block among them

    assert 2 * SIZE <= one.cache.stored_tokens(
        chain(VisibleRequest(Request(0, 0.0, 13, 1, (1, 2, 3), SIZE)), SIZE).keys
    )
    assert first != list(one.cache._index.values()), "second copies have taken the place of first ones"


def test_forgetting_keeps_what_is_held():
    """An order to forget would take blocks from those who run, or leave stored ones to be found."""
    one = replica("orca")
    one.add(Request(0, 0.0, 3 * SIZE, 9, (1, 2, 3), SIZE), 0.0)
    run_keys = chain(VisibleRequest(Request(0, 0.0, 3 * SIZE, 9, (1, 2, 3), SIZE)), SIZE).keys
    one.commit(one.schedule(0.0), (0.1,))
    one.forget_prefixes(0.2)

    assert 3 * SIZE == one.cache.stored_tokens(run_keys)
    run(one, [])
    one.forget_prefixes(9.0)
    one.check()

    assert 0 == one.cache.stored_tokens(run_keys)


@pytest.mark.parametrize("policy", ["vllm-v0:max_seqs=6", "sarathi:budget=48,max_seqs=8"])
@given(rows=ROWS, blocks=st.integers(24, 40))
@settings(max_examples=25, deadline=None)
def test_leaping_equals_stepping_with_a_prefix_cache(policy, rows, blocks):
    """The speed of the simulator must not cost a single bit, though a leap takes many blocks at once."""
    kv = f"paged:block_tokens={SIZE}"
    leapt(alike(rows), policy=policy, kv=kv, kv_blocks=blocks, latency=COST, prefix_cache="on")


@pytest.mark.parametrize("policy", names("policies"))
def test_a_cache_that_finds_nothing_changes_nothing(policy, draw):
    """With nothing in common, and no preemption, the cache must not move a single token."""
    requests = draw(40, rate_rps=8.0)
    off, on = (
        [
            (r.request_id, list(r.token_s))
            for r in Sim(policy=policy, kv_blocks=900, prefix_cache=word).simulate(requests)
        ]
        for word in ("off", "on")
    )

    assert off == on


class Written:
    """A memory of blocks by id into which every step writes, and that every step reads before it writes."""

    def __init__(self, one):
        self.one, self.pages = one, {}

    def token(self, seq, at):
        request = seq.request
        each, ids = request.prefix_block_tokens, request.prefix_ids
        block = at // each
        answer_named = each * len(ids) >= request.prompt_tokens + each
        if (answer_named or at < request.prompt_tokens) and block < len(ids):
            return request.prefix_ids[: block + 1], at
        return request.id, at

    def step(self, batch):
        pieces = [(seq, n, self.one.table(seq)) for seq, n in batch.items(iter(self.one.decoding))]
        for seq, _, table in pieces:
            for at in range(seq.computed):
                assert self.token(seq, at) == self.pages[table[at // SIZE]][at % SIZE]
        for seq, n, table in pieces:
            for at in range(seq.computed, seq.computed + n):
                self.pages.setdefault(table[at // SIZE], {})[at % SIZE] = self.token(seq, at)


@pytest.mark.parametrize("policy", POLICIES)
@given(rows=ROWS, blocks=st.integers(24, 40), each=st.sampled_from([3, SIZE, 10]))
@settings(max_examples=15, deadline=None)
def test_a_block_that_is_found_holds_what_its_key_says(policy, rows, blocks, each):
    """The engine would read the memory of others, or decide otherwise than the simulator, which knows no ids (E22)."""
    named, counted = Journal(), Journal()
    engine = replica(policy, blocks, named)
    run(engine, alike(rows, each), Written(engine).step)
    run(replica(policy, blocks, counted), alike(rows, each))

    assert counted.decisions == named.decisions


def test_blocks_that_were_reserved_in_vain_come_back():
    """After an aborted migration a prefix cache drew blocks that it had given out already."""
    core = Core.of("vllm-v1", "paged:watermark=0", prefix_cache="on")
    replica = core.replica(core.memory(), 16)
    replica.reserve(1, 16, 0.0)
    replica.name_reserved(1, 3)
    replica.check()
    replica.unreserve(1, 0.0)
    replica.check()

    assert 16 == replica.blocks.free


@given(
    turns=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12), st.booleans()), min_size=2, max_size=8),
    each=st.sampled_from([2, SIZE, 6, 16]),
)
@settings(max_examples=100, deadline=None)
def test_a_chain_that_goes_on_is_the_one_from_its_beginning(turns, each):
    """A session's later turns would find other blocks than a request with the same content."""
    ids, before = [], None
    for turn, (more, cut, other) in enumerate(turns):
        ids = ids[: len(ids) - 3] + [-turn - 1] * 3 if other else ids
        ids = [*ids, *range(len(ids), len(ids) + more)]
        prompt = max(1, each * len(ids) - cut)
        request = VisibleRequest(Request(turn, 0.0, prompt, 40, tuple(ids), each))
        plain, before = chain(request, SIZE, 40), chain(request, SIZE, 40, before)

        assert (plain.keys, plain.link) == (before.keys, before.link)
        before.keys.append(0)  # what a preempted sequence adds of its own


def test_chains_of_old_sessions_are_given_up():
    """Memory would grow with the number of sessions."""
    one = replica(blocks=40)
    run(one, [Request(i, i / 8, 60, 2, tuple(range(i, i + 15)), SIZE, session=i) for i in range(30)])

    assert sum(found.full for found in one.cache._chains.values()) == one.cache._chained
    assert one.cache._chained <= CHAINS * 40
