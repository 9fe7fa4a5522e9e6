"""`bench run`: one run of a workload or a trace against a backend, with its verdict; its configuration and senders."""

import os
import shlex
import stat
import sys
from pathlib import Path

import click

from harness.cli._options import (
    GroupedCommand,
    config,
    force,
    given,
    option,
    out,
    result_options,
    run_options,
    server_url,
    wait,
)
from harness.errors import UsageError

TEMPLATE = Path(__file__).with_name("init.toml")
_EPILOG = """
\b
Examples
  bench run --workload chatbot --slo ttft=0.25,tpot=0.1
      one minute of chat traffic on the built-in engine, a small real model on this machine
  bench run --workload chatbot --backend sim --model llama2-7b --hardware h100 \\
            --rate 8 --requests 4000
      the same kind of traffic, faster, on a simulated GPU; takes about a second
  bench run --trace azure_conv.csv --duration 5min --backend sim --slo ttft=1
      the first five minutes of a recorded trace
  bench run --config bench-runs/chatbot-engine-20260101T120000Z --rate 4
      repeat an earlier run at another rate
  bench run http://127.0.0.1:8000 --rate 4 --slo ttft=0.5 --wait 10min
      load a server: vLLM, SGLang, llama.cpp, bench serve, ...; wait while it loads its model

\b
Values
  TIME    seconds, or 250ms, 60s, 5min, 1h
  BOUNDS  METRIC=TIME,...; ttft@long=2 for one class of traffic, p99:itl=0.2 for a
          percentile of the run; metrics: bench list metrics
  SHARE   0.9 or 90%
  SPEC    NAME or NAME:key=value,key=value, and key=[value] where the value holds commas;
          names: bench list, keys: bench explain NAME

\b
Exit codes
  0 success
  1 --fail-under: too few requests met the SLO, or a percentile bound is violated
  2 wrong usage
  3 the backend failed, or more requests than --max-failed failed for reasons other than load;
    the disk is full
  4 the run is not valid, or was terminated (SIGTERM, Ctrl-C twice)
  5 --fail-under: met so far, but the run was overloaded or ended early; or the measurement
    error of the client decides the result
  70 a bug, or exhausted memory; the message names the file with the traceback
  130 interrupted before the report

Ctrl-C stops sending, waits for responses and reports. A second Ctrl-C, or SIGTERM, ends the run immediately. In both
cases the data measured so far are stored.
"""


@click.command("run", cls=GroupedCommand, epilog=_EPILOG, short_help="Run a workload or a trace against a backend.")
@server_url
@run_options()
@wait
@out("Folder of the run. Default: a new one in bench-runs.")
@force
@result_options
@config
@option("--probed", metavar="FILE", hidden=True)
def command(
    config: str | None,
    out: str | None,
    force: bool,
    form: str,
    quiet: bool,
    metrics_port: tuple[str, int] | None,
    no_html: bool,
    probed: str | None,
    wait: float | None,
    **options: object,
) -> int:
    """Send a workload or a trace to a backend and report the share of requests that met the SLO.

    The run folder holds run.json, requests.parquet, steps.parquet, schedule.parquet and report.html. All options
    except those under Output and General can also be set in a TOML file (bench init).
    """
    from harness import configs
    from harness.cli import _terminal
    from harness.options import SCHEDULE, run_spec
    from harness.runner.run import execute, why
    from reports._counted import PAGE_AGGREGATES
    from reports.document.rendered import write_page

    command_line = given(options)
    file = configs.read(config) if config is not None else None
    spec = run_spec(command_line, file.given if file else None)
    repeats = None
    if file is not None and not any(option in command_line.values for option in SCHEDULE):
        repeats = file.schedule_sha256
    say = _terminal.note if not quiet else _terminal.nothing
    _terminal.await_servers([spec], wait, say)
    report = None if no_html else write_page
    words = [word for word in sys.argv[1:] if not word.startswith("--probed=")]  # the file is of one command alone
    with _terminal.display(metrics_port, quiet=quiet, terminal_only=False) as display:
        result = execute(
            spec, out=out, report=report, display=display, repeats=repeats, force=force, say=say,
            aggregates=() if no_html else PAGE_AGGREGATES, command=shlex.join(["bench", *words]),
            shared=None if probed is None else Path(probed),
        )  # fmt: skip
    _terminal.show(form, result.run)
    result.outcome.check()
    if result.outcome.error is not None:
        _terminal.complain(result.outcome.error)
    elif (reason := why(result.exit_code, result.run.info, result.outcome, spec.fail_under)) is not None:
        _terminal.complain(reason)
    return result.exit_code


@click.command("init", short_help="Write a commented configuration file.")
@click.argument("file", default="bench.toml")
def init(file: str) -> int:
    """Write FILE (default bench.toml), a commented configuration for 'bench run --config FILE'."""
    from harness.cli import _terminal
    from harness.data import files

    path = Path(file)
    try:
        with path.open("x", encoding="utf-8") as out:
            out.write(TEMPLATE.read_text(encoding="utf-8").replace("bench.toml", shlex.quote(file)))
    except FileExistsError:
        raise UsageError(f"'{file}' exists and is left alone; name another file.") from None
    except OSError as error:
        if files.has_no_room(error):
            path.unlink(missing_ok=True)  # else the next call would leave the empty file alone
        raise files.refused(file, error) from None
    _terminal.say(f"{file} written; edit it, then: bench run --config {shlex.quote(file)}")
    return 0


@click.command("sender", short_help="Send for 'bench run --senders' on another machine.")
def sender() -> None:
    """Send a share of a run for bench on another machine, which starts this command (--senders ssh:HOST,...).

    Standard input and output carry messages of 'bench run', not text.
    """
    from harness.runner.remote import calibration
    from harness.runner.remote.sender import main

    kind = os.fstat(0).st_mode
    if not stat.S_ISFIFO(kind) and not stat.S_ISSOCK(kind):
        raise UsageError("'bench sender' needs a pipe as its standard input: 'bench run --senders ssh:HOST' starts it.")
    main(calibration.serve)
