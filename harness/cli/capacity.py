"""`bench capacity`: the highest rate that meets the SLO, with its interval."""

from typing import Any

import click

from harness.cli._options import (
    RATE,
    GroupedCommand,
    config,
    given,
    max_requests,
    option,
    out,
    result_options,
    run_options,
    server_url,
    wait,
    workers_and_pool,
)  # fmt: skip
from harness.options import OBJECTIVES
from harness.values import text

SEARCH = "Search"
_EPILOG = """
\b
Examples
  bench capacity --workload chatbot --backend sim --latency abc:distserve --policy vllm-v0
      the highest sustainable rate of chat on a simulated OPT-13B, to +-3%, in seconds
  bench capacity --workload chatbot --backend sim --hardware h100 --goal 90%,99%
      for two goals, from the same trials
  bench capacity --workload chatbot --backend sim --hardware h100 --at 4
      are 4 requests per second sustained? exit code 0, 1 or 5
  bench capacity --backend openai:url=http://127.0.0.1:8000/v1 --slo ttft=0.5 --budget 20min --out cap
      a remote endpoint, as precisely as 20 minutes allow; rerun the command to resume

\b
Exit codes
  0 capacity found (with --at: the rate is sustained)
  1 the goal is not reached at any rate (with --at: the rate is not sustained)
  2 wrong usage
  3 the backend failed
  4 a trial is not valid, twice; or terminated (SIGTERM) with the results so far
  5 inconclusive: the interval is wider than --tolerance, contains --at, or exceeds the rates tried
  70 a bug, or exhausted memory
  130 interrupted before the first trial ended

Capacity is the highest rate at which the mean attainment of all traffic of this kind reaches the goal: on a simulator
over runs of --horizon that begin idle. The interval is the 95% confidence interval over seeds.
"""


@click.command("capacity", cls=GroupedCommand, epilog=_EPILOG, short_help="Search the highest rate that meets the SLO.")
@server_url
@run_options(
    without=("duration", "fail-under", "rate", "percentiles"),
    requests={"help": "Requests of a trial on a wall clock. Default: by --budget; of a trace, all. Not for simulated "
              "searches: see --horizon and --max-requests."},
    warmup={"help": "Warm-up to discard. Default: simulated, none, or until sessions under way have sent a request; "
            "else mser5 (detected). Or 30s, 200 (requests; not for simulated traffic)."},
    goal={"metavar": "SHARES", "check": text,
          "help": "Shares of requests that must meet the SLO: 90% (default), 90%,99%."},
)  # fmt: skip
@option(
    "--conditions", metavar="NAME", group=OBJECTIVES,
    help="joint (default): a request meets all bounds; separate: each bound by itself, as in DistServe.",
)  # fmt: skip
@option("--horizon", metavar="TIME", group=SEARCH, help="Simulated: how long the runs last over which the SLO is to be "
        "met. Default: 10min, longer where a queue needs it to reach the SLO, shorter for fast systems.")  # fmt: skip
@option("--windows", metavar="SHARE", group=SEARCH, help="Simulated: so many of the runs have to meet the goal by "
        "themselves, such as 95%. Default: their mean has to.")  # fmt: skip
@option("--tolerance", metavar="SHARE", group=SEARCH, help="Target half-width of the interval. Default: 3%; wall "
        "clock: 5%.")  # fmt: skip
@option("--budget", metavar="TIME", group=SEARCH, help="Time limit; the interval may stay wider than --tolerance. "
        "Default: 10min on a wall clock.")  # fmt: skip
@max_requests("1,000,000; on a wall clock none")
@option("--at", metavar="RPS", type=RATE, group=SEARCH, help="Test whether this rate is sustained; stop once decided.")
@option("--rate-from", metavar="RPS", type=RATE, group=SEARCH,
        help="First rate to try. Default: from the latency of a single request.")  # fmt: skip
@wait
@workers_and_pool
@out("Store trials, answer and report.html here; rerun the command to resume.")
@result_options
@config
def command(
    goal: str | None, conditions: str | None, tolerance: str | None, budget: str | None,
    max_requests: int | None, at: float | None, rate_from: float | None, horizon: str | None,
    windows: str | None, workers: int | None, pool_name: str,
    config: str | None, out: str | None, form: str, no_html: bool, quiet: bool, metrics_port: tuple[str, int] | None,
    wait: float | None, **options: Any,
) -> int:  # fmt: skip
    """Search the highest rate that meets the SLO, with a confidence interval.

    On a simulator: the highest rate at which runs of 10 minutes (--horizon) that begin idle meet the SLO on average.
    Short runs bracket it, a few seeds tell how steeply attainment falls there, and fresh ones give the answer. They run
    in parallel. On a wall clock the rate is doubled until requests miss the SLO, then blocks of traffic below and above
    the best guess narrow the interval until --budget is spent.
    """
    from harness import configs
    from harness.cli import _terminal
    from harness.experiments import pool
    from harness.experiments.capacity.conditions import settings
    from harness.experiments.capacity.execute import folder_of, run_search, set_up
    from harness.experiments.capacity.store import Store
    from harness.options import run_spec

    search = settings(goal, conditions, tolerance, budget, at, rate_from, max_requests, horizon, windows)
    file = configs.read(config) if config is not None else None
    line = given(options)
    spec = run_spec(line, file.given if file else None)
    setup = set_up(spec, search, of_run="requests" not in line.values)
    pool.check(pool_name, virtual=setup.planned.virtual)
    store = Store(folder_of(out, setup))
    _terminal.stored_in(store.path, quiet=quiet)
    tell = _terminal.nothing if quiet else _terminal.note
    if setup.over_horizon and spec.requests is not None:
        tell(f"warning: requests in '{config}' are those of a run; --max-requests limits this search")
    _terminal.await_servers([setup.spec], wait, tell)
    with _terminal.display(metrics_port, quiet=quiet, virtual=setup.planned.virtual) as display:
        info = run_search(setup, store, workers=workers, pool_name=pool_name, tell=tell, display=display)
    return _terminal.conclude(form, info, store.path, no_html=no_html, quiet=quiet)
