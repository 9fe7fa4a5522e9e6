"""The simulator against measurements of real systems, scored on runs that its calibration did not see."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from harness import validate
from harness.acceptance import Place, Row, measured
from harness.validate.scoring import in_points

if TYPE_CHECKING:
    from harness.validate import Target

_TOLD = {
    "apex-h100": ("ground truth (vLLM, 8x H100)", ("S58.a", "S58.b", "S58.c")),
    "llmservingsim-4090": ("ground truth (vLLM, RTX 4090)", ("S58.d", "S58.e")),
    "distserve-66b-chat-ae": ("DistServe table 2", ("S26.a",)),
    "distserve-a100": ("vLLM and DistServe, A100", ("S26.b", "S26.c", "S26.d")),
}
_NOTES = {
    "S58.a": "Calibrated on 4 runs by a rule.",
    "S26.a": "Public constants and drawn arrivals; how many GPUs its vLLM had is not printed, 8 are simulated.",
    "S26.b": "Every other rate is calibrated on; 10 of 25 runs are scored.",
}


def rows(place: Place) -> Iterator[Row]:
    """S26 and S58: a row for each target of each set of measurements; S27: simulator and engine."""
    for source, (system, ids) in _TOLD.items():
        if place.data is None:
            yield from (_not_run(name, system, source) for name in ids)
            continue
        targets = validate.source(source)(place.data).targets
        yield from (_row(name, system, source, target) for name, target in zip(ids, targets, strict=True))
    yield _engine()


def _row(name: str, system: str, source: str, target: Target) -> Row:
    what = _metric(target)
    return Row(
        name, system, "real", target.published or "no other simulator's error is known",
        f"{what}: {_size(target, target.obtained)}", f"at most {_size(target, target.limit)}", target.holds,
        f"bench validate --against {source}", _NOTES.get(name, ""),
    )  # fmt: skip


def _not_run(name: str, system: str, source: str) -> Row:
    return Row(
        name, system, "real", "measurements", "not run", "-", None, f"bench validate --against {source}",
        "Needs the folder of public measurements.",
    )  # fmt: skip


def _metric(target: Target) -> str:
    name = target.metric.removesuffix("_pct").removesuffix("_s").replace("_", " ")
    return f"{name}, {target.how}"


def _size(target: Target, value: float) -> str:
    if "factor" in target.how:
        return f"{value:.2f} times"
    return f"{value:.1f} points" if in_points(target.metric) else f"{value:.1f} %"


def _engine() -> Row:
    """What `tests/perf/simulator_against_engine.py` has stored: it needs minutes of a quiet machine."""
    found = measured.engine()
    system, published = "simulator against our engine", "DistServe's simulator against its system: 2 points"
    band, command = "at most 2 points at 7 rates", "python tests/perf/simulator_against_engine.py"
    if found is None:
        return Row("S27", system, "real", published, "not run", band, None, command, "Needs a quiet machine.")
    rates, real, ours = found["rates_rps"], found["measured_pct"], found["simulated_pct"]
    worst = max(abs(a - b) for a, b in zip(real, ours, strict=True))
    sides = ", ".join(f"{r:g}/s {a:.1f} {b:.1f}" for r, a, b in zip(rates, real, ours, strict=True))
    note = f"Rate, engine, simulator: % within {found['slo']}; {found['when']}; latency fitted on other runs."
    return Row(
        "S27", system, "real", published, f"{worst:.1f} points at most: {sides}", band,
        worst <= 2.0 and len(rates) >= 7, command, note,
    )  # fmt: skip
