"""The form of each latency model in a fit: which columns its constants multiply.

Measured times by load, made to not fall: more work never takes less time.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from harness import catalog
from harness.errors import UsageError, no_such
from harness.experiments.fit.solve import FAR, Solution, solve
from harness.experiments.fit.steps import LEAST_KNOWN, Rows

HINGES = 40
"""Places that are tried for the number of tokens at which computing takes over from reading the weights."""

LARGE_BATCH = 95
"""Decodes of this many sequences and more have constants of their own in `abc`."""
SHARES = ("memory_share", "flops_share")
CONSTANTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "abc": tuple(f"{p}_{c}_s" for p in ("prefill", "decode_small", "decode_large") for c in "abc"),
        "fit6": ("memory_share", "flops_share", "overhead_s", "seq_s", "token_s", "prefill_token_squared_s"),
        "linear": ("base_s", "prefill_token_s", "decode_seq_s", "context_token_s", "prefill_token_squared_s"),
        "mixed": ("floor_s", "token_s", "seq_s", "context_token_s", "prefill_token_squared_s"),
        "table": ("context_token_s", "prefill_token_squared_s"),
    }
)
MOST = 24
"""Most points of a table."""
Form: TypeAlias = "Callable[[Rows, System, Mapping[str, float]], Fitted]"


@dataclass(frozen=True, slots=True)
class System:
    """What a latency model may need to know beside its constants."""

    model: str = "opt-13b"
    hardware: str = "a100-80g"
    tp: int = 1


@dataclass(frozen=True, slots=True)
class Fitted:
    """A latency model with the `arguments` that its file holds, and how far each constant is known.

    `left_out` are constants that the rows cannot tell and that are 0 for it, with the reason.
    """

    latency: str
    arguments: Mapping[str, Any]
    plus_minus: Mapping[str, float]
    left_out: Mapping[str, str] = field(default_factory=dict)


def fit(latency: str, rows: Rows, system: System, fixed: Mapping[str, float]) -> Fitted:
    """Fit a latency model to steps; `fixed` are constants that are given. Raises UsageError where rows do not do."""
    check(latency, fixed)
    return FORMS[latency](rows, system, fixed)


def check(latency: str, fixed: Mapping[str, float]) -> None:
    """Raises UsageError for a latency model that cannot be fitted, or a given constant that it does not have."""
    if latency not in FORMS:
        raise no_such("latency model that can be fitted", latency, FORMS)
    for name, value in fixed.items():
        if name not in CONSTANTS[latency]:
            raise no_such(f"constant of {latency}", name, CONSTANTS[latency])
        if name in SHARES and not 0 < value <= 1:
            raise UsageError(f"{name} is a share of the peak, above 0 and at most 1, got {value:g}.")


def _without_unknown_pairs(rows: Rows, fixed: Mapping[str, float]) -> tuple[Rows, dict[str, str]]:
    """The rows whose pairs are known, where enough are; else all rows, and why the square term is left out."""
    name, prompts = "prefill_token_squared_s", rows.tokens > 0
    has_pairs = np.isfinite(rows.pairs)
    if name in fixed:
        return (rows, {}) if fixed[name] == 0 else (rows.take(has_pairs), {})
    if not prompts.any() or has_pairs[prompts].mean() >= LEAST_KNOWN:
        return rows.take(has_pairs), {}
    return rows, {name: "the rows do not tell how the prompts of a step were cut (column prefill_pairs)"}


def _columns(left_out: Mapping[str, str], **columns: np.ndarray) -> dict[str, np.ndarray]:
    return {name: np.nan_to_num(column) for name, column in columns.items() if name not in left_out}


def _linear(rows: Rows, _: System, fixed: Mapping[str, float]) -> Fitted:
    rows, left_out = _without_unknown_pairs(rows, fixed)
    solution = solve(
        _columns(
            left_out, base_s=np.ones(len(rows)), prefill_token_s=rows.tokens, decode_seq_s=rows.seqs,
            context_token_s=rows.context, prefill_token_squared_s=rows.pairs,
        ), rows.seconds, fixed,
    )  # fmt: skip
    return Fitted("linear", solution.values, solution.plus_minus, left_out)


def _mixed(rows: Rows, system: System, fixed: Mapping[str, float]) -> Fitted:
    """For a given hinge the model is linear: floor + token * max(0, tokens - hinge); the best hinge is searched."""
    del system
    rows, left_out = _without_unknown_pairs(rows, fixed)
    total = rows.tokens + rows.seqs
    # 0 and places among the loads that occur, of which the largest are left free to tell the slope
    loads = np.quantile(np.unique(total), np.linspace(0, 0.9, HINGES))
    tried: np.ndarray = np.unique(np.concatenate([[0.0], loads]))
    seen: list[float] = []
    solutions: list[tuple[float, float, Solution]] = []
    refused: UsageError | None = None
    for _ in range(4):  # coarse, then between the neighbours of the best
        for hinge in tried:
            try:
                solution = _with_hinge(rows, total, float(hinge), left_out, fixed)
            except UsageError as error:
                refused = refused or error
                continue
            if solution.values["floor_s"] >= solution.values["token_s"] * hinge:
                solutions.append((solution.loss, float(hinge), solution))
        if not solutions:
            break
        seen = sorted([*seen, *tried.tolist()])
        place = seen.index(min(solutions, key=lambda f: f[0])[1])
        tried = np.linspace(seen[max(0, place - 1)], seen[min(len(seen) - 1, place + 1)], 12)[1:-1]
    if not solutions:
        assert refused is not None  # without a hinge there always is a solution, or it is refused
        raise refused
    _, hinge, best = min(solutions, key=lambda f: f[0])
    values = {**best.values, "base_s": max(0.0, best.values["floor_s"] - best.values["token_s"] * hinge)}
    return Fitted("mixed", {"constants": "given", **values}, best.plus_minus, left_out)


def _with_hinge(
    rows: Rows, total: np.ndarray, hinge: float, left_out: Mapping[str, str], fixed: Mapping[str, float]
) -> Solution:
    columns = _columns(
        left_out, floor_s=np.ones(len(rows)), token_s=np.maximum(0, total - hinge), context_token_s=rows.context,
        prefill_token_squared_s=rows.pairs, seq_s=rows.seqs,
    )  # fmt: skip
    return solve(columns, rows.seconds, fixed)


def _abc(rows: Rows, _: System, fixed: Mapping[str, float]) -> Fitted:
    """Three constants each for steps of prompts alone, and of few and of many decodes alone."""
    prompts = rows.take((rows.tokens > 0) & (rows.seqs == 0) & np.isfinite(rows.pairs))
    if not len(prompts):
        raise UsageError(
            "abc needs steps of prompts alone whose lengths are known: a run with --policy vllm-v0, or a table with "
            "the column prefill_pairs."
        )
    ones = np.ones(len(prompts))
    prefill = solve(
        {"prefill_a_s": ones, "prefill_b_s": prompts.tokens, "prefill_c_s": prompts.pairs}, prompts.seconds, fixed
    )
    decodes = rows.take(rows.tokens == 0)
    small = _abc_decode(decodes.take(decodes.seqs < LARGE_BATCH), "small", fixed)
    left_out: dict[str, str] = {}
    many = decodes.take(decodes.seqs >= LARGE_BATCH)
    which = "large" if len(np.unique(many.seqs)) > 3 else "small"
    if which == "large":
        large = _abc_decode(many, "large", fixed)
    else:
        large = small
        left_out["decode_large_s"] = f"too few steps with {LARGE_BATCH} decodes and more; those of fewer stand for them"
    arguments = {
        "prefill_s": [prefill.values[f"prefill_{name}_s"] for name in "abc"],
        "decode_small_s": [small.values[f"decode_small_{name}_s"] for name in "abc"],
        "decode_large_s": [large.values[f"decode_{which}_{name}_s"] for name in "abc"],
    }
    return Fitted("abc", arguments, {**prefill.plus_minus, **small.plus_minus, **large.plus_minus}, left_out)


def _abc_decode(rows: Rows, which: str, fixed: Mapping[str, float]) -> Solution:
    columns = {"a": np.ones(len(rows)), "b": rows.context, "c": rows.seqs}
    return solve({f"decode_{which}_{name}_s": column for name, column in columns.items()}, rows.seconds, fixed)


def _table(rows: Rows, system: System, fixed: Mapping[str, float]) -> Fitted:
    """Attention and context as straight lines, the rest as medians that do not fall."""
    straight = _linear(rows, system, {name: fixed[name] for name in CONSTANTS["table"] if name in fixed})
    slopes = {name: float(straight.arguments.get(name, 0.0)) for name in CONSTANTS["table"]}
    left_s = rows.seconds - slopes["context_token_s"] * rows.context
    left_s -= slopes["prefill_token_squared_s"] * np.nan_to_num(rows.pairs)
    decode_only, prompts = (
        rows.tokens == 0,
        (rows.tokens > 0) & (np.isfinite(rows.pairs) | ("prefill_token_squared_s" in straight.left_out)),
    )
    if not decode_only.any() or not prompts.any():
        raise UsageError("table needs steps of decodes alone and steps with prompts; these rows have only one of them.")
    decode = [[x, 0, y] for x, y in points(rows.seqs[decode_only], left_s[decode_only])]
    squared_s = slopes["prefill_token_squared_s"]
    total = (rows.tokens + rows.seqs)[prompts]
    prefill = [[x, y + squared_s * x * x] for x, y in points(total, left_s[prompts])]
    spread = {name: straight.plus_minus[name] for name in slopes if name in straight.plus_minus}
    return Fitted("table", {**slopes, "prefill": prefill, "decode": decode}, spread, straight.left_out)


def _fit6(rows: Rows, system: System, fixed: Mapping[str, float]) -> Fitted:
    """Which of memory and arithmetic is longer is found by turns: given that, the model is linear."""
    rows, left_out = _without_unknown_pairs(rows, fixed)
    if system.tp == 1:
        left_out = left_out | {"token_s": "one GPU does not communicate (tp=1)"}
    memory_s, compute_s = _roof(rows, system)
    ways = 2 * (system.tp - 1) / system.tp
    beside = _columns(
        left_out, overhead_s=np.ones(len(rows)), seq_s=rows.seqs, token_s=ways * (rows.tokens + rows.seqs),
        prefill_token_squared_s=rows.pairs,
    )  # fmt: skip
    inverse = {name: 1 / value if name in SHARES else value for name, value in fixed.items()}
    tried = [_by_turns(memory_s, compute_s, beside, rows.seconds, inverse, start) for start in (0.3, 0.6, 1.0, 2.0)]
    best = min((attempt for attempt in tried if isinstance(attempt, Solution)), key=lambda one: one.loss, default=None)
    if best is None:
        refused = next(attempt for attempt in tried if isinstance(attempt, UsageError))
        raise refused
    return _shares(best, left_out)


def _by_turns(
    memory_s: np.ndarray, compute_s: np.ndarray, beside: Mapping[str, np.ndarray], seconds: np.ndarray,
    fixed: Mapping[str, float], start: float,
) -> Solution | UsageError:  # fmt: skip
    """The solution, with one over each share; `start` is how much slower memory is taken to be at first."""
    reading = start * memory_s >= compute_s
    solution: Solution | UsageError = UsageError("")
    for _ in range(12):
        shares = {"memory_share": np.where(reading, memory_s, 0.0), "flops_share": np.where(reading, 0.0, compute_s)}
        try:
            solution = solve({**shares, **beside}, seconds, fixed)
        except UsageError as refused:
            return refused
        updated = memory_s * solution.values["memory_share"] >= compute_s * solution.values["flops_share"]
        if (updated == reading).all():
            break
        reading = updated
    return solution


def _shares(found: Solution, left_out: Mapping[str, str]) -> Fitted:
    values, spread = dict(found.values), dict(found.plus_minus)
    for share in SHARES:
        slower = values[share]
        if slower < 1:
            raise UsageError(
                f"The steps are faster than {share}=1 allows; is this the model, the GPU and the tp of these steps? "
                "Give --model, --hardware and --tp."
            )
        values[share] = 1 / slower
        if share in spread:
            spread[share] /= slower**2
    return Fitted("fit6", {"constants": "given", **values}, spread, left_out)


def _roof(rows: Rows, system: System) -> tuple[np.ndarray, np.ndarray]:
    """(steps,) seconds of reading at the full bandwidth, and of computing at the full peak."""
    shape, gpu = catalog.model(system.model), catalog.hardware(system.hardware)
    catalog.check_parallel(shape, system.tp, 1)
    total = rows.tokens + rows.seqs
    weights = np.full(len(rows), float(catalog.parameters(shape)))
    if shape.experts is not None:
        idle = shape.experts.routed - np.array([shape.experts.hit(int(n)) for n in total])
        weights -= idle * shape.routed_layers * shape.expert_matrix
    moved = 2 * weights + catalog.kv_bytes_per_token(shape) * (rows.context + rows.stored)
    flops = 2 * catalog.active_parameters(shape) * total
    return (moved / (system.tp * gpu.bandwidth_bytes_per_s), flops / (system.tp * gpu.peak_flops(2)))


FORMS: Mapping[str, Form] = MappingProxyType(
    {"abc": _abc, "fit6": _fit6, "linear": _linear, "mixed": _mixed, "table": _table}
)


def points(x: np.ndarray, seconds: np.ndarray) -> list[list[float]]:
    """At most `MOST` points (x, seconds), x rising and seconds not falling: means of bins, pooled where they fall."""
    from scipy.optimize import isotonic_regression  # heavy

    cuts = np.unique(np.quantile(x, np.linspace(0, 1, MOST + 1)))
    which = np.searchsorted(cuts, x, side="right").clip(max=len(cuts) - 1) if len(cuts) > 1 else np.zeros(len(x), int)
    bins = [which == i for i in np.unique(which)]
    places = [float(np.mean(x[mask])) for mask in bins]
    means = []
    for mask in bins:  # what is far off is brought nearer
        middle = float(np.median(seconds[mask]))
        usual = float(np.median(np.abs(seconds[mask] - middle))) / 0.6745
        means.append(float(np.clip(seconds[mask], middle - FAR * usual, middle + FAR * usual).mean()))
    heights = isotonic_regression(means, weights=[int(mask.sum()) for mask in bins]).x.tolist()
    return [[place, max(height, 1e-9)] for place, height in zip(places, heights, strict=True)]
