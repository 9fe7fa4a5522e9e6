"""`bench place`: the cheapest deployment for a rate, or the one with the highest rate per GPU, cost or watt."""

from typing import Any

import click

from harness.cli._options import (
    COUNT,
    DURATION,
    RATE,
    SEED,
    SHARE,
    GroupedCommand,
    config,
    formats,
    given,
    max_requests,
    no_html,
    option,
    out,
    quiet,
    run_options,
    workers_and_pool,
)  # fmt: skip
from harness.options import OBJECTIVES, OPTIONS

_TAKEN = ("workload", "trace", "reader", "start", "stop", "limit", "where", "jitter", "turns", "lengths",
          "arrivals", "sessions", "prefixes", "content", "slo", "backend", "model", "latency", "policy",
          "prefix-cache")  # fmt: skip
"""Options of a run that all candidates share."""
CLUSTER, TARGET, SEARCH = "Cluster", "Optimization target", "Search"
OWN = ("prices", "power", "rate", "nodes", "gpus", "hardware", "algorithm", "goal", "conditions", "budget",
       "max_requests", "seed")  # fmt: skip
_EPILOG = """
\b
Examples
  bench place --rate 28 --nodes 4 --gpus 8 --hardware h100 --model llama3-70b --workload chatbot
      the fewest GPUs that sustain 28 requests per second, run as a whole before they are recommended
  bench place --rate 28 --nodes 4 --gpus 8 --hardware h100,l40s --model llama3-8b --prices prices.toml
      the lowest cost per hour, prefill and decode on any of both: prices.toml holds h100 = 3.5 and l40s = 1.1
  bench place --gpus 8 --hardware h100 --model llama3-8b --workload chatbot
      the unit with the highest rate per GPU
  bench place --gpus 8 --slo ttft=0.4,tpot=0.04 --conditions separate --algorithm high
      how many prefill replicas to a decode replica, after P/D-Serve

\b
Algorithms (DistServe, OSDI 2024)
  high    disaggregated prefill and decode replicas anywhere in the cluster (algorithm 1)
  low     disaggregated pairs that share their nodes, so that KV stays in a node (algorithm 2)
  vllm++  colocated replicas with the best parallelism

\b
Exit codes
  0 success
  1 no deployment meets the SLO
  2 wrong usage
  3 the backend failed
  4 terminated (SIGTERM) with the results so far
  5 ended early (Ctrl-C) with the results so far, or whether the goal is met is not decided
  70 a bug, or exhausted memory
  130 interrupted before the first candidate finished, or twice; rerun with the same --out to resume
"""


@click.command(
    "place",
    cls=GroupedCommand,
    epilog=_EPILOG,
    short_help="Search the cheapest deployment for a rate, or the best per GPU.",
)
@option("--nodes", default="1", show_default=True, type=COUNT, metavar="N", group=CLUSTER,
        help="Nodes of the cluster.")  # fmt: skip
@option("--gpus", default="8", show_default=True, type=COUNT, metavar="N", group=CLUSTER, help="GPUs per node.")
@option("--hardware", default="a100-80g", show_default=True, metavar="NAMES", group=CLUSTER,
        help="GPU types (bench list hardware), separated by commas; prefill and decode may differ.")  # fmt: skip
@option("--algorithm", default="all", show_default=True, metavar="NAMES", group=CLUSTER,
        help="high, low, vllm++, or all.")  # fmt: skip
@run_options(
    without=[name for name in OPTIONS if name not in _TAKEN],
    workload={"help": "Preset (bench list presets) or lengths spec. Default: distserve-fig1."},
    backend={
        "help": "sim (default), or sim:kv=reserve-oracle,link=25Gbps, ... Default of link: nvlink or pcie within "
        "a node, 400Gbps between nodes."
    },
    model={"help": "Model name (bench list models). Default: opt-13b."},
    latency={"help": "Step latency model. Default: operators."},
    policy={"help": "Batch scheduling policy of a colocated replica. Default: sarathi."},
)
@option("--goal", metavar="SHARE", type=SHARE, group=OBJECTIVES,
        help="Share of requests that must meet the SLO. Default: 0.9.")  # fmt: skip
@option("--conditions", default="joint", show_default=True, metavar="NAME", group=OBJECTIVES,
        help="joint: a request meets all bounds; separate: each bound by itself, as in DistServe.")  # fmt: skip
@option("--prices", metavar="FILE", group=TARGET,
        help="Save money instead of GPUs: TOML file with the price per hour of each GPU, h100 = 3.5.")  # fmt: skip
@option(
    "--power",
    metavar="FILE",
    group=TARGET,
    help="Save power: TOML file with the watts of each GPU, h100 = 700, or [h100] with prefill, decode, mixed.",
)
@option("--rate", type=RATE, metavar="RPS", group=TARGET,
        help="Find the cheapest deployment for this total request rate. Default: the best rate per GPU; "
        "of a trace: its own rate.")  # fmt: skip
@option("--budget", type=DURATION, default="2min", show_default=True, metavar="TIME", group=SEARCH,
        help="Time limit; the answer is the best until then.")  # fmt: skip
@max_requests("150,000 for each deployment")
@option("--seed", type=SEED, metavar="N", group=SEARCH, help="First seed. Default: 0.")
@workers_and_pool
@out("Store the answer and report.html here; rerun the command to resume.")
@formats
@no_html
@quiet
@config
def command(
    form: str, config: str | None, out: str | None, no_html: bool, quiet: bool, workers: int | None, pool_name: str,
    **options: Any,
) -> int:  # fmt: skip
    """Search the deployment of a model on a cluster: how many replicas of which tensor and pipeline parallelism,
    colocated or with disaggregated prefill and decode, on which GPUs. With --rate the cheapest that meets the SLO at
    that rate, else the one with the highest rate per GPU (or per cost, or per watt).

    A first answer comes within seconds, cheaper ones until the --budget is over; Ctrl-C prints the best so far.
    Deployments are simulated over 10 minutes (less at high rates), with several seeds. What is recommended was run as
    a whole.
    """
    from pathlib import Path

    from harness.cli import _terminal
    from harness.experiments import pool
    from harness.experiments.place.execute import run_placement
    from harness.experiments.place.settings import place_options
    from harness.experiments.place.store import Store

    place_values = {name: options.pop(name) for name in OWN}
    search = place_options(given(options), config, place_values)
    store = Store(None if out is None else Path(out))
    with pool.of(workers, pool_name, cuts=True) as processes:
        info = run_placement(search, store, processes, _terminal.nothing if quiet else _terminal.note)
    return _terminal.conclude(form, info, store.path, no_html=no_html, quiet=quiet)
