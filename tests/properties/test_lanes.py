"""Lanes on shares of the GPUs of a replica: memory and work are conserved, and the journal replays."""

from itertools import pairwise

import numpy as np
import pytest

from backends.serving.journal import Journal, replay
from backends.serving.pipeline import Shares
from backends.sim import Sim
from backends.systems.semi_pd import DECODE, PREFILL, SemiPdPolicy
from harness.api import Request
from harness.errors import UsageError

LATENCY = "linear:base_s=0.002,prefill_token_s=0.0001,decode_seq_s=0.0003,context_token_s=1e-7"


def drawn(seed):
    """Options of a system with lanes, and requests."""
    rng = np.random.default_rng([46, seed])
    options = {
        "policy": f"semi-pd:shares={rng.choice(['auto', '80/100', '30/40', '100/100'])},sigma={rng.uniform(1, 2):.3f}"
        f",window_s=2,delay_s={rng.uniform(0, 1):.2f},budget={rng.choice([64, 8192])},max_seqs={rng.choice([4, 512])}",
        "kv_blocks": int(rng.choice([30, 100, 3000])), "preempt": str(rng.choice(["recompute", "swap"])),
        "prefix_cache": str(rng.choice(["off", "on"])), "speculate": str(rng.choice(["off", "k=2"])),
        "latency": LATENCY,
    }  # fmt: skip
    if seed % 4 == 0:
        options["policy"] = (
            f"loongserve:sp={rng.integers(2, 5)},decode_seqs={rng.choice([1, 8])},max_seqs={rng.choice([4, 512])}"
        )
    if seed % 3 == 0:
        options |= {"replicas": 3, "router": "freeness", "fail": "1@1s..2s,requeue"}
    at_s = np.cumsum(rng.exponential(0.04, 60))
    requests = [Request(i, float(s), int(rng.integers(1, 300)), int(rng.integers(1, 60))) for i, s in enumerate(at_s)]
    return options, requests


@pytest.mark.parametrize("seed", range(24))
def test_no_block_and_no_request_is_lost(seed):
    """Two writers to one memory: what is free and what is held is all there is, whenever a request ends."""
    options, requests = drawn(seed)
    sim = Sim(**options)
    records = []
    for record in sim.simulate(requests):
        sim.cluster.check()
        records.append(record)

    assert {"ok"} == {record.status for record in records}
    assert [request.id for request in requests] == sorted(record.request_id for record in records)
    assert all(len(r.token_s) == len(set(r.token_s)) or options["speculate"] != "off" for r in records)
    assert all(list(r.token_s) == sorted(r.token_s) for r in records)
    assert all(replica.blocks.free == replica.blocks.total for replica in sim.cluster.replicas)
    if options["policy"].startswith("loongserve"):
        steps = sim.steps_table()
        ends, taken = np.concatenate([steps["start_s"], steps["end_s"]]), steps["instances"].to_numpy()
        replica = np.tile(steps["replica"].to_numpy(), 2)
        for index in {*replica.tolist()}:  # ends before starts, of groups on one replica
            at = np.lexsort((np.arange(len(ends)) < len(steps), ends))
            under_way = np.cumsum(np.where(replica == index, np.concatenate([taken, -taken]), 0)[at])
            assert under_way.max() <= int(options["policy"].partition("sp=")[2][0])
    if "replicas" not in options:
        assert all(record.handoff_start_s is None for record in records)  # K13.d: nothing is copied


@pytest.mark.parametrize("seed", [1, 2, 4, 5, 7, 8, 16, 20])
def test_the_journal_replays(seed):
    """Which lane formed and ended which batch must follow from the calls alone."""
    options, requests = drawn(seed)
    sim = Sim(**options, journal=True)
    list(sim.simulate(requests))
    (replica,) = sim.cluster.replicas
    assert replica.journal is not None
    again = Sim(**options, journal=True).cluster.replicas[0]
    replay(replica.journal.calls, {request.id: request for request in requests}, again)

    assert isinstance(again.journal, Journal)
    assert replica.journal.decisions == again.journal.decisions
    again.check()


@pytest.mark.parametrize("shares", ["80/100", "30/40", "100/100"])
@pytest.mark.parametrize("sigma", [1.0, 1.4])
def test_each_step_does_the_work_of_its_batch(shares, sigma):
    """The integral of the speed over a step, taken from the table of steps alone, is what the step takes by itself."""
    _, requests = drawn(1)
    sim = Sim(policy=f"semi-pd:shares={shares},sigma={sigma}", latency=LATENCY)
    list(sim.simulate(requests))
    steps = sim.steps_table().to_pylist()
    prefill, decode = (float(share) / 100 for share in shares.split("/"))
    alone = {DECODE: 1 / (0.6284 / decode + 0.3818) * (0.6284 + 0.3818), PREFILL: prefill}
    beside = min(1, sigma / (prefill + decode))
    changes_s = sorted({step[end] for step in steps for end in ("start_s", "end_s")})
    done_s = dict.fromkeys(range(len(steps)), 0.0)
    for start_s, end_s in pairwise(changes_s):
        under_way = [i for i, step in enumerate(steps) if step["start_s"] <= start_s < step["end_s"]]
        for i in under_way:
            speed = alone[steps[i]["lane"]] * (1 if len(under_way) == 1 else beside)
            done_s[i] += speed * (end_s - start_s)
    work_s = [
        0.002 + 0.0001 * s["prefill_tokens"] + 0.0003 * s["decode_seqs"] + 1e-7 * s["context_tokens"] for s in steps
    ]

    assert {DECODE, PREFILL} == {step["lane"] for step in steps}
    assert all((step["lane"] == PREFILL) == (step["decode_seqs"] == 0) for step in steps)
    assert work_s == pytest.approx(list(done_s.values()), rel=1e-9)


def test_works_that_begin_and_end_at_any_time_are_conserved():
    """Timed anew at every change, each batch gets exactly its seconds of work, however many lanes there are."""
    rng = np.random.default_rng(7)

    class Several:
        def rates(self, lanes):
            return [0.3 + 0.2 * lane / len(lanes) for lane in lanes]

    shares, now_s, ended = Shares(Several()), 0.0, 0
    work_s, done_s = {}, {}  # by lane under way
    while ended < 300:
        free = [lane for lane in range(4) if lane not in work_s]
        end_s = np.inf if shares.end_s is None else shares.end_s[0]
        begins = bool(free) and (not work_s or rng.random() < 0.6)
        next_s = min(now_s + rng.exponential(0.5), end_s) if begins else end_s
        for lane, speed in zip(work_s, Several().rates(list(work_s)), strict=True):
            done_s[lane] += speed * (next_s - now_s)
        now_s = next_s
        if begins:
            lane = int(rng.choice(free))
            work_s[lane], done_s[lane] = float(rng.exponential(1.0)), 0.0
            shares.begin(lane, work_s[lane], now_s)
        else:
            assert work_s.pop(shares.lane) == pytest.approx(done_s.pop(shares.lane), rel=1e-9, abs=1e-9)
            shares.end()
            ended += 1


def window(policy, ttft_s, tpot_s, until_s):
    """The controller at the end of a window with these latencies."""
    policy._window.ttft_s, policy._window.tpot_s, policy._window.busy_s = [ttft_s], [tpot_s], 3.0
    policy.begin(DECODE, until_s)
    return policy._wanted


def test_the_controller_keeps_shares_where_both_objectives_fail_or_hold():
    """K13.a; with `printed` it acts where both fail, as the algorithm is printed."""
    policy, printed = SemiPdPolicy(), SemiPdPolicy(printed=True)

    assert (1.0, 0.8) == window(policy, 0.2, 0.1, 10.0) == window(policy, 0.5, 0.4, 20.0)
    assert window(printed, 0.5, 0.4, 10.0) != (1.0, 0.8)


@pytest.mark.parametrize("seed", range(5))
def test_shares_stay_within_bounds_and_move_the_right_way(seed):
    """K13.b: no share above all of the GPU or at nothing; the lane that alone misses its objective never gets less."""
    rng = np.random.default_rng(seed)
    policy = SemiPdPolicy()
    for n in range(1, 60):
        was = policy._wanted
        ttft_s, tpot_s = rng.exponential(0.3), rng.exponential(0.15)
        decode, prefill = window(policy, ttft_s, tpot_s, 10.0 * n)

        assert 0 < decode <= 1
        assert 0 < prefill <= 1
        more = prefill / decode - was[1] / was[0]
        if (ttft_s > 0.3) == (tpot_s > 0.15):
            assert more == 0
        else:
            assert (more >= 0) == (ttft_s > 0.3) or more == 0


def test_fits_find_the_line_of_the_windows():
    """K13.c: a and b of both laws from windows without noise, and a prediction from one window alone."""
    fit = SemiPdPolicy()._fits[0]
    fit.points.append((2.0, 0.4))
    assert fit.predict(4.0) == pytest.approx(0.8)
    fit.points.extend((x, 0.05 + 0.11 * x) for x in (1.0, 2.5, 4.0))
    fit.points.popleft()

    assert fit.line() == pytest.approx((0.11, 0.05))


def squared_correlation(x, y):
    return float(np.corrcoef(x, y)[0, 1] ** 2)


def test_latencies_follow_the_laws_of_the_controller():
    """S46.e: TTFT as a / (x - load) + b and TPOT as a / y + b; there is no such law where shares would not matter."""
    arrival_s = np.cumsum(np.random.default_rng(3).exponential(0.05, 2000))
    load = 20 * 400 * 5e-5  # of prefill: 20 prompts of 20 ms a second, one at a time
    latency = "linear:base_s=0,prefill_token_s=5e-5,decode_seq_s=0.01"
    ttft_s, tpot_s = {}, {}
    for percent in (50, 60, 75, 100):
        sim = Sim(policy=f"semi-pd:shares={percent}/40,sigma=2,budget=400", latency=latency)
        records = sim.simulate(Request(i, float(at_s), 400, 1) for i, at_s in enumerate(arrival_s))
        ttft_s[percent / 100] = np.mean([r.token_s[0] - r.scheduled_s for r in records])
        sim = Sim(policy=f"semi-pd:shares=100/{percent},sigma=2", latency=latency)
        records = sim.simulate(Request(i, float(at_s), 400, 12) for i, at_s in enumerate(arrival_s[:100]))
        tpot_s[percent / 100] = np.mean([(r.token_s[-1] - r.token_s[0]) / 11 for r in records])

    assert squared_correlation([1 / (x - load) for x in ttft_s], list(ttft_s.values())) >= 0.97
    assert squared_correlation([1 / y for y in tpot_s], list(tpot_s.values())) >= 0.97


def test_weights_are_counted_once():
    """K13.d: two processes share one copy, so memory is that of a replica without lanes."""
    assert Sim(policy="semi-pd").describe()["kv_tokens"] == Sim(policy="sarathi").describe()["kv_tokens"]


@pytest.mark.parametrize("options", [{"pp": 2}, {"prefill": "1", "decode": "1"}, {"policy": "semi-pd:shares=0/100"}])
def test_what_lanes_do_not_go_with_is_refused(options):
    with pytest.raises(UsageError, match=r"do not go with pp|percents of prefill and decode"):
        Sim(**{"policy": "semi-pd", **options})


def test_the_engine_has_no_lanes():
    from backends.engine import Engine

    with pytest.raises(UsageError, match="which the engine cannot"):
        Engine(policy="semi-pd")
