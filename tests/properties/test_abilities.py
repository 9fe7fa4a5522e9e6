"""What a policy may do beyond filling batches: know the time, learn from steps and ends, resume any sequence."""
# ruff: noqa: ARG002  # the policy of these tests needs nothing of what it is given

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.serving.batch import Oracle
from backends.serving.replica import Replica
from backends.sim import Sim
from harness import registry
from harness.api import Request
from harness.registry import make, names


@dataclass(slots=True)
class Taught:
    """Shares every `turn_s` seconds of the clock among two halves of the sequences; notes all feedback."""

    turn_s: float = 0.7
    most_steps: int | None = None
    feedback: list[tuple[object, ...]] = field(default_factory=list, init=False)
    seconds: float = field(default=0.0, init=False)
    now_s: float = field(default=0.0, init=False)

    pads = False

    def refusal(self, prompt, output):
        return None

    def on_step_start(self, now_s):
        self.now_s = now_s

    def on_step_end(self, batch, seconds):
        self.feedback.append(
            (batch.start_s, batch.decode_seqs, batch.context_tokens, [n for _, n in batch.prefills], seconds)
        )
        self.seconds += seconds

    def on_finish(self, seq):
        self.feedback.append(("end", seq.request.id, seq.emitted))

    def fill(self, replica, batch):
        turn = int(self.now_s / self.turn_s)
        replica.order_waiting(lambda seq: -seq.prompt)
        while replica.waiting and replica.admissible():
            replica.admit(batch, replica.waiting[0].need())
        for seq in [seq for seq in replica.decoding if seq.request.id % 2 == turn % 2]:
            replica.park(seq)
        for seq in [seq for seq in replica.parked if seq.request.id % 2 != turn % 2]:
            replica.unpark(seq)
        if not replica.decoding.members and not batch.prefills:
            for seq in list(replica.parked):
                replica.unpark(seq)
        if replica.decoding.members:
            replica.decode(batch)
        batch.repeats = not batch.preempted and (self.most_steps or True)
        batch.repeats_until_s = (turn + 1) * self.turn_s


@given(
    rows=st.lists(st.tuples(st.integers(0, 64), st.integers(1, 90), st.integers(1, 70)), min_size=1, max_size=20),
    turn_s=st.sampled_from([0.1, 0.7, 5.0]),
    most_steps=st.sampled_from([None, 3]),
)
@settings(max_examples=60, deadline=None)
def test_a_policy_gets_the_same_feedback_from_leaps_and_steps(rows, turn_s, most_steps, monkeypatch_policy):
    """A policy that learns from steps would decide otherwise in the fast simulator than in the engine."""
    requests = [Request(i, at / 16, p, o) for i, (at, p, o) in enumerate(sorted(rows))]
    seen = []
    for leap in (True, False):
        sim = Sim(policy=f"taught:turn={turn_s},most_steps={most_steps}", kv_blocks=60, leap=leap)
        stamps = {record.request_id: list(record.token_s) for record in sim.simulate(requests)}
        policy = sim.cluster.replicas[0].policy
        seen.append((stamps, policy.feedback, policy.seconds, sim.steps_table()))

    assert seen[1] == seen[0]
    steps = seen[0][3]
    ends = [entry[2] for entry in seen[0][1] if entry[0] == "end"]
    assert steps.num_rows == len(seen[0][1]) - len(ends)
    assert sorted(o for _, _, o in rows) == sorted(ends)


@pytest.fixture(scope="module")
def monkeypatch_policy():
    """A policy `taught` is installed."""
    with pytest.MonkeyPatch.context() as patch:
        find = registry.find
        patch.setattr(registry, "find", lambda kind, name: Taught if name == "taught" else find(kind, name))
        yield


def test_any_parked_sequence_can_be_resumed():
    """A policy with priorities must not wait until its favourite comes to the head of those that sit out."""
    replica = Replica(make("policies", "vllm-v0"), make("kv", "paged"), 100)
    for i in range(3):
        replica.add(Request(i, 0.0, 10, 9), 0.0)
    replica.commit(replica.schedule(0.0), [1.0])
    seqs = list(replica.decoding)
    for seq in seqs:
        replica.park(seq)
    replica.unpark(seqs[1])
    replica.unpark()

    assert [1, 0] == [seq.request.id for seq in replica.decoding]
    assert [2] == [seq.request.id for seq in replica.parked]
    replica.check()


APART = ("ooc", "replan", "slo-flip")
"""Routers of prefill and decode replicas."""
LENGTH_GIVEN = ("diffusion",)
"""Policies whose requests say how long an answer will be."""


@pytest.mark.parametrize(
    ("kind", "name"), [(k, n) for k in ("policies", "routers", "admission", "predictors") for n in names(k)]
)
def test_no_plugin_knows_how_long_an_answer_will_be(kind, name, monkeypatch, draw):
    """Results of a scheduler that knows the future would pass for those of one that does not."""
    used = []
    known = Oracle.output_tokens
    monkeypatch.setattr(Oracle, "output_tokens", staticmethod(lambda seq: used.append(seq) or known(seq)))
    option = {
        "policies": {"policy": name},
        "routers": {
            "router": name,
            **({"prefill": "1", "decode": "1", "policy": "vllm-v1"} if name in APART else {"replicas": 2}),
        },
        "admission": {"admission": name},
        "predictors": {"policy": f"ltr:predictor={name}"},
    }[kind]
    sim = Sim(kv_blocks=200, **option)
    records = list(sim.simulate(draw(40, rate_rps=20.0)))
    facts = sim.describe()
    declared = [facts["admission"], facts.get("predictor", "")]  # as run.json holds it

    assert {"ok"} == {record.status for record in records}
    assert (any("oracle" in spec for spec in declared) or name in LENGTH_GIVEN) == bool(used)
