"""The runs of a sweep: each is executed into a folder of its own, unless it is there already, and read as numbers."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from msgspec import structs

from harness import untrusted
from harness.api import Bound, Slo
from harness.data.codec import encode
from harness.data.folder import Run, load
from harness.data.run_json import ScoredBound
from harness.errors import BenchError
from harness.experiments.rescore.objectives import Curve, curve, scaled
from harness.experiments.sweep.axes import Rescoring
from harness.experiments.sweep.plan import Task
from harness.experiments.sweep.sweep_json import SweptRun
from harness.metrics.measure import in_summary
from harness.metrics.objective import Seen, meets, parse_slo, restored_slo
from harness.metrics.summary import known, per_second_of
from harness.runner.progress import QUIET, Display
from harness.runner.run import execute
from harness.validity.rules import OVERLOAD
from harness.validity.work_done import exceeded

PARTS = ("mean", "p50", "p90", "p99")


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
    scored: tuple[SweptRun, ...]


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
    return RunResult("finished", None, tuple(swept(run, folder, scoring) for scoring in scorings))


def finished(path: Path) -> bool:
    """Whether a folder holds a run that ended as it should, with its conclusion."""
    try:
        info = untrusted.read_json(path / "run.json")
    except (OSError, ValueError):
        return False
    return isinstance(info, dict) and info.get("state") == "finished" and "verdict" in info


def swept(run: Run, folder: str, scoring: Rescoring) -> SweptRun:
    """A run in numbers, under its own SLO or another scoring; `folder` is its place in the sweep."""
    info, summary = run.info, run.info.summary
    metrics = {m.name: summary.metrics[m.name] for m in in_summary() if m.name in summary.metrics}
    numbers = SweptRun(
        seed=info.spec["seed"],
        valid=bool(info.verdict.valid),
        overloaded=bool(info.verdict.overloaded),
        reasons=info.verdict.reasons,
        failed_for=exceeded(info),
        warnings=[warning for warning in info.warnings or () if warning.code != OVERLOAD],
        gpus=info.backend.get("gpus"),
        requests=summary.requests or 0,
        warmup=encode(info).get("warmup") or {},
        schedule_sha256=info.schedule.sha256,
        slo=summary.slo,
        attainment=summary.attainment,
        bounds=summary.bounds,
        resolution=info.resolution or None,
        goodput_rps=summary.goodput_rps,
        throughput_rps=summary.throughput_rps,
        output_tps=summary.output_tps,
        failed=summary.failed,
        metrics={name: {part: getattr(metric, part) for part in PARTS} for name, metric in metrics.items()},
        folder=folder,
    )
    run_slo = restored_slo(info)
    base = run_slo if scoring.slo is None else replace(parse_slo(scoring.slo), goal=run_slo.goal)
    return numbers if scoring.scale == 1.0 and base == run_slo else _rescored(run, numbers, base, scoring.scale)


def _rescored(run: Run, found: SweptRun, base: Slo, scale: float) -> SweptRun:
    """The same under another SLO, whose bounds are multiplied by `scale`."""
    table = run.measured
    factors = curve(Seen(table), base, [scale])
    attainment = known(float(factors.attainment[0]))
    bounds = [_bound(bound, factors, scale) for bound in base.bounds]
    percentiles = [bound.passed for bound in bounds if bound.percentile is not None]
    scored = bounds or factors.bounds  # else there is no SLO, and the queue alone decides
    return structs.replace(
        found,
        slo=str(scaled(base, scale)),
        attainment=attainment,
        overloaded=run.info.verdict.grew and not (scored and meets(attainment, percentiles, base.goal)),
        bounds=bounds,
        resolution=None,
        goodput_rps=None if attainment is None else known(per_second_of(table)(round(attainment * len(table)))),
    )


def _bound(bound: Bound, found: Curve, scale: float) -> ScoredBound:
    """A bound in the form in which run.json has it."""
    moved = replace(bound, limit=bound.limit * scale)
    scored = ScoredBound(
        text=str(moved), metric=bound.metric, limit_s=moved.limit, tag=bound.tag, percentile=bound.percentile
    )
    if bound.percentile is None:
        return structs.replace(scored, attainment=known(float(found.bounds[bound][0])))
    value_s = found.holds_from[bound] * bound.limit
    return structs.replace(scored, value_s=known(value_s), passed=not value_s > moved.limit)
