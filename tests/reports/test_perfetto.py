"""The timeline as trace events: what viewers take, what leads where, and how much of a run it is."""

import dataclasses
import json
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from harness import registry
from harness.cli import main
from harness.data import folder
from harness.data import large as data_large
from harness.data.folder import Run
from harness.errors import UsageError
from harness.metrics.measure import marked

MakeRun = Callable[..., Run]
Events = list[dict[str, Any]]


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two replicas near their limit, so that requests wait, are preempted and miss their SLO."""
    out = tmp_path_factory.mktemp("timeline") / "run"
    system = ["--backend", "sim:latency=abc:distserve,policy=vllm-v0,replicas=2,kv_blocks=300"]
    words = ["run", "--workload", "chatbot", *system, "--rate", "6", "--requests", "120", "--out", str(out)]
    assert main([*words, "--slo", "ttft=0.25,tpot=0.1", "--quiet", "--no-html"]) == 0
    return folder.load(out)


def trace(run: Run, spec: str = "perfetto") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(registry.make("reports", spec).render(run))
    return found


def of(events: Events, phase: str) -> Events:
    return [event for event in events if event["ph"] == phase]


def slices(events: Events) -> list[tuple[str, str, float, float, int]]:
    """(id, name, begin, end, depth) of the asynchronous slices, as a viewer pairs them."""
    opened: dict[str, list[dict[str, Any]]] = defaultdict(list)
    found = []
    for event in events:
        if event["ph"] == "b":
            opened[event["id2"]["local"]].append(event)
        elif event["ph"] == "e":
            stack = opened[event["id2"]["local"]]
            begin = stack.pop()
            assert begin["name"] == event["name"]
            found.append((event["id2"]["local"], event["name"], begin["ts"], event["ts"], len(stack)))
    assert not any(opened.values())
    return found


def test_requests_hold_their_phases_one_after_the_other(simulated: Run) -> None:
    """A viewer would drop slices that do not nest, or show a request in two phases at once."""
    events = trace(simulated)["traceEvents"]
    found = slices(events)
    whole = {one[0]: one for one in found if one[4] == 0}
    inner = defaultdict(list)
    for one in found:
        if one[4] == 1:
            inner[one[0]].append(one)

    assert {"request", "request, missed its SLO"} == {one[1] for one in whole.values()}
    assert {"queue", "prefill", "decode"} == {one[1] for ones in inner.values() for one in ones}
    assert 120 == len(whole)
    for key, ones in inner.items():
        ends = [whole[key][2], *(t for one in ones for t in one[2:4]), whole[key][3]]

        assert ends == sorted(ends)
        assert pytest.approx(whole[key][3] - whole[key][2], abs=0.01) == sum(one[3] - one[2] for one in ones)


def test_arguments_of_a_request_is_what_the_table_holds(simulated: Run) -> None:
    """The timeline would show other requests than the report."""
    begun = {e["args"]["request"]: e for e in of(trace(simulated)["traceEvents"], "b") if "args" in e}
    rows = {row["request_id"]: row for row in simulated.requests.to_pylist()}
    missed = sum(event["args"]["kept its SLO"] == "no" for event in begun.values())

    assert rows.keys() == begun.keys()
    assert pytest.approx(1 - simulated.info.summary.attainment) == missed / 120
    for number, event in begun.items():
        row = rows[number]

        assert pytest.approx(row["scheduled_s"] * 1e6, abs=0.001) == event["ts"]
        assert pytest.approx((row["token_s"][0] - row["scheduled_s"]) * 1e3, abs=1e-5) == event["args"]["TTFT (ms)"]
        assert (row["preemptions"], row["replica"]) == (event["args"]["preemptions"], event["args"]["replica"])


def test_batches_of_a_track_do_not_overlap(simulated: Run) -> None:
    """Viewers only draw slices of a thread that nest, so a step would disappear."""
    steps = simulated.steps
    assert steps is not None
    late = pa.Table.from_pylist([{**row, "end_s": row["end_s"] + 0.05} for row in steps.to_pylist()], steps.schema)
    events = trace(dataclasses.replace(simulated, steps=late))["traceEvents"]
    tracks = defaultdict(list)
    for event in of(events, "X"):
        tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))

    assert steps.num_rows == sum(len(found) for (pid, _), found in tracks.items() if pid >= 10)
    assert len(tracks) > 3
    for found in tracks.values():
        assert all(start >= end - 1e-3 for (_, end), (start, _) in zip(sorted(found), sorted(found)[1:], strict=False))


def test_counters_tell_what_the_steps_tell(simulated: Run) -> None:
    """The queue and the memory would be those of another time, or of the other replica."""
    events = trace(simulated)["traceEvents"]
    assert simulated.steps is not None
    steps = [row for row in simulated.steps.to_pylist() if row["replica"] == 1]
    free = min(row["free_blocks"] for row in steps)
    counted = [e["args"] for e in of(events, "C") if e["pid"] == 11]

    assert max(row["waiting"] for row in steps) == max(a["waiting"] for a in counted if "waiting" in a)
    assert pytest.approx(100 * (300 - free) / 300, abs=1e-3) == max(a.get("in use (%)", 0.0) for a in counted)
    assert {"client: requests", "replica 0", "replica 1"} == {
        e["args"]["name"] for e in of(events, "M") if e["name"] == "process_name"
    }


@pytest.mark.parametrize(
    ("spec", "noted"),
    [
        ("perfetto", "all 120 requests"),
        ("perfetto:50", "the first 50 of 120 requests"),
        (
            "perfetto:requests=5,start=10s,window=2s",
            "the first 5 of {} requests due or under way from 10 s to 12 s, of",
        ),
    ],
)
def test_a_part_is_bounded_and_notes_it(spec: str, noted: str, simulated: Run) -> None:
    """A run of a million requests would make a file that no viewer opens, or a part would be taken for the whole."""
    found = trace(simulated, spec)
    due = simulated.requests["scheduled_s"].to_numpy()
    last = np.array([times[-1] for times in simulated.requests["token_s"].to_pylist()])
    there = int(np.sum((last >= 10) & (due < 12)))
    events = found["traceEvents"]

    assert found["otherData"]["shown"].startswith(noted.format(there))
    if "start" in spec:
        assert all(e["ts"] <= 12e6 and e["ts"] + e["dur"] >= 10e6 for e in of(events, "X") if e["pid"] >= 10)


def test_a_run_that_is_read_thin_gives_the_same_timeline(simulated: Run) -> None:
    """The timeline of a large run would be another one, or need all its tokens in memory."""
    large = data_large.load(simulated.path, large=1)

    assert large.steps is None
    assert trace(simulated, "perfetto:30") == trace(large, "perfetto:30")


def test_a_backend_without_stages_shows_what_is_known(make_run: MakeRun) -> None:
    """Phases would be made up, a request that failed would never end, or a name of a class break the file."""
    run = make_run(30, tags=("<b>\x1b[31m\u202eodd", None), failed=3)
    events = trace(run)["traceEvents"]
    begun = [e for e in of(events, "b") if "args" in e]

    assert {"late", "to first token", "decode"} == {one[1] for one in slices(events) if one[4] == 1}
    assert {"<b>odd", None} == {event["args"].get("class") for event in begun}
    assert {"connection refused", None} == {event["args"].get("error") for event in begun}


@pytest.mark.parametrize("slo", ["", "p99:ttft=0.3"])
def test_no_request_misses_a_bound_that_it_does_not_have(slo: str, make_run: MakeRun) -> None:
    """A bound on a percentile of the run would be held against single requests."""
    begun = [e for e in of(trace(make_run(10, slo=slo))["traceEvents"], "b") if "args" in e]

    assert {"request"} == {event["name"] for event in begun}
    assert not any("kept its SLO" in event["args"] for event in begun)


def test_a_remote_run_shows_what_its_server_reported(remote_run: MakeRun) -> None:
    """The timeline of a remote endpoint would have nothing but its client."""
    counted = of(trace(remote_run(floor=None))["traceEvents"], "C")

    assert {"requests", "KV memory"} >= {event["name"] for event in counted}
    assert counted


def test_without_times_there_is_no_timeline(make_run: MakeRun) -> None:
    """A file of results without times would be drawn as if all had been sent at once."""
    run = make_run(20)

    with pytest.raises(UsageError, match="does not tell when requests were sent"):
        trace(dataclasses.replace(run, requests=marked(run.requests, ["sent_s"])))
    with pytest.raises(UsageError, match="holds no single requests"):
        trace(make_run(0))
    with pytest.raises(UsageError, match="due or under way from 1000000 s on; choose another start"):
        trace(run, "perfetto:start=1000000")
    with pytest.raises(UsageError, match="requests must be 1 or more, got 0"):
        trace(run, "perfetto:0")
