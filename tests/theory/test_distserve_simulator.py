"""DistServe's simulator and the search of its planner, against the numbers of its own code.

Set-up: OPT-13B on A100-80G, 512 tokens in and 64 out, gaps from numpy's legacy generator, the first request at 0. The
search halves the rate per GPU between 0 and 8 until the rest is 0.0625 wide; 300 requests a trial.
"""

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from backends.systems.distserve import Cluster, Side, arrivals_s, kv_tokens, rate_per_gpu, simulated
from harness import catalog
from harness.data.schedule import Schedule
from harness.errors import UsageError
from workloads import catalog as presets

COLOCATED: Cluster = {"mixed": Side()}
TWO_TO_ONE: Cluster = {"prefill": Side(2), "decode": Side()}


def times_ms(
    rate_rps: float, requests: int, cluster: Cluster, engine: str = "vllm", seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """(requests,) TTFT and TPOT in milliseconds."""
    sent = [(at_s, 512, 64) for at_s in arrivals_s(rate_rps, requests, seed).tolist()]
    ttft_s, tpot_s = simulated(sent, cluster, engine=engine)
    return ttft_s * 1e3, tpot_s * 1e3


@pytest.mark.parametrize(
    ("rate_rps", "cluster", "ttft_ms", "tpot_ms"),
    [
        (1.0, COLOCATED, (111.73, 125.52, 196.13), (29.760, 33.814, 40.187)),
        (3.0, COLOCATED, (119.91, 194.55, 330.49), (41.859, 52.903, 65.791)),
        (5.6, TWO_TO_ONE, (99.16, 116.55, 195.39), (30.931, 32.786, 34.747)),
    ],
    ids=["colocated at 1 req/s", "colocated at 3 req/s", "2P1D at 5.6 req/s"],
)
def test_latencies_are_those_of_its_code(
    rate_rps: float, cluster: Cluster, ttft_ms: Sequence[float], tpot_ms: Sequence[float]
) -> None:
    """P50, P90 and P99 of 1,000 requests (S21, GN1, GN2): its planner would place another system."""
    ttft, tpot = times_ms(rate_rps, 1000, cluster)

    assert ttft_ms == pytest.approx(np.percentile(ttft, [50, 90, 99]).tolist(), rel=1e-3)
    assert tpot_ms == pytest.approx(np.percentile(tpot, [50, 90, 99]).tolist(), rel=1e-3)


@pytest.mark.parametrize(("rate_rps", "ttft_ms", "tpot_ms"), [(1.6, 104, 31.4), (4.0, 148, 47.4)])
def test_latencies_with_the_constants_of_its_engine(rate_rps: float, ttft_ms: float, tpot_ms: float) -> None:
    """P90 of TTFT and TPOT, to the digits that are published (GN1)."""
    ttft, tpot = times_ms(rate_rps, 1000, COLOCATED, "distserve")

    assert ttft_ms == pytest.approx(np.percentile(ttft, 90), abs=0.5)
    assert tpot_ms == pytest.approx(np.percentile(tpot, 90), abs=0.05)


@pytest.mark.parametrize(
    ("cluster", "bounds_s", "published_rps"),
    [
        (COLOCATED, (0.2, 0.1), 3.1875),
        ({"mixed": Side(tp=2)}, (0.2, 0.1), 3.375),
        ({"mixed": Side(pp=2)}, (0.2, 0.1), 3.625),
        ({"prefill": Side(), "decode": Side()}, (0.2, 0.1), 3.3125),
        ({"prefill": Side(tp=2), "decode": Side()}, (0.2, 0.1), 4.75),
        ({"prefill": Side(pp=2), "decode": Side()}, (0.2, 0.1), 4.6875),
        ({"prefill": Side(pp=2), "decode": Side(tp=2)}, (0.4, 0.04), 6.25),
        (COLOCATED, (0.4, 0.04), 1.5625),
        ({"prefill": Side(), "decode": Side()}, (0.4, 0.04), 5.8125),
    ],
)
def test_rates_of_its_search(cluster: Cluster, bounds_s: tuple[float, float], published_rps: float) -> None:
    """The rates per GPU by which its planner places (GN3, S22)."""
    assert published_rps == rate_per_gpu([(512, 64)] * 300, bounds_s, cluster)


@pytest.mark.nightly
def test_the_rates_of_the_example_are_those_of_its_code() -> None:
    """1.72, 7.56, 10.94 and 3.65 req/s per GPU, of 2,000 requests; 1.6, 5.6, 10, 3.3 in the paper's figure (S19)."""
    shapes: dict[float, Cluster] = {
        1.72: COLOCATED, 7.56: {"prefill": Side()}, 10.94: {"decode": Side()}, 3.65: TWO_TO_ONE,
    }  # fmt: skip
    lengths = [(512, 64)] * 2000
    obtained = [rate_per_gpu(lengths, (0.4, 0.04), shape, engine="vllm", width_rps=0.05) for shape in shapes.values()]

    assert [*shapes] == pytest.approx(obtained, rel=0.03)
    assert all(1 < rate / printed < 1.5 for rate, printed in zip(obtained, (1.6, 5.6, 10, 3.3), strict=True))
    assert obtained[3] / obtained[0] == pytest.approx(2.1, rel=0.03)


@pytest.mark.nightly
def test_the_placement_of_its_table_is_not_the_best_of_its_search() -> None:
    """P(4,1) D(2,2) of OPT-66B sustains 0.34 req/s per GPU, P(4,2) D(2,2) 0.53: a miss of S23.b."""
    lengths = lengths_of("distserve-66b-chat-ae")
    rates = [
        rate_per_gpu(lengths, (0.4, 0.1), {"prefill": Side(tp=4, pp=pp), "decode": Side(tp=2, pp=2)}, "opt-66b")
        for pp in (1, 2)
    ]

    assert [0.34375, 0.53125] == rates


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("workload", "bounds_s", "fitted_rps", "released_rps", "one_engine_rps"),
    [
        ("distserve-13b-chat", (0.25, 0.1), (3.08, 2.64), (3.00, 0), 3.11),
        ("distserve-66b-chat-ae", (0.4, 0.1), (0.47, 0.19), (0.34, 0), 0.55),
        ("distserve-66b-code", (0.125, 0.2), (1.47, 1.34), (1.08, 0.07), 2.20),
        ("distserve-66b-summ", (15, 0.15), (0.50, 0.22), (0.45, 0.13), 0.33),
    ],
)
def test_the_constants_of_vllm_decide_the_advantage_in_its_own_simulator(
    workload: str, bounds_s: tuple[float, float], fitted_rps: tuple[float, float], released_rps: tuple[float, float],
    one_engine_rps: float,
) -> None:  # fmt: skip
    """Req/s per GPU of the placement of table 3 and of vLLM, and of vLLM with DistServe's constants (S25, S69)."""
    small = workload == "distserve-13b-chat"
    model = "opt-13b" if small else "opt-66b"
    placed: Cluster = {"prefill": Side(tp=2 if small else 4), "decode": Side() if small else Side(tp=2, pp=2)}
    colocated: Cluster = {"mixed": Side(tp=1 if small else 4)}
    lengths = lengths_of(workload)

    def rate_rps(cluster: Cluster, engine: str | None = None, *, fitted: bool = True) -> float:
        return rate_per_gpu(lengths, bounds_s, cluster, model, engine, fitted=fitted, joint=True, width_rps=0.02)

    assert fitted_rps == pytest.approx((rate_rps(placed), rate_rps(colocated)), abs=0.01)
    assert released_rps == pytest.approx((rate_rps(placed, fitted=False), rate_rps(colocated, fitted=False)), abs=0.01)
    assert one_engine_rps == pytest.approx(rate_rps(colocated, "distserve"), abs=0.01)


def lengths_of(workload: str) -> list[tuple[int, int]]:
    """(prompt, output) tokens of the first 300 requests."""
    table = Schedule.draw(presets.load(workload).workload, seed=0, requests=300).table
    return [*zip(*(table[f"{side}_tokens"].to_pylist() for side in ("prompt", "output")), strict=True)]


def test_what_exceeds_a_decode_step_keeps_its_place() -> None:
    """120 sequences of 512 tokens exceed the cap of 50,000 tokens: those that sit out run first in the next step."""
    sent = [(0.0, 512, 2)] * 120
    _, tpot_s = simulated(sent, {"decode": Side()})

    fastest = tpot_s < 0.99 * tpot_s.max()
    assert [True] * 74 + [False] * 46 == fastest.tolist()  # of the 97 of the first step 74 fit beside the other 23


def test_prompts_that_never_fit_are_infinitely_late() -> None:
    """The original would loop for ever on them."""
    ttft_s, tpot_s = simulated([(0.0, 66_145, 1), (0.0, 49_000, 1002), (0.0, 49_000, 1000)], COLOCATED)

    assert [False, False, True] == np.isfinite(ttft_s).tolist() == np.isfinite(tpot_s).tolist()


@pytest.mark.parametrize(("cluster", "message"), [({"mixed": Side(tp=8)}, "No abc constants"), ({}, "needs mixed")])
def test_what_has_no_constants_is_one_sentence(cluster: Cluster, message: str) -> None:
    """A candidate would be placed by the constants of another one."""
    with pytest.raises(UsageError, match=message):
        simulated([(0.0, 512, 64)], cluster)


def test_capacity_table(shared_data: Path) -> None:
    """All 76 KV capacities of its table come out to the token (E4)."""
    with (shared_data / "profiles" / "simdistserve_max_num_tokens.csv").open() as file:
        rows = [
            (r["model"].split("/")[1], int(r["tp"]), int(r["pp"]), int(r["max_num_tokens"]))
            for r in csv.DictReader(file)
        ]

    assert len(rows) == 76
    assert rows == [(model, tp, pp, kv_tokens(model, tp, pp)) for model, tp, pp, _ in rows]


@pytest.mark.parametrize(
    ("name", "tp", "tokens"), [("opt-13b", 1, 66_144), ("opt-66b", 4, 78_496), ("opt-175b", 8, 59_520)]
)
def test_capacities_that_are_quoted(name: str, tp: int, tokens: int) -> None:
    """The three capacities that everybody quotes hold without the shared data too (E4)."""
    assert tokens == kv_tokens(name, tp)


def test_memory_of_the_a100_lies_in_the_only_range_that_gives_the_table() -> None:
    """Another total would break the capacity table (E4)."""
    assert 84_990_605_617 <= catalog.hardware("a100-80g").memory_bytes <= 84_990_627_404
