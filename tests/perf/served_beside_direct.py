"""Print what `bench run` measures of a system directly, beside the same system behind `bench serve` and HTTP.

Both get the same schedule, in turns, so that a busy moment hits both. The engine should keep the same share of its SLO
on either way within the client's floor; the simulator's virtual times are the truth for its server in real time.

Usage: python tests/perf/served_beside_direct.py [--rate 2] [--requests 40] [--pairs 3]
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from harness.data.folder import load
from harness.registry import make

BENCH = (sys.executable, "-m", "harness")
SYSTEMS = ("engine", "sim:model=opt-13b,hardware=a100-80g")
SLO = "ttft=0.5,tpot=50ms"
PERCENTILES = (("ttft", 50), ("ttft", 99), ("tpot", 50), ("tpot", 99))


@dataclass(frozen=True, slots=True)
class Seen:
    """One run: milliseconds of each of `PERCENTILES`, the share of requests within the SLO, the p99 floor of TTFT."""

    times_ms: tuple[float, ...]
    attainment: float
    floor_ms: float | None


@contextmanager
def serving(backend: str) -> Iterator[str]:
    """A server of this backend; its URL."""
    command = (*BENCH, "serve", "--backend", backend, "--port", "0")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout is not None
            yield f"http://127.0.0.1:{int(server.stdout.readline())}/v1"
        finally:
            server.terminate()


def run(backend: str, given: argparse.Namespace, out: Path) -> Seen:
    """One run of the workload."""
    options = ("--rate", str(given.rate), "--requests", str(given.requests), "--slo", SLO, "--no-html", "--quiet")
    subprocess.run(
        (*BENCH, "run", "--backend", backend, "--out", out, *options), stdout=subprocess.DEVNULL, check=False
    )
    done = load(out)
    found = {name: make("metrics", name).of(done.requests) for name in ("ttft", "tpot")}
    kept = np.nan_to_num(found["ttft"], nan=np.inf) <= 0.5
    kept &= np.nan_to_num(found["tpot"]) <= 0.05
    times = tuple(float(np.nanpercentile(found[name], q)) * 1e3 for name, q in PERCENTILES)
    floor = done.info.floor or None  # unset where time is simulated
    return Seen(times, float(kept.mean()), floor.ttft.p99_s * 1e3 if floor else None)


def main() -> None:
    """Run all pairs and print them."""
    parser = argparse.ArgumentParser(description="A system directly and behind bench serve.")
    parser.add_argument("--rate", type=float, default=2.0)
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--pairs", type=int, default=3)
    given = parser.parse_args()
    table = Table("system", "way", "within SLO", *(f"{name} p{q} ms" for name, q in PERCENTILES), "floor ms")
    for backend in SYSTEMS:
        with serving(backend) as url, tempfile.TemporaryDirectory() as folder:
            for pair in range(given.pairs):
                for way, spec in (("direct", backend), ("served", f"openai:url={url},api=completions")):
                    seen = run(spec, given, Path(folder) / f"{way}-{pair}")
                    floor = "" if seen.floor_ms is None else f"{seen.floor_ms:.3f}"
                    name = backend.partition(":")[0]
                    table.add_row(name, way, f"{seen.attainment:.1%}", *(f"{t:.2f}" for t in seen.times_ms), floor)
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
