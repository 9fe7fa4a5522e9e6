"""`bench slo`: stored runs under other objectives, without running anything again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from harness.cli._run_options import Sectioned

if TYPE_CHECKING:
    from harness.api import Caution
    from harness.experiments.rescore.options import RescoreOptions

_SECTIONS = {
    "Objectives": ("slo", "goal", "conditions", "fail-under"),
    "How they are varied": ("scale", "plane"),
    "Whose requests": ("by", "tokens", "profile", "failed-as-infinite"),
    "The answer": ("form", "out"),
}
_EPILOG = """
\b
Examples
  bench slo bench-runs/chatbot-sim-20260101T120000Z --slo ttft=0.5,tpot=50ms
      the same run, as if it had been asked for other bounds
  bench slo RUN --slo ttft=0.25,tpot=0.1 --slo ttft=1,tpot=0.1 --goal 90%,99% --by prompt
      two SLOs, two goals, and attainment by length of the prompt
  bench slo RUN --scale 0.25:4 --plane ttft=0.1:1,tpot=0.02:0.2
      attainment against the SLO scale, goodput over pairs of bounds
  bench slo RUN --profile all
      what vLLM, SGLang, guidellm, aiperf, ... would have printed of the same tokens
  bench slo SWEEP_FOLDER --slo ttft=0.5 --scale 0.5:2:x2
      curves over the rate under an SLO that the sweep was not made for

\b
Values
  RUN     the folder of a run, a folder of runs (a sweep), or a result file of another tool
  BOUNDS  METRIC=TIME,... as in bench run; or fastgen:rate=4, the success rule of FastGen
  RANGE   LOW:HIGH, LOW:HIGH:STEP, LOW:HIGH:x2 or 1,2,3
  NAME    class, turn, prompt, output, prefix, cached, replica, time

\b
Exit codes
  0 good                                       1 --fail-under: too few requests kept the SLO
  2 wrong usage                                4 a run is not valid
  5 --fail-under: good so far, but a run was overloaded or ended early, nothing was measured,
    or the client's own error decides
"""


@click.command(
    "slo", cls=Sectioned, sections=_SECTIONS, epilog=_EPILOG, short_help="Score stored runs under other objectives."
)
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option("--slo", metavar="BOUNDS", multiple=True, help="May be repeated; default: the SLO of each run.")
@click.option("--goal", metavar="SHARES", help="Shares of requests that must keep it: 90%,99%; default the run's.")
@click.option(
    "--conditions",
    type=click.Choice(["joint", "separate"]),
    default="joint",
    help="joint: the same requests keep all bounds (default); separate: each bound reaches the goal.",
)
@click.option("--fail-under", metavar="SHARE", help="Exit code 1 when fewer requests keep an objective.")
@click.option("--scale", metavar="RANGE", help="Attainment with every bound times these factors: 0.25:4.")
@click.option("--plane", metavar="METRIC=RANGE,METRIC=RANGE", help="Goodput under every pair of two bounds.")
@click.option("--by", metavar="NAME", multiple=True, help="Attainment in groups of requests; may be repeated.")
@click.option("--tokens", is_flag=True, help="Goodput in tokens: token k is due at TTFT bound + k x TPOT bound.")
@click.option("--profile", metavar="NAMES", help="Definitions of other tools, side by side: all, or vllm,sglang,...")
@click.option("--failed-as-infinite", is_flag=True, help="Failed requests are in the percentiles, infinitely slow.")
@click.option(
    "--format", "form", metavar="NAME", default="text", help="text (default), markdown, json, or csv (a row a number)."
)
@click.option("--out", metavar="FILE", help="Also write the answer as JSON into FILE, for bench report.")
def command(runs: tuple[str, ...], form: str, out: str | None, **options: Any) -> int:
    """Score stored runs again: other bounds, SLO scales, planes, groups, definitions of other tools.

    Nothing is run: the times of all tokens are in the folder of a run. Requests that the run left out as warm-up are
    left out here too.
    """
    from pathlib import Path

    from harness.cli import _terminal
    from harness.data import files
    from harness.data.storage import write_json
    from harness.errors import no_such
    from harness.experiments import answers
    from harness.experiments.rescore.answer import answer
    from harness.experiments.rescore.reading import sources

    if form not in answers.FORMS:
        raise no_such("format", form, answers.FORMS)
    if out is not None:
        files.check(out)
    asked = _asked(options)
    for caution in _loose(asked):
        _terminal.note(f"warning: {caution.message}; {caution.remedy}")
    info = answer((source for run in runs for source in sources(run)), asked)
    if out is not None:
        write_json(Path(out), info)
    _terminal.tell(form, info)
    for sentence in _said(info):
        _terminal.complain(sentence)
    return int(info["exit_code"])


def _loose(asked: RescoreOptions) -> list[Caution]:
    """What looks like milliseconds where seconds are meant."""
    from harness.api import Slo
    from harness.validity.warnings import loose

    return [caution for objective in asked.objectives if isinstance(objective, Slo) for caution in loose(objective)]


def _asked(options: dict[str, Any]) -> RescoreOptions:
    from harness.experiments.rescore import objectives, side_by_side
    from harness.experiments.rescore.groups import check
    from harness.experiments.rescore.options import RescoreOptions, numbers

    by = (check(name) for given in options["by"] for name in given.split(","))
    goals = () if options["goal"] is None else (_share(goal, "--goal") for goal in options["goal"].split(","))
    return RescoreOptions(
        objectives=tuple(dict.fromkeys(objectives.read(given) for given in options["slo"])),
        goals=tuple(dict.fromkeys(goals)),
        conditions=options["conditions"],
        factors=() if options["scale"] is None else tuple(numbers(options["scale"], "--scale")),
        limits_s=() if options["plane"] is None else _limits_s(options["plane"]),
        by=tuple(dict.fromkeys(by)),
        profiles=() if options["profile"] is None else tuple(side_by_side.made(options["profile"].split(","))),
        tokens=options["tokens"],
        failed_as_infinite=options["failed_as_infinite"],
        fail_under=None if options["fail_under"] is None else _share(options["fail_under"], "--fail-under"),
    )


def _limits_s(text: str) -> tuple[tuple[str, tuple[float, ...]], ...]:
    """The limits of two latency metrics."""
    from harness.errors import UsageError, no_such
    from harness.experiments.rescore.options import named
    from harness.metrics.measure import metrics
    from harness.spec import seconds

    found = named(text, "--plane", seconds)
    known = [name for name, metric in metrics().items() if metric.unit == "s"]
    for name, limits in found.items():
        if name not in known:
            raise no_such("latency metric", name, known)
        if limits[0] <= 0:
            raise UsageError(f"--plane: the bounds on {name} must be above 0 s, got '{text}'.")
    if len(found) != 2:
        raise UsageError(f"--plane is over two metrics such as ttft=0.1:1,tpot=0.02:0.2, got '{text}'.")
    return tuple((name, tuple(limits)) for name, limits in found.items())


def _share(text: str, name: str) -> float:
    """0.9 of '0.9' or '90%'."""
    from harness.options import CHECKS

    return float(str(CHECKS["goal"](text.strip(), name)))


def _said(info: dict[str, Any]) -> list[str]:
    """One sentence on an exit code that is not 0."""
    code, under = info["exit_code"], info["fail_under"]
    if code == 4:
        first = next(run for run in info["runs"] if run["valid"] is False)
        why = f": {first['reasons'][0]}" if first["reasons"] else "."
        return [f"exit code 4: '{first['path']}' is not valid{why}"]
    if code == 1:
        return [(f"exit code 1: an objective was kept by fewer than {under:.4g} of the requests, or a bound on a "
                 "percentile is broken.")]  # fmt: skip
    if code == 5:
        return [(f"exit code 5: --fail-under {under:.4g} is not decided; a run was overloaded or ended early, nothing "
                "was measured, or the client's own error is larger than the distance to a bound.")]  # fmt: skip
    return []
