"""Chains beside whole runs of the same traffic: a chain is a run without an end, seen through blocks of time."""

import multiprocessing
from dataclasses import replace

import numpy as np
import pytest

from harness.data.lists import number
from harness.errors import Crashed
from harness.experiments.capacity.chain import Chain, ChainRequest, chainable, unloaded
from harness.experiments.capacity.chains import Here, observers, steady_spec
from harness.experiments.capacity.conditions import Settings
from harness.experiments.capacity.execute import set_up
from harness.experiments.trial import at_rate, own_rate, simulate
from harness.metrics.objective import JOINT, parse_slo, score
from harness.options import RunSpec
from harness.runner.plan import load_workload

SIM = RunSpec(backend="sim", model="llama3-8b", hardware="h100")
SINGLE = replace(SIM, workload="chatbot", slo="ttft=0.1,tpot=0.012", replicas=2)
SESSIONS = replace(SIM, workload="chatbot-multi-turn", slo="ttft=0.1,p99:itl=0.03", prefix_cache="on")
APART = replace(SIM, workload="code", slo="ttft=0.05", prefill="1", decode="1")
WANTED = ChainRequest(3, 8.0, 10.0, 5.0, 18, 60.0)


def chain(spec, request=WANTED):
    return Chain(spec, own_rate(spec), parse_slo(spec.slo), request)


@pytest.mark.parametrize("spec", [SINGLE, SESSIONS, APART], ids=["single", "sessions", "apart"])
def test_a_chain_counts_what_a_run_of_the_same_traffic_counts(spec):
    """Requests would be lost or counted twice at the ends of blocks, or where answers set turns free."""
    found = chain(spec).observe(WANTED)
    run = simulate(at_rate(replace(spec, seed=3, requests=2500), 8.0)).table
    due_s = number(run, "scheduled_s")
    inside = (due_s >= 10.0) & (due_s < WANTED.until_s)

    assert due_s.max() > WANTED.until_s + 20.0
    assert int(inside.sum()) == found.of[JOINT].sum()
    assert int(score(run, parse_slo(spec.slo)).met[inside].sum()) == found.met[JOINT].sum()
    blocks = np.bincount(((due_s[inside] - 10.0) // 5.0).astype(int))
    assert blocks.tolist() == found.of[JOINT].tolist()


def test_an_unloaded_session_lasts_as_long_as_its_turns_and_pauses():
    """A turn that was drawn after the answer that it waits for would follow it days later, beside those of others."""
    found = unloaded(SESSIONS, parse_slo(SESSIONS.slo), 300)

    assert 60.0 < found.filled_s < 1000.0


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (1, 2))])
def test_a_chain_counts_from_when_long_sessions_are_as_many_as_they_will_be(seed):
    """Of coding agents the first hundreds of requests are five sessions: the longest of those lasted from 11 to 43
    minutes by chance, and of the agents to come up to 43% were missing where a chain began to count."""
    spec = replace(
        SIM, workload="chatbot", lengths="fixed:prompt=100,output=5", sessions="geometric:mean=60,think_s=5", seed=seed
    )
    found = unloaded(spec, parse_slo("ttft=1"), 200)
    lasts_s = 60 * (5 + found.mean_s)  # in the mean, of an exponential law

    assert pytest.approx(lasts_s * np.log(100), rel=0.25) == found.filled_s


@pytest.mark.parametrize("spec", [SINGLE, SESSIONS], ids=["single", "sessions"])
def test_a_chain_that_is_made_longer_is_one_that_was_long_from_the_start(spec):
    """An extension would begin with an empty system, and read too high."""
    grown = chain(spec)
    for blocks in (4, 5, 18):
        found = grown.observe(replace(WANTED, blocks=blocks))
    whole = chain(spec).observe(WANTED)

    for text, met in whole.met.items():
        assert met.tolist() == found.met[text].tolist()
        assert whole.of[text].tolist() == found.of[text].tolist()
    assert whole.open.tolist() == found.open.tolist()
    assert whole.part(replace(WANTED, blocks=5)).met[JOINT].tolist() == whole.met[JOINT][:5].tolist()


def test_requests_that_stay_open_have_missed():
    """A queue that grows would be waited for to its end, or its requests be left out."""
    swamped = replace(WANTED, rate_rps=400.0, block_s=0.5, patience_s=0.5)
    found = chain(replace(SINGLE, replicas=1, slo="ttft=10"), swamped).observe(swamped)
    run = np.sum(found.of[JOINT])

    assert pytest.approx(400 * 9, rel=0.1) == run
    assert found.met[JOINT][-4:].sum() == 0
    assert found.open[-1] > found.open[0]


@pytest.mark.parametrize(
    ("router", "settles_s"),
    [
        (None, 0.0),
        ("autoscale", 180.0),
        ("autoscale:load_s=10", 140.0),
        ("autoscale:rule=slo,most=4", 210.0),
        ("freeness:max_replicas=4", 60.0),
    ],
)
def test_chains_of_an_autoscaled_system_wait_for_its_size(router, settles_s):
    """What waits for the first weights was 6% of a chain at every rate, and 18 req/s missed a goal that 100 meet."""
    planned = set_up(replace(SINGLE, router=router, replicas=1), Settings())

    assert settles_s == steady_spec(planned, 0.9).settles_s


def test_unloaded_requests_do_not_meet():
    """Capacity 0 would be printed for traffic whose bursts meet at any rate."""
    found = unloaded(replace(SINGLE, arrivals="gamma:cv=4"), parse_slo("ttft=0.1"), 200)
    alone = unloaded(SINGLE, parse_slo("ttft=0.1"), 200)

    assert [(s.met, s.of) for s in alone.shares] == [(s.met, s.of) for s in found.shares]
    assert alone.p99_s > alone.mean_s > 0
    assert unloaded(SESSIONS, parse_slo("ttft=0.1"), 200).filled_s > 10


def test_chains_in_processes_are_those_of_one_process():
    """The number of workers would change the capacity, or a killed worker leave a search that waits for ever."""
    here = Here(SINGLE, own_rate(SINGLE), parse_slo(SINGLE.slo))
    wanted = [replace(WANTED, seed=seed, blocks=4) for seed in range(3)]
    alone = {one.request.seed: one for one in here(wanted, print)}
    with observers(here, 2) as observe:
        found = {one.request.seed: one for one in observe(wanted, print)}
        for process in multiprocessing.active_children():
            process.kill()
            process.join()
        with pytest.raises((Crashed, OSError)):
            list(observe(wanted, print))

    assert {s: one.met[JOINT].tolist() for s, one in alone.items()} == {
        s: one.met[JOINT].tolist() for s, one in found.items()
    }


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({}, None),
        ({"arrivals": "gamma:cv=3"}, None),
        ({"arrivals": "azure"}, None),
        ({"arrivals": "diurnal"}, "no steady state"),
        ({"workload": "slo-mix"}, "deadlines"),
    ],
)
def test_what_cannot_be_a_chain_says_so(changed, why):
    """The rate of an hour would be printed as that of a steady state, or a task be judged by half of it."""
    spec = replace(SINGLE, **changed)
    found = chainable(spec, load_workload(spec))

    assert (found is None) if why is None else (why in found)
