"""The worked example of a router: short, and as good as docs/guide/router.md says."""

import importlib.util
import sys
from pathlib import Path

import pytest

from backends.sim import Sim
from harness.registry import make

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "even_context.py"


@pytest.fixture
def even_context(monkeypatch):
    """The class of the example, found as a plug-in is."""
    spec = importlib.util.spec_from_file_location("even_context", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "even_context", module)
    spec.loader.exec_module(module)
    return module.EvenContext


def test_it_moves_requests_and_all_end(even_context, draw, monkeypatch):
    """It would be no example if nothing moved, or if what moves got lost."""

    def made(kind, spec, **given):
        return even_context(tick_s=0.05, ratio=1.1) if spec == "even-context" else make(kind, spec, **given)

    monkeypatch.setattr("backends.simulator.layout.make", made)
    sim = Sim(replicas=3, kv_blocks=120, latency="linear", router="even-context", policy="vllm-v1")
    records = list(sim.simulate(draw(200, rate_rps=30.0, prompt=(1, 300), output=(1, 200))))
    moved = [action for action in sim.actions() if action.kind == "migrate"]

    assert {"ok"} == {record.status for record in records}
    assert all(record.output_tokens == record.output_tokens_asked == len(record.token_s) for record in records)
    assert len(moved) > 20
    assert all(a.replica != a.target and a.at_s <= a.stop_s <= a.end_s for a in moved)
    sim.cluster.check()
