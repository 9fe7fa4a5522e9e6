"""One core under two clocks: the engine's loop and the simulator form the same batches under every policy."""

from collections.abc import Iterator
from typing import Any

from acceptance.rows import Place, Row
from backends.engine_process.core import EngineCore
from backends.serving.journal import Journal
from backends.simulator.core import Core

COST = "linear:base=0.01,prefill_token=0.0001,decode_seq=0.0003,context_token=0.0000001"


WITHOUT = {"static": "static:pad=false", "sglang": "sglang:overlap=false"}
"""No padded row is executed, and the engine's loop schedules a step when the one before is over."""


def rows(place: Place) -> Iterator[Row]:
    """S63: E22 for every policy that is registered."""
    from harness import registry

    del place
    policies = registry.names("policies")
    same = [policy for policy in policies if batches_agree(policy)]
    differ = [policy for policy in policies if policy not in same]
    yield Row(
        "S63", "shared core", "exact", "same journal, same batches and token times under every policy",
        f"{len(same)} of {len(policies)} policies" + (f"; not {', '.join(differ)}" if differ else ""), "exact",
        not differ, "pytest tests/replay tests/contracts",
        "E22: the engine's loop with an executor whose times come from the latency model; tight memory, preemptions; "
        "sglang without overlap, which is a property of its loop",
    )  # fmt: skip


class Stub:
    """An executor that computes nothing; its clock moves by what the latency model says."""

    vocab_size, max_tokens = 100, 10**6

    def __init__(self, cost: Any) -> None:
        self.replica: Any = None
        self.now_s = 0.0
        self._cost = cost

    def execute(self, pieces: list[Any]) -> list[int | None]:
        """One step: 7 wherever a token is wanted."""
        decoding = {seq.request.id for seq in self.replica.decoding}
        prefills = [(len(p.token_ids), p.position) for p in pieces if p.request_id not in decoding]
        decodes = [p for p in pieces if p.request_id in decoding]
        self.now_s += self._cost.step_s(prefills, len(decodes), sum(p.position for p in decodes))
        return [7 if p.sample else None for p in pieces]


def batches_agree(policy: str, seed: int = 0, blocks: int = 40) -> bool:
    """Whether the simulator and the engine's loop give the same decisions and stamps to the same requests."""
    import numpy as np

    from harness import registry
    from harness.api import Request

    rng = np.random.default_rng(seed)
    at_s = np.cumsum(rng.exponential(1 / 6, 60)).tolist()
    lengths = rng.integers(1, (150, 90), (60, 2)).tolist()
    requests = [Request(i, at, *pair) for i, (at, pair) in enumerate(zip(at_s, lengths, strict=True))]
    spec = str(WITHOUT.get(policy, policy))
    sim = registry.make("backends", "sim", policy=spec, kv_blocks=blocks, latency=COST, journal=True, leap=False)
    stamps = {r.request_id: list(r.token_s) for r in sim.simulate(requests)}
    return bool((sim.cluster.replicas[0].journal.decisions, stamps) == _engine(requests, spec, blocks))


def _engine(requests: list[Any], policy: str, blocks: int) -> tuple[list[Any], dict[int, list[float]]]:
    """Decisions and stamps of the engine's loop under the stub's clock."""
    import numpy as np

    from harness import registry

    core = Core.of(policy=policy)
    journal = Journal()
    stub = Stub(registry.make("latency", COST))
    replica = stub.replica = core.replica(core.memory(), blocks, journal=journal)
    engine = EngineCore(replica, stub, lambda r, _: np.ones(r.prompt_tokens, np.int64), lambda: stub.now_s)
    left = list(requests)
    stamps: dict[int, list[float]] = {}
    while left or replica.waiting or replica.running:
        if not replica.waiting and not replica.running:
            stub.now_s = max(stub.now_s, left[0].scheduled_s)
        arrived = [r for r in left if r.scheduled_s <= stub.now_s]
        left = left[len(arrived) :]
        turn = engine.turn(arrived)
        for i in turn.tokens:
            stamps.setdefault(i, []).append(turn.at_s)
    return journal.decisions, stamps
