"""Speed and memory of drawing schedules: 0.1, 1 and 10 million requests on one core, each in a process of its own.

Workloads: `plain` (Poisson, ShareGPT lengths), `burstgpt` (the preset: two services, one with sessions), `sessions`
(all of it conversations as in BurstGPT, with the ids of their shared blocks), `bare` (the same without ids), `tasks`
(compound tasks of five requests). What counts is the whole of `Schedule.draw`, its checks and its hash included.

    python tests/perf/schedule_drawing.py [--sizes 0.1,1,10] [--workload burstgpt]
"""

import argparse
import dataclasses
import resource
import subprocess
import sys
import time
from typing import Any

from harness.data.schedule import Schedule
from workloads import catalog
from workloads.mixed import Mixed

RATE_RPS = 10.0
NAMES = {
    "plain": ("chatbot", None),
    "burstgpt": ("burstgpt", None),
    "sessions": ("lognormal:prompt_mean=170,prompt_cv=2,output_mean=272", "burstgpt"),
    "bare": ("lognormal:prompt_mean=170,prompt_cv=2,output_mean=272", "burstgpt"),
    "tasks": ("sharegpt:first-turn", "compound:stages=1/3/1"),
}


@dataclasses.dataclass(frozen=True)
class Bare:
    """Sessions whose prompts name no blocks."""

    sessions: Any

    block_tokens = 64

    @property
    def mean_requests(self) -> float:
        return float(self.sessions.mean_requests)

    def tasks(self, count: int, streams: Any) -> Any:
        tasks = self.sessions.tasks(count, streams)
        return tasks._replace(blocks=0 * tasks.blocks)


def workload(name: str) -> Any:
    """The workload of a name."""
    spec, sessions = NAMES[name]
    made: Any = catalog.load(spec, sessions=sessions, rate_rps=RATE_RPS).workload
    if name == "bare":
        assert isinstance(made, Mixed)
        return dataclasses.replace(made, sessions=Bare(made.sessions))
    return made


def child(name: str, requests: int) -> None:
    """Draw once and print what it took."""
    made = workload(name)
    idle_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    start_s = time.process_time()
    drawn = Schedule.draw(made, seed=0, requests=requests)
    took_s = time.process_time() - start_s
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{name:9} {requests:>11,} requests  {took_s:6.2f} CPU s  {took_s / requests * 1e6:5.2f} us each  "
        f"peak {peak_mb:6.0f} MB ({idle_mb:.0f} MB before)  table {drawn.table.nbytes / 1e6:6.0f} MB  "
        f"{drawn.span_s / 86400:8.2f} days",
        flush=True,
    )


def main() -> None:
    """Every workload at every size."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--sizes", default="0.1,1,10", help="in millions")
    options.add_argument("--workload", action="append", choices=list(NAMES))
    options.add_argument("--child", nargs=2)
    given = options.parse_args()
    if given.child:
        child(given.child[0], int(given.child[1]))
        return
    for name in given.workload or list(NAMES):
        for millions in given.sizes.split(","):
            size = str(round(float(millions) * 1e6))
            subprocess.run([sys.executable, __file__, "--child", name, size], check=True)


if __name__ == "__main__":
    main()
