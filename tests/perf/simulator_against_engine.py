"""Run the engine at several rates, simulate the same schedules, and print attainment side by side (S27).

The latency model is fitted to the steps of other runs: the same rates and another seed, in turns with the runs that
are compared, so that both see the machine in the same moods. A busy machine makes the engine's steps longer by chance:
its numbers mean something only where nothing else runs; --realtime gives the runs the processor before everything else.

Usage: python tests/perf/simulator_against_engine.py [--rates 3,4,5,6,7,8,9] [--seconds 25] [--store] [--realtime]
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from harness.acceptance.measured import ENGINE
from harness.host import cpu_name
from harness.validate import replay

BENCH = (sys.executable, "-m", "harness")
SYSTEM = "engine:policy=sarathi,nice=0"
FITTED, COMPARED = 11, 0
"""Seeds of the runs that the latency model is fitted to, and of those that are simulated."""


def run(rate: str, seed: int, given: argparse.Namespace, out: Path) -> None:
    """One run of the engine."""
    options = ("--rate", rate, "--seed", str(seed), "--duration", f"{given.seconds}s", "--slo", given.slo)
    command = (*BENCH, "run", "--backend", SYSTEM, "--workload", "chatbot", *options, "--no-html", "--quiet")
    first = _first if given.realtime else None
    subprocess.run((*command, "--out", out), stdout=subprocess.DEVNULL, check=False, preexec_fn=first)


def _first() -> None:
    """Before everything else on this machine; only the superuser may."""
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(5))


def fit(folders: list[Path], out: Path) -> None:
    """Fit the latency model."""
    steps = [part for folder in folders for part in ("--steps", str(folder))]
    subprocess.run((*BENCH, "fit", *steps, "--latency", "mixed", "--out", out), stdout=subprocess.DEVNULL, check=True)


def main() -> None:
    """Print attainment of engine and simulator at each rate; with --store keep it for the table of acceptance."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--rates", default="3,4,5,6,7,8,9")
    asked.add_argument("--seconds", type=int, default=25)
    asked.add_argument("--slo", default="ttft=0.08,tpot=2.5ms")
    asked.add_argument("--realtime", action="store_true")
    asked.add_argument("--store", action="store_true")
    given = asked.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        top = Path(folder)
        rates = given.rates.split(",")
        for rate in rates:
            run(rate, FITTED, given, top / f"fitted-{rate}")
            run(rate, COMPARED, given, top / f"at-{rate}")
        fit([top / f"fitted-{rate}" for rate in rates], top / "fit.toml")
        backend = f"sim:latency=file:{top / 'fit.toml'}"
        found = replay.validate([str(top / f"at-{rate}") for rate in rates], backend, given.slo)
    pairs = [pair for pair in found.pairs if pair.metric == "attainment_pct"]
    for pair in pairs:
        print(f"{pair.x:g} req/s: engine {pair.measured:.1f} %, simulator {pair.simulated:.1f} %")
    print(f"at most {replay.worst_points(found):.1f} points apart; 2 are allowed")
    if given.store:
        held = {
            "when": f"{dt.datetime.now(tz=dt.UTC):%Y-%m-%d}, {cpu_name()}",
            "slo": given.slo,
            "rates_rps": [pair.x for pair in pairs],
            "measured_pct": [round(pair.measured, 2) for pair in pairs],
            "simulated_pct": [round(pair.simulated, 2) for pair in pairs],
        }
        ENGINE.write_text(json.dumps(held, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
