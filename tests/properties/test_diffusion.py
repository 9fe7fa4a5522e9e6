"""Diffusion decoding: phases, limits and memory of dLLM-Serve."""

import numpy as np
import pytest

from backends.sim import Sim
from harness.api import Request
from harness.catalog import kv_capacity_blocks
from harness.errors import UsageError

LATENCY = "linear:base_s=0.005,prefill_token_s=2e-5"


def served(requests, policy, **options):
    """(records by id, rows of the table of steps)."""
    sim = Sim(policy=policy, kv="sparse:block_tokens=16", latency=LATENCY, **{"kv_blocks": 4000, **options})
    records = {record.request_id: record for record in sim.simulate(requests)}
    sim.cluster.check()
    assert sim.cluster.replicas[0].blocks.free == sim.cluster.replicas[0].blocks.total
    return records, sim.steps_table().to_pylist()


@pytest.mark.parametrize(("prompt", "output", "delay"), [(100, 96, 1), (7, 33, 1), (300, 64, 3), (1, 1, 1)])
def test_phases_of_one_request(prompt, output, delay):
    """K29.a, b: as many steps as tokens; each block begins in full, and is refreshed after so many steps."""
    records, steps = served([Request(0, 0.0, prompt, output)], f"diffusion:delay={delay}")
    whole = prompt + output
    expected = [whole if step % 32 in (0, delay) else min(32, whole) for step in range(output)]

    assert expected == [step["prefill_tokens"] for step in steps]
    blocks_end_s = [steps[min(end, output) - 1]["end_s"] for end in range(32, output + 32, 32)]
    assert blocks_end_s == list(records[0].token_s)
    assert output == sum(records[0].token_n)


@pytest.mark.parametrize("seed", range(4))
def test_limits_hold_and_schedules_settle_the_same_tokens(seed):
    """K29.c, e: no step has more tokens than its budget, and either schedule gives each request all its steps."""
    rng = np.random.default_rng(seed)
    requests = [
        Request(i, float(s), int(rng.integers(1, 400)), int(rng.integers(1, 130)))
        for i, s in enumerate(np.cumsum(rng.exponential(0.1, 40)))
    ]
    for schedule in ("multiplexed", "lockstep"):
        records, steps = served(requests, f"diffusion:schedule={schedule},budget=900,max_seqs=20", kv_blocks=120)

        assert {"ok"} == {record.status for record in records.values()}
        assert max(step["prefill_tokens"] for step in steps) <= 900
        assert max(step["running"] for step in steps) <= 20
        assert {r.id: r.output_tokens for r in requests} == {i: sum(r.token_n) for i, r in records.items()}


def test_short_steps_run_beside_long_ones():
    """What the multiplexing is: who is in the middle of a block goes on while another one begins its own."""
    _, steps = served([Request(0, 0.0, 400, 64), Request(1, 0.05, 400, 64)], "diffusion:budget=500")

    assert 464 + 32 in {step["prefill_tokens"] for step in steps}
    assert 2 * 464 not in {step["prefill_tokens"] for step in steps}


def test_logits_take_memory_from_kv():
    """K29.d: rows of the whole budget, or of the part that is there at a time, two bytes for each word."""
    chip = {"model": "llada-8b", "hardware": "rtx-4090", "utilisation": 0.8}
    blocks = {
        rows: Sim(policy=f"diffusion:budget=4096{rows}", kv="sparse", latency="roofline", **chip)
        .cluster.replicas[0]
        .blocks.total
        for rows in ("", ",logit_rows=512")
    }
    with_nothing = kv_capacity_blocks("llada-8b", "rtx-4090", utilisation=0.8, block_tokens=256, seqs=512)
    block_bytes = 256 * 32 * 2 * 4096 * 2

    assert with_nothing - blocks[""] == pytest.approx(4096 * 126464 * 2 / block_bytes, abs=1)
    assert with_nothing - blocks[",logit_rows=512"] == pytest.approx(512 * 126464 * 2 / block_bytes, abs=1)


def test_tokens_of_work_of_a_block():
    """All steps in full take 32 L tokens, with reuse 2 L + 960: 10.9 times as many at L = 1024."""
    _, steps = served([Request(0, 0.0, 992, 32)], "diffusion")

    assert 32 * 1024 / sum(step["prefill_tokens"] for step in steps) == pytest.approx(10.9, rel=0.005)


def test_what_is_refused():
    records, _ = served([Request(0, 0.0, 900, 200)], "diffusion:budget=1000")

    assert "budget=1000" in records[0].error
    with pytest.raises(UsageError, match="must be below block"):
        Sim(policy="diffusion:block=4,delay=4")
    from backends.engine import Engine

    with pytest.raises(UsageError, match="out of order, which the engine cannot"):
        Engine(policy="diffusion")
    with pytest.raises(UsageError, match="drops keys and values"):
        Engine(kv="sparse")
