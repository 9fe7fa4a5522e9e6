"""Llumnix: what migration moves and costs, which replicas it pairs, and that it ends (K19.a to K19.f)."""

from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest

from backends.serving.batch import Phase
from backends.serving.routing import ClusterView, Drain, Migrate, ReplicaView, Send, SequenceView
from backends.sim import Sim
from harness.api import Request
from harness.registry import make

GB_S = "1GBps"  # of llama2-7b 1,907 tokens a second
TOKEN_S = 524_288 / 1e9
STEP_S = 1 / 32


@dataclass(slots=True)
class Scripted:
    """Sends request 0 to replica 0, others to replica 1, and does `actions` at `at_s`; checks at every tick."""

    actions: list
    at_s: float = 1.0
    tick_s: float = 0.0625
    report_s: float = 0.0
    check: object = None
    _left: list = field(init=False)

    def __post_init__(self):
        self._left = list(self.actions)

    def decide(self, request, now_s, view):  # noqa: ARG002  by number
        return Send(min(request.id, 1))

    def tick(self, now_s, view):  # noqa: ARG002  time decides
        if self.check is not None:
            self.check()
        if now_s >= self.at_s and self._left:
            done, self._left = self._left, []
            return done
        return []


def scripted(requests, *actions, link=GB_S, blocks=1024, at_s=1.0, **fields):
    """(records by request, actions) of two replicas whose router does these actions at `at_s`."""
    sim = Sim(model="llama2-7b", replicas=2, router="freeness", policy="vllm-v0", kv_blocks=blocks, link=link,
              latency=f"linear:base_s={STEP_S},prefill_token_s=0.00001,decode_seq_s=0", **fields)  # fmt: skip
    sim.cluster.router = Scripted(list(actions), at_s, check=sim.cluster.check)
    records = {r.request_id: r for r in sim.simulate(requests)}
    sim.cluster.check()
    assert all(r.blocks.free == r.blocks.total for r in sim.cluster.replicas)
    return records, sim.actions()


def test_migration_conserves_tokens_and_pages():
    """K19.a: a doubled token or a page that is never freed would make a cluster with migration look smaller."""
    draw = Random(0)
    requests = [Request(i, draw.uniform(0, 12), draw.randint(1, 300), draw.randint(1, 200)) for i in range(400)]
    requests.sort(key=lambda r: r.scheduled_s)
    sim = Sim(model="llama2-7b", replicas=4, router="freeness:threshold=8,choice=FCWSR", policy="vllm-v0",
              kv_blocks=200, link=GB_S)  # fmt: skip
    tick = sim.cluster.router.tick

    def checked(now_s, view):
        sim.cluster.check()  # of every replica: blocks held, reserved, on their way and free add up
        return tick(now_s, view)

    sim.cluster.router = SimpleNamespace(decide=sim.cluster.router.decide, tick=checked, tick_s=0.05, report_s=0.0)
    records = {r.request_id: r for r in sim.simulate(requests)}
    moved = [action for action in sim.actions() if action.kind == "migrate" and action.tokens]

    assert len(moved) > 20
    assert all(action.replica != action.target for action in moved)
    for request in requests:
        record = records[request.id]
        assert ("ok", request.output_tokens) == (record.status, len(record.token_s))
        assert sorted(record.token_s) == list(record.token_s)
    assert all(r.blocks.free == r.blocks.total for r in sim.cluster.replicas)


def downtimes(prompts, **how):
    """Seconds in which a request of each length decodes nowhere while it migrates."""
    found = []
    for prompt in prompts:
        _, actions = scripted([Request(0, 0.0, prompt, 2000)], Migrate(0, 0, 1, **how))
        (action,) = [action for action in actions if action.kind == "migrate"]
        found.append(action.end_s - action.stop_s)
    return np.array(found)


def test_downtime_does_not_grow_with_length():
    """K19.b: live, the last 16 blocks and one token at most; stop and copy, the whole sequence."""
    lengths = np.arange(1024, 8193, 1024)
    live, stopped = downtimes(lengths), downtimes(lengths, live=False)

    assert max(live) <= (16 * 16 + 1) * TOKEN_S
    assert np.polyfit(lengths, live, 1)[0] <= 0.05 * TOKEN_S
    assert pytest.approx(TOKEN_S, rel=1e-3) == np.polyfit(lengths, stopped, 1)[0]
    assert min(stopped) >= 1024 * TOKEN_S


@pytest.mark.parametrize(
    ("why", "how", "link", "crowd"),
    [("too slow", {}, "0.01GBps", 0), ("no stage", {"stages": 0}, GB_S, 0), ("no room", {}, GB_S, 1)],
)
def test_an_aborted_migration_leaves_the_source_unchanged(why, how, link, crowd):
    """K19.e: its tokens come when they would have come, and the target keeps nothing."""
    requests = [Request(0, 0.0, 900, 600)] + [Request(i, 0.5, 1000, 600) for i in range(1, 1 + crowd)]
    fields = {"link": link, "blocks": 104}
    alone, _ = scripted(requests, **fields)
    records, actions = scripted(requests, Migrate(0, 0, 1, **how), **fields)

    assert ["abort"] == [action.kind for action in actions], why
    for i, record in alone.items():
        assert list(record.token_s) == list(records[i].token_s)
        assert record.replica == records[i].replica


@pytest.mark.parametrize("choice", ["SR", "LR", "LCR"])
def test_a_draining_replica_is_left_by_migration(choice):
    """K19.f: without it the longest answer decides when a machine can be given back."""
    requests = [Request(i, 0.0, 200, 2000) for i in range(8)]
    sim = Sim(model="llama2-7b", replicas=2, router=f"freeness:choice={choice}", policy="vllm-v0", kv_blocks=2048,
              link="10GBps", latency=f"linear:base_s={STEP_S}")  # fmt: skip
    router = sim.cluster.router
    drained = []

    def tick(now_s, view):
        if now_s >= 2.0 and not drained:
            drained.append(now_s)
            return [Drain(0)]
        return router.tick(now_s, view)

    sim.cluster.router = SimpleNamespace(decide=router.decide, tick=tick, tick_s=0.05, report_s=0.0)
    records = list(sim.simulate(requests))
    (down,) = [action for action in sim.actions() if action.kind == "down"]

    assert down.at_s < 2.0 + 4 * 0.2, "four sequences, one at a time, each within a few polls"
    assert all(record.replica == 1 for record in records)
    assert {"ok"} == {record.status for record in records}


def view(index, free, running=4, waiting=0, head=0, lengths=(64, 32, 48), draining=False, preempted=0):
    """A replica of 100 blocks of 16 tokens as a router sees it."""
    sequences = [SequenceView(10 * index + i, None, 0, 0.0, n, n, 1, Phase.DECODE) for i, n in enumerate(lengths)]
    sequences += [SequenceView(10 * index + 5 + i, None, 0, 0.0, head, 0, 0, Phase.WAITING) for i in range(waiting)]
    return ReplicaView(
        index, "mixed", True, draining, 1, waiting, running, preempted, head * waiting, head, free, 100, 16, 0, 0.0,
        None, None, tuple(sequences),
    )  # fmt: skip


def moves(*replicas, migrating=None, **fields):
    """The pairs that freeness would migrate between, and what."""
    actions = make("routers", "freeness", **fields).tick(1.0, ClusterView(replicas, [], migrating or {}))
    return [(action.source, action.target, action.request_id) for action in actions]


def test_which_replicas_are_paired_and_what_moves():
    """K19.d and the rules: below and above the threshold, worst with best, the shortest running request."""
    poor, poorer, rich, richer = view(0, 8), view(1, 2), view(2, 40), view(3, 80)

    assert [] == moves(*(view(i, 50) for i in range(4))) == moves(*(view(i, 4) for i in range(4)))
    assert [] == moves(view(0, 12), view(1, 40)), "freeness 3.0 is not below the threshold"
    assert [(1, 3, 11), (0, 2, 1)] == moves(poor, poorer, rich, richer)
    assert [(0, 2, 1)] == moves(poor, poorer, rich, richer, migrating={7: (1, 3)}), "one migration at a time"
    assert [(1, 3, 10), (0, 2, 0)] == moves(poor, poorer, rich, richer, choice="LR")
    assert [(1, 3, 12), (0, 2, 2)] == moves(poor, poorer, rich, richer, choice="LCR")
    assert [(0, 1, 1)] == moves(view(0, 30, waiting=1, head=400), view(1, 40)), "the head of its queue needs 25 blocks"
    assert [(0, 1, 5)] == moves(view(0, 30, waiting=1, head=400), view(1, 40), choice="FCW")
    assert [(0, 1, 5), (0, 1, 1)] == moves(view(0, 30, waiting=1, head=400), view(1, 40), choice="FCWSR")
    assert [(0, 1, 1)] == moves(view(0, 90, draining=True), view(1, 40))
    assert [(0, 1, 1)] == moves(view(0, 90, waiting=1, head=16, preempted=1), view(1, 40)), "it has lost memory"
    assert [] == moves(view(0, 2), view(1, 90, waiting=1, head=16, preempted=1)), "so has the target"


def test_balanced_pairs_shrink_the_gap_and_keep_its_sign():
    """A request that makes the other replica the worse one would be sent back at the next poll."""
    long = view(0, 0, running=2, lengths=(1600,))
    short = view(0, 0, running=2, lengths=(160,))

    assert [(0, 1, 0)] == moves(short, view(1, 80), pairs="balanced")
    assert [] == moves(long, view(1, 50), pairs="balanced") == moves(short, view(1, 15), pairs="balanced")
    assert [(0, 1, 0)] == moves(long, view(1, 50)), "defrag asks nothing"


@pytest.mark.parametrize("seed", range(50))
def test_no_replica_is_paired_with_itself_or_twice(seed):
    """K19.c."""
    draw = Random(seed)
    replicas = [
        view(i, draw.randint(0, 100), draw.randint(1, 9), draw.randint(0, 3), draw.randint(1, 900),
             draining=draw.random() < 0.1, preempted=draw.randint(0, 1))
        for i in range(8)
    ]  # fmt: skip
    pairs = [(source, target) for source, target, _ in moves(*replicas, pairs=draw.choice(["defrag", "balanced"]))]
    ends = [end for pair in pairs for end in pair]

    assert len(ends) == len(set(ends))


def test_new_requests_go_to_the_freest():
    """Queued demand counts, requests of high priority have headroom, and a draining replica gets none."""
    urgent = SequenceView(1, None, -1, 0.0, 16, 16, 1, Phase.DECODE)
    busy = view(1, 60, waiting=2, head=160)

    def chosen(*replicas, **fields):
        return make("routers", "freeness", **fields).decide(None, 0.0, ClusterView(replicas, [], {}))

    assert Send(1) == chosen(view(0, 40), view(1, 60))
    assert Send(0) == chosen(view(0, 40), busy), "40 blocks for 4 against 60 - 20 for 6"
    assert Send(0) == chosen(view(0, 40), view(1, 60, draining=True))
    assert Send(1) == chosen(view(0, 90), view(1, 0, running=0), view(2, 0, running=0)), "nothing runs there"
    first = view(1, 60)
    first._sequences = (urgent, *first._sequences)
    assert Send(0) == chosen(view(0, 40), first, headroom_blocks=30)


def test_it_scales_within_its_limits():
    """A cluster that grows while it is idle, or shrinks below its least size, wastes machines or loses requests."""
    requests = [Request(i, i / 8, 600, 400) for i in range(400)]
    sim = Sim(model="llama2-7b", replicas=1, policy="vllm-v0", kv_blocks=400, latency=f"linear:base_s={STEP_S}",
              router="freeness:max_replicas=4,scale_s=2,load_s=5")  # fmt: skip
    records = list(sim.simulate(requests))
    actions = sim.actions()
    up, down = ([a.at_s for a in actions if a.kind == kind] for kind in ("up", "down"))
    alive = 1
    for _, change in sorted([(at_s, 1) for at_s in up] + [(at_s, -1) for at_s in down]):
        alive += change
        assert 1 <= alive <= 4

    assert up and down
    assert {"ok"} == {record.status for record in records}
