"""Simulator speed: requests per CPU second with records and metrics on, and whether cost grows with length.

Two request sets on one A100 with Llama-2-7B: `fix` (512 in, 128 out, Poisson 11/s) and `var` (lognormal, mean 390 in
and 199 out, Poisson 9/s). Everything between the drawn schedule and the finished summary is counted: simulation,
records, tables (requests and steps), SLO scores, percentiles. Public simulators reach 850 to 3,400 requests per CPU
second.

    python tests/perf/simulator_speed.py [--requests 4000] [--repeats 7] [--long 1000000] [--policy vllm-v0]
    python tests/perf/simulator_speed.py --flat 1000000
    python tests/perf/simulator_speed.py --clusters

`--clusters` takes 16 replicas behind least-requests at 16 times the load, the same behind round robin and behind
Llumnix's freeness with migration, 512 replicas at 512 times the load behind least-requests and behind Llumnix's load
(20,000 requests or more: fewer end before the replicas are busy), and two prefill replicas with one decode replica of
OPT-13B (512 in, 64 out, Poisson 5.6/s), as DistServe's first figure has them.

`--long` holds all tables for the summary; `--flat` draws, simulates and makes tables piece by piece, holds nothing and
sums nothing up: the cost of the simulator alone, by eighths of the run.
"""

import argparse
import gc
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import numpy as np

from backends.sim import Sim
from harness.api import Request
from harness.metrics.objective import parse_slo
from harness.metrics.summary import summarize

SLO = "ttft=0.25,tpot=0.1"


def fix(count: int, seed: int = 0, times: int = 1) -> list[Request]:
    """512 prompt tokens, 128 output tokens, Poisson 11/s, or `times` that."""
    at_s = np.cumsum(np.random.default_rng(seed).exponential(1 / 11 / times, count)).tolist()
    return [Request(i, t, 512, 128) for i, t in enumerate(at_s)]


def var(count: int, seed: int = 0, times: int = 1) -> list[Request]:
    """Lognormal lengths with mean 390 and 199 (sigma 0.8 of the logarithm), Poisson 9/s, or `times` that."""
    rng = np.random.default_rng(seed)
    at_s = np.cumsum(rng.exponential(1 / 9 / times, count)).tolist()
    prompts, outputs = (
        np.maximum(1, rng.lognormal(np.log(mean) - 0.8**2 / 2, 0.8, count).round()).astype(int).tolist()
        for mean in (390, 199)
    )
    return [Request(i, *row) for i, row in enumerate(zip(at_s, prompts, outputs, strict=True))]


def fig1(count: int, seed: int = 0) -> list[Request]:
    """512 prompt tokens, 64 output tokens, Poisson 5.6/s."""
    at_s = np.cumsum(np.random.default_rng(seed).exponential(1 / 5.6, count)).tolist()
    return [Request(i, t, 512, 64) for i, t in enumerate(at_s)]


SETS: dict[str, Callable[[int], list[Request]]] = {
    "fix": fix,
    "var": var,
    "fix16": lambda count: fix(count, times=16),
    "var16": lambda count: var(count, times=16),
    "robin": lambda count: var(count, times=16),
    "free": lambda count: var(count, times=16),
    "var512": lambda count: var(count, times=512),
    "load512": lambda count: var(count, times=512),
    "fig1": fig1,
}
SIXTEEN = {"replicas": 16, "router": "least-requests"}
SYSTEMS: dict[str, dict[str, object]] = {
    "fix16": SIXTEEN,
    "var16": SIXTEEN,
    "robin": {"replicas": 16, "router": "round-robin"},
    "free": {"replicas": 16, "router": "freeness"},
    "var512": {"replicas": 512, "router": "least-requests"},
    "load512": {"replicas": 512, "router": "load"},
    "fig1": {"model": "opt-13b", "latency": "abc:vllm", "prefill": "2", "decode": "1"},
}


def measure(requests: list[Request], name: str, policy: str, log_steps: bool) -> dict[str, float]:
    """CPU seconds of each part for one run over `requests`."""
    import pyarrow as pa

    gc.collect()
    gc.freeze()
    gc.disable()
    start = time.process_time()
    sim = Sim(
        **(
            {"model": "llama2-7b", "latency": "roofline", "policy": policy, "log_steps": log_steps}
            | SYSTEMS.get(name, {})
        )
    )
    table = pa.concat_tables(sim.tables(requests))
    ended = time.process_time()
    steps = sim.steps_table()
    recorded = time.process_time()
    summary = summarize(table, parse_slo(SLO))
    end = time.process_time()
    gc.enable()
    gc.unfreeze()
    assert summary.status["ok"] == len(requests)
    return {
        "total": end - start, "requests": ended - start, "steps": recorded - ended, "metrics": end - recorded,
        "rows": steps.num_rows, "attainment": summary.attainment,
    }  # fmt: skip


def flat(count: int, policy: str) -> None:
    """Print the CPU time per request of each eighth of a run of `fix` that keeps nothing, and the peak memory."""
    rng = np.random.default_rng(0)
    at_s, requests = 0.0, 0
    gc.freeze()
    gc.disable()

    def drawn() -> Iterator[Request]:
        nonlocal at_s
        for i in range(count):
            at_s += rng.exponential(1 / 11)
            yield Request(i, at_s, 512, 128)

    sim = Sim(model="llama2-7b", hardware="a100-80g", policy=policy)
    start, before = time.process_time(), 0
    for table in sim.tables(drawn()):
        sim.steps_table()
        requests += len(table)
        if requests - before >= count // 8 or requests == count:
            now = time.process_time()
            cost = (now - start) / (requests - before) * 1e6
            print(f"flat {policy:8} {requests:>9,} requests  {cost:5.2f} us each", flush=True)
            start, before = now, requests
    print(f"flat {policy:8} peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")


def child(name: str, count: int, policy: str, repeats: int) -> None:
    """Print the best of some runs, in a process of its own so that its memory can be read."""
    requests = SETS[name](count)
    runs = [[measure(requests, name, policy, log_steps) for log_steps in (True, False)] for _ in range(repeats)]
    best, bare = (min(column, key=lambda run: run["total"]) for column in zip(*runs, strict=True))
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    parts = "  ".join(f"{part} {best[part] / count * 1e6:5.2f}" for part in ("requests", "steps", "metrics"))
    print(
        f"{name:5} {policy:8} {count:>9,} requests  {count / best['total']:>7,.0f} requests/CPU s, "
        f"{count / bare['total']:>7,.0f} without the steps table  "
        f"(us each: {parts})  {best['rows']:>10,.0f} steps  met {best['attainment']:.3f}  peak {peak_mb:.0f} MB",
        flush=True,
    )


def main() -> None:
    """Run every set and policy in its own process."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--requests", type=int, default=4000)
    options.add_argument("--repeats", type=int, default=7)
    options.add_argument("--long", type=int, default=0, help="also a run of this many requests (say 1000000)")
    options.add_argument("--flat", type=int, default=0, help="instead: so many requests, nothing kept")
    options.add_argument(
        "--clusters", action="store_true", help="instead: 16 and 512 replicas, and 2 prefill and 1 decode"
    )
    options.add_argument("--policy", action="append")
    options.add_argument("--child", nargs=4)
    given = options.parse_args()
    if given.child:
        name, count, policy, repeats = given.child
        child(name, int(count), policy, int(repeats))
        return
    for policy in given.policy or ["vllm-v0", "sarathi"]:
        if given.flat:
            flat(given.flat, policy)
            continue
        for name in SYSTEMS if given.clusters else ("fix", "var"):
            sizes = [(given.requests, given.repeats)] + ([(given.long, 1)] if given.long else [])
            for count, repeats in sizes:
                subprocess.run(
                    [sys.executable, __file__, "--child", name, str(count), policy, str(repeats)], check=True
                )


if __name__ == "__main__":
    main()
