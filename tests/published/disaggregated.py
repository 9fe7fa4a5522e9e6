"""Prefill and decode apart: throughput per GPU and interactivity of public configurations beside the simulator.

    python tests/published/disaggregated.py [--data DIR] [--out FILE.json] [--roofline]

Source: SemiAnalysis InferenceMAX (`inferencemax.csv`): DeepSeek-R1 on GB200 and MI355X in a closed loop of `conc`
clients. Repeated rows of a configuration are one, with their medians. Nothing is fitted to these rows: `operators` has
its own constants, and what the rows do not say is the same for all of them (`CHUNK`, experts on all GPUs of a worker).

Errors are |ln(simulated / measured)| of total tokens/s per GPU and of interactivity (1 / median TPOT).
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import catalog
from harness.api import Simulator
from harness.catalog import Shape
from harness.errors import UsageError
from harness.experiments import pool
from harness.registry import make
from published import sources
from published.closed_loop import Load, run
from published.form import needed

MODEL = "deepseek-r1"
CHUNK = 16384
"""Tokens of a prefill step of a worker: --chunked-prefill-size of ai-dynamo/dynamo `dsr1-wideep-gb200.md`.

SGLang divides it by the data-parallel groups, so that each runs a piece of a prompt of its own."""
UTILISATION = 0.97
"""Share of the memory for weights and KV: DeepSeek-R1 in fp8 on four GB200, which was measured, needs it."""
LIMIT = 0.25
ROUNDS = 10
REQUESTS = 6000
"""A load is cut to so many requests, or to three rounds where those are more."""
COLUMNS = ("tput_per_gpu", "median_tpot", "median_ttft")


@dataclass(frozen=True, slots=True)
class Workers:
    """One side: equal workers, each a replica."""

    count: int
    shape: Shape

    @property
    def gpus(self) -> int:
        """GPUs of all of them."""
        return self.count * self.shape.gpus

    def __str__(self) -> str:
        s = self.shape
        return f"{self.count}:tp={s.tp},dp={s.dp},ep={s.ep}"


@dataclass(frozen=True, slots=True)
class Configuration:
    """What repeated rows have in common, and the medians of what was measured."""

    gpu: str
    engine: str
    precision: str
    prompt: int
    output: int
    clients: int
    prefill: Workers
    decode: Workers
    tokens_per_gpu_s: float
    tpot_s: float
    ttft_s: float

    @property
    def name(self) -> str:
        """For a table."""
        return (
            f"{self.gpu} {self.engine} {self.precision} {self.prompt}/{self.output} x{self.clients} "
            f"P {self.prefill} D {self.decode}"
        )

    @property
    def formats(self) -> dict[str, str]:
        """How weights and KV are stored, as in the aggregated rows of the source."""
        fp4 = {"experts": "nvfp4", "linear": "nvfp4", "attention": "bf16"} if self.precision == "fp4" else {}
        return fp4 | {"kv": "fp8"}

    def simulator(self, latency: str) -> Simulator:
        """Its servers. KV goes over NVLink within GB200's domain, else over the network of each GPU."""
        gpu = catalog.hardware(self.gpu)
        gpus = self.prefill.gpus + self.decode.gpus
        network = (gpu.network_bytes_per_s or gpu.link_bytes_per_s) * self.prefill.shape.gpus
        within = gpu.link_gpus is not None and gpus <= gpu.link_gpus
        made = make(
            "backends", "sim", model=MODEL, hardware=self.gpu, latency=latency, log_steps=False,
            policy=f"vllm-v1:budget={CHUNK},long_prefill={CHUNK // self.prefill.shape.dp}", prefill=str(self.prefill),
            decode=f"{self.decode},policy=distserve-decode:max_seqs=16384", utilisation=UTILISATION,
            link="nvlink" if within else f"{network / 1e9:g}GBps",
        )  # fmt: skip
        return cast("Simulator", made)


def configurations(data: Path) -> tuple[list[Configuration], Counter[str]]:
    """The configurations with prefill and decode apart; rows that are left out, counted by reason."""
    table = pd.read_csv(needed(data / "profiles" / "inferencemax.csv"))
    table = table[table["disagg"]]
    drafted = table["spec_decoding"] != "none"
    out = Counter({"rows draft tokens (MTP), and no public figure says how many are accepted": int(drafted.sum())})
    table = table[~drafted]
    names = [
        "hw", "framework", "precision", "isl", "osl", "conc",
        *(f"{side}_{what}" for side in ("prefill", "decode") for what in ("tp", "ep", "dp_attention", "num_workers")),
        "num_prefill_gpu", "num_decode_gpu",
    ]  # fmt: skip
    found = []
    for key, same in table.groupby(names, sort=True):
        r = dict(zip(names, cast("tuple[object, ...]", key), strict=True))
        try:
            prefill, decode = _workers(r, "prefill"), _workers(r, "decode")
        except UsageError as error:
            out[str(error)] += len(same)
            continue
        found.append(
            Configuration(
                str(r["hw"]).partition("-")[0],
                str(r["framework"]),
                str(r["precision"]),
                *(int(str(r[name])) for name in ("isl", "osl", "conc")),
                prefill,
                decode,
                *(float(same[name].median()) for name in COLUMNS),
            )
        )
    return found, out


def _workers(r: dict[str, object], side: str) -> Workers:
    """With attention data-parallel each GPU is a group and experts lie on all of them. SGLang's rows on GB200 have
    ones for tp and ep, which are not what a worker of 4 or 48 GPUs has: the number of GPUs decides."""
    count = int(float(str(r[f"{side}_num_workers"])))
    gpus = int(float(str(r[f"num_{side}_gpu"]))) // count
    apart = str(r[f"{side}_dp_attention"]).lower() == "true"
    named = int(float(str(r[f"{side}_ep"])))
    shape = Shape(1, 1, gpus, gpus) if apart else Shape(gpus, 1, 1, min(named, gpus))
    shape.check(catalog.model(MODEL))
    return Workers(count, shape)


def simulated(task: tuple[Configuration, str]) -> tuple[float, float, float] | None:
    """(tokens/s per GPU, median TPOT, median TTFT); None where it does not fit the memory."""
    one, latency = task
    rounds = max(3, min(ROUNDS, REQUESTS // one.clients))
    load = Load(one.prompt, one.output, one.clients, rounds)
    try:
        times = run(load, one.simulator(latency), most=rounds * one.clients)
    except UsageError as error:
        print(f"{one.name}: {error}", file=sys.stderr)
        return None
    gpus = one.prefill.gpus + one.decode.gpus
    return times.tokens_per_s / gpus, float(np.median(times.tpot_s)), float(np.median(times.ttft_s))


def latency_of(one: Configuration, *, roofline: bool) -> str:
    """The spec of its step times; the roofline has one number of bits for all matrices."""
    if roofline:
        return f"roofline:weight_bits={4.5 if one.precision == 'fp4' else 8},kv_bits=8"
    return "operators:" + ",".join(f"{key}={value}" for key, value in one.formats.items())


def ranks(values: np.ndarray) -> np.ndarray:
    """Ranks, ties sharing their mean."""
    return np.asarray(pd.Series(values).rank())


def summary(found: Sequence[Configuration], logs: np.ndarray) -> dict[str, float]:
    """Median, p90 and bias of both errors, the share within the limit, and rank correlations of (n, 3) log ratios."""
    measured = np.array([(one.tokens_per_gpu_s, 1 / one.tpot_s) for one in found])
    result: dict[str, float] = {"configurations": len(found)}
    for i, name in enumerate(("throughput", "interactivity")):
        error = np.abs(logs[:, i])
        pair = [ranks(measured[:, i]), ranks(measured[:, i] * np.exp(logs[:, i]))]
        result |= {
            name: float(np.median(error)), f"{name}_p90": float(np.quantile(error, 0.9)),
            f"{name}_bias": float(np.median(logs[:, i])), f"{name}_within": float(np.mean(error <= LIMIT)),
            f"{name}_rank": float(np.corrcoef(*pair)[0, 1]) if len(found) > 1 else 1.0,
        }  # fmt: skip
    return {key: round(value, 4) for key, value in result.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, worst first; returns 1 where a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", metavar="DIR")
    parser.add_argument("--out", metavar="FILE")
    parser.add_argument("--roofline", action="store_true", help="simulate with the roofline too, and print it beside")
    given = parser.parse_args(arguments)
    data = sources.data_folder(given.data)
    if data is None:
        print("The public measurements are not here; name their folder with --data DIR.", file=sys.stderr)
        return 2
    found, out = configurations(data)
    models = ("operators", "roofline") if given.roofline else ("operators",)
    tasks = [(one, latency_of(one, roofline=name == "roofline")) for name in models for one in found]
    answers: dict[tuple[Configuration, str], tuple[float, float, float] | None] = {}
    with pool.of() as workers:
        answers.update(workers.map(simulated, tasks))
    logs = {name: _logs(found, [answers[task] for task in tasks if task[1].startswith(name)]) for name in models}
    print(table(found, logs))
    groups: dict[str, list[int]] = {"all": list(range(len(found)))}
    for i, one in enumerate(found):
        groups.setdefault(f"{one.gpu} {one.engine} {one.precision}", []).append(i)
    result: dict[str, dict[str, float]] = {}
    for name in models:
        for group, where in groups.items():
            fits = [i for i in where if not np.isnan(logs[name][i]).any()]
            if not fits:
                continue
            result[f"{name}: {group}"] = summary([found[i] for i in fits], logs[name][fits])
            print(f"{name}: {group}: {result[f'{name}: {group}']}")
    for reason, count in out.items():
        print(f"left out: {count} {reason}")
    if given.out is not None:
        Path(given.out).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    whole = result["operators: all"]
    return 0 if max(whole["throughput"], whole["interactivity"]) <= LIMIT else 1


def _logs(found: Sequence[Configuration], answers: Sequence[tuple[float, float, float] | None]) -> np.ndarray:
    """(n, 3) log ratios of throughput, interactivity and TTFT; nan where a configuration does not fit."""
    logs = np.full((len(found), 3), np.nan)
    for i, (one, answer) in enumerate(zip(found, answers, strict=True)):
        if answer is not None:
            rate, tpot_s, ttft_s = answer
            logs[i] = np.log([rate / one.tokens_per_gpu_s, one.tpot_s / tpot_s, ttft_s / one.ttft_s])
    return logs


def table(found: Sequence[Configuration], logs: dict[str, np.ndarray]) -> str:
    """Measured values and how far each model is off, the worst first."""
    worst = np.nan_to_num(np.abs(logs["operators"][:, :2]).max(axis=1), nan=np.inf)
    head = "".join(f"  {name}: tok/s, 1/TPOT, TTFT" for name in logs)
    lines = [f"{'configuration':<82}{'tok/s/GPU':>10}{'1/TPOT':>8}{head}"]
    for i in np.argsort(-worst):
        one = found[i]
        off = "".join(f"  {log[i, 0]:+8.2f} {log[i, 1]:+8.2f} {log[i, 2]:+8.2f}" for log in logs.values())
        lines.append(f"{one.name:<82}{one.tokens_per_gpu_s:>10.0f}{1 / one.tpot_s:>8.1f}{off}")
    return "\n".join(lines)


if __name__ == "__main__":
    from published import disaggregated  # by its name, so that processes can find what they call

    sys.exit(disaggregated.main())
