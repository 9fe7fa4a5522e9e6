"""The simulator against the project's own engine: attainment at several rates of the same schedules.

Three engines: one whose step times are recorded and given to the simulator, one that takes the step times of a GPU on
the wall clock without computing anything, and the one that computes, whose step times are as noisy as its machine.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from acceptance.rows import Place, Row
from acceptance.topics._paced import LATENCY, OBJECTIVE, System, against_simulator, run
from harness.data.folder import read_info
from harness.experiments.validate import replay
from harness.registry import names

STORED = Path(__file__).parents[1] / "simulator_against_engine.json"
"""What `tests/perf/simulator_against_engine.py --store` writes."""
HALVES = ("distserve-prefill", "distserve-decode")
"""Policies that are half of a system: the other half is on another replica."""
PACED = ("vllm-v0", "vllm-v1", "sarathi", "orca")


def rows(place: Place) -> Iterator[Row]:
    """S27.a to S27.c, in seven minutes, most of which the paced engine sleeps."""
    yield _recorded(place)
    for policy in PACED:
        system = System(f"S27.b.{policy}", policy, LATENCY, OBJECTIVE, "10s", {"policy": policy})
        yield against_simulator(system, place)
    yield _raw()


def _recorded(place: Place) -> Row:
    policies = [name for name in names("policies") if name not in HALVES]
    traffic = {"workload": "fixed:prompt=90,output=60", "rate": "400", "requests": "60", "slo": OBJECTIVE}
    apart, preempted = {}, 0
    for policy in policies:
        out = place.work / f"recorded-{policy}"
        run(out, backend=f"engine:policy={policy},kv_blocks=20,nice=0", **traffic)
        found = replay.validate([str(out)], f"sim:latency=recorded:{out}", None)
        apart[policy] = max(abs(pair.measured - pair.simulated) for pair in found.pairs)
        preempted += read_info(out).summary.preemptions or 0
    differ = [policy for policy, most in apart.items() if most > 0]
    obtained = f"0 points and equal latencies under {len(apart) - len(differ)} of {len(policies)} policies"
    return Row(
        "S27.a", "simulator against the engine, on its recorded step times", "real", "one scheduler under two clocks",
        f"{obtained}, with {preempted:,} preemptions{'; not ' + ', '.join(differ) if differ else ''}",
        "0 points under every policy", not differ, "bench validate --against DIR --backend sim:latency=recorded:DIR",
        "Attainment and quantiles of TTFT and TPOT of 60 requests that arrive within a second and find 20 blocks.",
    )  # fmt: skip


def _raw() -> Row:
    """What `tests/perf/simulator_against_engine.py` has stored; it needs minutes of a quiet machine."""
    system, published = "simulator against the engine that computes", "none: its steps are as noisy as its machine"
    band, command = "none", "python tests/perf/simulator_against_engine.py"
    if not STORED.exists():
        return Row("S27.c", system, "real", published, "not run", band, None, command, "Needs a quiet machine.")
    found = json.loads(STORED.read_text(encoding="utf-8"))
    rates, real, ours = found["rates_rps"], found["measured_pct"], found["simulated_pct"]
    worst = max(abs(a - b) for a, b in zip(real, ours, strict=True))
    sides = ", ".join(f"{r:g}/s {a:.1f} {b:.1f}" for r, a, b in zip(rates, real, ours, strict=True))
    itself = max(abs(a - b) for a, b in zip(real, found["again_pct"], strict=True))
    note = (
        f"Rate, engine, simulator: % within {found['slo']}; {found['when']}; latency fitted on other runs. The engine "
        f"and itself, run again: at most {itself:.1f} points apart, so that this decides nothing."
    )
    return Row("S27.c", system, "real", published, f"{worst:.1f} points at most: {sides}", band, None, command, note)
