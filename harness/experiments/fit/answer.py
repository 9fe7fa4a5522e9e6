"""One fit from beginning to end: read, split, fit, score on what was held out, and tell it.

The file of a fitted latency model: TOML that `--latency file:PATH` reads.
"""

import dataclasses
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from harness import registry
from harness.data import files
from harness.data.host import versions
from harness.errors import UsageError
from harness.experiments.fit import probe as probing
from harness.experiments.fit import requests
from harness.experiments.fit.forms import Fitted, System, check, fit
from harness.experiments.fit.probe import Probe
from harness.experiments.fit.score import sample, scores, split
from harness.experiments.fit.steps import Rows, read


@dataclass(frozen=True, slots=True)
class FitOptions:
    """The options of a fit: `holdout` is the share of rows held out from it."""

    latency: str = "mixed"
    system: System = dataclasses.field(default_factory=System)
    fixed: Mapping[str, float] = dataclasses.field(default_factory=dict)
    holdout: float = 0.2
    seed: int = 1
    gaps: bool = True


def from_steps(paths: Sequence[str], options: FitOptions, out: Path | None = None) -> dict[str, Any]:
    """The answer of a fit to step logs; the model goes to the file `out`."""
    check(options.latency, options.fixed)
    rows = read(paths, gaps=options.gaps)
    seen, unseen = split(rows, options.holdout, options.seed)
    fitted = fit(options.latency, sample(seen, options.seed), options.system, options.fixed)
    content = text(fitted.latency, fitted.arguments, _notes(paths, seen, unseen, options))
    model = made(content, options.system)
    if out is not None:
        write(out, content)
    errors = {
        "seen": [dataclasses.asdict(one) for one in scores(seen, model, options.seed)],
        "unseen": [dataclasses.asdict(one) for one in scores(unseen, model, options.seed)],
    }
    counts = {"rows": len(rows), "left_out_rows": rows.left_out, "seen_rows": len(seen), "unseen_rows": len(unseen)}
    return {**_head(options, paths, "steps"), **counts, **_constants(fitted, options), **errors,
            "out": None if out is None else str(out), "file": content}  # fmt: skip


def from_requests(paths: Sequence[str], options: FitOptions, backend: str, out: Path | None = None) -> dict[str, Any]:
    """The answer of a fit to results of requests, through the simulator that `backend` describes."""
    runs = requests.read(paths)
    masks = requests.split(runs, options.holdout, options.seed)
    constants, spread = requests.fit(options.latency, runs, masks, backend, options.fixed)
    given = {} if options.latency == "linear" else {"constants": "given"}
    fitted = Fitted(options.latency, {**given, **constants}, spread)
    seen = sum(int(mask.sum()) for mask in masks)
    total = sum(map(len, runs))
    notes = {"from": [*paths], "requests_seen": seen, "requests_held_out": total - seen, "backend": backend}
    content = text(fitted.latency, fitted.arguments, notes)
    if out is not None:
        write(out, content)
    errors = {
        name: [dataclasses.asdict(one) for one in requests.scores(runs, which, options.latency, constants, backend)]
        for name, which in (("seen", masks), ("unseen", [~mask for mask in masks]))
    }
    counts = {"rows": total, "left_out_rows": 0, "seen_rows": seen, "unseen_rows": total - seen}
    return {**_head(options, paths, "requests"), **counts, **_constants(fitted, options), **errors,
            "out": None if out is None else str(out), "file": content}  # fmt: skip


def from_endpoint(
    backend: str, probe: Probe, options: FitOptions, out: Path | None, say: Callable[[str], None]
) -> dict[str, Any]:
    """The answer of a fit to a probing run of an endpoint."""
    if options.latency not in ("linear", "mixed"):
        raise UsageError(f"An endpoint identifies the latency models linear and mixed, not '{options.latency}'.")
    fixed = {name: value for name, value in options.fixed.items() if name != "front_end_s"}
    check(options.latency, fixed)
    rows = probing.rows(backend, probe, options.seed, say)
    seen, unseen = split(rows, options.holdout, options.seed)
    front_s = options.fixed.get("front_end_s")
    front_s = probing.front_end_s(seen) if front_s is None else front_s
    steps = replace(seen, seconds=np.maximum(seen.seconds - front_s * (seen.tokens > 0), 1e-6))
    fitted = fit(options.latency, sample(steps, options.seed), options.system, fixed)
    fitted = replace(fitted, arguments={**fitted.arguments, "front_end_s": front_s})
    notes = {"from": [backend], "rows_seen": len(seen), "rows_held_out": len(unseen), "seed": options.seed}
    content = text(fitted.latency, fitted.arguments, notes)
    if out is not None:
        write(out, content)
    model = made(content, options.system)
    errors = {name: [dataclasses.asdict(one) for one in scores(part, model, options.seed, front_s)]
            for name, part in (("seen", seen), ("unseen", unseen))}  # fmt: skip
    counts = {"rows": len(rows), "left_out_rows": 0, "seen_rows": len(seen), "unseen_rows": len(unseen)}
    return {**_head(options, [backend], "steps of an endpoint"), **counts, **_constants(fitted, options), **errors,
            "out": None if out is None else str(out), "file": content}  # fmt: skip


def made(content: str, system: System) -> Any:
    """The latency model that the text of a file describes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "latency.toml"
        path.write_text(content, encoding="utf-8")
        return registry.make("latency", f"file:{path}", **dataclasses.asdict(system))


def _notes(paths: Sequence[str], seen: Rows, unseen: Rows, options: FitOptions) -> dict[str, Any]:
    errors = dataclasses.asdict(options.system) if options.latency == "fit6" else {}
    return {"from": [*paths], "rows_seen": len(seen), "rows_held_out": len(unseen), "seed": options.seed, **errors}


def _head(options: FitOptions, paths: Sequence[str], what: str) -> dict[str, Any]:
    return {"schema": 1, "kind": "fit", "versions": versions(), "exit_code": 0, "what": what, "from": [*paths],
            "latency": options.latency, "system": dataclasses.asdict(options.system), "seed": options.seed,
            "holdout": options.holdout}  # fmt: skip


def _constants(fitted: Fitted, options: FitOptions) -> dict[str, Any]:
    """Constants with half the width of their 95 % interval: None where they were given, or where it is unknown."""
    rows = []
    for name, value in fitted.arguments.items():
        if isinstance(value, float):
            spread = fitted.plus_minus.get(name)
            known = spread is not None and spread == spread
            rows.append({"name": name, "value": value, "plus_minus": spread if known else None,
                         "given": name in options.fixed})  # fmt: skip
        elif isinstance(value, list) and all(isinstance(x, float) for x in value):
            rows.extend(_of_list(name, value, fitted))
    points = {name: value for name, value in fitted.arguments.items() if isinstance(value, list) and rows_of(value)}
    return {"constants": rows, "points": points, "left_out": dict(fitted.left_out)}


def rows_of(value: list[Any]) -> bool:
    """Whether an argument is a list of points."""
    return bool(value) and isinstance(value[0], list)


def _of_list(name: str, values: list[float], fitted: Fitted) -> list[dict[str, Any]]:
    names = [f"{name.removesuffix('_s')}_{letter}_s" for letter in "abc"]
    return [
        {"name": one, "value": value, "plus_minus": fitted.plus_minus.get(one), "given": False}
        for one, value in zip(names, values, strict=True)
    ]


def text(latency: str, arguments: Mapping[str, Any], notes: Mapping[str, Any]) -> str:
    """TOML with the model, its arguments, and a table `fit` of `notes` on where they come from."""
    lines = [f"latency = {json.dumps(latency)}", "", "[arguments]"]
    lines += [f"{name} = {_value(value)}" for name, value in arguments.items()]
    lines += ["", "[fit]"]
    lines += [f"{name} = {_value(value)}" for name, value in notes.items()]
    return "\n".join(lines) + "\n"


def _value(value: object) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_value(one) for one in value) + "]"
    return json.dumps(value, ensure_ascii=False)


def write(path: Path, content: str) -> None:
    """Write it. Raises UsageError where that fails."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.put(path, content.encode())
    except OSError as error:
        raise files.refused(path, error) from None
