"""`bench agents`: how many agents a system serves at tiers of latency."""

from typing import Any

import click

from harness.cli._options import (
    BOUNDS,
    COUNT,
    SHARE,
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

SEARCH = "Search"
_EPILOG = """
\b
Examples
  bench agents --workload coding-agent:limit=96000 --backend sim --model llama3.1-70b --hardware h100 --tp 4
      agents per GPU and kW at two tiers, simulated: sessions drawn as those of recorded agents
  bench agents --trace traces/ --scale context:96000 --backend sim --model llama3.1-70b --hardware h100 --tp 4
      sessions of the trace, shortened to 96,000 tokens
  bench agents --trace traces/ --turns think-only:cap=60s --slo p95:ttft=3,p90:tpot=25ms --backend sim --hardware b200
      at a tier of your own: 95% of first tokens within 3 s, nine tenths of the requests at 40 tokens/s
  bench agents --trace traces/ --backend openai:url=http://127.0.0.1:8000/v1,gpus=8,usd_per_hour=20 --budget 1h --out a
      a server, as precisely as an hour allows; rerun the command to resume

\b
Exit codes
  0 the agents of every tier are found
  1 even one agent misses every tier
  2 wrong usage
  3 the backend failed
  4 a trial is not valid; or terminated (SIGTERM) with the results so far
  5 inconclusive: an interval is wider than --tolerance, or there was no time for one
  70 a bug, or exhausted memory
  130 interrupted before the first trial ended

An agent is a user in a closed loop: it has one session of the trace or preset after the other, thinks as recorded, and
waits for every answer. Capacity in agents is where the first condition of a tier crosses its goal, with a 95% interval.
"""


@click.command("agents", cls=GroupedCommand, epilog=_EPILOG, short_help="Search how many agents meet tiers of latency.")
@server_url
@run_options(
    without=(
        "duration",
        "requests",
        "fail-under",
        "percentiles",
        "rate",
        "slo",
        "warmup",
        "lengths",
        "prefixes",
        "jitter",
    ),
    workload={"help": "Preset with sessions, drawn anew in each trial. Default: coding-agent, without --trace."},
    trace={"help": "Sessions of agents to replay: a file or folder."},
    arrivals={"help": "closed:think=...: think time between two sessions of an agent. Default: none."},
    sessions={"help": "With --trace recorded:common=0.5: sessions share so much of their tools and system prompt."},
    turns={"help": "Think times: think-only (default), think-only:cap=60s, answered, recorded, api-scaled:scale=0.5."},
    goal={"help": "Share of requests for bounds that are not on percentiles. Default: 90%."},
)
@option("--slo", "tiers", type=BOUNDS, metavar="BOUNDS", multiple=True, group=OBJECTIVES,
        help="A tier, repeatable. Default: p95:ttft=5,p90:tpot=50ms and p95:ttft=2,p90:tpot=20ms: nine tenths of the "
        "requests at 20 and at 50 tokens per second.")  # fmt: skip
@option("--horizon", metavar="TIME", group=SEARCH, help="How long a trial is observed, after a quarter that is not. "
        "Default: 1h simulated; on a wall clock by --budget.")  # fmt: skip
@option("--agents-from", type=COUNT, metavar="N", group=SEARCH, help="Number of agents to try first. Default: 1.")
@option("--tolerance", type=SHARE, default="10%", show_default=True, metavar="SHARE", group=SEARCH,
        help="Target half-width of the interval.")  # fmt: skip
@option("--budget", metavar="TIME", group=SEARCH, help="Time limit. Default: 10min on a wall clock.")
@max_requests("300,000; on a wall clock none")
@wait
@workers_and_pool
@out("Store trials, answer and report.html here; rerun the command to resume.")
@result_options
@config
def command(
    tiers: tuple[str, ...], horizon: str | None, agents_from: int | None, tolerance: float,
    budget: str | None, max_requests: int | None, workers: int | None, pool_name: str, config: str | None,
    out: str | None, form: str, no_html: bool, quiet: bool, metrics_port: tuple[str, int] | None, wait: float | None,
    **options: Any,
) -> int:  # fmt: skip
    """Search how many agents a system serves at each tier of latency: per GPU, per kW and per dollar.

    The sessions of a trace or preset are sent by so many agents at once, each waiting for its answers and thinking as
    recorded, from the middle of their sessions on. Runs of --horizon bracket the crossing of a tier, a few seeds tell
    how steeply attainment falls there, and fresh ones give the answer. All tiers are judged by the same trials.
    """
    from dataclasses import replace
    from pathlib import Path

    from harness import configs
    from harness.cli import _terminal
    from harness.data.folder import new_folder
    from harness.experiments import pool
    from harness.experiments.agents.execute import TIERS, WORKLOAD, run_search, set_up
    from harness.options import run_spec
    from harness.runner.run import RUNS
    from harness.values import duration_s

    file = configs.read(config) if config is not None else None
    line = given(options)
    option_names = {*line.values, *(file.given.values if file else ())}
    if not option_names & {"workload", "trace"}:
        line = replace(line, values={**line.values, "workload": WORKLOAD})
    spec = run_spec(line, file.given if file else None)
    horizon_s, budget_s = (
        None if text is None else duration_s(text, f"--{name}")
        for name, text in (("horizon", horizon), ("budget", budget))
    )
    setup = set_up(
        spec,
        tiers or TIERS,
        horizon_s,
        budget_s,
        tolerance=tolerance,
        agents_from=agents_from or 1,
        max_requests=max_requests,
    )
    pool.check(pool_name, virtual=setup.virtual)
    path = Path(out) if out is not None else None
    if path is None and not setup.virtual:
        path = new_folder(Path(RUNS) / f"agents-{setup.first.loaded.name}")
    _terminal.stored_in(path, quiet=quiet)
    tell = _terminal.nothing if quiet else _terminal.note
    _terminal.await_servers([spec], wait, tell)
    with _terminal.display(metrics_port, quiet=quiet, virtual=setup.virtual) as display:
        info = run_search(setup, path, workers=workers, pool_name=pool_name, tell=tell, display=display)
    return _terminal.conclude(form, info, path, no_html=no_html, quiet=quiet)
