"""`bench place`: which parallelism, and whether prefill and decode apart, carries most per GPU, money or watt."""

from typing import Any

import click

from harness.cli._run_options import SECTIONS, Sectioned, given, run_options

_NONE = (
    "trace", "reader", "columns", "start", "stop", "limit", "where", "scale", "jitter", "turns", "rate", "duration",
    "warmup", "fail-under", "max-failed", "drain", "header", "extra-body", "output-lengths", "senders", "calibrate",
    "replicas", "tp", "pp", "prefill", "decode", "router", "hardware", "requests", "goal", "seed",
)  # fmt: skip
_TOLD = ("workload", "backend", "model", "latency", "policy")
"""Options of a run that have another default here."""

_FIRST = ("nodes", "gpus", "hardware", "algorithm")
_KEPT = ("slo", "goal", "conditions")
_OWN = ("objective", "prices", "power", "rate")
_SEARCH = ("requests", "seeds", "seed", "max-rate", "width", "workers")
_SECTIONS = {
    "The cluster and what is searched": _FIRST,
    "What must be kept": _KEPT,
    "What is saved, and how much is asked for": _OWN,
    **{h: rest for h, names in SECTIONS.items() if (rest := tuple(n for n in names if n not in (*_NONE, "slo")))},
    "The search": (*_SEARCH, "where"),
    "The answer and its folder": ("config", "out", "form", "no-html", "quiet"),
}
_EPILOG = """
\b
Examples
  bench place --gpus 4 --slo ttft=0.2,tpot=0.1 --conditions separate
      OPT-13B on one node with 4 A100, as DistServe's planner searches, in two seconds
  bench place --nodes 4 --gpus 8 --model opt-66b --workload distserve-66b-chat-ae --rate 10
      the same on 32 GPUs, and how many replicas 10 requests per second need
  bench place --gpus 8 --hardware h100 --model llama3-70b --backend sim --latency roofline --workload chatbot
      any model on any GPU, with hand-off over NVLink and memory that may run out
  bench place --gpus 8 --hardware a100-80g,h100 --model llama2-13b --objective cost --prices prices.toml
      for money: prices.toml says h100 = 3.5 and a100-80g = 1.9

\b
Algorithms (DistServe, OSDI 2024)
  high    prefill and decode replicas apart, anywhere in the cluster (algorithm 1)
  low     pairs that share their nodes, so that KV never leaves one (algorithm 2)
  vllm++  colocated replicas with the best parallelism

\b
Exit codes
  0 good
  1 no candidate keeps the SLO at any rate
  2 wrong usage
  3 the backend failed
  4 terminated (SIGTERM) with what was known by then
  5 ended early (Ctrl-C) with what was known by then, or no rate was shown to be too high for the best
  70 a bug, or exhausted memory
  130 interrupted before the first candidate was over, or twice; --out keeps what was searched
"""


@click.command(
    "place", cls=Sectioned, sections=_SECTIONS, epilog=_EPILOG, short_help="Search the best placement on a cluster."
)
@click.option("--nodes", default="1", show_default=True, metavar="N", help="Nodes of the cluster.")
@click.option("--gpus", default="8", show_default=True, metavar="N", help="GPUs of a node.")
@click.option("--hardware", default="a100-80g", show_default=True, metavar="NAMES",
              help="The GPU (bench list hardware), or several with commas: each is searched.")  # fmt: skip
@click.option("--algorithm", default="all", show_default=True, metavar="NAMES", help="high, low, vllm++, or all.")
@click.option("--goal", metavar="SHARE", help="Share of requests that must keep the SLO (default 0.9).")
@click.option(
    "--conditions",
    default="joint",
    show_default=True,
    metavar="NAME",
    help="joint: a request keeps all bounds; separate: each bound by itself, as DistServe's planner.",
)
@click.option("--rate", metavar="RPS", help="Replicate the best to carry so many requests per second in all.")
@click.option("--objective", default="gpu", show_default=True, metavar="NAME", help="Rate per gpu, cost or power.")
@click.option("--prices", metavar="FILE", help="TOML: price per hour of each GPU, h100 = 3.5.")
@click.option("--power", metavar="FILE", help="TOML: watts of each GPU, h100 = 700, or [h100] prefill, decode, mixed.")
@click.option("--requests", metavar="N", help="Requests of a trial; default 300, as DistServe's planner, or more.")
@click.option(
    "--seeds", metavar="N", help="Seeds of each candidate; default 3, as DistServe's planner 1, which has no interval."
)
@click.option("--seed", metavar="N", help="The first of them (default 0).")
@click.option("--max-rate", default="8", show_default=True, metavar="RPS", help="Per GPU; doubled while it is carried.")
@click.option("--width", default="0.0625", show_default=True, metavar="RPS",
              help="How finely a rate per GPU is searched; finer where 5% of it are less.")  # fmt: skip
@click.option("--workers", metavar="N", help="Candidates at a time; default: one per core.")
@click.option("--pool", "where", default="processes", show_default=True, metavar="NAME",
              help="processes, ray (a cluster of this machine), or ray:ADDRESS (one that runs).")  # fmt: skip
@click.option("--config", metavar="FILE", help="TOML file with options of a run; options win.")
@click.option("--out", metavar="DIR", help="Keep the answer and report.html here; the same command again goes on.")
@click.option("--format", "form", metavar="NAME", default="text", help="text (default), markdown or json.")
@click.option("--no-html", is_flag=True, help="Write no report.html into the folder.")
@click.option("--quiet", is_flag=True, help="No progress.")
@click.option("--workload", metavar="NAME",
              help="Preset (bench list presets) or lengths spec; default distserve-fig1.")  # fmt: skip
@click.option("--backend", metavar="SPEC", help="sim (default), or sim:utilisation=0.95, sim:compat=distserve_sim, ...")
@click.option("--model", metavar="NAME", help="A model (bench list models); default opt-13b.")
@click.option("--latency", metavar="SPEC",
              help="How long a step takes; default roofline, and what DistServe released for its models.")  # fmt: skip
@click.option("--policy", metavar="SPEC", help="What runs next on a colocated replica; default vllm-v0.")
@run_options(without=(*_NONE, *_TOLD))
def command(form: str, config: str | None, out: str | None, no_html: bool, quiet: bool, **told: Any) -> int:
    """Search how a model is best placed on a cluster: which tensor and pipeline parallelism, colocated or with prefill
    and decode apart, carries the highest rate within the SLO for each GPU (or for money, or for watts).

    Every candidate is a simulated system whose highest rate is found by bisection, for several seeds.
    """
    from pathlib import Path

    from harness import compose
    from harness.cli import _terminal
    from harness.errors import no_such
    from harness.experiments.place.execute import conduct
    from harness.experiments.place.settings import asked, opened
    from harness.experiments.place.store import Store

    if form not in ("text", "markdown", "json"):
        raise no_such("format", form, ("text", "markdown", "json"))
    names = (name.replace("-", "_") for name in (*_OWN, *_FIRST, "goal", "conditions", *_SEARCH, "where"))
    own = {name: told.pop(name) for name in names}
    search = asked(given(told), config, own)
    store = Store(None if out is None else Path(out))
    with opened(own["where"], own["workers"], small=search.is_small) as processes:
        info = conduct(search, store, processes, _terminal.nothing if quiet else _terminal.note)
    _terminal.tell(form, info)
    if store.path is not None and not no_html:
        report = compose.write_answer_page(info, store.path, _terminal.complain)
        if report is not None and not quiet:
            _terminal.note(f"report: {report}")
    return int(info["exit_code"])
