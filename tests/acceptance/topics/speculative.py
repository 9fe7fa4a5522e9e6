"""Speculative decoding: tokens per step, the gain against the batch, and the engine's answers (K06)."""

from collections.abc import Iterator

from acceptance.rows import Place, Row
from backends.engine_process.core import EngineCore
from backends.simulator.core import Core

SYSTEM = "speculative decoding"
K, ALPHA = 4, 0.7
SPECULATE = f"k={K},alpha={ALPHA}"
LAST_STEPS = 8
"""Steps at the end of an answer that may have been cut by it."""
BATCHES = (1, 16, 64, 256)


def rows(place: Place) -> Iterator[Row]:
    """S15: the closed form, the gain that shrinks, and answers that stay the same."""
    del place
    expected, seen = (1 - ALPHA ** (K + 1)) / (1 - ALPHA), tokens_per_step()
    yield Row(
        "S15.a", SYSTEM, "exact", f"{expected:.3f} tokens a step = (1 - a^(k+1)) / (1 - a)",
        f"{seen:.3f} tokens a step", "1 %", abs(seen / expected - 1) <= 0.01,
        f"bench run --backend 'sim:kv=paged:blocks=30000,speculate=[{SPECULATE}]' --latency linear --policy vllm-v0 "
        "--workload fixed:prompt=64,output=20000 --rate 1000 --requests 16", "E19",
    )  # fmt: skip
    gains = [gain(batch) for batch in BATCHES]
    yield Row(
        "S15.b", SYSTEM, "simulated", "the TPOT gain shrinks with the batch and vanishes past the knee",
        ", ".join(f"{g:.2f}x at {b}" for g, b in zip(gains, BATCHES, strict=True)), "monotone, below 1 at last",
        sorted(gains, reverse=True) == gains and gains[-1] < 1 < gains[0],
        f"bench run --backend 'sim:speculate=[{SPECULATE}]' --latency roofline",
        "opt-13b on one A100, roofline; a draft costs a tenth of a decode step",
    )  # fmt: skip
    same, steps, fewer = engine_answers()
    yield Row(
        "S15.c", SYSTEM, "exact", "the output is that of plain decoding",
        f"{'equal' if same else 'different'} tokens of 8 answers, in {fewer} steps instead of {steps}", "equal", same,
        "bench run --backend engine:speculate=k=4", "engine with drafts looked up by n-grams",
    )  # fmt: skip


def _tpots(speculate: str | None, latency: str, batch: int, output: int) -> tuple[list[float], list[int]]:
    """(TPOT of each of `batch` equal requests that come at once, tokens of each of their steps)."""
    from harness import registry
    from harness.api import Request

    sim = registry.make("backends", "sim", latency=latency, policy="vllm-v0", speculate=speculate,
                        kv_blocks=30_000)  # fmt: skip
    records = list(sim.simulate([Request(i, 0.0, 64, output) for i in range(batch)]))
    counts = [n for r in records for n in (r.token_n or ())[1:-LAST_STEPS]]
    return [(r.token_s[-1] - r.token_s[0]) / (output - 1) for r in records], counts


def tokens_per_step(k: int = K, alpha: float = ALPHA) -> float:
    """Mean over many steps, none of them cut by the end of an answer."""
    _, counts = _tpots(f"k={k},alpha={alpha}", "linear", 16, 20_000)
    return sum(counts) / len(counts)


def gain(batch: int) -> float:
    """How many times shorter the mean TPOT is with drafts."""
    plain, drafted = (_tpots(how, "roofline", batch, 100)[0] for how in (None, SPECULATE))
    return sum(plain) / sum(drafted)


def engine_answers() -> tuple[bool, int, int]:
    """Whether the engine says the same with and without drafts; its steps without and with them."""
    plain, steps = _answers(None)
    drafted, fewer = _answers("k=4,ngram=1")
    return plain == drafted, steps, fewer


def _answers(speculate: str | None) -> tuple[dict[int, list[int]], int]:
    import numpy as np

    from harness import registry
    from harness.api import Request

    core = Core.of(policy="vllm-v0", speculate=speculate)
    executor = registry.make("executors", "llama", vocab=32, hidden=64, intermediate=64)
    executor.allocate(400, 16)
    engine = EngineCore(
        core.replica(core.memory(), 400), executor,
        lambda r, vocab: np.random.default_rng(r.id).integers(0, vocab, r.prompt_tokens), iter(range(10**6)).__next__,
    )  # fmt: skip
    emitted: dict[int, list[int]] = {}
    turn, steps = engine.turn([Request(i, 0.0, 20 + 7 * i, 60) for i in range(8)]), 0
    while turn.step is not None:
        steps += 1
        for request_id, token in zip(turn.tokens, turn.token_ids, strict=True):
            emitted.setdefault(request_id, []).append(token)
        turn = engine.turn()
    return emitted, steps
