"""`bench validate`: simulated numbers beside measured ones."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.cli._options import BOUNDS, answer_file, formats
from harness.errors import UsageError

if TYPE_CHECKING:
    from harness.experiments.validate.answer import Validation

_EPILOG = """
\b
Examples
  bench validate --backend sim:latency=file:fit.toml --against RUN --against RUN
      stored runs of an engine or an endpoint, with the same schedule simulated
  bench validate --against measured.toml --out validate.html
      measurements in tables (docs/guide/validate.md), each run with its own backend
  bench validate --against requests.csv --backend sim:policy=vllm-v0 --fit linear
      each run by a latency model that was fitted on the other runs
"""


@click.command("validate", short_help="Validate the simulator against measurements.", epilog=_EPILOG)
@click.option("--against", multiple=True, metavar="RUN|FILE", help="Stored run, folder of runs, table of requests, "
              "or TOML file of measurements. Repeatable.")  # fmt: skip
@click.option("--backend", metavar="SPEC", help="Simulator that repeats the requests. Default: those named in FILE.")
@click.option("--slo", type=BOUNDS, metavar="BOUNDS", help="SLO for attainment. Default: that of the run or of FILE.")
@click.option("--fit", "latency", metavar="NAME", help="Tables: fit this latency model (linear or mixed) to all but "
              "one run, and score it on that one; each in turn.")  # fmt: skip
@formats
@answer_file
def command(
    against: tuple[str, ...], backend: str | None, slo: str | None, latency: str | None, form: str, out: str | None
) -> int:
    """Compare simulated with measured latencies.

    Only measurements that were not used for calibration are scored. Exit code 1 if a target is missed.
    """
    from harness.cli import _terminal
    from harness.experiments.validate import answer

    if not against:
        raise UsageError("Name what was measured: --against RUN for stored runs, --against FILE.toml for tables.")
    options = [("--backend", backend), *(("--against", path) for path in against), ("--slo", slo), ("--fit", latency)]
    info = answer.answer([*_compared(against, backend, slo, latency)], _terminal.command("bench validate", options))
    _terminal.give(form, info, out)
    return info.exit_code


def _compared(
    against: Sequence[str], backend: str | None, slo: str | None, latency: str | None
) -> Iterator["Validation"]:
    """Each file of measurements by itself, then all stored runs together."""
    files = [path for path in dict.fromkeys(against) if path.endswith((".toml", ".csv", ".parquet"))]
    runs = [path for path in dict.fromkeys(against) if path not in files]
    for path in [*files, *runs]:
        if not Path(path).exists():
            raise UsageError(
                f"'{path}' does not exist; --against takes a stored run, a table of requests or a TOML file of them."
            )
    if runs and latency is not None:
        raise UsageError("--fit needs tables of requests or a TOML file; fit stored runs with bench fit --requests.")
    if runs and backend is None:
        raise UsageError("--against RUN needs the simulator that repeats it: --backend sim:latency=..., with a latency "
                         "model fitted on other runs (bench fit).")  # fmt: skip
    if files:
        from harness.experiments.validate import measured_runs  # heavy, and only for tables

        for path in files:
            yield measured_runs.validate(Path(path), backend, slo, latency)
    if runs:
        from harness.experiments.validate import replay  # heavy, and only for stored runs

        yield replay.validate(runs, backend or "", slo)
