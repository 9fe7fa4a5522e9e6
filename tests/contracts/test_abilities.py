"""Optional abilities of plug-ins: which built-in ones have them, how they are tested, and that none is required."""
# ruff: noqa: ARG002  # a plain plug-in needs nothing of what it is given

import ast
from dataclasses import dataclass
from itertools import count, repeat
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from backends.serving.plugins import (
    Clocked,
    FinishFeedback,
    HandOffRoom,
    LengthFeedback,
    LengthLimit,
    LoadRouter,
    MapTime,
    Padding,
    Polling,
    Predicting,
    Reserving,
    StepFeedback,
    StepRouter,
    StepTimes,
)
from backends.serving.routing import OrderedRouter, RequiringRouter
from backends.sim import Sim
from harness import api, registry
from harness.experiments.imports import FilesReader
from workloads.catalog import load
from workloads.mixed import Deadline
from workloads.readers._requests import MappedReader, TextReader

TOP = Path(__file__).resolve().parents[2]
TABLE = [
    ("latency", api.LatencyModel, "abc af ep file fit6 linear mixed operators roofline table"),
    ("latency", api.FrontTime, "file fit6 linear mixed operators"),
    ("latency", api.TokenizerTime, "file operators"),
    ("latency", api.StoredBits, "file operators roofline"),
    ("latency", api.PartsOfSteps, "operators roofline"),
    ("latency", api.ExpertPool, "af"),
    ("latency", api.ExpertServers, "af"),
    ("latency", api.MeasuredOn, "file fit6 mixed table"),
    ("policies", Padding, "static"),
    ("policies", LengthLimit, "diffusion priority-preempt tgi vllm-v0"),
    ("policies", HandOffRoom, "distserve-decode"),
    ("policies", Clocked, "gmax"),
    ("policies", Polling, "sglang vllm-v1"),
    ("policies", StepFeedback, "autellix edf gmax ltr priority-preempt"),
    ("policies", FinishFeedback, "autellix diffusion gmax ltr ooc stages"),
    ("policies", Predicting, "gmax ltr ooc"),
    ("policies", StepTimes, "diffusion loongserve ooc"),
    ("kv", Reserving, "reserve-max reserve-oracle reserve-pow2 sparse"),
    ("kv", LengthLimit, "reserve-max"),
    ("kv", MapTime, "virtual"),
    ("admission", LengthFeedback, "past-future"),
    (
        "routers",
        LoadRouter,
        "least-loaded-decode least-outstanding-tokens least-requests load queue shortest-prefill-queue",
    ),
    ("routers", OrderedRouter, "reject-forward"),
    ("routers", StepRouter, "least-loaded-decode load prefix-aware"),
    ("routers", RequiringRouter, "autoscale conductor early-reject freeness min-load ooc pooled replan slo-flip"),
    ("arrivals", api.GapLaw, "diurnal gamma poisson ramp spike steps"),
    ("arrivals", api.RateCurve, "diurnal ramp spike steps"),
    ("arrivals", api.RandomRate, "azure burstgpt"),
    ("arrivals", api.RecordedArrivals, "trace"),
    ("arrivals", api.Sourced, "azure burstgpt fitted trace"),
    (
        "lengths",
        api.LengthQuantiles,
        "agent-turns arxiv azure burstgpt bwb deepseek-r1 humaneval lmsys longbench mooncake sharegpt tool-turns",
    ),
    (
        "lengths",
        api.Sourced,
        (
            "agent-turns arxiv azure burstgpt bwb deepseek-r1 fitted humaneval lmsys longbench "
            "mooncake sharegpt tool-turns"
        ),
    ),
    ("sessions", Deadline, "compound"),
    ("content", api.Sourced, "recorded text tokens"),
    ("content", api.TextContent, "recorded text"),
    ("content", api.LearningContent, "text"),
    ("content", api.RecordedContent, "recorded"),
    ("backends", api.Simulator, "sim"),
    ("backends", api.ReusableSimulator, "sim"),
    ("backends", api.Elastic, "sim"),
    ("readers", MappedReader, "csv jsonl parquet"),
    ("readers", TextReader, "messages otel sharegpt"),
    ("results", FilesReader, "aiperf inference-perf"),
    ("reports", api.Omits, "llm-d vllm"),
]


@pytest.mark.parametrize(("kind", "ability", "able"), TABLE, ids=[f"{k}-{a.__name__}" for k, a, _ in TABLE])
def test_an_ability_is_that_of_these_plugins(kind, ability, able):
    """A member that is renamed would never be found: nothing fails, memory or a law is just no longer known."""
    assert able.split() == [name for name in registry.names(kind) if isinstance(registry.find(kind, name), ability)]


@dataclass(frozen=True, slots=True)
class PlainLatency:
    """The required members of a latency model."""

    def step_s(self, prefills, decode_seqs, context_tokens):
        return 0.01

    def decode_s(self, decode_seqs, context_tokens):
        return 0.01

    def decode_line(self, decode_seqs):
        return 0.01, 0.0

    def decode_many_s(self, decode_seqs, context_tokens):
        return np.full(len(context_tokens), 0.01)


@dataclass(frozen=True, slots=True)
class PlainPolicy:
    """The required member of a policy."""

    def fill(self, replica, batch):
        if replica.decoding.members:
            replica.decode(batch)
        while replica.waiting and replica.admissible():
            replica.admit(batch, replica.waiting[0].need())


@dataclass(frozen=True, slots=True)
class PlainMemory:
    """The required members of a memory mode, and how many blocks there are."""

    blocks = 4000
    block_tokens = 16
    watermark = 0.0


@dataclass(frozen=True, slots=True)
class PlainRouter:
    """The required member of a router."""

    def route(self, request, replicas):
        return request.id % len(replicas)


@dataclass(frozen=True, slots=True)
class PlainArrivals:
    """The required members of arrivals."""

    mean_rate_rps = 2.0

    def times(self, rng):
        return (i / 2 for i in count())


@dataclass(frozen=True, slots=True)
class PlainLengths:
    """The required members of lengths."""

    mean_tokens = 40.0, 10.0

    def pairs(self, rng):
        return repeat((40, 10))


@pytest.fixture
def others(monkeypatch):
    """Another package is installed that registers these plug-ins as `plain`."""
    found = {"latency": PlainLatency, "policies": PlainPolicy, "kv": PlainMemory, "routers": PlainRouter,
             "arrivals": PlainArrivals, "lengths": PlainLengths}  # fmt: skip
    points = {kind: {"plain": SimpleNamespace(load=lambda cls=cls: cls)} for kind, cls in found.items()}
    monkeypatch.setattr(registry, "_entry_points", lambda kind: points.get(kind, {}))


@pytest.mark.parametrize("layout", [{"replicas": 2}, {"prefill": "2", "decode": "1:policy=plain"}, {"pp": 2}])
def test_the_required_members_are_enough_to_simulate(layout, others, draw):
    """A policy older than an ability would fail with an AttributeError."""
    sim = Sim(latency="plain", policy="plain", kv="plain", router="plain", **layout)
    records = list(sim.simulate(draw(30)))

    assert {"ok"} == {record.status for record in records}
    assert not sim.cluster.watches
    assert 4000 * 16 == sim.describe()["kv_tokens"]


def test_the_required_members_are_enough_for_traffic(others):
    """Nothing is known of a law, a source or a deadline, and nothing is made up."""
    loaded = load("code", arrivals="plain", lengths="plain")

    assert (None, None, 0.0) == (loaded.gap_cdf, loaded.operational_time, loaded.settles_s)
    assert "arrivals" not in loaded.provenance
    assert 2.0 == loaded.rate_rps


NO_PLUGINS = {
    "backends/client/stamps.py": "event loops, that of a sender among them",
    "backends/client/connection.py": "the socket of a connection that may not be open",
    "harness/bounds.py": "what a type says of its values",
    "harness/cli/explain.py": "the name of a type",
    "harness/ipc.py": "notes of an exception",
    "harness/metrics/measure.py": "a class that stands for a row: any of the members of Metric",
    "harness/registry.py": "modules, and what they hold before they are imported",
    "reports/_tables.py": "values of the summary by the names of their rows",
    "workloads/readers/_lines.py": "files that are open",
}
"""Files that test an object for a member that it may lack, and the objects, none of which is a plug-in."""
SYSTEM = {"os", "select", "error", "inner"}
"""Members that are tested everywhere: those of a platform and of an exception."""


def test_abilities_are_tested_by_protocols():
    """What a plug-in can do beside its required members would stand in no contract."""
    files = [
        file for package in ("harness", "workloads", "backends", "reports") for file in (TOP / package).rglob("*.py")
    ]
    asking = {str(file.relative_to(TOP)) for file in files if _asks(file.read_text(encoding="utf-8"))}

    assert set(NO_PLUGINS) == asking, "an ability is tested by a runtime_checkable Protocol, as in harness/api.py"


def _asks(text: str) -> bool:
    """Whether the file holds a hasattr, or a getattr with a default."""
    if "hasattr(" not in text and "getattr(" not in text:
        return False
    calls = (
        node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    )
    return any(
        (call.func.id == "hasattr" or (call.func.id == "getattr" and len(call.args) == 3))
        and ast.unparse(call.args[0]) not in SYSTEM
        for call in calls
    )
