"""The worked examples of a router and of an autoscaler do what docs/guide/router.md and clusters.md say."""

import importlib.util
import sys
from pathlib import Path

import pytest

from backends.sim import Sim
from harness.registry import make

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"


@pytest.fixture
def example(monkeypatch):
    """`example(file, class, **arguments)`: the router `mine` of a simulation, from a file found as a plug-in is."""

    def install(name, of, **arguments):
        spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)

        def made(kind, spec, **given):
            return getattr(module, of)(**arguments) if spec == "mine" else make(kind, spec, **given)

        monkeypatch.setattr("backends.simulator.layout.make", made)

    return install


def test_an_autoscaler_grows_and_shrinks_and_all_end(example, draw):
    """It would be no example if the cluster stayed as it is, or if a replica took its requests along."""
    example("backlog", "Backlog", load_s=1.0, calm_s=2.0, tick_s=0.5, most=4)
    sim = Sim(kv_blocks=200, latency="linear", router="mine", policy="vllm-v1:max_seqs=16")
    records = list(sim.simulate(draw(200, rate_rps=50.0, prompt=(1, 300), output=(50, 200))))
    kinds = [action.kind for action in sim.actions()]

    assert {"ok"} == {record.status for record in records}
    assert {"scale", "up"} <= set(kinds)
    assert 1 < len(sim.cluster.replicas) <= 4
    assert all(replica.blocks.free == replica.blocks.total for replica in sim.cluster.replicas)


def test_a_router_moves_requests_and_all_end(example, draw):
    """It would be no example if nothing moved, or if what moves got lost."""
    example("even_context", "EvenContext", tick_s=0.05, ratio=1.1)
    sim = Sim(replicas=3, kv_blocks=120, latency="linear", router="mine", policy="vllm-v1")
    records = list(sim.simulate(draw(200, rate_rps=30.0, prompt=(1, 300), output=(1, 200))))
    moved = [action for action in sim.actions() if action.kind == "migrate"]

    assert {"ok"} == {record.status for record in records}
    assert all(record.output_tokens == record.output_tokens_asked == len(record.token_s) for record in records)
    assert len(moved) > 20
    assert all(a.replica != a.target and a.at_s <= a.stop_s <= a.end_s for a in moved)
    sim.cluster.check()
