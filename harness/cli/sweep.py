"""`bench sweep`: runs over rates, or over any option, with several seeds: the goodput curve."""

from typing import Any

import click

from harness.cli._options import (
    SEED,
    GroupedCommand,
    config,
    given,
    option,
    out,
    result_options,
    run_options,
    server_url,
    wait,
    workers_and_pool,
)

SWEEP = "Sweep"
_EPILOG = """
\b
Examples
  bench sweep --workload chatbot --backend sim --rate 1:4:0.5
      the goodput curve of a simulated system, five seeds at each of seven rates
  bench sweep --backend sim --rate 1:16:x2 --over policy=sarathi,vllm-v0
      the same for two policies, over rates that double
  bench sweep --backend openai:url=http://127.0.0.1:8000/v1 --rate 1,2,4 --requests 600 --out curve
      a remote endpoint, one run after another; rerun the command to resume after a kill

\b
Values
  LIST    1,2,4   or 1:4:0.5 (up to and including 4)   or 1:16:x2 (doubling)
          sarathi|static:size=8,timeout=1   with | if a value contains commas
  NAME    any option of a run (replicas, policy, duration, ...), or an argument of an option
          that is set: --arrivals gamma --over arrivals.cv=1,2,4

\b
Exit codes
  0 success
  1 --fail-under: at some point too few requests met the SLO, or a percentile bound is violated
  2 wrong usage
  3 the backend failed
  4 a run is not valid, or terminated (SIGTERM) with the results so far
  5 ended early (Ctrl-C); or --fail-under is met, but a run was overloaded at some point
  70 a bug, or exhausted memory
  130 interrupted before there were results

All points share their seeds: a seed draws the same lengths at every rate, and the same arrivals, scaled in time.
Rerun the command with the same --out to resume; values and seeds may be added.
"""


@click.command(
    "sweep", cls=GroupedCommand, epilog=_EPILOG, short_help="Measure goodput over a range of rates, or of any option."
)
@server_url
@option("--rate", metavar="LIST", group=SWEEP,
        help="Mean request rates per second; a trace is scaled to them.")  # fmt: skip
@option("--over", metavar="NAME=LIST", multiple=True, group=SWEEP, help="Also sweep over this option. Repeatable.")
@option("--seeds", metavar="N", group=SWEEP,
        help="Runs per point, seeds from --seed on, or a list. Default: 5 in simulated time, else 1.")  # fmt: skip
@option("--seed", metavar="N", type=SEED, group=SWEEP, help="First seed of --seeds N. Default: 0.")
@option("--goal", metavar="LIST", group=SWEEP, help="Shares of requests that must meet the SLO. Default: 0.9.")
@run_options(
    without=("rate", "goal", "seed", "percentiles"),
    requests={"help": "Requests of a run. Default: 2,200 in simulated time, else the preset's or the whole trace."},
    warmup={"help": "Warm-up to discard: mser5 (detected, default), 30s, 200 (requests), or none."},
    fail_under={"help": "Exit with code 1 if fewer requests meet the SLO at any point."},
)
@wait
@out("Folder of the sweep, new or to resume. Default: a new one in bench-runs.")
@workers_and_pool
@result_options
@config
def command(
    rate: str | None, over: tuple[str, ...], seeds: str | None, goal: str | None,
    config: str | None, out: str | None, workers: int | None, pool_name: str, form: str, no_html: bool, quiet: bool,
    metrics_port: tuple[str, int] | None, wait: float | None, **options: Any,
) -> int:  # fmt: skip
    """Run a workload at several rates, or over the values of any option, and report SLO attainment at each.

    The sweep folder holds sweep.json, report.html and, under points/, every run.
    """
    from pathlib import Path

    from harness import configs
    from harness.cli import _terminal
    from harness.data.folder import new_folder
    from harness.experiments import pool
    from harness.experiments.sweep import axes
    from harness.experiments.sweep.execute import run_sweep
    from harness.experiments.sweep.plan import plan_sweep
    from reports.document import rendered

    file = configs.read(config).given if config is not None else None
    swept = [*([axes.axis(axes.RATE, rate)] if rate is not None else []), *map(axes.over, over)]
    sweep = plan_sweep(given(options), file, swept, seeds=seeds, goals=goal)
    pool.check(pool_name, virtual=sweep.virtual)
    say = _terminal.nothing if quiet else _terminal.note
    _terminal.await_servers([task.spec for task in sweep.tasks], wait, say)
    folder = new_folder(sweep.home) if out is None else Path(out)
    with _terminal.display(metrics_port, quiet=quiet, virtual=sweep.virtual, terminal_only=False) as display:
        info = run_sweep(sweep, folder, workers=workers, pool_name=pool_name, display=display, say=say)
    _terminal.show(form, info)
    if not no_html and rendered.write_page(info, _terminal.complain, folder) is not None:
        say(f"report: {rendered.answer_path(folder)}")
    if info.error:
        _terminal.complain(info.error)
    return info.exit_code
