"""Prefill as a queue (M/D/1), and the laws that every simulation must keep: Little's, and that of utilisation."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from acceptance.near import near, spelled
from acceptance.rows import Place, Row
from harness import registry
from harness.api import Request, RequestRecord
from harness.experiments.theory.queueing import Prefill, crossover, wait_quantile
from harness.experiments.theory.simulated import prefill_times_s, recursion_times_s

_ARRIVALS = 75_000
_MANY = 1_000_000
_SYSTEM = "M/D/1 prefill (DistServe)"


def rows(place: Place) -> Iterator[Row]:
    """Means, quantiles, crossovers (S28, E5, E6) and laws (E7, E8)."""
    del place
    yield _quantiles()
    yield _crossovers()
    yield _replicas()
    yield _queue()
    yield from _laws()
    yield from _parallel()


def _quantiles() -> Row:
    published = (1.5, 2.516, 4.336, 3.0, 6.012, 11.356, 10.5, 23.30, 45.94)
    one = Prefill(1.0)
    obtained = [
        value for rho in (0.5, 0.8, 0.95) for value in (one.mean_s(rho), *(one.quantile_s(rho, q) for q in (0.9, 0.99)))
    ]
    return Row(
        "S28.a", _SYSTEM, "formula", f"time in system / D, rho .5/.8/.95: mean, P90, P99 = {spelled(published)}",
        spelled(obtained), "0.005", near(published, obtained, absolute=0.005),
        "bench theory prefill:tp=1,pp=1 --over rate=0.5,0.8,0.95",
    )  # fmt: skip


def _crossovers() -> Row:
    published = (0.434, 0.776, 1.095, 1.429, 1.626)
    obtained = [crossover(k) or 0.0 for k in (1.2, 1.4, 1.6, 1.8, 1.9)]
    return Row(
        "S28.b", _SYSTEM, "formula", f"crossover of 2-way TP and PP at K 1.2 to 1.9: rho* = {spelled(published, 4)}",
        spelled(obtained), "0.0005", near(published, obtained, absolute=5e-4),
        "bench theory crossover --over speedup=1.2,1.4,1.6,1.8,1.9",
    )  # fmt: skip


def _replicas() -> Row:
    one, several = Prefill(0.08), Prefill(0.08, pp=4, replicas=3)
    published = (0.08 + 6 * 0.08**2 / (2 * (1 - 6 * 0.08)), 0.08 + 6 * 0.08**2 / (2 * 4 * (4 - 6 * 0.08)))
    obtained = (one.mean_s(6.0), several.mean_s(18.0))
    return Row(
        "S28.c", _SYSTEM, "formula", f"mean TTFT at 6 req/s, D 80 ms, one GPU and PP 4; 3 replicas at 18: "
        f"{spelled(1e3 * s for s in published)} ms", f"{spelled(1e3 * s for s in obtained)} ms", "exact",
        near(published, obtained, relative=1e-9), "bench theory prefill:execution=80ms,rate=18,pp=4,replicas=3",
    )  # fmt: skip


def _queue() -> Row:
    import numpy as np

    one, worst_mean, worst_tail, apart_s = Prefill(1.0), 0.0, 0.0, 0.0
    for rho in (0.5, 0.8):
        simulated = prefill_times_s(one, rho, _ARRIVALS, seed=1)
        apart_s = max(apart_s, float(np.abs(simulated - recursion_times_s(one, rho, _ARRIVALS, seed=1)).max()))
        times = np.concatenate([recursion_times_s(one, rho, _MANY, seed) for seed in range(4)])
        worst_mean = max(worst_mean, abs(float(times.mean()) / one.mean_s(rho) - 1))
        for q in (0.9, 0.99):
            worst_tail = max(worst_tail, abs(float(np.quantile(times, q)) / (1 + wait_quantile(rho, q)) - 1))
    return Row(
        "E5", _SYSTEM, "exact", "simulated mean, P90 and P99 are those of the formula (rho .5 and .8)",
        f"off by {100 * worst_mean:.2f} % (mean) and {100 * worst_tail:.2f} % (quantiles) at most", "2 %, 3 %",
        worst_mean <= 0.02 and worst_tail <= 0.03 and apart_s < 1e-6,
        f"bench theory prefill:rate=0.8,simulate=true,requests={_ARRIVALS}",
        f"The P99 of 200,000 arrivals at rho .8 has a standard deviation of 2.9 %, so {4 * _MANY:,} are drawn by "
        f"Lindley's recursion, with which the simulator agrees to {apart_s:.0e} s on each of {_ARRIVALS:,}.",
    )  # fmt: skip


def _parallel() -> Iterator[Row]:
    for letter, form, rate, published in (
        ("a", Prefill(1.0, pp=2), 0.8, 1.1667), ("b", Prefill(1.0, pp=2), 1.4, 1.5833),
        ("c", Prefill(1.0, pp=4), 1.4, 1.0673), ("d", Prefill(1.0, tp=2, speedup=1.6), 1.2, 1.5625),
    ):  # fmt: skip
        obtained = float(prefill_times_s(form, rate, 2 * _ARRIVALS, seed=1).mean())
        ways = f"PP {form.pp}" if form.pp > 1 else f"TP 2, K {form.speedup:g}"
        yield Row(
            f"E6.{letter}", _SYSTEM, "exact", f"{ways}, R*D {rate:g}: mean {published:.4f} D",
            f"{obtained:.4f} D simulated, {form.mean_s(rate):.4f} D by the formula", "2 %",
            near((published, published), (obtained, form.mean_s(rate)), relative=0.02),
            f"bench theory prefill:rate={rate:g},pp={form.pp},simulate=true",
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Life:
    """When a request was in each stage: (from, to) in seconds."""

    stages: Sequence[tuple[float, float]]


def _laws() -> Iterator[Row]:
    worst, gap_s, busy = 0.0, 0.0, 0.0
    for policy in ("vllm-v0", "sarathi"):
        # without a front end, in which a request is present and no step can hold it
        simulator = registry.make("backends", "sim", policy=policy, kv_blocks=400, leap=False, latency="roofline")
        records = list(simulator.simulate(iter(_traffic())))
        lives = [_life(record) for record in records]
        worst = max(worst, *(_little(lives, stage) for stage in range(4)))
        table = simulator.steps_table()
        start, end = (table[name].to_numpy() for name in ("start_s", "end_s"))
        horizon_s = float(end[-1] - start[0])
        idle_s = float((start[1:] - end[:-1]).clip(min=0.0).sum())
        gap_s = max(gap_s, abs(float((end - start).sum()) + idle_s - horizon_s) / horizon_s)
        busy = max(busy, _idle_while_present(start, end, lives))
    yield Row(
        "E7", "Little's law", "exact", "number in system = rate x time in system, overall and per stage",
        f"off by {worst:.1e} at most", "1e-9", worst < 1e-9, "pytest tests/theory/test_queueing.py -k little",
    )  # fmt: skip
    yield Row(
        "E8", "utilisation law", "exact", "busy share = sum of steps / horizon; never idle with a request present",
        f"off by {gap_s:.1e}; idle {busy:g} s beside work", "1e-9, 0 s", gap_s < 1e-9 and busy <= 0,
        "pytest tests/theory/test_queueing.py -k busy",
    )  # fmt: skip


def _traffic() -> list[Request]:
    import numpy as np

    rng = np.random.default_rng(7)
    at_s = np.cumsum(rng.exponential(0.25, 400)).tolist()
    return [Request(i, t, int(rng.integers(1, 300)), int(rng.integers(2, 80))) for i, t in enumerate(at_s)]


def _life(record: RequestRecord) -> _Life:
    """Overall, queue, prefill and decode."""
    begin, first = record.prefill_start_s, record.prefill_end_s
    assert begin is not None
    assert first is not None
    last = record.token_s[-1]
    return _Life(((record.scheduled_s, last), (record.scheduled_s, begin), (begin, first), (first, last)))


def _little(lives: Sequence[_Life], stage: int) -> float:
    """Relative difference of two countings: time by request, and number in the stage by event."""
    events = sorted([(life.stages[stage][end], 1 - 2 * end) for life in lives for end in (0, 1)])
    area, inside, before = 0.0, 0, 0.0
    for at_s, change in events:
        area += inside * (at_s - before)
        inside, before = inside + change, at_s
    total = sum(to - since for since, to in (life.stages[stage] for life in lives))
    return abs(area - total) / total if total else 0.0


def _idle_while_present(start: Sequence[float], end: Sequence[float], lives: Sequence[_Life]) -> float:
    """Seconds in which nothing ran although a request was there."""
    gaps = [(e, s) for e, s in zip(end[:-1], start[1:], strict=True) if s > e]
    return sum(
        max(0.0, min(to, life.stages[0][1]) - max(since, life.stages[0][0])) for since, to in gaps for life in lives
    )
