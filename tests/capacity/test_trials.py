"""Trials, their file, and probes that are ended early, on the simulator."""

import asyncio
import dataclasses

import pyarrow as pa
import pytest

from harness.errors import UsageError
from harness.experiments.capacity.conditions import conditions, sure_misses
from harness.experiments.capacity.trials import Key, Ledger, Task, Watch, deadlines, simulated
from harness.experiments.trial import own_rate, simulate
from harness.metrics.objective import parse_slo
from harness.options import RunSpec
from harness.runner.live import Live
from harness.runner.run import _signals

SLO = parse_slo("ttft=0.25,tpot=0.1")
SPEC = RunSpec(workload="chatbot", backend="sim:latency=abc:distserve,policy=vllm-v0", warmup="mser5")


def _task(rate_rps, planned=300, goal=None):
    return Task(SPEC, own_rate(SPEC), SLO, Key(3, rate_rps, planned, goal), conditions(SLO, goal or 0.9, "joint"))


def test_a_trial_is_the_run_of_its_rate_and_seed():
    """A capacity would be that of other runs than `bench run` makes."""
    tried = simulated(_task(2.0))
    run = simulate(dataclasses.replace(SPEC, rate=2.0, seed=3, requests=300))

    assert len(run.table) == tried.requests
    assert tried.kept <= tried.requests
    assert ["joint", "ttft=0.25", "tpot=0.1"] == [str(share.key) for share in tried.shares]
    assert tried.kept == tried.shares[0].of == len(tried.shares[0].mask)


@pytest.mark.parametrize("rate_rps", [0.5, 2.0, 3.0, 8.0])
def test_a_probe_finds_the_side_of_the_whole_run_for_fewer_requests(rate_rps):
    """Bracketing would go astray, or cost as much as whole runs."""
    probe, whole = (
        simulated(_task(rate_rps, goal=0.9)),
        simulated(_task(rate_rps, goal=0.9).__class__(SPEC, own_rate(SPEC), SLO, Key(3, rate_rps, 300))),
    )
    run = simulate(dataclasses.replace(SPEC, rate=rate_rps, seed=3, requests=300, slo="ttft=0.25,tpot=0.1"))

    from harness.metrics.objective import score

    assert (score(run.table, SLO).met.mean() >= 0.9) == probe.passed
    assert probe.requests <= whole.requests


def test_a_probe_whose_queue_grows_does_not_pass():
    """A loose SLO would be kept for as long as the probe lasts, at any rate."""
    loose = dataclasses.replace(_task(30.0, goal=0.9), slo=parse_slo("ttft=1h"))
    tried = simulated(dataclasses.replace(loose, wanted=conditions(loose.slo, 0.9, "joint")))

    assert tried.overloaded
    assert tried.passed is False


def test_trials_are_read_back_as_they_were(tmp_path):
    """A search that goes on would go on from other trials than it made."""
    ledger = Ledger(tmp_path / "trials.parquet")
    made = [simulated(_task(2.0)), simulated(_task(3.0, goal=0.9))]
    for tried in made:
        ledger.add(tried)
    again = Ledger(tmp_path / "trials.parquet")

    assert 2 == len(again)
    for tried in made:
        found = again.get(tried.key)
        assert tried.shares[0].mask.tolist() == found.shares[0].mask.tolist()
        assert dataclasses.replace(tried, shares=()).__repr__() == dataclasses.replace(found, shares=()).__repr__()


def test_a_file_that_is_no_table_of_trials_is_refused(tmp_path):
    """A traceback would end a command that was given the wrong folder."""
    (tmp_path / "trials.parquet").write_text("nothing", encoding="utf-8")

    with pytest.raises(UsageError, match="cannot be read"):
        Ledger(tmp_path / "trials.parquet")


def test_a_block_leaves_out_where_it_fills_and_where_it_ends():
    """A trial begins with an empty system and ends with one that is drained: both are too good."""
    whole = simulated(_task(2.0))
    block = simulated(dataclasses.replace(_task(2.0), settle_s=30.0))

    assert pytest.approx(whole.requests - 2.0 * (30 + whole.e2e_s), abs=25) == block.kept


def test_tasks_that_run_to_their_end_have_the_rate_at_which_they_were_sent():
    """A capacity of 18 would be printed as 15: the last stages come long after the last task has begun."""
    task = _task(2.0)
    tasks = dataclasses.replace(task, spec=dataclasses.replace(SPEC, sessions="fixed:turns=5,think_s=60"))

    assert simulated(tasks).arrived_rps is None
    assert simulated(dataclasses.replace(tasks, settle_s=30.0)).arrived_rps > 0
    assert pytest.approx(2.0, rel=0.2) == simulated(task).arrived_rps


def test_a_request_misses_when_its_deadline_passes():
    """A server with too much to do answers nothing for minutes, and the trial would wait for it."""
    watch = Watch(_task(2.0, planned=40, goal=0.9))
    schedule = pa.table({"scheduled_s": [0.5 * i for i in range(40)], "output_tokens": [11] * 40, "after": [[]] * 40})
    watch._deadline_s = deadlines(schedule, SLO)
    sure = sure_misses(0.9, 40)

    assert pytest.approx(0.25 + 10 * 0.1) == watch._deadline_s[0]
    assert not watch.tick(0.35 + 0.5 * (sure - 1) + 0.9)
    assert watch.tick(0.35 + 0.5 * (sure - 1) + 1.1)
    assert watch.passed is False


async def test_a_time_that_is_over_as_the_trial_ends_is_no_bug():
    """The thread that watches the time stopped a trial whose event loop had just closed: exit code 70."""
    live, stops = Live(total=1, span_s=1.0, slo=SLO), []

    with _signals(stops.append, live):
        live.stop()
        await asyncio.sleep(0)
    live.stop(at_once=True)

    assert [False] == stops


def test_a_run_in_which_nothing_is_due_is_empty():
    """At a low rate a search ended in 'No request is due in the first 600 s; give a longer --duration'."""
    key = Key(3, 0.0001, 1)
    tried = simulated(Task(SPEC, own_rate(SPEC), SLO, key, conditions(SLO, 0.9, "joint"), horizon_s=60.0))

    assert (0, 0) == (tried.requests, tried.kept)
    assert {0} == {share.of for share in tried.shares}
