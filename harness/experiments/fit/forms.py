"""The form of each latency model in a fit: which columns its constants multiply.

Measured times by load, made to not fall: more work never takes less time.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from harness import registry
from harness.errors import UsageError, no_such
from harness.experiments.fit.solve import FAR, Solution, predict, solve, with_pairs
from harness.experiments.fit.steps import LEAST_KNOWN, Rows
from harness.stats.crossing import monotone

HINGES = 40
"""Places that are tried for the number of tokens at which computing takes over from reading the weights."""

CONSTANTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "linear": ("base_s", "prefill_token_s", "decode_seq_s", "context_token_s", "prefill_token_squared_s"),
        "mixed": ("floor_s", "token_s", "seq_s", "context_token_s", "prefill_token_squared_s"),
        "operators": ("scale", "prefill_scale", "overhead_s", "seq_s"),
        "table": ("context_token_s", "prefill_token_squared_s"),
    }
)
FASTEST = 0.5
"""Kernels that take a smaller part of their measured time would pass the peaks of the GPU."""
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

    `left_out` are constants that the rows cannot tell, with the reason: they are 0, or as the model has them by itself.
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
        if name == "prefill_scale" and value < 1:
            raise UsageError(f"prefill_scale is 1 or more: arithmetic takes no less than measured, got {value:g}.")


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


def _operators(rows: Rows, system: System, fixed: Mapping[str, float]) -> Fitted:
    """Measured kernels keep their shares of a step: they are slower by one factor, and the arithmetic of prompts by
    another; beside them the host takes time for the step and for each of its sequences.

    What the rows do not tell from what `operators` has by itself stays so. Steps whose kernels wait for the host tell
    of none of it.
    """
    rows = with_pairs(rows)

    def predicted(options: str) -> np.ndarray:
        return predict(rows, registry.make("latency", f"operators:seq_s=0,{options}", **asdict(system)))

    kernels_s = predicted("prefill_scale=1,launch_s=0")
    arithmetic_s = predicted("prefill_scale=2,launch_s=0") - kernels_s
    runs = predicted("prefill_scale=1") == kernels_s  # does not wait for the host
    columns = {"overhead_s": np.ones(len(rows)), "seq_s": rows.seqs + (rows.tokens > 0), "prefill_scale": arithmetic_s}
    usual = registry.make("latency", "operators", **asdict(system))
    constants, left_out = dict(fixed), dict[str, str]()

    def solved(prefill_scale: float, scale: float = 1.0) -> Solution:
        """The constants by what steps take longer for more of each, at these two."""
        longer = columns | {"prefill_scale": scale * arithmetic_s}
        free = {name: column for name, column in longer.items() if name != "prefill_scale" or name not in constants}
        free["scale"] = kernels_s + (prefill_scale - 1) * arithmetic_s
        return solve({name: column[runs] for name, column in free.items()}, rows.seconds[runs], constants)

    while True:
        asking = [name for name in columns if name not in constants]
        try:
            solution = solved(constants.get("prefill_scale", 1.0))
        except UsageError as error:
            if not asking:
                raise
            # what no row has, else what the others may stand for
            name, why = min(asking, key=lambda name: columns[name][runs].any()), str(error)
        else:
            values, spread = dict(solution.values), dict(solution.plus_minus)
            if values["scale"] < FASTEST:
                raise UsageError(
                    f"The steps would need kernels of {system.model} on {system.hardware} that take "
                    f"{values['scale']:.2g} times as long as measured; is this the model, the GPU and the tp of these "
                    "steps? Give --model, --hardware and --tp."
                )
            if "prefill_scale" in spread:
                values["prefill_scale"] = 1 + values["prefill_scale"] / values["scale"]
                spread["prefill_scale"] = solved(values["prefill_scale"], values["scale"]).plus_minus["prefill_scale"]
            unchanged = [name for name in asking if not abs(values[name] - getattr(usual, name)) > spread[name]]
            if not unchanged:
                break
            name, why = unchanged[0], f"its interval holds {getattr(usual, unchanged[0]):g}, which it is by itself"
        constants[name], left_out[name] = getattr(usual, name), why
    arguments = {name: value for name, value in {**constants, **values}.items() if name not in left_out}
    if not runs.all():
        left_out["launch_s"] = f"{int((~runs).sum())} of {len(rows)} steps wait for the host by it, and are not fitted"
    return Fitted("operators", arguments, spread, left_out)


FORMS: Mapping[str, Form] = MappingProxyType(
    {"linear": _linear, "mixed": _mixed, "operators": _operators, "table": _table}
)


def points(x: np.ndarray, seconds: np.ndarray) -> list[list[float]]:
    """At most `MOST` points (x, seconds), x rising and seconds not falling: means of bins, pooled where they fall."""
    cuts = np.unique(np.quantile(x, np.linspace(0, 1, MOST + 1)))
    which = np.searchsorted(cuts, x, side="right").clip(max=len(cuts) - 1) if len(cuts) > 1 else np.zeros(len(x), int)
    bins = [which == i for i in np.unique(which)]
    places = [float(np.mean(x[mask])) for mask in bins]
    means = []
    for mask in bins:  # what is far off is brought nearer
        middle = float(np.median(seconds[mask]))
        usual = float(np.median(np.abs(seconds[mask] - middle))) / 0.6745
        means.append(float(np.clip(seconds[mask], middle - FAR * usual, middle + FAR * usual).mean()))
    heights = monotone(means, [int(mask.sum()) for mask in bins])
    return [[place, max(height, 1e-9)] for place, height in zip(places, heights, strict=True)]
