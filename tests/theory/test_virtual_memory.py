"""Virtual memory mode (K08): tokens per page as published, waste below a page, and the same choices as paging."""

from dataclasses import replace

import numpy as np
import pytest

from backends.sim import Sim
from backends.simulator.core import Core
from harness.api import Request
from harness.errors import UsageError
from harness.registry import make


def run(kv, requests, **fields):
    sim = Sim(kv=kv, **{"latency": "linear", "policy": "vllm-v0", **fields})
    records = {r.request_id: list(r.token_s) for r in sim.simulate(requests)}
    sim.cluster.check()
    return records, sim


@pytest.mark.parametrize(
    ("model", "tp", "small", "large"),
    [
        ("llama3.1-8b", 1, 32, 1024), ("llama3.1-8b", 2, 64, 2048), ("yi-34b", 2, 64, 2048),
        ("llama3.1-70b", 8, 256, 8192),
    ],
)  # fmt: skip
def test_tokens_per_page_are_those_of_vattention(model, tp, small, large):
    """The table that follows from microsoft/vattention, for pages of 64 KiB and 2 MiB."""
    sizes = [
        Sim(model=model, tp=tp, kv=f"virtual:page_bytes={page}").cluster.replicas[0].blocks.size
        for page in ("64KiB", "2MiB")
    ]

    assert [small, large] == sizes


def test_layers_that_share_a_tensor_share_its_pages():
    """In a mega-cache a page holds as many tokens fewer as there are layers in it."""
    assert 32 == make("kv", "virtual:page_bytes=2MiB,layers=32").block_tokens


def test_waste_per_sequence_is_less_than_a_page_group(draw):
    """What is mapped and not used must stay below one page group a sequence (K08.a), and within memory (K08.d)."""
    _, sim = run("virtual:page_bytes=64KiB", [], model="llama3.1-8b")
    replica = sim.cluster.replicas[0]
    for request in draw(40, prompt=(50, 400)):
        replica.add(request, 0.0)
    batch = replica.schedule(0.0)
    wastes = [seq.blocks * replica.blocks.size - n for seq, n in batch.prefills]

    assert len(wastes) > 20
    assert 0 <= min(wastes)
    assert max(wastes) < replica.blocks.size
    assert 0 <= replica.blocks.free <= replica.blocks.total


def test_pages_as_large_as_blocks_admit_the_same(draw):
    """The mode differs in the size of what it hands out, in nothing else (K08.b)."""
    requests = draw(60, rate_rps=30.0)
    paged, _ = run("paged:block_tokens=16", requests, kv_blocks=40)
    virtual, _ = run("virtual:page_bytes=32KiB", requests, kv_blocks=40, model="llama3.1-8b")

    assert paged == virtual


@pytest.mark.parametrize("leap", [True, False])
def test_mapping_in_the_step_is_never_faster(leap, draw):
    """Mapping ahead hides what mapping in the step pays for (K08.c)."""
    requests = [replace(r, scheduled_s=0.0) for r in draw(40)]
    spec = "virtual:page_bytes=32KiB,map=1ms"
    ahead, _ = run(spec, requests, model="llama3.1-8b")
    sync, _ = run(f"{spec},mapping=sync", requests, model="llama3.1-8b", leap=leap)

    assert all(a <= b for i, stamps in ahead.items() for a, b in zip(stamps, sync[i], strict=True))
    assert np.mean([s[-1] for s in ahead.values()]) < np.mean([s[-1] for s in sync.values()])


def test_mapping_ahead_costs_what_exceeds_the_step_before():
    """Pages of a long prompt take longer to map than any step, and would be free (K08)."""
    sim = make("backends", "sim", model="llama3.1-8b", policy="sarathi:budget=64,max_seqs=8", latency="linear:base_s=1",
               kv="virtual:page_bytes=64KiB,map=1s")  # fmt: skip
    (record,) = sim.simulate([Request(0, 0.0, 128, 34)])
    gaps = np.diff([0.0, *record.token_s])

    assert 6.0 == gaps[0]  # 4 pages of 32 tokens before the first of two steps
    assert 1.0 == max(gaps[1:])  # a page each 32 tokens is mapped beside the step before it


def test_a_page_that_holds_no_token_is_reported():
    """A mistyped size must not become a stuck run."""
    with pytest.raises(UsageError, match="holds no token"):
        Core.of(kv="virtual:page_bytes=1KiB")


def test_the_engine_runs_on_pages_of_its_own_model():
    """The mode must be real, not only simulated."""
    from backends.engine_process.worker import token_bytes
    from backends.executors.llama import Llama

    facts = Llama().describe()
    memory = Core.of(kv="virtual:page_bytes=8KiB").memory(token_bytes(facts))

    assert 2 * 32 * 4 == token_bytes(facts)
    assert 8192 // 256 == memory.block_tokens
