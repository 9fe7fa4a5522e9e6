"""The runs of a sweep: each is executed into a folder of its own, unless it is there already, and read as numbers."""

from dataclasses import dataclass
from pathlib import Path

from harness import untrusted
from harness.data.codec import encode
from harness.data.folder import load
from harness.data.run_json import RunInfo
from harness.errors import BenchError
from harness.experiments.sweep.plan import Task
from harness.experiments.sweep.sweep_json import SweptRun
from harness.metrics.measure import in_summary
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
    """How the run of a task ended, and its numbers where it finished."""

    ended: str
    error: str | None = None
    scored: SweptRun | None = None


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
            return RunResult(result.outcome.ended, result.outcome.error)
        return RunResult("finished", scored=swept(result.run.info, order.task.folder))
    return result_of(order.path, order.task.folder)


def result_of(path: Path, folder: str) -> RunResult:
    """A finished run, whose files are read; `folder` is its place in the sweep."""
    return RunResult("finished", scored=swept(load(path).info, folder))


def finished(path: Path) -> bool:
    """Whether a folder holds a run that ended as it should, with its conclusion."""
    try:
        info = untrusted.read_json(path / "run.json")
    except (OSError, ValueError):
        return False
    return isinstance(info, dict) and info.get("state") == "finished" and "verdict" in info


def swept(info: RunInfo, folder: str) -> SweptRun:
    """A run in numbers; `folder` is its place in the sweep."""
    summary = info.summary
    metrics = {m.name: summary.metrics[m.name] for m in in_summary() if m.name in summary.metrics}
    return SweptRun(
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
