"""How far simulated step times were from measurements: of this model and GPU, or of those that are most like them.

Never a mean over all there are: the error on one generation of GPUs, or on one class of models, says nothing of others.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from harness import catalog
from harness.catalog import Formats, Hardware, Model
from harness.data.run_json import StepTimes
from harness.metrics.resources import sides_of
from harness.spec import parse

SMALL = 20e9
"""Parameters below which a dense model is small: between those of 8 and of 70 billion, which were measured."""


def of_backend(backend: Mapping[str, Any]) -> list[StepTimes]:
    """Of each latency model and GPU of a simulated or paced system, by its facts in run.json; empty where none decides
    how long steps take."""
    keys = ("latency", "hardware", "policy")
    sides = dict.fromkeys(tuple(str(side.get(key) or "") for key in keys) for side in sides_of(backend))
    return [
        nearest(latency, gpu, *catalog.described(backend, gpu), policy=policy)
        for latency, gpu, policy in sides
        if latency and gpu
    ]


def nearest(latency: str, gpu: str, m: Model | None, on: Hardware | None, *, policy: str = "") -> StepTimes:
    """How far a latency model was on the row of measurements that is most like this model on the GPU of this name.

    Only rows of the same generation of GPU count, and of the same class of model where there are any. Those of this GPU
    come first, then those of this model, of weights as wide, of the engine that the policy is named after, and then the
    longest.
    """
    spec = parse(latency)
    generation = None if on is None else on.generation
    step_times = StepTimes(latency=spec.name, hardware=gpu, generation=generation)
    if spec.name == "file" or "file" in spec.args:
        return msgspec.structs.replace(step_times, badge="yours")
    if m is None or on is None or generation is None:
        return step_times
    rows = [
        (catalog.model(row["model"]), row)
        for row in catalog.comparisons(spec.name)
        if catalog.hardware(row["hardware"]).generation == generation
    ]
    if not rows:
        return step_times
    alike = [(measured, row) for measured, row in rows if _class(measured) == _class(m)]
    bits = str(round(catalog.format_named(m.formats.linear if m.experts is None else m.formats.experts).bits))

    def distance(pair: tuple[Model, Mapping[str, Any]]) -> tuple[float, ...]:
        measured, row = pair
        engine, width = str(row.get("engine", "")).lower(), str(row.get("format", ""))
        return (
            row["hardware"] != on.name, _shape(measured) != _shape(m), not width.endswith(bits),
            not (engine and policy.startswith(engine)), -row.get("rows", 0),
        )  # fmt: skip

    pair = min(alike or rows, key=distance)
    same_gpu, same_model = (not apart for apart in distance(pair)[:2])
    errors = {f"{name}_error": math.expm1(pair[1][name]) for name in ("tpot", "ttft") if name in pair[1]}
    return msgspec.structs.replace(
        step_times,
        badge="measured here" if same_gpu and same_model else "near" if alike else "other",
        of_model=pair[0].name,
        of_hardware=pair[1]["hardware"],
        **{key: pair[1][key] for key in ("engine", "format", "rows", "figures") if key in pair[1]},
        **errors,
    )


def _class(m: Model) -> str:
    """What kernels a model runs most: models of one class are as far off as others of it."""
    if m.latent is not None:
        return "latent attention"
    if m.experts is not None:
        return "mixture of experts"
    return "small" if catalog.parameters(m) < SMALL else "large"


def _shape(m: Model) -> Model:
    """The model without its name and formats: checkpoints of one shape take equal steps."""
    return replace(m, name="", source="", max_tokens=0, drafts=0, formats=Formats())
