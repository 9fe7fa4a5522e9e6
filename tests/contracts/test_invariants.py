"""What every policy must keep with every memory mode, rule of admission and router, those of other packages too."""

from hashlib import sha256

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.latency.builtin import Linear
from backends.serving.cluster import route_of
from backends.serving.journal import Journal
from backends.serving.routing import PeriodicRouter, requirements
from backends.sim import Sim
from backends.simulator.core import Core
from harness.api import Extra, Request
from harness.data.records import to_table
from harness.registry import make, names

TIGHT = {"sarathi": "budget=32,max_seqs=8", "fastgen": "budget=32,max_seqs=8", "vllm-v1": "budget=32,max_seqs=8",
         "chunk-only": "budget=24,max_seqs=6", "static": "batch=4,pad=false", "orca": "max_batch=4",
         "gmax": "budget=32,max_seqs=6,interval=5,group=2", "ltr": "budget=32,max_seqs=6,interval=5",
         "online-priority": "budget=32,max_seqs=8", "ooc": "budget=32,max_seqs=8,chunk=24,saturation=6",
         "autellix": "budget=32,max_seqs=6,interval=5,quantum=8", "edf": "budget=32,max_seqs=6,interval=5"}  # fmt: skip
"""Limits under which small traffic is cut and queues; a policy that is not named here runs with its own."""
SIMULATED = ("semi-pd", "diffusion", "loongserve")
"""No engine can run them."""
ROLES = ("distserve-prefill", "distserve-decode")
"""They are half of a system: the other half is on another replica."""
POLICIES = [f"{name}:{TIGHT[name]}" if name in TIGHT else name for name in names("policies") if name not in ROLES]
SMALL = {"reserve-max": "max_tokens=160,block_tokens=4", "virtual": "page_bytes=40KiB"}
"""Blocks of 4 tokens, as pages of the model that is simulated too."""
MEMORIES = [f"{name}:{SMALL.get(name, 'block_tokens=4')}" for name in names("kv")]
TERMS = {"base_s": 0.01, "prefill_token_s": 1e-4, "decode_seq_s": 3e-4, "context_token_s": 1e-7}
COST = Linear(**TERMS)
LATENCY = "linear:" + ",".join(f"{name}={value!r}" for name, value in TERMS.items())
ROUTES = [name for name in names("routers") if route_of(make("routers", name)) is not None]
"""Routers that only choose; leaps end where one that knows time may act, so that it has other batches."""


def request(number, at, prompt, output, shared):
    """One that begins like others with the same `shared`."""
    return Request(number, at / 8, prompt, output, prefix_ids=(shared, 7, 8), prefix_block_tokens=8)


EXTRA = [None, *(Extra(model=name) for name in ("opt-13b", "llama2-13b", "c"))]
"""Requests for the base model and for three adapters, or for two base models and one that no replica serves."""
traffic = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 100), st.integers(1, 40)), min_size=1, max_size=20).map(
    lambda rows: [Request(i, at / 8, p, o, extra=EXTRA[i % 4]) for i, (at, p, o) in enumerate(sorted(rows))]
)
ALIKE = [
    name for name in names("routers") if (r := requirements(make("routers", name))).layout != "apart" and not r.lends
]
"""One that lends blocks refuses prefix caches and lanes."""
systems = st.fixed_dictionaries(
    {
        "kv": st.sampled_from(MEMORIES),
        "router": st.sampled_from(ALIKE),
        "admission": st.sampled_from(names("admission")),
        "speculate": st.sampled_from([None, None, "k=3,alpha=0.6"]),
        "preempt": st.sampled_from(["recompute", "swap:blocks=30"]),
        "prefix_cache": st.sampled_from(["off", "on"]),
        "lora": st.sampled_from([None, "slots=1,load=3ms", "slots=2,load=3ms,step_share=0.3"]),
        "replicas": st.sampled_from([1, 1, 3]),
        "groups": st.sampled_from([None, None, "1:model=llama2-13b", "2:model=llama2-13b+1:tp=2"]),
        "kv_blocks": st.integers(40, 90),
        "seed": st.integers(0, 3),
    }
).map(
    lambda of: (
        of | ({"groups": None} if of["lora"] or isinstance(make("routers", of["router"]), PeriodicRouter) else {})
    )
)


def watch(replica):
    """Let a replica check every batch it forms. Note: a compiled replica has no subclass that could."""
    fill = replica._fill

    def checked(replica, batch):
        replica.check()  # I2: every block is free or has an owner
        fill(replica, batch)
        idle = not (batch.prefills or batch.decode_seqs or batch.swaps)
        stuck = idle and (replica.waiting or replica.running) and not replica.inbox.held
        assert not stuck, "idle although something could run, and nothing is on its way here (I5)"
        used = {seq.adapter for seq in replica.holders()} - {None}
        assert replica.adapters is None or len(used) <= replica.adapters.slots, "more adapters than slots run"
        sequences = [seq for seq, _ in batch.items(iter(replica.decoding))]
        assert len(sequences) == len(set(sequences)), "a sequence is twice in a batch (I3)"
        assert all(0 < n <= seq.need() for seq, n in batch.prefills), "more of a prompt than is left (I3)"
        budget, seats = getattr(replica.policy, "budget", None), getattr(replica.policy, "max_seqs", None)
        assert budget is None or batch.tokens() <= budget or not batch.prefills, "over the budget (I3)"
        assert seats is None or batch.preempted or replica.running <= seats or replica.parked, "too many run (I3)"

    replica._fill = checked


def simulated(requests, **fields):
    """(records by id, hash of all that was decided and stamped, the simulator)."""
    sim = Sim(latency=LATENCY, journal=True, **fields)
    for replica in sim.cluster.replicas:
        watch(replica)
    records = {r.request_id: r for r in sim.simulate(requests)}
    log = [[repr(d) for d in r.journal.decisions] for r in sim.cluster.replicas]
    stamps = [(i, list(r.token_s), r.status, r.replica) for i, r in sorted(records.items())]
    return records, sha256(repr((log, stamps)).encode()).hexdigest(), sim


@pytest.mark.parametrize("policy", POLICIES)
@given(requests=traffic, system=systems)
@settings(max_examples=20, deadline=None)
def test_what_no_policy_may_break(policy, requests, system):
    """A request lost, a block leaked, a token before its work, another answer tomorrow: numbers are wrong (I1-I6)."""
    records, digest, sim = simulated(requests, policy=policy, **system)

    assert {r.id for r in requests} == records.keys()  # I1
    for request in requests:
        record = records[request.id]
        assert record.status in ("ok", "rejected")
        if system["groups"] is not None and record.status == "ok":
            assert (request.model or "opt-13b") == sim.cluster.members[record.replica].serves
        stamps, counts = list(record.token_s), record.token_n or [1] * len(record.token_s)
        assert (request.output_tokens if record.status == "ok" else 0) == sum(counts)
        assert stamps == sorted(set(stamps))  # I4
        if stamps:
            together = 4 if policy == "loongserve" else 1  # instances that compute parts of a prompt
            own_s = COST.prefill_token_s * request.prompt_tokens / together + COST.base_s
            assert request.scheduled_s + own_s <= stamps[0] + 1e-9
    for replica in sim.cluster.replicas:  # I2
        replica.check()
        assert replica.blocks.total == replica.blocks.free
    assert digest == simulated(requests, policy=policy, **system)[1]  # I6


@pytest.mark.parametrize("policy", POLICIES)
@given(requests=traffic, system=systems, rows=st.integers(1, 9))
@settings(max_examples=8, deadline=None)
def test_tables_are_those_of_the_records(policy, requests, system, rows):
    """`bench run`, which takes tables, would have other results than a search, which takes records."""
    fields = {"latency": LATENCY, "policy": policy, **system}
    tables = list(Sim(**fields).tables(requests, rows=rows))

    assert [rows] * (len(tables) - 1) == [len(table) for table in tables[:-1]]
    assert to_table(list(Sim(**fields).simulate(requests))).equals(pa.concat_tables(tables).combine_chunks())


@pytest.mark.parametrize("policy", POLICIES)
@given(requests=traffic, system=systems)
@settings(max_examples=8, deadline=None)
def test_leaps_are_steps_under_every_policy(policy, requests, system):
    """A policy that says `repeats` where it would have changed its mind makes a fast simulator wrong."""
    leap, step = (
        {
            i: (list(r.token_s), r.preemptions)
            for i, r in simulated(requests, policy=policy, leap=how, **system)[0].items()
        }
        for how in (True, False)
    )

    assert step == leap


@pytest.mark.parametrize("policy", POLICIES)
def test_more_load_keeps_no_more_promises(policy, draw):
    """With common random numbers a higher rate must not raise attainment (I7)."""
    shares = []
    for rate_rps in (0.5, 4.0, 30.0):
        records, _, _ = simulated(draw(60, rate_rps), policy=policy, kv="paged", kv_blocks=120)
        kept = [r.status == "ok" and r.token_s[0] - r.scheduled_s <= 0.15 for r in records.values()]
        shares.append(float(np.mean(kept)))

    slack = 1.96 * (0.25 / 60) ** 0.5
    assert shares[0] >= shares[1] - slack
    assert shares[1] >= shares[2] - slack


@pytest.mark.parametrize("admission", ["fcfs", "past-future:max_new=40"])
@pytest.mark.parametrize(
    "policy", [p if p != "sglang" else "sglang:overlap=false" for p in POLICIES if p not in SIMULATED]
)
def test_the_engine_forms_the_batches_of_the_simulator(policy, admission, draw, engine_loop):
    """A simulator with a mind of its own tells nothing of the engine (E22, S63)."""
    requests = draw(40, rate_rps=20.0, prompt=(1, 80), output=(1, 40))
    core, journal = Core.of(policy=policy, admission=admission), Journal()
    ran = engine_loop(requests, core.replica(core.memory(), 25, journal=journal))
    sim = Sim(policy=policy, admission=admission, kv_blocks=25, latency=engine_loop.latency, journal=True, leap=False)
    records = {r.request_id: list(r.token_s) for r in sim.simulate(requests)}

    assert journal.decisions == sim.cluster.replicas[0].journal.decisions
    assert ran.stamps == records


def test_every_policy_is_under_these_tests():
    """A policy in a folder of its own must not escape them."""
    assert set(names("policies")) == {spec.partition(":")[0] for spec in POLICIES} | set(ROLES)
    assert all(make("policies", spec) for spec in POLICIES)


@pytest.mark.parametrize("policy", POLICIES)
@given(requests=traffic, kv=st.sampled_from(MEMORIES), admission=st.sampled_from(names("admission")))
@settings(max_examples=2, deadline=None)
def test_one_replica_needs_no_router(policy, requests, kv, admission):
    """Where there is nothing to choose, the choice must not matter (I8)."""
    seen = {
        simulated(requests, policy=policy, kv=kv, admission=admission, router=router, kv_blocks=60)[1]
        for router in ROUTES
    }

    assert 1 == len(seen)
