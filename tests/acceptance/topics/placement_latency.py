"""The parallelism of eight H100 with the lowest TPOT, beside runs of vLLM (K25)."""

import csv
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

from acceptance.rows import Place, Row
from acceptance.topics import placement
from harness.experiments import pool
from harness.experiments.place.execute import run_placement
from harness.experiments.place.store import Store
from published import apex_h100

PLANS = {8: "(8,1)", 4: "2 x (4,1)", 2: "4 x (2,1)"}
"""Name of the plan on eight GPUs by tp."""
LONGEST_S = 900
SLO = "ttft=10,tpot=0.5"
"""Bounds that no plan misses: the runs have no objective."""
COMMAND = "bench place --gpus 8 --hardware h100 --model llama3-70b --latency roofline --trace TRACE --objective latency"


def rows(place: Place) -> Iterator[Row]:
    """S59: the order of measured plans, and the time of the search."""
    if place.data is None:
        yield Row("S59.a", "APEX search", "real", "8TP has the lowest TPOT", "not run", "the same order", None, COMMAND,
                  "needs the public measurements (--data)")  # fmt: skip
        return
    runs = [*apex_h100._runs(place.data / "profiles")]
    settings = sorted({(run.trace, run.rate) for run in runs if run.tp == 8})
    same, best, texts, spent_s = 0, 0, [], 0.0
    for trace, rate in settings:
        of = [run for run in runs if (run.trace, run.rate) == (trace, rate)]
        measured = {tp: fmean(run.itl_s for run in of if run.tp == tp) for tp in PLANS}
        whole = next(run for run in of if run.tp == 8)
        began_s = time.monotonic()
        found = _searched(whole, place.work / f"{trace}-{rate}.csv")
        spent_s = max(spent_s, time.monotonic() - began_s)
        obtained = {tp: found[name] for tp, name in PLANS.items()}
        same += sorted(PLANS, key=measured.__getitem__) == sorted(PLANS, key=obtained.__getitem__) == [8, 4, 2]
        best += min(found, key=found.__getitem__) == PLANS[8]
        rps = float(f"{rate[0]}.{rate[1:]}")  # '025' is 0.25
        texts.append(f"{trace} at {rps:g} req/s: {_times(measured)} ms measured, {_times(obtained)} obtained")
    yield Row(
        "S59.a", "APEX search", "real", "8TP has the lowest TPOT, which falls as TP grows (8TP, 2 x 4TP, 4 x 2TP)",
        f"the same order in {same} of {len(settings)}; 8TP is the best of all plans in {best}", "in every setting",
        same == best == len(settings), COMMAND,
        "Llama-3.1-70B, 8 H100, policy vllm-v0, roofline, whose default constants come from four runs of this source. "
        f"{'; '.join(texts)}.",
    )  # fmt: skip
    yield Row(
        "S59.b", "APEX search", "real", "the search ends within 15 minutes on a CPU",
        f"{spent_s:.0f} s for the slowest setting, one process", "900 s", spent_s < LONGEST_S, COMMAND,
        "tp and pp of replicas that fill the GPUs; neither expert parallelism nor energy: APEX's 45 % are not checked.",
    )  # fmt: skip


def _searched(run: apex_h100.Run, path: Path) -> dict[str, float]:
    """TPOT of every plan under the requests of a run as they were served."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["arrival_s", "prompt_tokens", "output_tokens"])
        traffic = run.traffic
        writer.writerows(zip(traffic.arrival_s, traffic.prompt_tokens, traffic.output_tokens, strict=True))
    options = placement.options_of(
        {"trace": str(path), "model": "llama3-70b", "policy": "vllm-v0", "latency": "roofline", "slo": SLO},
        gpus=8, hardware="h100", algorithm="vllm++", conditions="joint", objective="latency", seeds=None,
    )  # fmt: skip
    info = run_placement(options, Store(None), pool.Here())
    return {one.name: one.tpot_s for one in info.candidates if one.tpot_s is not None}


def _times(seconds: dict[int, float]) -> str:
    return ", ".join(f"{seconds[tp] * 1e3:.1f}" for tp in PLANS)
