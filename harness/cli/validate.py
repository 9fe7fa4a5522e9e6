"""`bench validate`: how near the simulator is to what was measured and published."""

import click

_EPILOG = """
\b
For example
  bench validate --against apex-h100                 simulated beside measured, on runs not calibrated on
  bench validate --against distserve-a100 --out validate.html
  bench validate --backend sim:latency=file:fit.toml --against RUN --against RUN
      stored runs of an engine or an endpoint, the same schedule simulated
  bench validate --acceptance                        every published fact beside what is obtained here
  bench validate --acceptance --only S05,E16
  bench validate --acceptance --out systems.md
"""


@click.command("validate", short_help="The simulator beside measurements and published numbers.", epilog=_EPILOG)
@click.option("--against", multiple=True, metavar="NAME|RUN", help="Public measurements by name (all: every one), or "
              "the folder of a stored run, or of several. May be repeated.")  # fmt: skip
@click.option("--backend", metavar="SPEC", help="With --against RUN: the simulator that repeats its schedule.")
@click.option("--slo", metavar="BOUNDS", help="With --against RUN: score attainment under these; default the run's.")
@click.option("--acceptance", is_flag=True, help="Published facts on serving systems beside what is obtained here.")
@click.option("--only", metavar="IDS", help="With --acceptance: these rows, such as S08,S05.b,E16.")
@click.option("--topic", "topics", multiple=True, metavar="NAME", help="With --acceptance: the rows of this topic.")
@click.option("--data", metavar="DIR", help="Public measurements and traces. Default: $BENCH_DATA, else shared/data "
              "beside or above this folder.")  # fmt: skip
@click.option("--format", "form", type=click.Choice(["text", "markdown", "json"]), default="text", show_default=True,
              metavar="NAME", help="text, markdown or json.")  # fmt: skip
@click.option("--out", metavar="FILE", help="Write it there instead: .html (--against), .md, .json or .txt.")
@click.option("--workers", type=click.IntRange(min=1), metavar="N", help="Processes.  [default: one per core]")
def command(
    against: tuple[str, ...], backend: str | None, slo: str | None, acceptance: bool, only: str | None,
    topics: tuple[str, ...], data: str | None, form: str, out: str | None, workers: int | None,
) -> int:  # fmt: skip
    """How near is the simulator to what was measured and published?

    Of measurements only those count that the calibration did not see. Exit code 1 where something misses its target
    or band, 3 where something could not be obtained.
    """
    from harness.cli import _acceptance, _against
    from harness.errors import UsageError

    if bool(against) == acceptance:
        raise UsageError("Say what to validate: --against NAME for measurements or runs, or --acceptance for the "
                         "published facts.")  # fmt: skip
    foreign = {"--backend": backend, "--slo": slo} if acceptance else {
        "--only": only, "--topic": topics, "--workers": workers,
    }  # fmt: skip
    for name, value in foreign.items():
        if value:
            raise UsageError(f"{name} goes with {'--against' if acceptance else '--acceptance'}.")
    if against:
        return _against.tell(against, backend=backend, slo=slo, data=data, form=form, out=out)
    return _acceptance.tell(only, topics, data=data, form=form, out=out, workers=workers)
