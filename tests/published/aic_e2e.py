"""Serving benchmarks of dense models on H100 and H200, end to end: TTFT and TPOT at fixed lengths and concurrency.

Source: ai-dynamo/aiconfigurator `silicon_sample.csv` (Apache-2.0): vLLM, SGLang and TensorRT-LLM, several degrees of
tensor parallelism. Each group of one GPU, model and engine is calibrated on every third of its rows, in order of
lengths, tensor parallelism and concurrency, and scored on the others. What the rows do not tell of a benchmark or a
server (see `Knobs`) is chosen on the calibration rows too. Mixtures of experts are left out, and models whose name
tells no number of parameters, each with the count of its rows.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.optimize import least_squares

from harness import catalog
from harness.experiments import pool
from harness.experiments.validate import Pair, Validation
from harness.experiments.validate.answer import MEAN, target
from published.closed_loop import Load, Server, run
from published.form import needed

FILE = "profiles/aic_silicon_e2e.parquet"
SYSTEMS = {"h100_sxm": "h100", "h200_sxm": "h200"}
MOE = re.compile(r"A\d+(?:\.\d+)?B|deepseek|minimax|kimi|mixtral|gpt-oss|glm-(?:4\.[5-9]|[5-9])|moe", re.IGNORECASE)
SIZE = re.compile(r"(\d+(?:\.\d+)?)B")
EVERY = 3
FITTED, CHOSEN = 18, 30  # calibration rows at most that the constants and the choice of the knobs see, evenly spread
ROUGH, SETTLED = 3, 8  # steps of a fit; constants that have settled may hide what a knob would explain
ROUNDS = 2  # of a search
FAR = 1.0  # |log error| beyond which a row weighs no more
PRIOR = 0.05  # weight of a constant's log distance from its physical estimate
OTHERS = (
    "aiconfigurator, calibrated on none of them: {} % (other rows: all of its public measurements); here constants and "
    "unknown settings are chosen on a third of the rows"
)
DATA_WORDS = "ai-dynamo/aiconfigurator silicon_sample.csv"
Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Constants:
    """Seconds of a step: overhead + seq * decodes + max(weights / tp, token / tp * tokens) + ..., see `latency`.

    `front_s` and `front_token_s` are added to each TTFT: HTTP, tokenizer and queues before the scheduler.
    """

    overhead_s: float
    seq_s: float
    weights_s: float
    token_s: float
    context_token_s: float
    reduce_token_s: float
    squared_s: float
    front_s: float
    front_token_s: float

    def latency(self, tp: int) -> str:
        """The spec of `mixed` for a tensor-parallel degree."""
        reduce_s = self.reduce_token_s * (tp - 1) / tp
        values = {
            "floor_s": self.overhead_s + self.weights_s / tp,
            "base_s": self.overhead_s,
            "token_s": self.token_s / tp + reduce_s,
            "seq_s": self.seq_s + reduce_s,
            "context_token_s": self.context_token_s / tp,
            "prefill_token_squared_s": self.squared_s / tp,
        }
        return "mixed:constants=given," + ",".join(f"{name}={value:.9g}" for name, value in values.items())


@dataclass(frozen=True, slots=True)
class Knobs:
    """What the rows do not tell, each with what it may be.

    `statistic` of TTFT; `kv_share`: stored bytes per token over those of fp16; `utilisation` of memory; `surplus`:
    clients beyond those that the server runs at a time; `max_seqs`; `rounds` of requests; share `cached` of prompts;
    `reserves`: memory for the whole answer at admission; token `budget` of a step.
    """

    statistic: str = "mean"
    kv_share: float = 1.0
    utilisation: float = 0.9
    surplus: int = 0
    max_seqs: int = 1024
    rounds: int = 10
    cached: float = 0.0
    reserves: bool = False
    budget: int = 8192


CHOICES: dict[str, tuple[Any, ...]] = {
    "statistic": ("mean", "median"),
    "cached": (0.0, 0.5, 0.9, 0.99),
    "surplus": (0, 1),
    "kv_share": (1.0, 0.5),
    "utilisation": (0.8, 0.85, 0.9, 0.95),
    "reserves": (False, True),
    "max_seqs": (1024, 512, 448, 384, 256, 128),
    "rounds": (10, 5, 2),
    "budget": (8192, 2048, 16384),
}


@dataclass(frozen=True, slots=True)
class Shape:
    """What is known of a model: parameters, bytes of fp16 KV per token; and of the GPU: bytes/s, bytes, FLOP/s."""

    parameters: float
    kv_bytes: float
    weight_bytes: float
    bandwidth: float
    memory: float
    flops: float

    def estimate(self) -> Constants:
        """Physical estimates of the constants, where the fit begins."""
        return Constants(
            overhead_s=5e-3,
            seq_s=2e-5,
            weights_s=self.parameters * self.weight_bytes / self.bandwidth / 0.8,
            token_s=2 * self.parameters / self.flops / 0.5,
            context_token_s=self.kv_bytes / self.bandwidth / 0.7,
            reduce_token_s=2e-6,
            squared_s=self.kv_bytes * 4 / self.flops,
            front_s=0.03,
            front_token_s=1e-6,
        )

    def kv_tokens(self, tp: int, knobs: Knobs) -> int:
        """Tokens of KV that fit beside the weights and 2 GB of activations per GPU."""
        room = tp * (self.memory * knobs.utilisation - 2e9) - self.parameters * self.weight_bytes
        return max(4096, int(room / (self.kv_bytes * knobs.kv_share)))


def validate(data: Path) -> Validation:
    """Calibrate and score every group of dense models on H100 and H200. Raises UsageError without its file."""
    rows, left_out = _rows(data)
    tasks = list(_groups(rows))
    with pool.of() as workers:
        found = dict(workers.map(_scored, tasks))
    groups = [found[task] for task in tasks]
    pairs = [pair for group in groups for pair in group.pairs]
    return Validation(
        "aic-e2e",
        "Dense models on H100 and H200 under fixed concurrency, three engines",
        (
            f"Measured: {DATA_WORDS}, aggregated rows of models that are no mixture of experts.",
            f"Left out: {left_out}.",
            f"Calibrated on every {EVERY}rd row of each GPU, model and engine; scored on all others.",
            "Simulated: policy sarathi, latency mixed, clients in a closed loop that start together.",
            *(group.note for group in groups),
        ),
        tuple(pairs),
        (
            target(pairs, "tpot_s", MEAN, 12.0, OTHERS.format(15)),
            target(pairs, "ttft_s", MEAN, 30.0, OTHERS.format(55)),
        ),
    )


def _rows(data: Path) -> tuple[pd.DataFrame, str]:
    """The rows of dense models, and which others are left out, in words."""
    rows = pd.read_parquet(needed(data / FILE))
    rows = rows[(rows["mode"] == "agg") & rows["system"].isin(list(SYSTEMS))]
    rows = rows.dropna(subset=["tp_size", "batch_size", "silicon_ttft_ms", "silicon_tpot_ms"])
    rows = rows[(rows["silicon_ttft_ms"] > 0) & (rows["silicon_tpot_ms"] > 0)]
    models = rows["model_path"].astype(str)
    experts = models.str.contains(MOE)
    unsized = ~experts & ~models.map(lambda name: bool(SIZE.search(name)))
    named = ((models[experts], "mixtures of experts"), (models[unsized], "models whose name tells no size"))
    left_out = [f"{what}: {_counted(names)}" for names, what in named if len(names)]
    dense: pd.DataFrame = rows[~experts & ~unsized]
    return dense, "; ".join(left_out) or "no row"


def _counted(names: "pd.Series[str]") -> str:
    return ", ".join(f"{count} rows of {name}" for name, count in names.value_counts().sort_index().items())


@dataclass(frozen=True, slots=True)
class _Measured:
    prompt: int
    output: int
    tp: float
    clients: float
    ttft_ms: float
    tpot_ms: float
    shape: Shape | None = None  # at the precision of this row, where it is known


@dataclass(frozen=True, slots=True)
class _Group:
    pairs: tuple[Pair, ...]
    note: str


@dataclass(frozen=True, slots=True)
class _Task:
    name: str
    rows: tuple[_Measured, ...]
    shape: Shape


def _groups(rows: pd.DataFrame) -> Iterator[_Task]:
    keys = ["system", "model_path", "backend"]
    for named, group in rows.groupby([rows[key].astype(str) for key in keys]):
        system, model, engine = (str(name) for name in named)
        order = ["isl", "osl", "tp_size", "batch_size"]
        columns = [*order, *_TIMES, "precision", "gemm_quant_mode"]
        table = list(group.sort_values(order)[columns].itertuples(index=False))
        shapes = [_shape(model, system, f"{precision} {gemm}".lower()) for *_, precision, gemm in table]
        measured = tuple(replace(_Measured(*row[:-2]), shape=shape) for row, shape in zip(table, shapes, strict=True))
        if len(measured) >= 2 * EVERY:
            yield _Task(f"{model} on {system}, {engine}", measured, shapes[0])


_TIMES = ["silicon_ttft_ms", "silicon_tpot_ms"]


def _shape(model: str, system: str, precision: str) -> Shape:
    """What is known of a model on a GPU at a precision, in the words of a row: 'fp8 fp8_block', 'nan nan'."""
    gpu = catalog.hardware(SYSTEMS[system])
    parameters = float(SIZE.findall(model)[-1]) * 1e9
    known = [catalog.model(name) for name in catalog.models()]
    alike = min(known, key=lambda m: abs(math.log(catalog.parameters(m) / parameters)) + 0.1 * (m.family != "llama"))
    weight_bytes = 1.0 if "fp8" in precision else 2.0
    return Shape(
        parameters, catalog.kv_bytes_per_token(alike), weight_bytes, gpu.bandwidth_bytes_per_s, gpu.memory_bytes,
        gpu.peak_flops(int(weight_bytes)),
    )  # fmt: skip


def _scored(task: _Task) -> _Group:
    name, rows, shape = task.name, task.rows, task.shape
    seen = [i % EVERY == 1 for i in range(len(rows))]
    constants, knobs = _calibrated([row for row, here in zip(rows, seen, strict=True) if here], shape)
    pairs = []
    for row, calibrated in zip(rows, seen, strict=True):
        ttft_s, tpot_s = _simulated(row, shape, constants, knobs)
        setting = f"{name}, {row.prompt}/{row.output} tp{row.tp:g} x{row.clients:g}"
        pairs.append(Pair(setting, "ttft_s", row.ttft_ms / 1e3, ttft_s, calibrated))
        pairs.append(Pair(setting, "tpot_s", row.tpot_ms / 1e3, tpot_s, calibrated))
    return _Group(tuple(pairs), f"{name}: {len(rows)} rows, {sum(seen)} of them calibrated on; {_format(knobs)}.")


def _format(knobs: Knobs) -> str:
    changed = [f"{f.name} {getattr(knobs, f.name)}" for f in fields(knobs) if getattr(knobs, f.name) != f.default]
    return "found " + ", ".join(changed) if changed else "all knobs as they stand"


def _simulated(row: _Measured, shape: Shape, constants: Constants, knobs: Knobs) -> tuple[float, float]:
    """(TTFT, TPOT) in seconds, each as the benchmark sums it up; `constants` are for the precision of `shape`."""
    tp, clients, own = int(row.tp), int(row.clients), row.shape or shape
    at_own = replace(
        constants,
        weights_s=constants.weights_s * own.weight_bytes / shape.weight_bytes,
        token_s=constants.token_s * shape.flops / own.flops,
    )
    server = Server(
        at_own.latency(tp),
        own.kv_tokens(tp, knobs),
        min(knobs.max_seqs, clients) if knobs.surplus else knobs.max_seqs,
        knobs.budget,
        knobs.reserves,
    )
    load = Load(row.prompt, row.output, clients + knobs.surplus, knobs.rounds, cached=knobs.cached)
    times = run(load, server.simulator())
    of = np.mean if knobs.statistic == "mean" else np.median
    return float(of(times.ttft_s)) + constants.front_s + constants.front_token_s * row.prompt, float(of(times.tpot_s))


def _calibrated(rows: Sequence[_Measured], shape: Shape) -> tuple[Constants, Knobs]:
    """What leaves the least error, of the searches that begin with rough and with settled constants."""
    few, some = _spread(rows, FITTED), _spread(rows, CHOSEN)
    found = [_search(few, some, shape, tries) for tries in (ROUGH, SETTLED)]
    return min(found, key=lambda one: _left(some, shape, *one))


def _search(few: Sequence[_Measured], some: Sequence[_Measured], shape: Shape, tries: int) -> tuple[Constants, Knobs]:
    """Constants by least squares and knobs by what they leave, in turn until the knobs stay."""
    knobs = Knobs()
    constants = _fit(few, shape, shape.estimate(), knobs, tries)
    for _ in range(ROUNDS):
        chosen = _choose(some, shape, constants, knobs)
        constants = _fit(few, shape, constants, chosen, SETTLED)
        if chosen == knobs:
            break
        knobs = chosen
    return constants, knobs


def _spread(rows: Sequence[_Measured], most: int) -> Sequence[_Measured]:
    """At most so many of the rows, from first to last."""
    return rows if len(rows) <= most else [rows[round(i)] for i in np.linspace(0, len(rows) - 1, most)]


def _fit(rows: Sequence[_Measured], shape: Shape, start: Constants, knobs: Knobs, tries: int) -> Constants:
    names = [f.name for f in fields(Constants)]
    prior = np.log([getattr(shape.estimate(), name) for name in names])

    def residuals(logs: Array) -> Array:
        constants = Constants(*np.exp(logs))
        apart = [_apart(row, shape, constants, knobs) for row in rows]
        return np.concatenate([np.array(apart).ravel(), PRIOR * (logs - prior)])

    begin = np.log([getattr(start, name) for name in names])
    found = least_squares(
        residuals, begin, diff_step=np.full(len(names), 0.05), max_nfev=tries, loss="soft_l1", f_scale=0.1
    )
    return Constants(*(float(value) for value in np.exp(found.x)))


def _apart(row: _Measured, shape: Shape, constants: Constants, knobs: Knobs) -> tuple[float, float]:
    """Log errors of (TTFT, at half weight, TPOT)."""
    ttft_s, tpot_s = _simulated(row, shape, constants, knobs)
    late = math.log(ttft_s * 1e3 / row.ttft_ms)
    return 0.5 * min(max(late, -FAR), FAR), math.log(tpot_s * 1e3 / row.tpot_ms)


def _choose(rows: Sequence[_Measured], shape: Shape, constants: Constants, knobs: Knobs) -> Knobs:
    """Each knob in turn at what leaves the least error on the calibration rows; a change must gain 2 %."""
    best = _left(rows, shape, constants, knobs)
    for name, values in CHOICES.items():
        for value in values:
            if value == getattr(knobs, name):
                continue
            tried = replace(knobs, **{name: value})
            error = _left(rows, shape, constants, tried)
            if error < 0.98 * best:
                best, knobs = error, tried
    return knobs


def _left(rows: Sequence[_Measured], shape: Shape, constants: Constants, knobs: Knobs) -> float:
    """Mean size of the log errors of the rows."""
    return float(np.mean(np.abs([_apart(row, shape, constants, knobs) for row in rows])))
