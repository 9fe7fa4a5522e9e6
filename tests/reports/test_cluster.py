"""Reports of clusters that act: what replicas were when, where the load was, and what the router did."""

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from backends.serving.routing import Action, ClusterView, Decision, Drain, Hold, Migrate, Reject, Scale, Send, SetRole
from backends.sim import Sim
from harness import registry
from harness.api import Request
from harness.data.folder import Run
from harness.data.records import actions_table, to_table
from harness.metrics.objective import parse_slo
from harness.metrics.summary import summarize
from reports import _cluster
from reports.figures.drawing import Drawing
from reports.figures.timeline import timeline

MakeRun = Callable[..., Run]
TICK_S = 0.5


@dataclasses.dataclass
class Scripted:
    """Sends to the shortest queue; holds every tenth request for a second and rejects one; at its ticks it migrates,
    and does at a time what `script` says."""

    script: dict[float, Action]
    report_s: float = 0.25
    tick_s: float = TICK_S

    def decide(self, request: Any, now_s: float, view: ClusterView) -> Decision:
        """By the number of the request."""
        if request.id == 7:
            return Reject("quota of the tenant is used up")
        if request.id % 10 == 5 and now_s < request.scheduled_s + 1.0:
            return Hold(request.scheduled_s + 1.0)
        entries = view.open("mixed", "prefill")
        return Send(min(entries, key=lambda r: r.waiting + r.running).index) if entries else Hold()

    def tick(self, now_s: float, view: ClusterView) -> Iterator[Action]:
        """The action of this time, and one migration from the fullest replica to the emptiest."""
        if now_s in self.script:
            yield self.script[now_s]
        there = sorted(view.open("mixed", "decode"), key=lambda r: r.running)
        if len(there) > 1 and there[0].role == there[-1].role and there[-1].running > there[0].running:
            running = [s for s in there[-1].sequences() if s.emitted_tokens]
            yield from (Migrate(s.request_id, there[-1].index, there[0].index, stages=1) for s in running[:1])


def simulated(make_run: MakeRun, router: object, requests: int = 160, **fields: Any) -> Run:
    """The run of a small simulated cluster behind `router`."""
    sim = Sim(latency="linear:base_s=0.02,decode_seq_s=0.002", policy="vllm-v1", kv_blocks=512, **fields)
    sim.cluster.router = router  # type: ignore[assignment]  # any object with the methods
    draw = np.random.default_rng(0)
    at_s = np.sort(draw.uniform(0.0, 10.0, requests))
    schedule = [Request(i, float(t), 200, int(draw.integers(20, 160))) for i, t in enumerate(at_s)]
    records = list(sim.simulate(schedule))
    table, slo = to_table(records), parse_slo("ttft=0.25,tpot=0.1")
    actions, steps, run = actions_table(sim.actions()), sim.steps_table(), make_run(1)
    info = {
        "backend": {**sim.describe(), "router": "scripted:k=1"},
        "summary": summarize(table, slo),
        "clock": "virtual",
    }
    return dataclasses.replace(
        run, requests=table, steps=steps, schedule=None, actions=actions, info=run.info.change(**info)
    )


@pytest.fixture(scope="module")
def acting(make_run: MakeRun) -> Run:
    """Two replicas, of which the first fails from 6 s to 8 s; a third comes at 3.5 s and drains from 7 s on."""
    script = {2.0: Scale("mixed", 1.5), 7.0: Drain(2)}
    return simulated(make_run, Scripted(script), replicas=2, fail="0@6s..8s,requeue")


@pytest.fixture(scope="module")
def apart(make_run: MakeRun) -> Run:
    """Two replicas for prefill and two for decode; one takes up the other role at 4 s, for which it needs a second."""
    script = {4.0: SetRole(1, "decode", cost_s=1.0)}
    return simulated(make_run, Scripted(script), prefill="2", decode="2", link="none")


@pytest.fixture(scope="module")
def plain(make_run: MakeRun) -> Run:
    """Two replicas alike behind a router that only routes."""
    return simulated(make_run, registry.make("routers", "round-robin"), replicas=2)


def trace(figure: Drawing, name: str) -> dict[str, Any]:
    return next(found for found in figure.data if found["name"] == name)


def counted(run: Run) -> Counter[str]:
    assert run.actions is not None
    return Counter(run.actions.column("kind").to_pylist())


def test_replicas_have_their_roles_and_states(acting: Run, apart: Run) -> None:
    """A reader would look for the cause of slow requests at a replica that was down."""
    found = [(s.replica, s.role, s.state, s.from_s, s.to_s) for s in _cluster.stays(acting)]
    roles = [(s.replica, s.role, s.state, s.from_s) for s in _cluster.stays(apart)]
    over_s, gone_s = _cluster.end_s(acting), found[6][4]

    assert [
        (0, "mixed", "up", 0.0, 6.0), (0, "mixed", "down", 6.0, 8.0), (0, "mixed", "up", 8.0, over_s),
        (1, "mixed", "up", 0.0, over_s),
        (2, "mixed", "starting", 2.0, 3.5), (2, "mixed", "up", 3.5, 7.0), (2, "mixed", "draining", 7.0, gone_s),
        (2, "mixed", "down", gone_s, over_s),
    ] == found  # fmt: skip
    assert [
        (0, "prefill", "up", 0.0), (1, "prefill", "up", 0.0), (1, "decode", "starting", 4.0), (1, "decode", "up", 5.0),
        (2, "decode", "up", 0.0), (3, "decode", "up", 0.0),
    ] == roles  # fmt: skip


def test_a_replica_that_has_failed_has_no_line_in_the_figure_of_steps(acting: Run) -> None:
    """Its last batch would seem to be decoded until it is back."""
    figure = timeline(acting)
    assert not isinstance(figure, str)
    at_s, values = (trace(figure, "decoding, replica 0")[letter] for letter in "xy")
    last = np.flatnonzero(at_s < 8.0)[-1]

    assert at_s[last] < 6.5
    assert np.isnan(values[last])
    assert np.isfinite(values[last - 1]) and np.isfinite(values[last + 1])


def test_the_terminal_says_what_the_router_did(acting: Run, plain: Run) -> None:
    """A terminal would not show that requests were held or moved."""
    counts = counted(acting)
    facts = acting.info.backend
    line = _cluster.line(acting)

    assert f"scripted, views 250 ms old, GPU time {facts['gpu_s']:.1f} s" == line
    assert {"migrate": counts["migrate"]}.items() <= facts["actions"].items()
    assert (counts["hold"], 1, 0.25) == tuple(
        facts[name] for name in ("router_holds", "router_rejected", "router_report_s")
    )
    assert pytest.approx(1.0) == facts["router_held_s"]["p50"]
    text = registry.make("reports", "text:width=100").render(acting)
    assert "request held" in text
    assert "Router: scripted, views" in registry.make("reports", "markdown").render(acting)
    assert "" == _cluster.line(plain)


def test_actions_are_a_table_by_kind(acting: Run) -> None:
    """Reasons why migrations were aborted, and requests rejected, would not be on the page."""
    counts = counted(acting)
    rows = {row[0]: row for row in _cluster.table(acting).rows}

    assert f"{counts['migrate']}" == rows["migration"][1]
    assert "1.00 s" == rows["request held"][2]
    assert "quota of the tenant is used up: 1" == rows["request rejected"][4]
    assert counts["abort"] == sum(
        int(part.rpartition(": ")[2]) for part in str(rows["aborted migration"][4]).split("; ")[-1].split(", ")
    )


def test_clusters_that_only_route_have_no_such_section(plain: Run, apart: Run) -> None:
    """Every page of replicas alike would have an empty section more."""
    pages = [registry.make("reports", "html").render(run) for run in (plain, apart)]

    assert [False, True] == ["What the router did" in page for page in pages]


def test_the_timeline_file_has_states_and_migrations(acting: Run) -> None:
    """Perfetto would refuse the file, or leave migrations out that do not end."""
    events = json.loads(registry.make("reports", "perfetto").render(acting))["traceEvents"]
    counts, open_, states = counted(acting), Counter[str](), [e for e in events if e.get("cat") == "state"]
    for event in events:
        if event.get("cat") == "router" and event["ph"] in "be":
            open_[event["id2"]["local"]] += 1 if event["ph"] == "b" else -1

            assert open_[event["id2"]["local"]] >= 0

    assert not any(open_.values())
    assert counts["migrate"] + counts["abort"] + counts["hold"] == len(open_)
    assert {(s.replica + 10, round(s.from_s * 1e6, 3)) for s in _cluster.stays(acting)} == {
        (e["pid"], e["ts"]) for e in states
    }
    assert {"mixed", "mixed, starting", "mixed, draining", "mixed, down"} == {e["name"] for e in states}
    assert ["replica failed"] == [e["name"] for e in events if e["ph"] == "i" and e["cat"] == "failed"]
    assert sorted(e["ts"] for e in events if e["ph"] != "M") == [e["ts"] for e in events if e["ph"] != "M"]


def test_the_table_of_numbers_has_what_the_router_did(acting: Run) -> None:
    """A program that reads the CSV would have to read run.json too."""
    table = registry.make("reports", "csv").render(acting)
    counts = counted(acting)

    assert f",actions migrate,actions,count,{counts['migrate']}" in table
    assert ",held by the router,s,p99,1.0," in table
    assert ",GPU time,s,sum," in table
