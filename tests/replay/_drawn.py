"""Engines drawn at random, and whether the simulator repeats a run of each on its recorded times, to the last bit.

An engine is drawn by its number, every other one as a cluster: executor (paced, or a small transformer), policy, rule
of admission, KV memory, prefix cache, tiers, preemption, drafts, sides, link, hand-off, router, workload and rate.
Whatever the engine refuses (a router that must know step times on an executor that computes) is not drawn.

    PYTHONPATH=tests python -m replay._drawn [--first 0] [--engines 40]
"""

import argparse
import contextlib
import io
import json
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from harness.cli import main as bench
from harness.registry import names

LIMITS = {
    "sarathi": "budget=64,max_seqs=16", "chunk-only": "budget=48,max_seqs=16", "fastgen": "budget=64,max_seqs=16",
    "static": "batch=4", "orca": "max_batch=4", "vllm-v1": "budget=32,max_seqs=16,long_prefill=20",
    "sglang": "chunk=64,overlap=false",
}  # fmt: skip
"""Limits under which small traffic is cut and queues; a policy that is not named here runs with its own."""
HALVES = ("distserve-prefill", "distserve-decode", "semi-pd", "diffusion", "loongserve")
"""The engine has half of the first two, the other half being on another replica, and cannot run the others."""
ALIKE = ("round-robin", "least-requests", "prefix-aware", "load", "random:seed=3", "reported-queue:report_s=20ms",
         "reject-forward", "freeness:poll_s=5ms,threshold=50,last_blocks=1",
         "freeness:poll_s=10ms,threshold=200,last_blocks=0,stages=6,choice=LR",
         "freeness:poll_s=10ms,threshold=200,live=false,choice=FCWSR,report_s=15ms")  # fmt: skip
"""Routers of replicas alike; those below must know how long steps take, or belong to prefill and decode replicas."""
ALIKE_PACED = ("min-load", "early-reject:ttft_s=0.4")
APART = ("shortest-prefill-queue", "round-robin", "reported-queue:report_s=20ms",
         "freeness:poll_s=10ms,threshold=200,last_blocks=1")  # fmt: skip
APART_PACED = ("min-load", "early-reject:ttft_s=0.4,tpot_s=0.01", "ooc:tick_s=20ms",
               "slo-flip:tick_s=20ms,settle_s=50ms,ttft_s=20ms,tpot_s=5ms",
               "slo-flip:tick_s=10ms,settle_s=20ms,tpot_s=2ms,cost_s=10ms",
               "replan:window_s=0.2,reload_s=50ms,tpot_s=0.01")  # fmt: skip
TIERS = ("dram:size=600kB", "dram:size=1MB,write=back", "dram:size=20MB", "dram")
TIERS_PACED = ("dram:size=200MB,pcie=2GBps", "dram:size=40MB,pcie=1GBps+ssd:latency=5ms", "pool:load=1GBps",
               "dram:size=50MB,write=back+pool:size=200MB")  # fmt: skip
MODELS = (("llama3-8b", "h100"), ("opt-13b", "a100-80g"))
LATENCIES = ("linear:base_s=3ms,prefill_token_s=2e-5", "linear:base_s=8ms,decode_seq_s=0.3ms", "roofline")
COLUMNS = ("session", "turn", "scheduled_s", "sent_s", "arrived_s", "prefill_start_s", "prefill_end_s",
           "handoff_start_s", "handoff_end_s", "decode_start_s", "cached_tokens", "preemptions", "replica")  # fmt: skip
"""What is equal besides the token times of all; what is rejected has none of these in the simulator."""
COUNTS = ("queried_tokens", "hit_tokens", "loads", "load_bytes", "wait_s")
"""The same of tiers; what is written behind the last step is not in the table of the engine."""


def drawn(number: int) -> tuple[dict[str, str], list[str], list[str]]:
    """The arguments of the engine of that number that the simulator shares, those of its executor, and the workload."""
    rng = np.random.default_rng([44, number])

    def pick(*choices: str) -> str:
        return choices[rng.integers(len(choices))]

    paced = bool(rng.integers(2))
    policies = [name for name in names("policies") if name not in HALVES and (paced or name != "ooc")]
    policy = pick(*policies)
    shared = {
        "policy": f"{policy}:{LIMITS[policy]}" if policy in LIMITS else policy,
        "admission": pick("fcfs", "fcfs", *names("admission")),
        "kv": pick("paged", "paged:block_tokens=8", "paged:block_tokens=32,watermark=0", "reserve-pow2",
                   "reserve-oracle", "virtual:page_bytes=16384", "virtual:page_bytes=65536"),
        "prefix_cache": pick("off", "on"),
        "preempt": pick("recompute", "swap", "swap:blocks=60"),
        "speculate": pick("off", "off", "k=1", "k=3,alpha=0.3", "k=4,max_rows=24"),
        "kv_blocks": pick("30", "60", "120", "600"),
    }  # fmt: skip
    routers = ALIKE + ALIKE_PACED * paced
    if number % 2 and rng.integers(5) < 3:
        prefill, decode = (str(rng.integers(1, 3)) for _ in range(2))
        shared |= {"prefill": prefill, "decode": decode, "handoff": pick("pull", "push")}
        routers = APART + APART_PACED * paced
        if rng.integers(3) == 0:
            del shared["policy"]  # those of DistServe, one for each side
        if rng.integers(2):
            shared["link"] = pick("none", "25Gbps", "10Gbps:latency=3ms", "400Gbps:latency=1ms")
    elif number % 2:
        shared["replicas"] = str(rng.integers(2, 4))
    if number % 2:
        shared["router"] = pick(*routers)
        if "policy" not in shared and shared["router"].startswith(("slo-flip", "replan")):
            shared["policy"] = "vllm-v1"  # a policy for one role is refused where roles change
    stays = "prefill" not in shared and not shared.get("router", "").startswith("freeness")
    if shared["prefix_cache"] == "on" and (paced or stays) and rng.integers(3):
        shared["tiers"] = pick(*(TIERS_PACED if paced else TIERS))
        shared["kv_blocks"] = pick("30", "60")  # else they are of no use to so few requests
    executor = ["executor=llama"]
    if paced:
        model, hardware = MODELS[rng.integers(len(MODELS))]
        executor = [f"executor=paced,latency=[{pick(*LATENCIES)}]", f"model={model},hardware={hardware}"]
    mean, output = rng.integers(10, 120), rng.integers(5, 50)
    lengths = f"lognormal:prompt_mean={mean},output_mean={output},max_total=480"
    traffic = ["--lengths", lengths, "--rate", pick("20", "60", "200"), "--requests", "40", "--seed", str(number)]
    if rng.integers(2) or "tiers" in shared:
        traffic += ["--sessions", f"fixed:turns={rng.integers(2, 5)},think={pick('0s', '30ms')}"]
    return shared, executor, traffic


def repeat(number: int, folder: Path) -> str:
    """`equal`, or what is not, of a run of the engine of that number and its repetition."""
    shared, executor, traffic = drawn(number)
    arguments = ",".join(f"{key}={f'[{value}]' if ',' in value else value}" for key, value in shared.items())
    quiet = ["--quiet", "--no-html", "--out"]
    printed = io.StringIO()
    for backend, name, source in (
        (f"engine:{arguments},{','.join(executor)}", "engine", traffic),
        (f"sim:{arguments},latency=recorded:{folder / 'engine'},{','.join(executor[1:])}".rstrip(","), "sim",
         ["--config", str(folder / "engine" / "run.json")]),
    ):  # fmt: skip
        with contextlib.redirect_stderr(printed), contextlib.redirect_stdout(io.StringIO()):
            bench(["run", *source, "--backend", backend, *quiet, str(folder / name)])
        if not (folder / name / "requests.parquet").exists():  # with one, a run that is not valid is as good to repeat
            return f"{name} refused: {printed.getvalue().strip()}"
    runs = [pq.read_table(folder / name / "requests.parquet").sort_by("request_id") for name in ("engine", "sim")]
    unequal = [name for name in ("request_id", "status", "token_s", "token_n") if runs[0][name] != runs[1][name]]
    tiers = [json.loads((folder / name / "run.json").read_text())["backend"].get("tiers") for name in ("engine", "sim")]
    if tiers[0] is not None:
        unequal += [name for name in COUNTS if [t[name] for t in tiers[0]] != [t[name] for t in tiers[1]]]
    if not unequal:
        served = [run.filter(pc.not_equal(run["status"], "rejected")) for run in runs]
        unequal = [name for name in COLUMNS if served[0][name] != served[1][name]]
    return f"not equal: {', '.join(unequal)}" if unequal else "equal"


def happened(folder: Path) -> str:
    """What became of the requests, and what a router did."""
    requests = pq.read_table(folder / "engine" / "requests.parquet")
    actions = folder / "engine" / "actions.parquet"
    kinds = pq.read_table(actions)["kind"].to_pylist() if actions.exists() else []
    preempted = pc.sum(requests["preemptions"]).as_py()
    tiers = json.loads((folder / "engine" / "run.json").read_text())["backend"].get("tiers", [])
    loaded = {tier["name"]: (tier["loads"], tier["evicted_blocks"]) for tier in tiers}
    statuses = dict(Counter(requests["status"].to_pylist()))
    return f"{statuses}, {preempted} preemptions, {dict(Counter(kinds))}, loads and evicted blocks {loaded}"


def main() -> None:
    """Draw engines, repeat a run of each, and count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--engines", type=int, default=40)
    given = parser.parse_args()
    verdicts: Counter[str] = Counter()
    for number in range(given.first, given.first + given.engines):
        with tempfile.TemporaryDirectory() as folder:
            verdict = repeat(number, Path(folder))
            verdicts[verdict.partition(":")[0]] += 1
            print(number, verdict, *drawn(number), happened(Path(folder)), flush=True)
    print(dict(verdicts))


if __name__ == "__main__":
    pa.set_cpu_count(1)
    main()
