"""`bench sweep`: runs over rates, or over any option, with several seeds: the goodput curve."""

from typing import Any

import click

from harness.cli._run_options import SECTIONS, Sectioned, given, run_options

_OWN = ("rate", "goal", "requests", "warmup", "seed", "fail-under")
"""Options of a run that take a list here, or have another default, or mean every point."""

_FIRST = ("rate", "over", "seeds", "seed", "goal")
_SECTIONS = {
    "What to sweep over": _FIRST,
    **{heading: [name for name in names if name not in _FIRST] for heading, names in SECTIONS.items()},
    "The sweep and its folder": ("config", "out", "workers", "drain", "form", "no-html", "quiet"),
}
_EPILOG = """
\b
Examples
  bench sweep --workload chatbot --backend sim --rate 1:4:0.5
      the goodput curve of a simulated system, five seeds at each of seven rates
  bench sweep --backend sim --rate 1:16:x2 --over policy=sarathi,vllm-v0
      the same for two policies, over rates that double
  bench sweep --backend sim --rate 2 --over slo-scale=0.5:2:0.25
      attainment against the SLO scale: the same runs, scored again
  bench sweep --backend openai:url=http://127.0.0.1:8000/v1 --rate 1,2,4 --requests 600 --out curve
      a server elsewhere, one run after another; after a kill the same command goes on

\b
Values
  LIST    1,2,4   or 1:4:0.5 (up to and with 4)   or 1:16:x2 (doubling)
          sarathi|static:size=8,timeout=1   with | where a value holds commas
  NAME    any option of a run (replicas, policy, duration, ...), slo-scale, or an argument of an
          option that is given: --arrivals gamma --over arrivals.cv=1,2,4

\b
Exit codes
  0 good
  1 --fail-under: at some point too few requests kept the SLO, or a bound on a percentile is broken
  2 wrong usage
  3 the backend failed
  4 a run is not valid, or terminated (SIGTERM) with the answer so far
  5 ended early (Ctrl-C); or --fail-under is kept, but at some point a run was overloaded
  70 a bug, or exhausted memory
  130 interrupted before there was anything to report

All points share their seeds: a seed draws the same lengths at every rate, and the same arrivals, closer together.
The same command with the same --out goes on where it was left; values and seeds may be added.
"""


@click.command(
    "sweep",
    cls=Sectioned,
    sections=_SECTIONS,
    epilog=_EPILOG,
    short_help="Run over many rates, or any option: the goodput curve.",
)
@click.option("--rate", metavar="LIST", help="Mean rates in requests per second; of a trace, its load scaled to them.")
@click.option("--over", metavar="NAME=LIST", multiple=True, help="Sweep over this option too; may be repeated.")
@click.option(
    "--seeds",
    metavar="N",
    help="Runs at each point, seeds from --seed on, or a list of seeds; default 5 in simulated time, else 1.",
)
@click.option("--seed", metavar="N", help="The first of --seeds N (default 0).")
@click.option("--goal", metavar="LIST", help="Shares of requests that must keep the SLO (default 0.9).")
@click.option(
    "--requests",
    metavar="N",
    help="Requests of a run; default 2,200 in simulated time, else the preset's, or a whole trace.",
)
@click.option(
    "--warmup",
    metavar="CUT",
    help="What is sent first and not measured: mser5 (found, default), 30s, 200 (requests), none.",
)
@click.option("--fail-under", metavar="SHARE", help="Exit code 1 when the SLO is kept by fewer at any point.")
@run_options(without=_OWN)
@click.option(
    "--config",
    metavar="FILE",
    help="TOML file or name (bench list configs) with options of a run, or a run.json; options win.",
)
@click.option(
    "--out", metavar="DIR", help="Folder of the sweep, new or to go on with (default: a new one in bench-runs)."
)
@click.option("--workers", metavar="N", help="Simulated runs at a time; default: one per core.")
@click.option("--format", "form", default="text", metavar="NAME", help="text (default), markdown, csv or json.")
@click.option("--no-html", is_flag=True, help="Write no report.html.")
@click.option("--quiet", is_flag=True, help="No progress and no notes; the answer is still printed.")
def command(
    rate: str | None,
    over: tuple[str, ...],
    seeds: str | None,
    goal: str | None,
    config: str | None,
    out: str | None,
    workers: str | None,
    form: str,
    no_html: bool,
    quiet: bool,
    header: tuple[str, ...],
    **options: Any,
) -> int:
    """Run a workload at many rates, or over the values of any option, and tell how many requests kept the SLO at each.

    The folder of the sweep holds sweep.json, sweep.csv, sweep.md, report.html and, under points/, every run.
    """
    from pathlib import Path

    from harness import compose, configs
    from harness.cli import _terminal
    from harness.data.folder import new_folder
    from harness.errors import no_such
    from harness.experiments import answers
    from harness.experiments.sweep import axes
    from harness.experiments.sweep.execute import conduct
    from harness.experiments.sweep.plan import plan_sweep
    from harness.options import CHECKS

    if form not in answers.FORMS:
        raise no_such("format", form, answers.FORMS)
    count = None if workers is None else int(str(CHECKS["replicas"](workers, "--workers")))
    file = configs.read(config).given if config is not None else None
    swept = [*([axes.axis(axes.RATE, rate)] if rate is not None else []), *map(axes.over, over)]
    sweep = plan_sweep(given(options, header), file, swept, seeds=seeds, goals=goal)
    say = _terminal.nothing if quiet else _terminal.note
    folder = new_folder(sweep.home) if out is None else Path(out)
    info = conduct(sweep, folder, workers=count, quiet=quiet, say=say, render=compose.render_answer)
    _terminal.tell(form, info)
    if not no_html and compose.write_answer_page(info, folder, _terminal.complain) is not None:
        say(f"report: {compose.beside(folder)}")
    if info["error"]:
        _terminal.complain(info["error"])
    return int(info["exit_code"])
