"""One fit from beginning to end: read, split, fit, and score on the rows that were held out.

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
from harness.experiments.fit.fit_json import Constant, FitAnswer, Score
from harness.experiments.fit.forms import Fitted, System, check, fit
from harness.experiments.fit.probe import Probe
from harness.experiments.fit.requests import fit_with_kv, with_kv
from harness.experiments.fit.solve import sample, scores, split
from harness.experiments.fit.steps import Rows, read
from harness.metrics.summary import known
from harness.spec import parse

HOLDOUT = 0.2
"""The share of the rows that the fit does not see."""


@dataclass(frozen=True, slots=True)
class FitOptions:
    """The options of a fit."""

    latency: str = "mixed"
    system: System = dataclasses.field(default_factory=System)
    fixed: Mapping[str, float] = dataclasses.field(default_factory=dict)
    seed: int = 1


def from_steps(paths: Sequence[str], options: FitOptions, out: Path | None = None) -> FitAnswer:
    """The answer of a fit to step logs; the model goes to the file `out`."""
    check(options.latency, options.fixed)
    rows = read(paths)
    seen, unseen = split(rows, HOLDOUT, options.seed)
    fitted = fit(options.latency, sample(seen, options.seed), options.system, options.fixed)
    notes = _notes(paths, seen, unseen, options.seed)
    if options.latency == "operators":
        notes |= dataclasses.asdict(options.system)
    content = text(fitted.latency, fitted.arguments, notes)
    model = made(content, options.system)
    errors = [scores(part, model, options.seed) for part in (seen, unseen)]
    counts = (len(seen), len(unseen), rows.left_out)
    return _answer("steps", paths, options, fitted, counts, errors, out, content)


def from_requests(paths: Sequence[str], options: FitOptions, backend: str, out: Path | None = None) -> FitAnswer:
    """The answer of a fit to results of requests, through the simulator that `backend` describes."""
    runs = requests.read(paths)
    masks = requests.split(runs, HOLDOUT, options.seed)
    simulator = parse(backend)
    constants, spread, memory = fit_with_kv(options.latency, runs, masks, simulator, options.fixed)
    if memory is not None and memory.tokens is not None:
        simulator = with_kv(simulator, memory.tokens)
    source = {} if options.latency == "linear" else {"constants": "given"}
    fitted = Fitted(options.latency, {**source, **constants}, spread)
    seen = sum(int(mask.sum()) for mask in masks)
    total = sum(map(len, runs))
    notes = {"from": [*paths], "requests_seen": seen, "requests_held_out": total - seen, "backend": str(simulator)}
    content = text(fitted.latency, fitted.arguments, notes)
    errors = [
        requests.scores(runs, which, options.latency, constants, simulator) for which in (masks, [~m for m in masks])
    ]
    answer = _answer("requests", paths, options, fitted, (seen, total - seen, 0), errors, out, content)
    return answer if memory is None else answer.change(kv_tokens=memory.tokens, kv_under_way=memory.under_way)


def from_endpoint(
    backend: str, probe: Probe, options: FitOptions, out: Path | None, say: Callable[[str], None]
) -> FitAnswer:
    """The answer of a fit to a probing run of an endpoint."""
    if options.latency not in ("linear", "mixed", "operators"):
        raise UsageError(
            f"An endpoint identifies the latency models linear, mixed and operators, not '{options.latency}'."
        )
    fixed = {name: value for name, value in options.fixed.items() if name != "front_end_s"}
    check(options.latency, fixed)
    rows = probing.rows(backend, probe, options.seed, say)
    seen, unseen = split(rows, HOLDOUT, options.seed)
    front_s = options.fixed.get("front_end_s")
    front_s = probing.front_end_s(seen) if front_s is None else front_s
    steps = replace(seen, seconds=np.maximum(seen.seconds - front_s * (seen.tokens > 0), 1e-6))
    fitted = fit(options.latency, sample(steps, options.seed), options.system, fixed)
    front = {"front_s": front_s, "front_token_s": 0.0} if options.latency == "operators" else {"front_end_s": front_s}
    fitted = replace(fitted, arguments={**fitted.arguments, **front})
    content = text(fitted.latency, fitted.arguments, _notes([backend], seen, unseen, options.seed))
    model = made(content, options.system)
    errors = [scores(part, model, options.seed, front_s) for part in (seen, unseen)]
    counts = (len(seen), len(unseen), 0)
    return _answer("steps of an endpoint", [backend], options, fitted, counts, errors, out, content)


def made(content: str, system: System) -> Any:
    """The latency model that the text of a file describes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "latency.toml"
        path.write_text(content, encoding="utf-8")
        return registry.make("latency", f"file:{path}", **dataclasses.asdict(system))


def _notes(sources: Sequence[str], seen: Rows, unseen: Rows, seed: int) -> dict[str, Any]:
    return {"from": [*sources], "rows_seen": len(seen), "rows_held_out": len(unseen), "seed": seed}


def _answer(
    what: str, paths: Sequence[str], options: FitOptions, fitted: Fitted, counts: tuple[int, int, int],
    errors: list[list[Score]], out: Path | None, content: str,
) -> FitAnswer:  # fmt: skip
    """The answer, and the file where one is wanted.

    `counts` are the rows that the fit has seen, that were held out, and that are no measurement; `errors` those on the
    first and the second.
    """
    seen_rows, unseen_rows, left_out_rows = counts
    if out is not None:
        write(out, content)
    lists = {name: value for name, value in fitted.arguments.items() if isinstance(value, list) and value}
    return FitAnswer(
        versions=dict(versions()),
        what=what,
        sources=[*paths],
        latency=options.latency,
        system=dataclasses.asdict(options.system),
        seed=options.seed,
        holdout=HOLDOUT,
        rows=seen_rows + unseen_rows,
        left_out_rows=left_out_rows,
        seen_rows=seen_rows,
        unseen_rows=unseen_rows,
        constants=[
            Constant(name, value, known(fitted.plus_minus.get(name)), name in options.fixed)
            for name, value in fitted.arguments.items()
            if isinstance(value, float)
        ],
        points={name: value for name, value in lists.items() if isinstance(value[0], list)},
        left_out=dict(fitted.left_out),
        seen=errors[0],
        unseen=errors[1],
        out=None if out is None else str(out),
        file=content,
    )


def text(latency: str, arguments: Mapping[str, Any], notes: Mapping[str, Any]) -> str:
    """TOML with the model, its arguments, and a table `fit` of `notes` on where they come from."""
    lines = [f"latency = {json.dumps(latency)}", "", "[arguments]"]
    lines += [f"{name} = {_value(value)}" for name, value in arguments.items()]
    lines += ["", "[fit]"]
    lines += [f"{name} = {_value(value)}" for name, value in notes.items()]
    return "\n".join(lines) + "\n"


def _value(value: object) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_value(part) for part in value) + "]"
    return json.dumps(value, ensure_ascii=False)


def write(path: Path, content: str) -> None:
    """Write it. Raises UsageError where that fails."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.put(path, content.encode())
    except OSError as error:
        raise files.refused(path, error) from None
