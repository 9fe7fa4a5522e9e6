"""A search under the wall clock: every trial is a run with a folder of its own."""

import os
import signal
from dataclasses import replace
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from harness import termination
from harness.api import Outcome
from harness.data.folder import load
from harness.data.run_json import RunInfo
from harness.errors import BackendError, NotValid, Unresolved
from harness.experiments.capacity import trials
from harness.experiments.capacity.conditions import conditions
from harness.experiments.capacity.trials import Key, Runs, Task
from harness.experiments.trial import own_rate
from harness.metrics.objective import parse_slo
from harness.options import RunSpec

pytestmark = pytest.mark.usefixtures("late_is_valid")

NULL = "null:ttft=0.02,itl=0.001"
SPEC = RunSpec(workload="chatbot", lengths="fixed:prompt=8,output=3", backend=NULL, warmup="none")


def _task(limit_s, goal, planned):
    slo = parse_slo(f"ttft={limit_s}")
    return Task(SPEC, own_rate(SPEC), slo, Key(0, 400.0, planned, goal), conditions(slo, goal or 0.9, "joint"))


def test_a_probe_that_is_decided_stops_sending(tmp_path):
    """A server would be kept busy for minutes with a rate that is known to be too high."""
    (tried,) = Runs(tmp_path, lambda _: None)([_task(0.001, 0.9, 2000)])

    assert tried.passed is False
    assert tried.requests < 2000
    assert len(load(next((tmp_path / "trials").iterdir())).requests) < 2000


def test_a_whole_trial_is_a_run_that_can_be_read(tmp_path):
    """What a capacity stands on could not be looked at."""
    (tried,) = Runs(tmp_path, lambda _: None)([_task(5.0, None, 60)])
    run = load(next((tmp_path / "trials").iterdir()))

    assert run.complete
    assert len(run.requests) == tried.requests == tried.shares[0].of == 60


@pytest.mark.parametrize(("check", "ended_early", "valid"), [
    ("lateness", True, False), ("lateness", False, False), ("answers", True, True), ("answers", False, False),
])  # fmt: skip
def test_a_probe_that_ended_early_must_be_valid_too(check, ended_early, valid):
    """A client that is late would decide that a server is too slow. All answers may still be outstanding, though."""
    info = RunInfo.of({"verdict": {"valid": False}, "checks": [{"check": check, "state": "failed"}]})

    assert valid == (not trials._failed(info, ended_early=ended_early))


@pytest.mark.parametrize(("limit_s", "side"), [(5.0, "met"), (0.2, "none"), (0.001, "missed")])
def test_late_requests_void_a_trial_only_where_they_decide_its_side(tmp_path, monkeypatch, limit_s, side):
    """One late request of seven voided a trial, and two such trials ended a search that had minutes left."""
    run = Runs._run

    def late(made, task, watch):  # half a second
        result = run(made, task, watch)
        table = result.run.requests
        due = pc.subtract(table["scheduled_s"], 0.5)
        table = table.set_column(table.column_names.index("scheduled_s"), "scheduled_s", due)
        verdict = {"valid": False, "reasons": ["The client was late."]}
        info = RunInfo.of({"verdict": verdict, "checks": [{"check": "lateness", "state": "failed"}]})
        return replace(result, run=replace(result.run, info=info, requests=table))

    monkeypatch.setattr(Runs, "_run", late)
    (tried,) = Runs(tmp_path, lambda _: None)([_task(limit_s, 0.9, 12)])

    assert side == ("none" if tried.late else "met" if tried.passed else "missed")


def test_a_late_block_that_misses_either_way_has_a_side(tmp_path, monkeypatch):
    """A rate that is too high however its requests are counted would be no side of a bracket."""
    run = Runs._run

    def late(made, task, watch):  # 30 of 60 requests leave late, and 18 others are slow
        result = run(made, task, watch)
        table = result.run.requests
        for name, moved in (("scheduled_s", 48), ("sent_s", 18)):
            before_s = [0.0] * (48 - moved) + [0.5] * moved + [0.0] * 12
            table = table.set_column(table.column_names.index(name), name, pc.subtract(table[name], pa.array(before_s)))
        info = RunInfo.of({"verdict": {"valid": False}, "checks": [{"check": "lateness", "state": "failed"}]})
        return replace(result, run=replace(result.run, info=info, requests=table))

    monkeypatch.setattr(Runs, "_run", late)
    (tried,) = Runs(tmp_path, lambda _: None)([_task(0.2, None, 60)])

    assert (True, False, False) == (tried.late, tried.passed, tried.undecided)
    assert 42 == tried.shares[0].met  # counted from when they were sent: no fewer can have missed


def test_a_trial_that_is_not_valid_is_named_and_made_once_more(tmp_path, monkeypatch):
    """It would pass or fail a rate, or vanish without a word."""
    made = Runs(tmp_path, lambda _: None)
    verdict = {"valid": False, "reasons": ["The client was late."], "overloaded": False}
    info = RunInfo.of({"verdict": verdict, "checks": []})
    result = SimpleNamespace(run=SimpleNamespace(info=info, path=tmp_path), outcome=Outcome("finished", 60, 0, 0))
    monkeypatch.setattr(Runs, "_run", lambda *_: result)
    monkeypatch.setattr(trials, "_fault", lambda *_: None)

    with pytest.raises(NotValid, match="not valid, twice: The client was late"):
        list(made([_task(5.0, None, 60)]))
    assert ["at 400 req/s (seed 0): The client was late."] * 2 == made.invalid


@pytest.mark.parametrize(
    ("limit_s", "held_back", "side"), [(5.0, 1, "met"), (5.0, 7, "none"), (0.001, 7, "missed"), (5.0, 12, "error")]
)
def test_answers_held_back_void_a_trial_only_where_they_decide_its_side(
    tmp_path, monkeypatch, limit_s, held_back, side
):
    """One answer of seven that a busy machine held back would end a search, as if a proxy buffered the stream."""
    run = Runs._run

    def held(made, task, watch):
        result = run(made, task, watch)
        table = result.run.requests.append_column("held_back", pa.array([i < held_back for i in range(12)]))
        warning = {"code": "held-back", "message": "held", "remedy": "let events pass"}
        info = RunInfo.of({"warnings": [warning], "resolution": {"unresolved": ["ttft"]}, "verdict": {"valid": True}})
        return replace(result, run=replace(result.run, info=info, requests=table))

    monkeypatch.setattr(Runs, "_run", held)
    made = Runs(tmp_path, lambda _: None)([_task(limit_s, 0.9, 12)])
    if side == "error":
        with pytest.raises(Unresolved, match="No rate can be judged: held"):
            list(made)
    else:
        (tried,) = made
        assert side == ("none" if tried.undecided else "met" if tried.passed else "missed")


def test_sigterm_while_a_trial_ends_anyway_begins_no_other_one(tmp_path, monkeypatch):
    """It would be lost between two trials, and a search with minutes left would go on until it is killed."""
    made = []

    def make(_, task, __):
        made.append(task)
        with termination.handled(lambda _: None):  # as a run that has had all answers
            os.kill(os.getpid(), signal.SIGTERM)
        return task

    monkeypatch.setattr(Runs, "_valid", make)
    with termination.Command().guarding(), pytest.raises(KeyboardInterrupt):
        list(Runs(tmp_path, lambda _: None)([_task(5.0, None, 60)] * 3))

    assert 1 == len(made)


@pytest.mark.parametrize("goal", [None, 0.9])
def test_a_server_that_fails_has_no_capacity(tmp_path, goal):
    """Errors of a broken server would be reported as a capacity of 0, with exit code 1."""
    task = _task(5.0, goal, 60)
    broken = replace(task, spec=replace(SPEC, backend=f"{NULL},fail_share=0.3"))

    with pytest.raises(BackendError, match="for another reason than load"):
        list(Runs(tmp_path, lambda _: None)([broken]))


def test_failures_that_are_allowed_are_misses(tmp_path):
    """Who knows of the errors and allows them could not go on."""
    task = _task(5.0, None, 60)
    broken = replace(task, spec=replace(SPEC, backend=f"{NULL},fail_share=0.3", max_failed=0.5))
    (tried,) = Runs(tmp_path, lambda _: None)([broken])

    assert tried.shares[0].met < tried.shares[0].of == 60
