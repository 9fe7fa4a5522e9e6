"""`bench validate`: simulated numbers beside measured ones."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.cli._options import formats
from harness.errors import UsageError

if TYPE_CHECKING:
    from harness.experiments.validate import Validation

_EPILOG = """
\b
Examples
  bench validate --backend sim:latency=file:fit.toml --against RUN --against RUN
      stored runs of an engine or an endpoint, with the same schedule simulated
  bench validate --against measured.toml --out validate.html
      measurements in tables (docs/guide/validate.md), each run with its own backend
"""


@click.command("validate", short_help="Validate the simulator against measurements.", epilog=_EPILOG)
@click.option("--against", multiple=True, metavar="RUN|FILE", help="Stored run, folder of runs, or TOML file of "
              "measurements. Repeatable.")  # fmt: skip
@click.option("--backend", metavar="SPEC", help="Simulator that repeats the requests. Default: those named in FILE.")
@click.option("--slo", metavar="BOUNDS", help="SLO for attainment. Default: that of the run or of FILE.")
@formats
@click.option("--out", metavar="FILE", help="Write to this file instead: .html, .md, .json, .csv or .txt.")
def command(against: tuple[str, ...], backend: str | None, slo: str | None, form: str, out: str | None) -> int:
    """Compare simulated with measured latencies.

    Only measurements that were not used for calibration are scored. Exit code 1 if a target is missed.
    """
    from harness.cli import _terminal
    from harness.experiments.validate import answer

    if not against:
        raise UsageError("Name what was measured: --against RUN for stored runs, --against FILE.toml for tables.")
    if out is not None:
        _terminal.check(out)
    given = [("--backend", backend), *(("--against", one) for one in against), ("--slo", slo)]
    info = answer.answer([*_compared(against, backend, slo)], _terminal.command("bench validate", given))
    if out is None:
        _terminal.show(form, info)
    else:
        _terminal.put(info, out)
        _terminal.show_findings(info)
    return info.exit_code


def _compared(against: Sequence[str], backend: str | None, slo: str | None) -> Iterator["Validation"]:
    """Each file of measurements by itself, then all stored runs together."""
    files = [one for one in dict.fromkeys(against) if one.endswith(".toml")]
    runs = [one for one in dict.fromkeys(against) if one not in files]
    for one in [*files, *runs]:
        if not Path(one).exists():
            raise UsageError(f"'{one}' does not exist; --against takes a stored run or a TOML file of measurements.")
    if runs and backend is None:
        raise UsageError("--against RUN needs the simulator that repeats it: --backend sim:latency=..., with a latency "
                         "model fitted on other runs (bench fit).")  # fmt: skip
    if files:
        from harness.experiments.validate import measured_runs  # heavy, and only for tables

        for one in files:
            yield measured_runs.validate(Path(one), backend, slo)
    if runs:
        from harness.experiments.validate import replay  # heavy, and only for stored runs

        yield replay.validate(runs, backend or "", slo)
