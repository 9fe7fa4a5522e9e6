"""Every router, whatever it knows: alone it changes nothing, leaps hide nothing from it, and it does what it says."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.serving.cluster import route_of
from backends.serving.replica import Replica
from backends.serving.routing import requirements
from backends.sim import Sim
from harness.api import Extra, Request
from harness.registry import make, names
from replay._leaps import leapt

ALIKE = [name for name in names("routers") if requirements(make("routers", name)).layout != "apart"]
MIXED = [name for name in ALIKE if name not in {"shortest-prefill-queue", "least-loaded-decode"}]
NOT_EQUAL = {"reject-forward", "autoscale", "pooled"}
"""One holds requests back, one does not stay a single replica, one refuses a prefix cache."""
CHOOSING = [name for name in MIXED if route_of(make("routers", name)) is not None]
ROWS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, 90), st.integers(1, 60), st.integers(0, 5), st.integers(0, 3)),
    min_size=2,
    max_size=24,
).map(
    lambda rows: [
        Request(i, at / 8, p, o, tuple(family * 10 + b for b in range(shared)), 8)
        for i, (at, p, o, shared, family) in enumerate(sorted(rows))
    ]
)


def served(requests, follow_ups=None, **fields):
    cache = "off" if fields.get("router") == "pooled" else "on"  # which it refuses
    sim = Sim(kv="paged:block_tokens=8", kv_blocks=40, prefix_cache=cache, policy="vllm-v0:max_seqs=6",
              latency="linear:base_s=0.0625,prefill_token_s=0.0009765625,decode_seq_s=0", **fields)  # fmt: skip
    records = [(r.request_id, r.replica, r.cached_tokens, list(r.token_s)) for r in sim.simulate(requests, follow_ups)]
    sim.cluster.check()
    return records


@given(requests=ROWS)
@settings(max_examples=20, deadline=None)
def test_one_replica_makes_all_routers_equal(requests):
    """A router that changes what one replica does would be part of what it is compared with (I8).

    One that holds requests back, or adds replicas, changes it by design.
    """
    first, *others = [served(requests, router=router) for router in MIXED if router not in NOT_EQUAL]

    assert all(first == other for other in others)


@pytest.mark.parametrize("router", MIXED)
@given(requests=ROWS, replicas=st.integers(2, 4), turns=st.integers(0, 2))
@settings(max_examples=12, deadline=None)
def test_leaping_equals_stepping_under_every_router(router, requests, replicas, turns):
    """A router that reads loads within a leap would see others than one that reads them at steps."""

    def follow_ups(record):
        if record.turn < turns:
            at_s = record.token_s[-1] + 0.25 * (record.request_id % 3) if record.token_s else record.scheduled_s + 1
            yield Request(record.request_id + 100, at_s, 40, 20, (record.request_id % 7,), 8, turn=record.turn + 1)

    leaps, steps = (
        sorted(served(requests, follow_ups, router=router, replicas=replicas, leap=leap)) for leap in (True, False)
    )

    assert steps == leaps


@pytest.mark.parametrize("router", [name for name in MIXED if not hasattr(make("routers", name), "tick")])
@given(requests=ROWS, named=st.lists(st.sampled_from([None, "opt-13b", "llama2-7b", "gone"]), min_size=24, max_size=24),
       replicas=st.integers(1, 3), others=st.integers(1, 3))  # fmt: skip
@settings(max_examples=10, deadline=None)
def test_models_of_one_cluster_are_served_as_by_clusters_of_their_own(router, requests, named, replicas, others):
    """A request would go to a replica of a model that it did not name, or wait for one."""
    requests = [replace(r, extra=name and Extra(model=name)) for r, name in zip(requests, named, strict=False)]
    groups = f"{others}:model=llama2-7b"
    together = served(requests, router=router, replicas=replicas, groups=groups)
    first = [r for r in requests if r.model in (None, "opt-13b")]
    second = [r for r in requests if r.model == "llama2-7b"]
    apart = served(first, router=router, replicas=replicas)
    apart += [(i, replicas + at, *rest) for i, at, *rest in served(second, router=router, replicas=others)]

    assert sorted(apart) == sorted(row for row in together if row[1] is not None)
    assert {r.id for r in requests if r.model == "gone"} == {i for i, at, *_ in together if at is None}


@pytest.mark.parametrize("layout", [{"pp": 2}, {"pp": 2, "replicas": 2}, {"prefill": "2", "decode": "1"}], ids=str)
@given(requests=ROWS)
@settings(max_examples=8, deadline=None)
def test_pipelines_and_hand_offs_keep_the_prefix_cache(layout, requests):
    """Micro-batches share what one of them stored, and a prefill replica keeps what it handed on."""
    fields = {
        "kv": "paged:block_tokens=8",
        "kv_blocks": 60,
        "latency": "linear:base_s=0.0625",
        "router": "prefix-aware",
    }
    if "prefill" not in layout:
        fields["policy"] = "vllm-v0:max_seqs=6"
    again = [replace(r, id=r.id + 100, scheduled_s=r.scheduled_s + 60) for r in requests]
    records, _ = leapt([*requests, *again], prefix_cache="on", **fields, **layout)
    first, second = (sum(r.cached_tokens for r in records if (r.request_id >= 100) is late) for late in (False, True))

    assert second >= first


def test_a_router_sees_what_decoding_took_in_the_middle_of_a_leap():
    """Three short prompts that have grown for 3 s hold more than one long prompt; seen late they hold less."""
    requests = [Request(i, 0.0, prompt, 60) for i, prompt in enumerate((8, 80, 8, 8))] + [Request(4, 3.0, 8, 2)]
    where = [{i: replica for i, replica, *_ in served(requests, router="load", replicas=2, leap=leap)}
             for leap in (True, False)]  # fmt: skip

    assert [{0: 0, 1: 1, 2: 0, 3: 0, 4: 1}] * 2 == where


def replicas(count=3, blocks=50):
    return [
        Replica(make("policies", "vllm-v0"), make("kv", "paged"), blocks, i, prefix_cache=True) for i in range(count)
    ]


def test_each_load_is_what_its_router_says():
    """A router under a name it does not deserve would be judged for what another one does."""
    one, two, three = all_three = replicas()
    for i, (replica, prompt) in enumerate([(one, 100), (one, 16), (two, 300), (three, 16), (three, 16), (three, 16)]):
        replica.add(Request(i, 0.0, prompt, 9), 0.0)
    one.schedule(0.0)  # two running, none waits
    two.schedule(0.0)  # one running on 19 of 50 blocks
    request = Request(9, 0.0, 10, 10)
    route = {name: route_of(make("routers", name))(request, all_three) for name in CHOOSING}

    assert 1 == route["least-requests"], "1 request against 2 and 3"
    assert 1 == route["queue"], "none waits at the first two; the second runs fewer"
    assert 2 == route["least-outstanding-tokens"], "48 tokens against 116 and 300"
    assert 2 == route["load"], "three blocks wanted against 8 and 19 in use"
    assert route["least-requests"] == route["prefix-aware"], "nothing is stored"


def test_the_prompt_goes_where_its_beginning_is_stored():
    """The prefix cache of every replica would fill with the same prefixes, and each would be computed many times."""
    router, (one, two, three) = make("routers", "prefix-aware:uneven_requests=2"), replicas()
    shared = Request(0, 0.0, 100, 1, (1, 2, 3, 4, 5, 6), 16)
    two.add(shared, 0.0)
    two.commit(two.schedule(0.0), (0.1,))

    assert 1 == router.route(Request(1, 0.2, 120, 9, (1, 2, 3, 4, 5, 6), 16), [one, two, three])
    assert 0 == router.route(Request(2, 0.2, 400, 9, (1, 2, 3, 4, 5, 6), 16), [one, two, three]), "96 of 400 is little"
    for i in range(3):
        two.add(Request(10 + i, 0.2, 10, 9), 0.2)

    assert 0 == router.route(Request(1, 0.2, 120, 9, (1, 2, 3, 4, 5, 6), 16), [one, two, three]), "too uneven"


def test_random_is_even_and_repeats():
    """A router that favours a replica, or differs from run to run, could not be compared with another."""
    chosen = [[make("routers", f"random:seed={seed}").route(None, [None] * 5)] for seed in range(500)]
    first, again, other = (
        [router.route(None, [None] * 5) for _ in range(2000)]
        for router in (make("routers", "random:seed=1"), make("routers", "random:seed=1"), make("routers", "random"))
    )

    assert first == again
    assert first != other
    assert all(340 < n < 460 for n in Counter(first).values())
    assert 5 == len(Counter(c for (c,) in chosen)), "the first choice of all seeds is not the same"
