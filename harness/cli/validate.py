"""`bench validate`: how near the simulator is to what was measured."""

import click

_EPILOG = """
\b
For example
  bench validate --backend sim:latency=file:fit.toml --against RUN --against RUN
      stored runs of an engine or an endpoint, the same schedule simulated
  bench validate --against measured.toml --out validate.html
      measurements in tables (docs/guide/validate.md), each run by its own backend
"""


@click.command("validate", short_help="The simulator beside measurements.", epilog=_EPILOG)
@click.option("--against", multiple=True, metavar="RUN|FILE", help="The folder of a stored run, or of several, or a "
              "TOML file of measurements. May be repeated.")  # fmt: skip
@click.option("--backend", metavar="SPEC", help="The simulator that repeats the requests. Default: those of FILE.")
@click.option("--slo", metavar="BOUNDS", help="Score attainment under these. Default: those of the run or of FILE.")
@click.option("--format", "form", type=click.Choice(["text", "markdown", "json"]), default="text", show_default=True,
              metavar="NAME", help="text, markdown or json.")  # fmt: skip
@click.option("--out", metavar="FILE", help="Write it there instead: .html, .md, .json or .txt.")
def command(against: tuple[str, ...], backend: str | None, slo: str | None, form: str, out: str | None) -> int:
    """How near is the simulator to what was measured?

    Of measurements only those count that the calibration did not see. Exit code 1 where a target is missed.
    """
    from harness.cli import _against
    from harness.errors import UsageError

    if not against:
        raise UsageError("Name what was measured: --against RUN for stored runs, --against FILE.toml for tables.")
    return _against.tell(against, backend=backend, slo=slo, form=form, out=out)
