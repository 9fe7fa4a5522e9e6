"""Clusters whose routers hold, reject, migrate, change roles, grow and shrink, and whose replicas fail lose nothing.

The routers here decide by a hash of what they see, so that any sequence of actions comes up.
"""

from dataclasses import dataclass, field
from random import Random

import pytest

from backends.serving.cluster import give_model
from backends.serving.journal import Journal, replay
from backends.serving.replica import Replica
from backends.serving.routing import Drain, Fail, Hold, Migrate, Reject, Replicate, Scale, Send, SetRole, Up
from backends.sim import Sim
from backends.simulator.loop import EndedSequence, Flow
from harness.api import Extra, Request
from harness.registry import make


@dataclass(slots=True)
class AnyAction:
    """Draws its decisions and actions from `chance`, a function of how often it drew."""

    report_s: float
    tick_s: float
    seed: int
    apart: bool
    _drawn: int = field(default=0, init=False)
    _seen: int = field(default=0, init=False)
    rejected: int = field(default=0, init=False)

    def _draw(self, n: int) -> int:
        self._drawn += 1
        return hash((self.seed, self._drawn, self._seen)) % 1_000_003 % n

    def _look(self, view) -> None:
        """Let the next decisions depend on all that is seen, so that leaps that show anything else come out."""
        self._seen = hash(tuple(
            (r.waiting, r.running, r.preempted, r.queued_tokens, r.free_blocks, r.context_tokens,
             *((s.request_id, s.stored_tokens, s.emitted_tokens) for s in r.sequences()))
            for r in view.replicas
        ))  # fmt: skip

    def decide(self, request, now_s, view):  # noqa: ARG002  chance decides
        self._look(view)
        entries = view.open("mixed", "prefill") or [r for r in view.replicas if r.role != "decode"]
        what = self._draw(12)
        if what == 0 or not entries:
            return Hold()
        if what == 1:
            return Hold(now_s + 0.25)
        if what == 2:
            self.rejected += 1
            return Reject("no")
        decodes = view.open("decode")
        decode = decodes[self._draw(len(decodes))].index if decodes and self._draw(2) else None
        return Send(entries[self._draw(len(entries))].index, decode)

    def tick(self, now_s, view):  # noqa: ARG002  chance decides
        self._look(view)
        alive = [r for r in view.replicas if r.alive]
        if not alive:
            return
        a = alive[self._draw(len(alive))]
        b = alive[self._draw(len(alive))]
        kind = self._draw(10)
        if kind < 5 and a.index != b.index:
            sequences = a.sequences()
            if sequences:
                one = sequences[self._draw(len(sequences))]
                yield Migrate(
                    one.request_id,
                    a.index,
                    b.index,
                    live=bool(self._draw(2)),
                    stages=self._draw(3),
                    last_blocks=self._draw(3),
                )
        elif kind == 5:
            roles = ["prefill", "decode"] if self.apart else ["mixed"]
            yield SetRole(
                a.index,
                roles[self._draw(len(roles))],
                after=["now", "drain"][self._draw(2)],
                cost_s=self._draw(2) * 0.5,
            )
        elif kind == 6 and len(view.replicas) < 8:
            yield Scale(a.role, 0.5)
        elif kind == 7:
            yield Drain(a.index)
        elif kind == 8 and a.index != b.index:
            yield Replicate(Request(10**6, 0.0, 96, 1, (1, 2), 32), a.index, b.index)


def seen(records):
    """What two simulations must agree on."""
    return sorted((r.request_id, list(r.token_s), r.status, r.replica, r.preemptions) for r in records)


def run(requests, router, fails, fields, leap):
    sim = Sim(journal=True, leap=leap, **fields)
    sim.cluster.router = router
    flow = Flow(sim.cluster, sim._steps, requests, None, leap=leap)
    for at_s, index, requeue in fails:
        flow.loop.plan(at_s, Fail(index, requeue))
        flow.loop.plan(at_s + 2.0, Up(index))
    records = list(map(EndedSequence.record, flow.ended()))
    sim.cluster.check()
    return sim, records


NUMBERS = 120
LINKS = ["none", "1Gbps:latency=1ms"]
CLUSTERS = [
    {"replicas": 3, "policy": "vllm-v1"},
    {"replicas": 3, "policy": "sglang:chunk=96,recv_interval=4"},
    {"replicas": 3, "policy": "vllm-v0", "preempt": "swap"},
    {"replicas": 3, "policy": "sarathi", "prefix_cache": "on"},
    {"replicas": 2, "policy": "vllm-v1", "pp": 2},
    {"prefill": "2", "decode": "2", "policy": "vllm-v1"},
    {"prefill": "2", "decode": "2", "policy": "sarathi", "handoff": "push"},
    {"prefill": "2", "decode": "2", "policy": "ooc"},
    {"replicas": 3, "policy": "online-priority"},
    {"replicas": 3, "policy": "vllm-v1", "speculate": "k=2,alpha=0.6"},
    {"replicas": 3, "policy": "vllm-v0", "kv": "reserve-oracle"},
    {"replicas": 3, "policy": "vllm-v1", "prefix_cache": "on", "tiers": "dram:size=150MB,latency=30ms,write=back"},
    {"prefill": "2", "decode": "2", "policy": "vllm-v1", "prefix_cache": "on", "tiers": "pool:load=100MBps"},
]  # fmt: skip


def case(number):
    """Requests, seed of the router, cluster, seconds between reports, failures and link of a case."""
    draw = Random(number)
    rows = sorted((draw.randrange(97), draw.randint(1, 90), draw.randint(1, 70)) for _ in range(draw.randint(1, 24)))
    fails = [(draw.randrange(48) / 8, draw.randrange(2), draw.random() < 0.5) for _ in range(draw.randrange(3))]
    offline = [Extra(offline=True) if (number + i) % 3 == 0 else None for i in range(len(rows))]
    requests = [Request(i, at / 16, p, o, (1, 2), 32, extra=offline[i]) for i, (at, p, o) in enumerate(rows)]
    return (
        requests,
        draw.randrange(1 << 20),
        draw.choice(CLUSTERS),
        draw.choice([0.0, 0.3, 1.0]),
        fails,
        draw.choice(LINKS),
    )


@pytest.mark.parametrize("number", range(NUMBERS))
def test_nothing_is_lost_whatever_a_router_does(number):
    """Every request ends in exactly one record with all its tokens, memory comes back, journals replay."""
    requests, seed, fields, report_s, fails, link = case(number)
    apart = "prefill" in fields
    fields = {**fields, "kv_blocks": 16, "latency": "linear:base_s=0.0625,prefill_token_s=0.0001"}
    if apart:
        fields["link"] = link
    routers = [AnyAction(report_s, 0.2, seed, apart) for _ in range(2)]
    sim, records = run(requests, routers[0], fails, fields, leap=True)
    _, stepped = run(requests, routers[1], fails, fields, leap=False)

    assert sorted(r.id for r in requests) == sorted(record.request_id for record in records)
    for record in records:
        tokens = sum(record.token_n) if record.token_n else len(record.token_s)
        assert record.output_tokens == tokens
        assert list(record.token_s) == sorted(record.token_s)
        if record.status == "ok":
            assert record.output_tokens_asked == tokens
        else:
            assert record.error
    for replica in sim.cluster.replicas:
        assert replica.blocks.free == replica.blocks.total, replica
        assert replica.prompt_tokens == 0
    assert seen(stepped) == seen(records)

    core = sim._parts[0].core
    for replica in sim.cluster.replicas:
        if replica.pipeline is not None:
            continue
        again = core.replica(core.memory(), 16, replica.index, Journal())
        give_model(again, sim.cluster.members[replica.index])
        replay(replica.journal.calls, {r.id: r for r in requests}, again)

        assert replica.journal.decisions == again.journal.decisions


@dataclass(slots=True)
class Holding:
    """Sends nothing before replica 0 has come back up."""

    report_s: float = 0.0
    tick_s: float = 0.5

    def decide(self, request, now_s, view):  # noqa: ARG002  only the time matters
        return Hold() if now_s < 30.0 else Send(0)

    def tick(self, now_s, view):  # noqa: ARG002  nothing to do
        return ()


def test_time_ends_with_the_last_answer():
    """A failure that is planned for an hour later would count as an hour of GPU time."""
    sim = Sim(replicas=2, latency="linear:base_s=0.0625", fail="0@3600s..3700s")
    records = list(sim.simulate([Request(0, 1.0, 10, 4)]))
    sim.actions()

    assert "ok" == records[0].status
    assert 2 * records[0].token_s[-1] == sim.describe()["gpu_s"]
    assert {} == sim.describe()["actions"]


def test_a_held_request_waits_for_planned_changes():
    """A request that the router holds until a replica is back would be rejected before that."""
    sim = Sim(replicas=1, latency="linear:base_s=0.0625", fail="0@0.5s..30s")
    sim.cluster.router = Holding()
    records = list(sim.simulate([Request(0, 1.0, 10, 4)]))
    held = [action for action in sim.actions() if action.kind == "hold"]

    assert ["ok"] == [record.status for record in records]
    assert [(1.0, 30.0, None, 0)] == [(hold.at_s, hold.end_s, hold.replica, hold.request_id) for hold in held]
    assert {"p50": 29.0, "p99": 29.0, "max": 29.0} == sim.describe()["router_held_s"]


@dataclass(slots=True)
class Looking:
    """Notes how many replicas are up at each tick."""

    report_s: float = 0.0
    tick_s: float = 0.01
    seen: list = field(default_factory=list)

    def decide(self, request, now_s, view):  # noqa: ARG002  any request
        return Send(view.open()[0].index)

    def tick(self, now_s, view):
        self.seen.append((now_s, len(view.open())))
        return ()


def test_a_router_of_an_idle_cluster_sees_failures_before_the_next_arrival():
    """Time went from 10 s to the arrival at 100 s, so that no router could replace what fails at 50 s before that."""
    sim = Sim(replicas=2, latency="linear:base_s=0.0625", fail="0@50.005s..60s")
    sim.cluster.router = router = Looking()
    list(sim.simulate([Request(0, 100.0, 10, 4)]))
    downs = [at_s for at_s, up in router.seen if up == 1]

    assert 50.01 == pytest.approx(downs[0])
    assert 59.99 == pytest.approx(downs[-1])
    assert 60.0 == pytest.approx(next(at_s for at_s, up in router.seen if at_s > 55 and up == 2))
    assert len(router.seen) < 4000, "an idle hour would take as long as a busy one"


def test_a_request_that_leaves_before_it_is_seen_and_comes_back_is_not_hidden():
    """A replica that remembers who left decided otherwise than its journal, and hid the request for some steps."""
    replica = Replica(make("policies", "sglang:recv_interval=4"), make("kv", "paged"), 50)
    replica.add(Request(0, 0.0, 10, 9), 0.0)
    batch = replica.schedule(0.0)
    replica.add(Request(1, 0.5, 10, 9), 0.5)
    replica.restart(replica.send(1, 0.5), 0.5)
    replica.commit(batch, [1.0])
    following = replica.schedule(1.0)

    assert [1] == [seq.request.id for seq, _ in following.prefills]
