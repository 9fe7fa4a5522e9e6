"""Every policy, router, memory mode, latency model, executor and backend keeps the contract of its kind."""

import numpy as np
import pytest

from backends.serving.batch import VisibleRequest
from backends.serving.cluster import route_of
from backends.serving.replica import Replica
from backends.sim import Sim
from harness.api import Request
from harness.registry import about, find, make, names, summary
from harness.spec import Spec, build, text_of

KINDS = ("policies", "routers", "kv", "tiers", "predictors", "latency", "executors", "backends")
MEMBERS = [(kind, name) for kind in KINDS for name in names(kind)]
NEEDS_INPUT = {("latency", "recorded"), ("latency", "file"), ("latency", "operators")}


@pytest.mark.parametrize(("kind", "name"), MEMBERS)
def test_it_has_a_docstring_and_builds_from_defaults(kind, name):
    """`bench list` and `bench explain` show this text; a default that does not build is no help."""
    cls = find(kind, name)
    if name == "torch":
        pytest.importorskip("torch", reason="PyTorch is not installed; make nightly installs it")

    assert summary(kind, name).endswith(".") or ":" in summary(kind, name)
    assert about(cls)
    if (kind, name) not in NEEDS_INPUT:
        assert isinstance(make(kind, name), cls)


@pytest.mark.parametrize(
    ("kind", "name"), [m for m in MEMBERS if m[0] in ("policies", "routers", "kv", "tiers", "predictors", "latency")]
)
def test_its_spec_round_trips(kind, name):
    """The spec in run.json must build the same thing again."""
    if (kind, name) in NEEDS_INPUT:
        pytest.skip("needs a run folder")
    one = make(kind, name)
    text = text_of(one, name)

    assert text_of(make(kind, text), name) == text


@pytest.mark.parametrize(("kind", "name"), [m for m in MEMBERS if m[0] != "executors"])
def test_an_unknown_argument_names_the_known_ones(kind, name):
    """A typo in a spec must not be silently ignored."""
    from harness.errors import UsageError

    with pytest.raises(UsageError, match=r"has no argument|takes no arguments"):
        build(find(kind, name), Spec(name, {"no_such_argument": "1"}))


@pytest.mark.parametrize("name", [n for n in names("latency") if ("latency", n) not in NEEDS_INPUT])
def test_a_latency_model_is_one_function_in_three_forms(name):
    """A step, a single decode, a line and a vector must agree to the last bit, or leaps would differ from steps."""
    model = make("latency", name)
    contexts = np.array([0, 1, 17, 4096, 100_000])
    for seqs in (1, 7, 200):
        single = [model.decode_s(seqs, int(c)) for c in contexts]

        assert single == [model.step_s((), seqs, int(c)) for c in contexts]
        assert single == model.decode_many_s(seqs, contexts).tolist()
        assert all(s > 0 for s in single)
        line = model.decode_line(seqs)
        if isinstance(line, tuple):
            assert single == [line[0] + line[1] * int(c) for c in contexts]
        elif line is not None:
            for first in contexts.tolist():
                ends, now_s = [], 0.5
                line.extend(ends, 40, 0.5, 1e9, first, seqs, 1.25)
                for i, end_s in enumerate(ends):
                    now_s += model.decode_s(seqs, first + i * seqs) * 1.25
                    assert end_s == now_s
                assert len(ends) == 40
                line.extend(cut := [], 40, 0.5, ends[7], first, seqs, 1.25)
                assert cut == ends[:8]
    assert model.step_s([(100, 0)], 0, 0) > 0


@pytest.mark.parametrize("name", [n for n in names("routers") if route_of(make("routers", n)) is not None])
def test_a_router_answers_an_index_and_starves_no_replica(name):
    """A router that forgets a replica wastes a machine."""
    route = route_of(make("routers", name))
    replicas = [Replica(make("policies", "vllm-v0"), make("kv", "paged"), 50, i) for i in range(3)]
    chosen = []
    for i in range(30):
        request = Request(i, 0.0, 10, 10)
        chosen.append(route(VisibleRequest(request), replicas))
        replicas[chosen[-1]].add(request, 0.0)

    assert {0, 1, 2} == set(chosen)


@pytest.mark.parametrize("name", ["freeness", "reject-forward", "reported-queue"])
def test_a_router_that_decides_starves_no_replica(name):
    """As above, of those that know time."""
    requests = [Request(i, i / 100, 500, 50) for i in range(60)]  # prompts that have to queue
    records = list(Sim(router=name, replicas=3, kv_blocks=2000).simulate(requests))

    assert {"ok"} == {record.status for record in records}
    assert {0, 1, 2} == {record.replica for record in records}


@pytest.mark.parametrize("kv", names("kv"))
@pytest.mark.parametrize("policy", names("policies"))
def test_every_policy_runs_with_every_memory_mode(policy, kv, draw):
    """Parts are chosen one by one on the command line; no pair may get stuck."""
    sim = Sim(policy=policy, kv=kv, kv_blocks=4000)
    records = list(sim.simulate(draw(30)))

    sim.cluster.check()
    assert list(range(30)) == sorted(r.request_id for r in records)
    assert {"ok"} == {r.status for r in records}
