"""Static and iteration-level batching: slots, batches and what waiting for a whole batch costs (K01, K02)."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from acceptance.rows import Place, Row
from acceptance.topics._trials import quantile, trial
from backends.engine_process.core import EngineCore
from backends.serving.journal import Journal
from backends.simulator.core import Core
from harness import registry
from harness.api import Request

STEP = "linear:base_s=1,prefill_token_s=0,decode_seq_s=0,context_token_s=0"
"""Every step takes one second, so that stamps are numbers of steps."""
TIMES = (
    'python -c "import pyarrow.parquet as pq; '
    "print(pq.read_table('DIR/requests.parquet', columns=['request_id', 'token_s']).to_pylist())\""
)
"""Prints when each request got its tokens; with steps of one second these are the numbers of its steps."""
ORCA = [{0, 1}, {0, 1, 2}, {0, 2, 3}]


def rows(place: Place) -> Iterator[Row]:
    """S01, slots of static and continuous batching; S02, static against Sarathi-Serve; S03, Orca's batches."""
    del place
    yield from _slots()
    yield _waiting()
    yield from _batches()


def _slots() -> Iterator[Row]:
    stamps = {}
    for name, policy in (("static", "static:batch=4"), ("continuous", "orca:max_batch=4")):
        table = trial(None, workload="deck-slots", backend="sim", policy=policy, latency=STEP).table
        stamps[name] = table.sort_by("request_id")["token_s"].to_pylist()
    used = {name: sum(at <= 8 for row in rows for at in row) for name, rows in stamps.items()}
    run = "bench run --backend sim --latency roofline --workload deck-slots --policy {}"
    yield Row(
        "S01.a", "static batching", "exact", "26 of 32 slot-steps used", f"{used['static']} of 32", "exact",
        used["static"] == 26, run.format("static:batch=4") + " --requests 4",
    )  # fmt: skip
    enter = [int(row[0]) for row in stamps["continuous"][4:]]
    yield Row(
        "S01.b", "continuous batching", "exact", "32 of 32; S5, S6, S7 enter at T6, T7, T8",
        f"{used['continuous']} of 32; at " + ", ".join(f"T{at}" for at in enter), "exact",
        used["continuous"] == 32 and enter == [6, 7, 8],
        f"{run.format('orca:max_batch=4')} --latency {STEP} --out DIR && {TIMES}",
    )  # fmt: skip


def _waiting() -> Row:
    options = {"latency": "table:yi-34b-tp2", "rate": 1, "requests": 128}
    medians = {
        policy: [
            quantile(trial("sarathi-table4", policy=policy, seed=s, **options).table, "ttft", 0.5) for s in (0, 1, 2)
        ]
        for policy in ("static:batch=16", "sarathi:budget=512")
    }
    worst = min(slow / fast for slow, fast in zip(*medians.values(), strict=True))
    slow_s, fast_s = (sum(found) / len(found) for found in medians.values())
    return Row(
        "S02", "static batching", "simulated", "median TTFT >= 50x worse than Sarathi-Serve (146 s against 1.0 s)",
        f"{slow_s:.0f} s against {fast_s:.2f} s, at least {worst:.0f}x", "ratio >= 20", worst >= 20,
        "for policy in static:batch=16 sarathi:budget=512; do bench run --config sarathi-table4 "
        "--latency table:yi-34b-tp2 --rate 1 --requests 128 --policy $policy --json; done",
        "Yi-34B, ShareGPT-8k at 1 rps, 128 requests, three seeds; short prompts are padded to the longest of a batch; "
        "median_ttft_ms of the answer, which is overloaded",
    )  # fmt: skip


def _batches() -> Iterator[Row]:
    run = "bench run --workload deck-orca --policy orca:max_batch=3 --backend {} --out DIR && " + TIMES
    for clock, found in (("sim", _simulated()), ("engine", _computed())):
        shown = " ".join("{" + ",".join(f"R{i + 1}" for i in sorted(batch)) + "}" for batch in found)
        yield Row(
            f"S03.{'a' if clock == 'sim' else 'b'}", f"Orca ({clock})", "exact", "{R1,R2} {R1,R2,R3} {R1,R3,R4}",
            shown, "exact", found == ORCA, run.format(f"sim --latency {STEP}" if clock == "sim" else clock),
        )  # fmt: skip


def _formed(replica: Any) -> list[set[int]]:
    """The first three batches of a replica with a journal, by request id."""
    decisions = replica.journal.decisions[:3]
    return [set(one.decodes) | {i for i, _ in one.prefills} for one in decisions]


def _lecture(backend: str) -> tuple[Any, list[Request]]:
    from harness.options import Given, run_spec
    from harness.runner.plan import plan

    planned = plan(run_spec(Given({"workload": "deck-orca", "backend": backend})))
    return planned.backend, list(planned.schedule.planned())


def _simulated() -> list[set[int]]:
    sim, requests = _lecture("sim:policy=orca:max_batch=3,journal=true,leap=false")
    list(sim.simulate(requests))
    return _formed(sim.cluster.replicas[0])


def _computed() -> list[set[int]]:
    """The engine's loop over its transformer; a step takes 10 ms of a clock of our own."""
    _, requests = _lecture("sim")
    core = Core.of("orca:max_batch=3")
    journal = Journal()
    executor = registry.make("executors", "llama:vocab=64")
    executor.allocate(64, core.memory().block_tokens)
    clock = [0.0]
    loop = EngineCore(
        core.replica(core.memory(), 64, 0, journal), executor, lambda r, vocab: [r.id % vocab] * r.prompt_tokens,
        lambda: clock[0],
    )  # fmt: skip
    for before_s, now_s in pairwise((-1.0, 0.0, 0.01, 0.02)):
        clock[0] = now_s
        loop.turn([r for r in requests if before_s < r.scheduled_s <= now_s])
    return _formed(loop.replica)
