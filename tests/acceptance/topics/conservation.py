"""What may never be lost or invented: requests, blocks, tokens, room in a batch, time (equations and invariants)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from acceptance.rows import Place, Row
from backends.simulator.core import Core
from harness import registry

BASE_S, TOKEN_S = 0.01, 1e-4
COST = f"linear:base_s={BASE_S},prefill_token_s={TOKEN_S},decode_seq_s=3e-4,context_token_s=1e-7"
LIMITS = {
    "sarathi": "budget=48,max_seqs=8", "fastgen": "budget=48,max_seqs=8", "vllm-v1": "budget=48,max_seqs=8",
    "chunk-only": "budget=24,max_seqs=6", "static": "batch=4,pad=false", "orca": "max_batch=4",
}  # fmt: skip
"""Small ones, so that small traffic is cut and queues; a policy that is not named runs with its own."""
HALVES = ("distserve-prefill", "distserve-decode")
"""Policies of one side of a cluster; the other side does the rest of the work."""
BUDGETED = ("sarathi", "fastgen", "vllm-v1")
MEMORIES = ("paged:block_tokens=4", "reserve-max:max_tokens=160,block_tokens=4", "reserve-pow2:block_tokens=4",
            "reserve-oracle:block_tokens=4", "virtual:page_bytes=40KiB")  # fmt: skip
BLOCK_TOKENS = 16
FUZZ = "python -m pytest tests/contracts/test_invariants.py"


@dataclass(frozen=True, slots=True)
class Seen:
    """An observed run: requests, records in order, decisions, columns of the steps, the simulator."""

    policy: str
    requests: Sequence[Any]
    records: Sequence[Any]
    decisions: Sequence[Any]
    steps: dict[str, list[Any]]
    sim: Any


def rows(place: Place) -> Iterator[Row]:
    """E9 to E12 and I1 to I5, of every policy with every memory mode in tight memory."""
    del place
    runs = [watched(policy, kv) for policy, kv in product(policies(), MEMORIES)]
    preempted = sum(record.preemptions for run in runs for record in run.records)
    note = f"{len(policies())} policies, {len(MEMORIES)} memory modes, 60 requests each, {preempted} preemptions in all"
    for id_, system, promise, broken in (
        ("E9", "blocks", "every block free or held after each request, all free at the end", _leaked),
        ("E11", "tokens", "scheduled = prompt + output - 1 of all answers + recomputed", _unaccounted),
        ("I1", "requests", "each ends once, with the requested tokens or rejected", _lost),
        ("I2", "memory", "never more blocks in use than there are", _overdrawn),
        ("I3", "batches", "no sequence twice, no prompt beyond its end, running <= max_seqs", _misformed),
        ("I4", "causality", "first token >= arrival + own prefill; token times strictly increase", _too_early),
        ("I5", "work", "no pause while a request is in the system", _idle),
    ):
        found = [run for run in runs if broken(run)]
        yield _kept(id_, system, promise, len(runs), found, note if id_ == "E9" else "")
    yield _waste()
    yield from _budgets()


def _kept(id_: str, system: str, promise: str, runs: int, broken: Sequence[Seen], note: str = "") -> Row:
    named = ", ".join(sorted({run.policy for run in broken}))
    return Row(
        id_, system, "exact", promise, f"{runs - len(broken)} of {runs} runs" + (f"; not {named}" if named else ""),
        "exact", not broken, FUZZ, note,
    )  # fmt: skip


def policies() -> list[str]:
    """Every registered policy that serves a request by itself, with small limits."""
    names = [name for name in registry.names("policies") if name not in HALVES]
    return [f"{name}:{LIMITS[name]}" if name in LIMITS else name for name in names]


def traffic(count: int = 60, rate_rps: float = 12.0, seed: int = 0) -> list[Any]:
    """Poisson arrivals; prompts of 1 to 100 and answers of 1 to 50 tokens."""
    import numpy as np

    from harness.api import Request

    rng = np.random.default_rng(seed)
    at_s = np.cumsum(rng.exponential(1 / rate_rps, count)).tolist()
    lengths = rng.integers(1, (101, 51), (count, 2)).tolist()
    return [Request(i, at, *pair) for i, (at, pair) in enumerate(zip(at_s, lengths, strict=True))]


def watched(policy: str, kv: str = MEMORIES[0], blocks: int = 60, rate_rps: float = 12.0) -> Seen:
    """A run, by default in tight memory; the replica is checked after each request."""
    requests = traffic(rate_rps=rate_rps)
    sim = registry.make("backends", "sim", policy=policy, kv=kv, kv_blocks=blocks, latency=COST, journal=True,
                        leap=False)  # fmt: skip
    records = []
    for record in sim.simulate(requests):
        sim.cluster.check()
        records.append(record)
    steps = sim.steps_table().to_pydict()
    return Seen(policy, requests, records, sim.cluster.replicas[0].journal.decisions, steps, sim)


def _leaked(run: Seen) -> bool:
    blocks = run.sim.cluster.replicas[0].blocks
    return bool(blocks.free != blocks.total)


def _unaccounted(run: Seen) -> bool:
    due = sum(r.prompt_tokens + r.output_tokens - 1 for r in run.records if r.status == "ok")
    scheduled = sum(run.steps["prefill_tokens"]) + sum(run.steps["decode_seqs"])
    return bool(scheduled != due + run.sim.cluster.replicas[0].recomputed_tokens)


def _lost(run: Seen) -> bool:
    requested = {request.id: request.output_tokens for request in run.requests}
    received = {r.request_id: len(r.token_s) for r in run.records}
    due = {r.request_id: requested[r.request_id] if r.status == "ok" else 0 for r in run.records}
    return len(run.records) != len(requested) or requested.keys() != received.keys() or due != received


def _overdrawn(run: Seen) -> bool:
    free = run.steps["free_blocks"]
    return bool(min(free) < 0 or max(free) > run.sim.cluster.replicas[0].blocks.total)


def _misformed(run: Seen) -> bool:
    most = getattr(run.sim.cluster.replicas[0].policy, "max_seqs", None)
    longest = {r.id: r.prompt_tokens + r.output_tokens - 1 for r in run.requests}
    for batch in run.decisions:
        ids = [*batch.decodes, *(i for i, _ in batch.prefills)]
        if len(ids) != len(set(ids)) or any(not 0 < n <= longest[i] for i, n in batch.prefills):
            return True
    return most is not None and bool(max(run.steps["running"]) > most)


def _too_early(run: Seen) -> bool:
    for record in run.records:
        stamps = list(record.token_s)
        own_s = BASE_S + TOKEN_S * record.prompt_tokens
        if stamps and (stamps != sorted(set(stamps)) or stamps[0] < record.scheduled_s + own_s - 1e-9):
            return True
    return False


def _idle(run: Seen) -> bool:
    spans = [(r.scheduled_s, r.token_s[-1]) for r in run.records if r.token_s]
    pauses = [(a, b) for a, b in zip(run.steps["end_s"], run.steps["start_s"][1:], strict=False) if b > a + 1e-9]
    return any(come < b - 1e-9 and a + 1e-9 < go for a, b in pauses for come, go in spans)


def _waste() -> Row:
    """E10: memory that decoding sequences hold and do not fill, counted from the tables of their blocks."""
    core = Core.of("vllm-v0", f"paged:block_tokens={BLOCK_TOKENS},watermark=0")
    replica = core.replica(core.memory(), 4000)
    for request in traffic(150):
        replica.add(request, 0.0)
    wastes, now_s = [], 0.0
    while (batch := replica.schedule(now_s)) is not None:
        wastes += [len(replica.table(seq)) * BLOCK_TOKENS - seq.computed - 1 for seq in replica.decoding]
        now_s += 1.0
        replica.commit(batch, (now_s,))
    mean = sum(wastes) / len(wastes)
    return Row(
        "E10", "paged memory", "exact", f"waste of a sequence at most {BLOCK_TOKENS - 1} tokens, on average 7.5",
        f"0 to {max(wastes)}, on average {mean:.2f} of {len(wastes):,}", "at most 15; mean +-5 %",
        min(wastes) >= 0 and max(wastes) <= BLOCK_TOKENS - 1 and abs(mean / 7.5 - 1) <= 0.05,
        "python -m pytest tests/properties/test_replica.py -k waste",
    )  # fmt: skip


def _budgets() -> Iterator[Row]:
    """E12: batches of the policies with a token budget, in ample memory."""
    runs = {name: watched(f"{name}:budget=48,max_seqs=48", blocks=4000, rate_rps=100.0) for name in BUDGETED}
    sizes = {name: _sizes(run) for name, run in runs.items()}
    command = "python -m pytest tests/properties/test_policy_rules.py"
    yield Row(
        "E12.a", "budgets", "exact", "no batch above its budget of 48 tokens",
        "largest: " + ", ".join(f"{name} {max(found)}" for name, found in sizes.items()), "exact",
        max(map(max, sizes.values())) <= 48, command,
    )  # fmt: skip
    due, left_out = _decodes(runs["sarathi"])
    yield Row(
        "E12.b", "Sarathi-Serve", "exact", "no decode is left out of a batch", f"{left_out} of {due:,} left out",
        "exact", due > 0 == left_out, command,
    )  # fmt: skip
    full = [size for size, waiting in zip(sizes["fastgen"], runs["fastgen"].steps["waiting"], strict=True) if waiting]
    yield Row(
        "E12.c", "DeepSpeed-FastGen", "exact", "every pass with a backlog has 48 tokens",
        f"{full.count(48)} of {len(full)}", "exact", bool(full) and full.count(48) == len(full), command,
    )  # fmt: skip


def _sizes(run: Seen) -> list[int]:
    return [a + b for a, b in zip(run.steps["prefill_tokens"], run.steps["decode_seqs"], strict=True)]


def _decodes(run: Seen) -> tuple[int, int]:
    """Decodes that were due, one for each sequence between its first and its last token, and those left out."""
    due = left_out = 0
    for batch, start_s in zip(run.decisions, run.steps["start_s"], strict=True):
        decoding = {r.request_id for r in run.records if r.token_s[0] <= start_s < r.token_s[-1]}
        due += len(decoding)
        left_out += len(decoding - set(batch.decodes))
    return due, left_out
