"""The worked example of an autoscaler: short, as shown, and with the effect that docs/guide/clusters.md states."""

import importlib.util
import sys
from pathlib import Path

import pytest

from backends.sim import Sim
from harness.registry import make

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "backlog.py"


@pytest.fixture
def backlog(monkeypatch):
    """The class of the example, found as a plug-in is."""
    spec = importlib.util.spec_from_file_location("backlog", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "backlog", module)
    spec.loader.exec_module(module)
    return module.Backlog


def test_it_grows_and_shrinks_and_all_end(backlog, draw, monkeypatch):
    """It would be no example if the cluster stayed as it is, or if a replica took its requests along."""

    def made(kind, spec, **given):
        return backlog(load_s=1.0, calm_s=2.0, tick_s=0.5, most=4) if spec == "backlog" else make(kind, spec, **given)

    monkeypatch.setattr("backends.simulator.layout.make", made)
    sim = Sim(kv_blocks=200, latency="linear", router="backlog", policy="vllm-v1:max_seqs=16")
    burst = draw(200, rate_rps=50.0, prompt=(1, 300), output=(50, 200))
    records = list(sim.simulate(burst))
    kinds = [action.kind for action in sim.actions()]

    assert {"ok"} == {record.status for record in records}
    assert {"scale", "up"} <= set(kinds)
    assert 1 < len(sim.cluster.replicas) <= 4
    assert all(replica.blocks.free == replica.blocks.total for replica in sim.cluster.replicas)
