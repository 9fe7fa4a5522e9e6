"""Behind the server prompts that begin alike share their blocks: those of the prompt, and those of the answer to it."""

from contextlib import asynccontextmanager

import pytest

from backends.engine_process.generation import block_names
from backends.server import engine_service, sim_service
from backends.server.service import Sampling
from harness.spec import parse
from server._received import Received, running

SPECS = {
    "sim": "sim:model=llama2-7b,policy=vllm-v0,prefix_cache=on,latency=linear:base_s=0.001",
    "sim with a pool": "sim:model=llama2-7b,policy=vllm-v0,prefix_cache=on,latency=linear:base_s=0.001,tiers=[pool]",
    "sim with dram": "sim:model=llama2-7b,prefix_cache=on,latency=linear:base_s=0.001,tiers=[dram:write=back]",
    "engine": "engine:policy=vllm-v0,prefix_cache=on,kv_blocks=200,tiers=[dram]",
}


@asynccontextmanager
async def asking(backend):
    """`(ask, service)`; `await ask(prompt)` gives (answer, cached tokens)."""
    make = engine_service.make if backend == "engine" else sim_service.make
    async with running(make(parse(SPECS[backend]))) as service:

        async def ask(prompt, tokens=30):
            received = Received()
            ticket = service.submit(prompt, Sampling(tokens, ignore_eos=True), received)
            await received.ended.wait()
            return received.tokens, ticket.cached_tokens

        yield ask, service


@pytest.mark.parametrize("backend", SPECS)
async def test_a_chat_pays_only_for_what_is_new(backend):
    """Every turn of a conversation would be computed from its first word on; a cleared cache would still answer."""
    prompt = [i % 50 + 10 for i in range(37)]

    async with asking(backend) as (ask, service):
        answer, first = await ask(prompt)
        again, second = await ask(prompt)
        _, third = await ask([*prompt, *answer, 11, 12, 13])
        stats = service.stats()
        service.clear_cache()
        _, fourth = await ask(prompt)
        cached = (first, second, third, fourth)

    assert answer == again, "a hit must not change a token"
    assert (0, 32, 64, 0) == cached, "37 tokens: two full blocks; with all but the last of 30 more: four"
    assert (37 + 37 + 70, 32 + 64) == (stats.prefix_queried_tokens, stats.prefix_hit_tokens)


def test_blocks_are_named_by_all_their_tokens():
    """Two blocks with different tokens under one name would be taken for one another."""
    one, two = list(range(40)), [*range(39), 99]

    assert 2 == len(block_names(one, 16))
    assert block_names(one, 16) == block_names(two, 16)
    assert block_names(one, 10)[:3] == block_names(two, 10)[:3]
    assert block_names(one, 10)[3] != block_names(two, 10)[3]
    assert all(0 <= name < 2**63 for name in block_names(one, 1))
