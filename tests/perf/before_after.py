"""Two versions of the simulator, alternated: how much faster one is, and whether every table is the same.

    python tests/perf/before_after.py BEFORE AFTER [--rounds 5] [--requests 4000] [--sets fix,var16,fig1] [--commands]
    python tests/perf/before_after.py BEFORE AFTER --tables 60

BEFORE and AFTER are checkouts. `CHECKOUT=PACKAGES` measures what is installed in the folder PACKAGES instead of the
sources of CHECKOUT, as `pip install --target` leaves it. Each checkout runs its own `tests/perf/simulator_speed.py`.
Ratios are CPU seconds before over after, the median over the rounds and their range. `--commands` measures `bench run`
as a user types it, with all of its imports and files.

`--tables` draws so many systems (policy, memory, admission, router, roles, latency model, drafts, swapping, caches) and
compares SHA-256 of the requests, steps and actions that both make; a difference gives exit code 1.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np

SETS = ("fix", "var", "fix16", "var16", "robin", "free", "fig1")
POLICIES = ("vllm-v0", "sarathi")
SYSTEM = ["--workload", "chatbot", "--backend", "sim", "--model", "llama2-7b", "--hardware", "a100-80g",
          "--latency", "roofline", "--policy", "vllm-v1", "--quiet"]  # fmt: skip
TRAFFIC = {
    "fixed": ["--lengths", "fixed:prompt=512,output=128", "--rate", "10"],
    "chat": ["--lengths", "sharegpt", "--rate", "4"],
}


@dataclass(frozen=True, slots=True)
class Side:
    """A checkout, and where its packages are."""

    checkout: Path
    packages: Path

    def run(self, *arguments: str) -> tuple[str, float]:
        """What Python prints with these arguments, and the CPU seconds that it takes."""
        environment = {**os.environ, "PYTHONPATH": str(self.packages)}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # each process would compile everything again
        command = [sys.executable, "-P", *arguments]
        with tempfile.TemporaryFile("w+") as out:
            with subprocess.Popen(command, stdout=out, env=environment) as process:
                _, status, used = os.wait4(process.pid, 0)
                process.returncode = os.waitstatus_to_exitcode(status)
            if process.returncode:
                raise SystemExit(f"{' '.join(command)}: exit code {process.returncode}")
            out.seek(0)
            return out.read(), used.ru_utime + used.ru_stime


def side(text: str) -> Side:
    """`CHECKOUT` or `CHECKOUT=PACKAGES`."""
    checkout, _, packages = text.partition("=")
    return Side(Path(checkout).resolve(), Path(packages or checkout).resolve())


def simulated(of: Side, name: str, policy: str, requests: int) -> float:
    """CPU microseconds per request from the drawn schedule to the summary, the best of three."""
    program = of.checkout / "tests" / "perf" / "simulator_speed.py"
    found = re.search(r"([\d,]+) requests/CPU s", of.run(str(program), "--child", name, str(requests), policy, "3")[0])
    assert found is not None
    return 1e6 / float(found[1].replace(",", ""))


def command(of: Side, traffic: str, requests: int) -> float:
    """CPU microseconds per request of `bench run`."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["run", *SYSTEM, *TRAFFIC[traffic], "--requests", str(requests), "--out", f"{folder}/run"]
        return of.run("-m", "harness", *arguments)[1] / requests * 1e6


def drawn(count: int, seed: int) -> list[dict[str, object]]:
    """Options of so many systems."""
    from harness.registry import names

    rng, found = np.random.default_rng(seed), []
    policies = [name for name in names("policies") if not name.startswith("distserve")]
    policies[policies.index("ltr")] = "ltr:predictor=oracle"
    for number in range(count):

        def pick(*words: object) -> object:
            return words[int(rng.integers(len(words)))]

        options: dict[str, object] = {
            "policy": policies[number % len(policies)],
            "kv": pick(*names("kv"), "paged", "paged"),
            "admission": pick("fcfs", "fcfs", *names("admission")),
            "prefix_cache": pick("off", "on"),
            "speculate": pick(None, None, None, "k=3,alpha=0.6"),
            "preempt": pick("recompute", "recompute", "swap:blocks=300"),
            "latency": pick(
                "roofline",
                "operators",
                "linear:decode_seq_s=0.0002,prefill_token_s=0.00002",
                "abc",
                "fit6:hardware=a100-80g",
            ),
            "kv_blocks": int(rng.integers(300, 1500)),
            "seed": int(rng.integers(3)),
        }
        shape = number % 5
        if shape == 1:
            options |= {"replicas": 4, "router": pick(*names("routers"))}
        elif shape == 2:
            options |= {
                "prefill": "2",
                "decode": pick("1", "2"),
                "handoff": pick("pull", "push"),
                "link": pick("nvlink", "25Gbps", "none"),
            }
        elif shape == 3:
            options |= {"replicas": 4, "router": "round-robin", "fail": "replica:1@10s..30s,requeue"}
        elif shape == 4:
            options |= {"pp": 2, "latency": "roofline"}
        found.append(options)
    return found


def tables(count: int, seed: int) -> None:
    """Print a hash, or why it is refused, of each drawn system."""
    import pyarrow as pa

    from backends.sim import Sim
    from harness.api import Request
    from harness.data.records import actions_table, to_table
    from harness.errors import BenchError

    for options in drawn(count, seed):
        rng = np.random.default_rng(seed)
        at_s = np.cumsum(rng.exponential(0.06, 150)).tolist()
        prompts, outputs = (np.maximum(1, rng.lognormal(m, 0.8, 150)).astype(int).tolist() for m in (5.6, 4.2))
        requests = [
            Request(i, t, p, o, prefix_ids=(i % 7, i % 3, i), prefix_block_tokens=64, session=i % 50, priority=i % 3)
            for i, (t, p, o) in enumerate(zip(at_s, prompts, outputs, strict=True))
        ]
        try:
            simulator = Sim(**options)  # type: ignore[arg-type]  # options that it has
            made = [to_table(list(simulator.simulate(requests))), simulator.steps_table()]
            made.append(actions_table(simulator.actions()))
            facts = json.dumps(simulator.describe(), sort_keys=True, default=str)
            whole = sha256(facts.encode())
            for table in made:
                stream = pa.BufferOutputStream()
                with pa.ipc.new_stream(stream, table.schema) as writer:
                    writer.write_table(table.combine_chunks())
                whole.update(stream.getvalue())
            result = f"{whole.hexdigest()} {made[0].num_rows} requests {made[1].num_rows} steps"
        except (BenchError, ValueError) as error:
            result = f"refused: {error}"
        print(json.dumps([options, result]), flush=True)


def same(before: Side, after: Side, count: int, seed: int) -> bool:
    """Whether both make the same tables; prints those that differ."""
    ran = [of.run(__file__, "x", "x", "--child-tables", str(count), "--seed", str(seed))[0] for of in (before, after)]
    rows = [[json.loads(line) for line in text.splitlines()] for text in ran]
    equal = refused = 0
    for one, other in zip(*rows, strict=True):
        refused += one[1].startswith("refused")
        equal += one == other
        if one != other:
            print(f"DIFFERENT {one[0]}\n  before {one[1]}\n  after  {other[1]}")
    print(f"{equal} of {count} systems have the same requests, steps, actions and facts ({refused} are refused)")
    return equal == count


def compare(name: str, before: list[float], after: list[float]) -> None:
    """Print one line."""
    ratios = sorted(b / a for b, a in zip(before, after, strict=True))
    us = f"{statistics.median(before):7.2f} {statistics.median(after):7.2f} us per request"
    print(f"{name:24} {us}  {statistics.median(ratios):5.2f}x ({ratios[0]:.2f} to {ratios[-1]:.2f})", flush=True)


def main() -> None:
    """Alternate the two."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument("--commands", action="store_true", help="instead: bench run")
    parser.add_argument("--tables", type=int, default=0, help="instead: compare the tables of so many systems")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--child-tables", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child_tables:
        tables(given.child_tables, given.seed)
        return
    sides = side(given.before), side(given.after)
    if given.tables:
        sys.exit(0 if same(*sides, given.tables, given.seed) else 1)
    if given.commands:
        jobs = [(f"bench run {t}", command, (t,)) for t in TRAFFIC]
    else:
        jobs = [(f"{n} {p}", simulated, (n, p)) for p in given.policies.split(",") for n in given.sets.split(",")]
    for name, of, arguments in jobs:
        pairs = [[of(one, *arguments, given.requests) for one in sides] for _ in range(given.rounds)]
        compare(name, *map(list, zip(*pairs, strict=True)))


if __name__ == "__main__":
    main()
