"""vLLM's memory: blocks on demand, shared blocks, and preemption by recompute and by swap (K03)."""

from collections.abc import Iterator
from random import Random
from typing import Any

import pyarrow as pa

from acceptance.rows import Place, Row
from acceptance.topics._trials import trial
from backends.serving.blocks import Blocks
from backends.simulator.core import Core
from harness import registry

SYSTEM = "vLLM"
OPERATIONS = 100_000
TIGHT = {"backend": "sim", "workload": "chatbot", "policy": "vllm-v0", "rate": 3, "requests": 300}
SIZES = (16, 32, 64)
OTHER = "abc:vllm,fitted=true"
"""Step times as measured of vLLM in 2023, to show how far a verdict depends on them."""
BOTH = (
    'for how in recompute swap; do bench run --backend "sim:kv=[paged:block_tokens=16,blocks=600],preempt=$how" '
    "--latency roofline --workload chatbot --policy vllm-v0 --rate 3 --requests 300 --slo normalized-latency=1 --json; "
    "done"
)
MODES = ("paged:watermark=0", "reserve-max:max_tokens=64", "reserve-pow2", "reserve-oracle")


def rows(place: Place) -> Iterator[Row]:
    """S06, blocks of the lecture example and random operations; S07, preemption under memory pressure and its cost."""
    del place
    yield from _tables()
    yield _operations()
    yield from _preemption()


def _tables() -> Iterator[Row]:
    test = "python -m pytest tests/properties/test_blocks.py"
    blocks = Blocks(9, 4, [7, 1, 5, 0, 2, 3, 4, 6, 8])
    table: list[int] = []
    seen = []
    for words in (6, 7, 8, 9):
        blocks.take(blocks.blocks_for(words) - len(table))
        blocks.name(table, blocks.blocks_for(words))
        seen.append(list(table))
    yield Row(
        "S06.a", SYSTEM, "exact", "blocks 7, 1 for 6 words; the ninth word opens block 5",
        f"{seen[0]} for 6, {seen[2]} for 8, {seen[3]} for 9 words", "exact",
        seen == [[7, 1], [7, 1], [7, 1], [7, 1, 5]], test,
    )  # fmt: skip
    blocks = Blocks(9, 4)
    first: list[int] = []
    blocks.take(2)
    second = blocks.fork(blocks.name(first, 2))
    for one in (first, second):
        blocks.take(1)
        blocks.name(one, 3)
    used = blocks.total - blocks.free
    yield Row(
        "S06.b", SYSTEM, "exact", "two equal 8-word prompts: 4 blocks instead of 6",
        f"{used} blocks for tables of {len(first)} and {len(second)}", "exact",
        (used, blocks.references()) == (4, 6), test,
    )  # fmt: skip


def _operations() -> Row:
    """Random arrivals, steps and cancellations on replicas of every memory mode, checked as they go."""
    done, clean = 0, True
    for mode in MODES:
        left, replica = OPERATIONS // len(MODES), _replica(mode)
        random = Random(mode)
        for operation in range(left):
            _operate(replica, random, operation)
            if operation % 100 == 0:
                replica.check()
        if replica.in_flight is not None:
            replica.commit(replica.in_flight, [float(left)])
        for i in range(left):
            replica.cancel(i, 0.0)
        clean = clean and replica.blocks.free == replica.blocks.total
        done += left
    return Row(
        "S06.c", SYSTEM, "exact", "no block lost, doubled or leaked (E9)",
        f"{done:,} random operations, {len(MODES)} memory modes, all blocks {'' if clean else 'NOT '}free at the end",
        "exact", clean, "python -m pytest tests/properties",
        "the waste of a sequence (E10): tests/properties/test_replica.py",
    )  # fmt: skip


def _replica(mode: str) -> Any:
    core = Core.of("vllm-v1:budget=64,max_seqs=8", mode)
    return core.replica(core.memory(), 40)


def _operate(replica: Any, random: Random, number: int) -> None:
    from harness.api import Request

    kind = random.random()
    if kind < 0.2 and len(replica.waiting) < 20:
        replica.add(Request(number, 0.0, random.randint(1, 40), random.randint(1, 24)), 0.0)
    elif kind < 0.22 and replica.in_flight is None:
        replica.cancel(random.randint(max(0, number - 200), number), 0.0)
    elif replica.in_flight is not None:
        replica.commit(replica.in_flight, [float(number)])
    else:
        replica.schedule(float(number))


def _preemption() -> Iterator[Row]:
    runs = {(how, size): _tight(how, size) for how in ("recompute", "swap") for size in SIZES}
    tables = {key: table for key, (table, _) in runs.items()}
    finished = all(set(t["status"].to_pylist()) == {"ok"} for t in tables.values())
    again = runs["recompute", 16][1]
    counts = {how: sum(tables[how, 16]["preemptions"].to_pylist()) for how in ("recompute", "swap")}
    run = (
        "bench run --backend sim:kv=paged:blocks=600,preempt={} --latency roofline --policy vllm-v0 --rate 3 "
        "--requests 300"
    )
    yield Row(
        "S07.a", SYSTEM, "simulated", "no deadlock, every request ends",
        f"{sum(t.num_rows for t in tables.values()):,} requests ended; {counts['recompute']} preemptions and "
        f"{again:,} tokens recomputed, {counts['swap']} preemptions with swap", "exact",
        finished and min(counts.values()) > 0, run.format("recompute"),
    )  # fmt: skip
    ratios = {size: _latency(tables["recompute", size]) / _latency(tables["swap", size]) for size in SIZES}
    other = [_latency(_tight(how, 16, OTHER)[0]) for how in ("recompute", "swap")]
    yield Row(
        "S07.b", SYSTEM, "simulated", "recompute at most 1.2x swap end to end, blocks of 16 to 64",
        "normalized latency " + ", ".join(f"{ratio:.2f}x at {size}" for size, ratio in ratios.items()), "<= 1.2x",
        max(ratios.values()) <= 1.2, BOTH,
        "normalized_latency of the summary, as both are overloaded; with blocks of 32 and 64 tokens 300 and 150. "
        f"By {OTHER} {other[0] / other[1]:.2f}x at 16.",
    )  # fmt: skip
    costs, others = ({size: _cost(size, latency) for size in SIZES} for latency in ("roofline", OTHER))
    yield Row(
        "S07.c", SYSTEM, "simulated", "recompute never more than 20 % slower than swap",
        "one sequence of 512 tokens: " + ", ".join(f"{cost:.1f}x at {size}" for size, cost in costs.items()), "<= 1.2x",
        max(costs.values()) <= 1.2, run + "swap",
        "OPT-13B on A100, default latency model, in which a prefill of 512 tokens takes about 80 ms alone; "
        "swap pays PCIe at 78 % of its rate and 5 us per copy, out and in. "
        f"By {OTHER} {', '.join(f'{cost:.1f}x at {size}' for size, cost in others.items())}.",
    )  # fmt: skip


def _tight(how: str, size: int, latency: str = "roofline") -> tuple[pa.Table, int]:
    """The run with 9,600 tokens of KV in blocks of `size`, and the tokens that it computed more than once."""
    done = trial(None, **TIGHT, latency=latency, kv=f"paged:block_tokens={size},blocks={9600 // size}", preempt=how)
    again: Any = done.plan.backend.describe().get("recomputed_tokens", 0)
    return done.table, int(again)


def _latency(table: pa.Table) -> float:
    """Mean normalized latency: end to end seconds per output token, as vLLM's paper has it."""
    import numpy as np

    return float(np.nanmean(registry.make("metrics", "normalized-latency").of(table)))


def _cost(size: int, latency: str, tokens: int = 512) -> float:
    """Seconds to compute a sequence again over seconds to swap it out and in."""
    sim = registry.make("backends", f"sim:preempt=swap,kv=paged:block_tokens={size}")
    model = registry.make("latency", latency, model=sim.model, hardware=sim.hardware)
    swap_s = 2 * -(-tokens // size) * sim.cluster.replicas[0].swap.block_s
    return float(model.step_s([(tokens, 0)], 0, 0) / swap_s)
