"""The runs of a sweep: each is executed into a folder of its own, unless it is there already, and read as numbers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness import untrusted
from harness.api import Bound
from harness.data.codec import encode
from harness.data.folder import Run, load
from harness.errors import BenchError
from harness.experiments.rescore.scale import Curve, curve, scaled
from harness.experiments.sweep.axes import Rescoring
from harness.experiments.sweep.plan import Task
from harness.metrics.measure import in_summary
from harness.metrics.objective import Seen, meets, parse_slo, restored_slo
from harness.metrics.summary import per_second_of
from harness.runner.progress import QUIET, Display
from harness.runner.run import execute
from harness.validity.checks import OVERLOAD
from harness.validity.work_done import exceeded

PARTS = ("mean", "p50", "p90", "p99")
RATES = ("goodput_rps", "throughput_rps", "output_tps", "failed")


@dataclass(frozen=True, slots=True)
class Order:
    """A task, the folder of the sweep it belongs to, and the command for run.json; `shared` is as of `execute`."""

    task: Task
    out: str
    command: str
    display: Display = QUIET
    shared: Path | None = None

    @property
    def path(self) -> Path:
        return Path(self.out) / self.task.folder


@dataclass(frozen=True, slots=True)
class RunResult:
    """How the run of a task ended, and its numbers under each scoring where it finished."""

    ended: str
    error: str | None
    facts: tuple[dict[str, Any], ...]


def execute_order(order: Order) -> RunResult:
    """Execute the run, unless it is there already, and return its result. For a worker of a pool."""
    if not finished(order.path):
        try:
            result = execute(
                order.task.spec, out=order.path, display=order.display, command=order.command, force=True,
                shared=order.shared,
            )  # fmt: skip
            result.outcome.check()
        except BenchError as error:
            raise type(error)(f"{order.task.name}: {error}") from error
        if result.outcome.ended != "finished":
            return RunResult(result.outcome.ended, result.outcome.error, ())
    return result_of(order.path, order.task.folder, order.task.scorings)


def result_of(path: Path, folder: str, scorings: Sequence[Rescoring]) -> RunResult:
    """A finished run under each scoring; `folder` is its place in the sweep."""
    run = load(path)
    return RunResult("finished", None, tuple(facts(run, scoring) | {"folder": folder} for scoring in scorings))


def finished(path: Path) -> bool:
    """Whether a folder holds a run that ended as it should, with its conclusion."""
    try:
        info = untrusted.read_json(path / "run.json")
    except (OSError, ValueError):
        return False
    return isinstance(info, dict) and info.get("state") == "finished" and "verdict" in info


def facts(run: Run, scoring: Rescoring) -> dict[str, Any]:
    """A run in numbers, under its own SLO or another scoring."""
    info, summary, stored = run.info, run.info.summary, encode(run.info)
    metrics = {m.name: summary.metrics[m.name] for m in in_summary() if m.name in summary.metrics}
    return {
        "seed": info.spec["seed"],
        "valid": info.verdict.valid,
        "overloaded": info.verdict.overloaded,
        "reasons": info.verdict.reasons,
        "failed_for": exceeded(info),
        "warnings": [warning for warning in stored["warnings"] if warning["code"] != OVERLOAD],
        "gpus": info.backend.get("gpus"),
        "requests": summary.requests,
        "warmup": stored.get("warmup") or {},
        "schedule_sha256": info.schedule.sha256,
        "slo": summary.slo,
        "attainment": summary.attainment,
        "bounds": stored["summary"]["bounds"],
        "resolution": stored.get("resolution"),
        **{name: getattr(summary, name) for name in RATES},
        "metrics": {name: {part: getattr(metric, part) for part in PARTS} for name, metric in metrics.items()},
        **_rescored(run, scoring),
    }


def _rescored(run: Run, scoring: Rescoring) -> dict[str, Any]:
    """What another SLO changes; nothing where it is the run's own."""
    own = restored_slo(run.info)
    base = own if scoring.slo is None else replace(parse_slo(scoring.slo), goal=own.goal)
    if scoring.scale == 1.0 and base == own:
        return {}
    table = run.measured
    found = curve(Seen(table), base, [scoring.scale])
    attainment = _known(float(found.attainment[0]))
    bounds = [_bound(bound, found, scoring.scale) for bound in base.bounds]
    percentiles = [bound["passed"] for bound in bounds if bound["percentile"] is not None]
    scored = bounds or found.bounds  # else there is no SLO, and the queue alone decides
    return {
        "slo": str(scaled(base, scoring.scale)),
        "attainment": attainment,
        "overloaded": run.info.verdict.grew and not (scored and meets(attainment, percentiles, base.goal)),
        "bounds": bounds,
        "resolution": None,
        "goodput_rps": None if attainment is None else _known(per_second_of(table)(round(attainment * len(table)))),
    }


def _bound(bound: Bound, found: Curve, scale: float) -> dict[str, Any]:
    """A bound in the form in which run.json has it."""
    limit_s = bound.limit * scale
    row = {"metric": bound.metric, "limit_s": limit_s, "tag": bound.tag, "percentile": bound.percentile}
    row["text"] = str(replace(bound, limit=limit_s))
    if bound.percentile is None:
        return row | {"attainment": _known(float(found.bounds[bound][0])), "value_s": None, "passed": None}
    value_s = found.holds_from[bound] * bound.limit
    return row | {"attainment": None, "value_s": _known(value_s), "passed": not value_s > limit_s}


def _known(value: float) -> float | None:
    """None for NaN and infinity, which JSON does not know."""
    return value if math.isfinite(value) else None
