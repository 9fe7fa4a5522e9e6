"""The worked examples of the lecture slides on static and continuous batching, exactly."""

import numpy as np
import pytest

from backends.serving.journal import Journal
from backends.sim import Sim
from backends.simulator.core import Core
from harness.api import Request

STEP = "linear:base_s=1,prefill_token_s=0,decode_seq_s=0,context_token_s=0"
OUTPUTS = (6, 8, 5, 7, 3, 2, 1)  # S1..S4 end at steps 6, 8, 5, 7; S5..S7 wait


def slots(policy: str) -> tuple[list[float], int]:
    """(first step of each sequence, useful slot-steps in the first 8 steps) of 7 sequences on 4 slots."""
    sim = Sim(policy=policy, latency=STEP, kv_blocks=100, journal=True)
    records = sorted(sim.simulate(Request(i, 0.0, 1, n) for i, n in enumerate(OUTPUTS)), key=lambda r: r.request_id)
    first = [record.token_s[0] for record in records]
    useful = sum(stamp <= 8 for record in records for stamp in record.token_s)
    return first, useful


def test_static_batching_wastes_six_of_32_slots():
    """Static batching idles 6 of 32 slot-steps while the longest request ends (K01, S01)."""
    first, useful = slots("static:batch=4")

    assert useful == 26
    assert first == [1, 1, 1, 1, 9, 9, 9]


def test_continuous_batching_fills_every_slot():
    """With iteration-level scheduling S5, S6, S7 enter at steps 6, 7, 8 and no slot idles (K02, S01)."""
    first, useful = slots("orca:max_batch=4")

    assert useful == 32
    assert first == [1, 1, 1, 1, 6, 7, 8]


def test_static_occupancy_is_the_closed_form():
    """occupancy = sum(outputs) / (B * max(outputs)) for one batch that starts together (K01.a)."""
    outputs = [3, 9, 4, 6]
    sim = Sim(policy="static:batch=4", latency=STEP, kv_blocks=100)
    records = list(sim.simulate(Request(i, 0.0, 1, n) for i, n in enumerate(outputs)))
    steps = sim.steps_table()
    charged = steps["decode_seqs"].to_numpy().sum() + 4  # the first step is the prompts'

    assert max(outputs) == steps.num_rows
    assert 4 * max(outputs) == charged
    assert sum(outputs) / charged == pytest.approx(sum(len(r.token_s) for r in records) / 36)


def test_no_request_of_the_next_static_batch_starts_before_the_last_ends(draw):
    """Request-level batching admits nothing into a running batch (K01.b)."""
    sim = Sim(policy="static:batch=5", kv_blocks=2000)
    records = sorted(sim.simulate(draw(53, rate_rps=50.0)), key=lambda r: (r.prefill_start_s, r.request_id))
    starts = np.array([r.prefill_start_s for r in records])
    ends = np.array([r.token_s[-1] for r in records])
    batches = [np.flatnonzero(starts == s) for s in np.unique(starts)]

    assert len(batches) > 5
    assert all(len(batch) <= 5 for batch in batches)
    for this, following in zip(batches, batches[1:], strict=False):
        assert ends[this].max() <= starts[following].min()


def test_padded_batches_are_charged_for_their_padding():
    """A padded prompt costs what the longest of its batch costs, on every row."""
    latency = "linear:base_s=0,prefill_token_s=1,decode_seq_s=0,context_token_s=0"
    both = [Request(0, 0.0, 10, 1), Request(1, 0.0, 50, 1)]
    padded, plain = (
        next(iter(Sim(policy=f"static:batch=2,pad={pad}", latency=latency, kv_blocks=100).simulate(both))).token_s[0]
        for pad in ("true", "false")
    )

    assert (padded, plain) == (100, 60)


def orca(step_s: float) -> list[Request]:
    """The five requests of the slides, where a step takes so long."""
    rows = zip((0.0, 0.0, 0.5, 1.2, 1.2), (6, 2, 6, 3, 3), strict=True)
    return [Request(i, at * step_s, 1, output) for i, (at, output) in enumerate(rows, start=1)]


def batches_of(journal: Journal) -> list[set[int]]:
    """The requests of each batch."""
    return [{*decision.decodes, *(i for i, _ in decision.prefills)} for decision in journal.decisions]


def test_orca_forms_the_batches_of_the_slides(engine_loop):
    """{R1,R2}; R3 arrives -> {R1,R2,R3}; R4, R5 arrive, R2 ends -> {R1,R3,R4}, R5 queued (K02.a, S03): on the
    simulator, and on the engine."""
    sim = Sim(policy="orca:max_batch=3", latency=STEP, kv_blocks=100, journal=True, leap=False)
    list(sim.simulate(orca(1.0)))
    core, journal = Core.of(policy="orca:max_batch=3"), Journal()
    engine_loop(orca(0.0105), core.replica(core.memory(), 100, journal=journal))

    assert [{1, 2}, {1, 2, 3}, {1, 3, 4}] == batches_of(sim.cluster.replicas[0].journal)[:3]
    assert batches_of(journal) == batches_of(sim.cluster.replicas[0].journal)


def test_orca_serves_in_order_of_arrival(draw):
    """For arrivals i before j, i never has run fewer steps than j while it lives (K02.b)."""
    sim = Sim(policy="orca:max_batch=4", latency=STEP, kv_blocks=1000, journal=True, leap=False)
    requests = draw(60, rate_rps=1.0, output=(1, 12))
    list(sim.simulate(requests))
    ran = dict.fromkeys(range(60), 0)
    left = {r.id: r.output_tokens for r in requests}
    for decision in sim.cluster.replicas[0].journal.decisions:
        for i in (*decision.decodes, *(i for i, _ in decision.prefills)):
            ran[i] += 1
        alive = [i for i in ran if ran[i] < left[i]]

        assert all(ran[i] >= ran[j] for i in alive for j in range(i + 1, 60))
