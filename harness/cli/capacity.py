"""`bench capacity`: the highest rate that keeps the SLO, with its interval."""

import click

from harness.cli._run_options import SECTIONS, Sectioned, given, run_options

_NONE = ("duration", "fail-under", "rate", "scale")
_OWN = ("goal", "requests", "warmup")
_SECTIONS = {
    **{heading: tuple(n for n in names if n not in (*_NONE, "goal")) for heading, names in SECTIONS.items()},
    "What must be kept": ("slo", "goal", "definition"),
    "The search": ("tolerance", "max-seeds", "budget", "at", "rate-from", "no-adjust", "workers"),
    "The answer and its folder": ("config", "out", "form", "no-html", "quiet"),
}
_EPILOG = """
\b
Examples
  bench capacity --workload chatbot --backend sim --latency abc:distserve --policy vllm-v0
      the highest rate of chat on a simulated OPT-13B, to +-3%, in seconds
  bench capacity --workload chatbot --backend sim --hardware h100 --goal 90%,99%
      for two goals, from the same trials
  bench capacity --workload chatbot --backend sim --hardware h100 --at 4
      does it carry 4 requests per second? exit code 0, 1 or 5
  bench capacity --backend openai:url=http://127.0.0.1:8000/v1 --slo ttft=0.5 --budget 20min --out cap
      a real server, as well as 20 minutes allow; the same command again goes on

\b
Exit codes
  0 known (with --at: carried)
  1 not reachable at any rate (with --at: not carried)
  2 wrong usage
  3 the backend failed
  4 a trial is not valid, twice; or terminated (SIGTERM) with the answer so far
  5 not decided: the interval is wider than --tolerance, holds --at, or leaves the rates that were tried
  70 a bug, or exhausted memory
  130 interrupted before the first trial was over

A capacity is the highest rate at which the mean attainment of all traffic of this kind reaches the goal. Trials are
runs of other seeds; the interval tells how far another set of seeds would be off (95%).
"""


@click.command(
    "capacity",
    cls=Sectioned,
    sections=_SECTIONS,
    epilog=_EPILOG,
    short_help="Search the highest rate that keeps the SLO, with its interval.",
)
@run_options(without=(*_NONE, *_OWN))
@click.option(
    "--requests",
    metavar="N",
    help="Requests of a trial with its warm-up; default 2,200 in simulated time, else 660 (more where many are in "
    "flight), or a whole trace.",
)
@click.option(
    "--warmup",
    metavar="CUT",
    help="What is sent first and not measured: mser5 (found, default), 30s, 200 (requests), none.",
)
@click.option("--goal", metavar="SHARES", help="Share of requests that must keep the SLO: 90% (default), 90%,99%.")
@click.option(
    "--definition",
    "--conditions",
    "definition",
    metavar="NAME",
    help="joint (default): a request keeps all bounds; separate: each bound by itself, as DistServe; "
    "sarathi: p99 of itl and a median scheduling delay of 2s.",
)
@click.option("--tolerance", metavar="SHARE", help="Half of the interval that is enough: 3% (a real clock: 5%).")
@click.option("--max-seeds", metavar="N", help="At most so many seeds (default 20).")
@click.option("--budget", metavar="TIME", help="At most this long, with whatever interval that buys.")
@click.option("--at", metavar="RPS", help="Is this rate carried? Stops as soon as that is decided.")
@click.option("--rate-from", metavar="RPS", help="Where to begin; default: from the time of a request by itself.")
@click.option("--no-adjust", is_flag=True, help="Take attainment as found, not corrected for what each seed drew.")
@click.option("--workers", metavar="N", help="sim: trials at a time; default: one per core.")
@click.option(
    "--config",
    metavar="FILE",
    help="TOML file or name (bench list configs) with options of a run, or a run.json; options win.",
)
@click.option("--out", metavar="DIR", help="Keep trials, answer and report.html here; the same command again goes on.")
@click.option("--format", "form", metavar="NAME", default="text", help="text (default), markdown or json.")
@click.option("--no-html", is_flag=True, help="Write no report.html into the folder.")
@click.option("--quiet", is_flag=True, help="No progress.")
def command(
    goal: str | None,
    definition: str | None,
    tolerance: str | None,
    max_seeds: str | None,
    budget: str | None,
    at: str | None,
    rate_from: str | None,
    no_adjust: bool,
    workers: str | None,
    config: str | None,
    out: str | None,
    form: str,
    no_html: bool,
    quiet: bool,
    header: tuple[str, ...],
    **options: str | None,
) -> int:
    """Search the highest rate that keeps the SLO, and say how sure it is.

    First probes bracket it, each ended as soon as its side is certain; then whole trials of ever more seeds at the
    best guess narrow the interval until it is as small as asked. Simulated trials run several at a time.
    """
    from harness import compose, configs
    from harness import options as configuration
    from harness.cli import _terminal
    from harness.errors import no_such
    from harness.experiments.capacity.conditions import settings
    from harness.experiments.capacity.execute import conduct, folder_of, set_up
    from harness.experiments.capacity.store import Store

    if form not in ("text", "markdown", "json"):
        raise no_such("format", form, ("text", "markdown", "json"))
    told = settings(goal, definition, tolerance, max_seeds, budget, at, rate_from, adjust=not no_adjust)
    file = configs.read(config) if config is not None else None
    spec = configuration.run_spec(given(options, header), file.given if file else None)
    count = None if workers is None else int(configuration.CHECKS["replicas"](workers, "--workers"))  # type: ignore[call-overload]  # a whole number
    setup = set_up(spec, told)
    store = Store(folder_of(out, setup))
    if store.path is not None and not quiet:
        _terminal.note(f"every trial is kept in '{store.path}'; the same command with --out '{store.path}' goes on")
    info = conduct(setup, store, workers=count, tell=_terminal.nothing if quiet else _terminal.note)
    _terminal.tell(form, info)
    if store.path is not None and not no_html:
        report = compose.write_answer_page(info, store.path, _terminal.complain)
        if report is not None and not quiet:
            _terminal.note(f"report: {report}")
    return int(info["exit_code"])
