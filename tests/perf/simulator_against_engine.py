"""Run the engine at several rates, simulate the same schedules, and print attainment side by side (S27.c).

Each rate is run three times in turn: the latency model is fitted to the steps of the first (another seed), the second
is compared with the simulator, and the third repeats the second: how far an engine is from itself on this machine says
how near anything can be shown to be. A busy machine makes the engine's steps longer by chance: numbers mean something
only where nothing else runs; --realtime gives the runs the processor before everything else. The SLO is about five
times what a lone request takes.

Usage: python tests/perf/simulator_against_engine.py [--rates 3,4,5,6,7,8,9] [--seconds 25] [--rounds 1] [--slo BOUNDS]
           [--realtime]
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from harness.experiments.validate import replay

BENCH = (sys.executable, "-m", "harness")
SYSTEM = "engine:policy=sarathi,nice=0"
FITTED, COMPARED = 100, 0
"""First seeds of the runs that the latency model is fitted to, and of those that are simulated."""


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


def attainment_pct(folders: list[list[Path]], backend: str, slo: str) -> tuple[list[float], list[float]]:
    """Attainment of the runs of each rate together, measured and simulated."""
    measured, simulated = [], []
    for of_rate in folders:
        found = replay.validate([str(folder) for folder in of_rate], backend, slo)
        pairs = [pair for pair in found.pairs if pair.metric == "attainment_pct"]
        measured.append(statistics.fmean(pair.measured for pair in pairs))
        simulated.append(statistics.fmean(pair.simulated for pair in pairs))
    return measured, simulated


def furthest(one: list[float], other: list[float]) -> float:
    """The largest difference."""
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


def main() -> None:
    """Print attainment of engine and simulator at each rate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", default="3,4,5,6,7,8,9")
    parser.add_argument("--seconds", type=int, default=25)
    parser.add_argument("--rounds", type=int, default=1, help="how often all this is done, with other seeds")
    parser.add_argument("--slo", default="ttft=0.15,tpot=4ms")
    parser.add_argument("--realtime", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        top, rates = Path(folder), given.rates.split(",")
        rounds = range(given.rounds)
        for nth in rounds:
            for rate in rates:
                run(rate, FITTED + nth, given, top / f"fitted-{rate}-{nth}")
                run(rate, COMPARED + nth, given, top / f"at-{rate}-{nth}")
                run(rate, COMPARED + nth, given, top / f"again-{rate}-{nth}")
        fit([top / f"fitted-{rate}-{nth}" for rate in rates for nth in rounds], top / "fit.toml")
        backend = f"sim:latency=file:{top / 'fit.toml'}"
        first, second = (
            [[top / f"{name}-{rate}-{nth}" for nth in rounds] for rate in rates] for name in ("at", "again")
        )
        engine, simulator = attainment_pct(first, backend, given.slo)
        again, _ = attainment_pct(second, backend, given.slo)
    for rate, real, ours, repeated in zip(rates, engine, simulator, again, strict=True):
        print(f"{rate} req/s: engine {real:.1f} %, simulator {ours:.1f} %; the engine again {repeated:.1f} %")
    print(f"simulator and engine at most {furthest(engine, simulator):.1f} points apart; 2 are allowed")
    print(f"the engine and itself at most {furthest(engine, again):.1f} points apart")


if __name__ == "__main__":
    main()
