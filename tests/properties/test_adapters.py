"""LoRA adapters in the simulator: who waits for a slot, what loading costs, and what adapters weigh."""

import pytest

from backends.sim import Sim
from harness.api import Extra, Request
from harness.catalog import Shape, adapter_bytes, model
from harness.errors import UsageError

STEP_S, LOAD_S, SHARE = 0.01, 0.25, 0.2
LATENCY = f"linear:base_s={STEP_S},prefill_token_s=0,decode_seq_s=0,context_token_s=0"


def served(models, lora, **fields):
    """Records of one request per model: 4 prompt and 5 output tokens, 1 ms apart; the simulator."""
    sim = Sim(latency=LATENCY, kv_blocks=100, lora=lora, **fields)
    requests = [
        Request(i, i * 1e-3, 4, 5, extra=None if name is None else Extra(model=name)) for i, name in enumerate(models)
    ]
    return {r.request_id: r for r in sim.simulate(requests)}, sim


def test_a_request_waits_for_a_slot_and_those_behind_it_pass():
    records, sim = served(["a", "b", "a", None], "slots=1,load=0s,step_share=0")

    running_ends = max(records[i].token_s[-1] for i in (0, 2, 3))
    assert [0.0, 0.01, 0.01] == pytest.approx([records[i].prefill_start_s for i in (0, 2, 3)])
    assert running_ends == records[1].prefill_start_s
    assert 2 == sim.describe()["adapter_loads"]


def test_first_tokens_wait_for_the_load_and_every_step_is_longer():
    base, adapted = (served([name], f"slots=1,load={LOAD_S}s,step_share={SHARE}")[0][0].token_s for name in (None, "a"))

    assert pytest.approx(base[0] + LOAD_S + SHARE * STEP_S) == adapted[0]
    assert pytest.approx(STEP_S * (1 + SHARE)) == adapted[-1] - adapted[-2]


@pytest.mark.parametrize(("order", "loads"), [("abab", 2), ("abcabc", 6), ("abacab", 4)])
def test_the_least_recently_used_adapter_makes_room(order, loads):
    """Requests far apart, two slots: by hand, LRU loads 2, 6 (every one) and 4 (a b, c for b, b for c)."""
    sim = Sim(latency=LATENCY, kv_blocks=100, lora="slots=2")
    list(sim.simulate([Request(i, float(i), 4, 5, extra=Extra(model=name)) for i, name in enumerate(order)]))

    assert loads == sim.describe()["adapter_loads"]
    assert list(order[-2:]) == list(sim.cluster.replicas[0].adapters.resident)


def test_slots_for_all_and_no_cost_change_nothing():
    names = ["a", "b", None, "c"] * 3
    free, plain = (
        {i: list(r.token_s) for i, r in served(names, lora)[0].items()}
        for lora in ("slots=3,load=0s,step_share=0", None)
    )

    assert plain == free


@pytest.mark.parametrize("system", [{"pp": 2}, {"prefill": "1", "decode": "1", "model": "llama2-7b"}])
def test_every_request_ends_in_pipelines_and_after_hand_offs(system):
    """A sequence that lands beside others waits for a slot as one in the queue does."""
    records, sim = served(["a", "b", "c", "a", None] * 4, "slots=1", **system)

    sim.cluster.check()
    assert {"ok"} == {r.status for r in records.values()}
    assert {5} == {r.output_tokens for r in records.values()}


def test_adapters_share_no_prefix_with_one_another():
    """The keys and values of a text under one adapter are not those under another, nor of the base model."""
    sim = Sim(latency=LATENCY, kv_blocks=100, prefix_cache="on", lora="slots=2")
    names = ["a", "b", None, "a"]
    requests = [
        Request(i, float(i), 64, 5, (1, 2), 32, extra=None if name is None else Extra(model=name))
        for i, name in enumerate(names)
    ]

    assert [0, 0, 0, 48] == [r.cached_tokens for r in sim.simulate(requests)]


def test_sizes_are_those_of_published_adapters():
    """PEFT: 4,194,304 parameters at rank 8 on queries and values of Llama-2-7B; all of attention is twice that."""
    one, half = (adapter_bytes(model("llama2-7b"), Shape(tp=tp), 8, feed_forward=False) for tp in (1, 2))

    assert 2 * 2 * 4_194_304 == one
    assert 0.75 * one == half  # the other half of each matrix is on both GPUs
    with pytest.raises(UsageError, match="size of its adapters"):
        adapter_bytes(model("deepseek-v3"), Shape(), 8)


def test_slots_take_memory_from_kv():
    blocks = {lora: Sim(model="llama2-7b", lora=lora).cluster.replicas[0].blocks.total for lora in (None, "slots=100")}

    assert blocks[None] - blocks["slots=100"] == pytest.approx(100 * 2 * 39_976_960 / (16 * 524_288), abs=1)


def test_who_has_no_slot_keeps_its_place_behind_those_who_wait_for_something_else():
    """A queue that memory holds up would turn with every step, and a leap over steps would serve another one first."""
    requests = [Request(0, 0.0, 1, 9)] + [
        Request(i, 0.0, 1, 3, extra=Extra(model=name)) for i, name in enumerate("abcde", 1)
    ]
    first = {}
    for leap in (True, False):
        sim = Sim(latency=LATENCY, kv_blocks=40, admission="conservative", lora="slots=2", leap=leap)
        first[leap] = {r.request_id: r.token_s[0] for r in sim.simulate(requests)}

    assert first[True] == first[False]
    assert [1, 2, 3, 4, 5] == sorted(range(1, 6), key=lambda i: (first[True][i], i))
