"""JITServe: service goodput of schedulers on chat, deadlines and compound tasks, on the engine (K20)."""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from acceptance.rows import Place, Row
from acceptance.topics._paced import paced_run, sign_row
from harness.data.folder import load
from harness.experiments.rescore.tokens import tokens
from harness.metrics.objective import Seen, Slo, restored_slo, score
from harness.metrics.summary import per_second_of

SYSTEM = "JITServe"
SEEDS = 5
FCFS, GMAX = "vllm-v0:max_seqs=32", "gmax"
HIGH_RPS = 6.0
"""1.5 times the rate to which all policies agree in simulated time."""
SHORTER = 8
"""The engine serves lengths and deadlines of such a part of those that are simulated, and as many more requests."""
LENGTHS = f"lognormal:prompt_mean_tokens={298.8 / SHORTER:g},output_mean_tokens={323.7 / SHORTER:g}"
SHORT_MIX = f"""
about = "Chat, deadlines and compound tasks, short"
shares_of = "arrivals"

[[class]]
name = "chat"
share = 1
lengths = "{LENGTHS}"
slo = {{ ttft = {2 / SHORTER}, tpot = 0.1 }}

[[class]]
name = "deadline"
share = 1
lengths = "{LENGTHS}"
deadline_s = {20 / SHORTER}

[[class]]
name = "compound"
share = 1
lengths = "{LENGTHS}"
sessions = "compound:stages=1/3/1,inherit=context"
deadline_s = {60 / SHORTER}
"""


@dataclass(frozen=True, slots=True)
class Goodput:
    """Per second: service goodput with prompt and output tokens 1:8 and 0:1, and requests within their objectives."""

    service: float
    output_tps: float
    requests_rps: float


def goodput_of(table: pa.Table, slo: Slo) -> Goodput:
    """Of the requests of a run."""
    seen = Seen(table)
    scored = score(table, slo, seen)
    good, per_second = tokens(seen, slo, scored), per_second_of(table)
    prompt, output = int(good.prompt.sum()), int(good.output.sum())
    return Goodput(per_second(prompt + 8 * output), per_second(output), per_second(int(scored.met.sum())))


def rows(place: Place) -> Iterator[Row]:
    """S52.e: GMAX and FCFS on the paced engine, where everything lasts an eighth as long and comes eight times as
    often."""
    workload = place.work / "slo-mix-short.toml"
    workload.write_text(SHORT_MIX, encoding="utf-8")
    rate_rps = SHORTER * HIGH_RPS
    late, found = [], []
    for seed in range(SEEDS):
        both = []
        for policy in (GMAX, FCFS):
            out = place.work / f"engine-{policy.partition(':')[0]}"
            late.append(
                paced_run(
                    out, backend="engine:executor=paced,kv=paged:blocks=8192", model="llama3.1-8b",
                    hardware="a100-80g", policy=policy, workload=workload, rate=f"{rate_rps:g}", duration="10s",
                    seed=seed,
                )
            )  # fmt: skip
            run = load(out)
            both.append(goodput_of(run.requests, restored_slo(run.info)).service)
        found.append(both)
    yield sign_row(
        "S52.e", f"{SYSTEM}, on the engine", "1.4-6.3x goodput (abstract)", "GMAX over FCFS",
        [ours / theirs for ours, theirs in found], late, "python tests/acceptance/run.py --only S52.e",
        f"service goodput 1:8 at {rate_rps:g} req/s for 10 s, roofline of llama3.1-8b on an A100, 32 seats; the "
        f"classes of slo-mix, with lengths of an eighth of ShareGPT's means, and bounds of an eighth but for TPOT.",
    )  # fmt: skip
