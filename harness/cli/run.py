"""`bench run`: one run of a workload or a trace against a backend, with its verdict."""

import click

from harness.cli._run_options import SECTIONS, Sectioned, given, run_options

_SECTIONS = {
    **SECTIONS,
    "The run and its folder": ("config", "out", "force", "drain", "as-json", "quiet", "no-html"),
}
_EPILOG = """
\b
Examples
  bench run --workload chatbot --slo ttft=0.25,tpot=0.1
      a minute of chat on the built-in engine: a small real model on this machine
  bench run --workload chatbot --backend sim --model llama2-7b --hardware h100 \\
            --rate 8 --requests 4000
      the same traffic, faster, on a simulated GPU; takes about a second
  bench run --trace azure_conv.csv --duration 5min --backend sim --slo ttft=1
      the first five minutes of a recorded trace
  bench run --config bench-runs/chatbot-engine-20260101T120000Z --rate 4
      an earlier run again, with another rate
  bench run --backend openai:url=http://127.0.0.1:8000/v1 --rate 4 --slo ttft=0.5
      traffic for a server: vLLM, SGLang, llama.cpp, bench serve, ...

\b
Values
  TIME    seconds, or 250ms, 60s, 5min, 1h
  BOUNDS  METRIC=TIME,...; ttft@long=2 for one class of traffic, p99:itl=0.2 for a
          percentile of the run; metrics: bench list metrics
  SHARE   0.9 or 90%
  SPEC    NAME or NAME:key=value,key=value; names: bench list, keys: bench explain NAME

\b
Exit codes
  0 good
  1 --fail-under: too few requests kept the SLO, or a percentile bound is broken
  2 wrong usage
  3 the backend failed, or more requests than --max-failed did for another reason than load; the
    disk is full
  4 the run is not valid, or was terminated (SIGTERM, Ctrl-C twice)
  5 --fail-under: good so far, but the run was overloaded or ended early; or the client's own
    error decides
  70 a bug, or exhausted memory; the traceback is in the file that the message names
  130 interrupted before the report

Ctrl-C once stops sending, waits for answers and reports; twice, or SIGTERM, ends the run now. All keep what was
measured.
"""


@click.command(
    "run", cls=Sectioned, sections=_SECTIONS, epilog=_EPILOG, short_help="Run a workload or a trace against a backend."
)
@run_options()
@click.option(
    "--config",
    metavar="FILE",
    help="TOML file (see bench init), a name (bench list configs), or a run.json to repeat; options win.",
)
@click.option("--out", metavar="DIR", help="Folder of the run (default: a new one in bench-runs).")
@click.option("--force", is_flag=True, help="Replace the run that --out holds.")
@click.option("--json", "as_json", is_flag=True, help="Print run.json instead of the summary.")
@click.option("--quiet", is_flag=True, help="No progress and no notes; the summary is still printed.")
@click.option("--no-html", is_flag=True, help="Write no report.html.")
def command(
    config: str | None,
    out: str | None,
    force: bool,
    as_json: bool,
    quiet: bool,
    no_html: bool,
    header: tuple[str, ...],
    **options: str | None,
) -> int:
    """Send a workload, or a trace, to a backend and tell how many requests kept the SLO.

    The folder of the run holds run.json, requests.parquet, steps.parquet, schedule.parquet and report.html.
    Every option but --config, --out, --force, --json, --quiet and --no-html may stand in a TOML file too (bench init).
    """
    from harness import compose, configs
    from harness import options as configuration
    from harness.cli import _terminal
    from harness.runner.run import execute, why

    asked = given(options, header)
    file = configs.read(config) if config is not None else None
    spec = configuration.run_spec(asked, file.given if file else None)
    repeats = None
    if file is not None and not any(option in asked.values for option in configuration.SCHEDULE):
        repeats = file.schedule_sha256
    say = _terminal.note if not quiet else _terminal.nothing
    report = None if no_html else compose.write_run_page
    result = execute(spec, out=out, report=report, quiet=quiet, repeats=repeats, force=force, give_way=True, say=say)
    _terminal.show("json" if as_json else "text", result.run)
    result.outcome.check()
    if result.outcome.error is not None:
        _terminal.complain(result.outcome.error)
    elif (reason := why(result.exit_code, result.run.info, result.outcome, spec.fail_under)) is not None:
        _terminal.complain(reason)
    return result.exit_code
