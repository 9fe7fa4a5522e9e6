"""`bench slo`: stored runs under other objectives, without running anything again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from harness.cli._options import BOUNDS, NEW_FILE, SHARE, GroupedCommand, Value, formats, option
from harness.options import OBJECTIVES
from harness.values import share

if TYPE_CHECKING:
    from harness.experiments.rescore.answer import RescoreOptions
    from harness.experiments.rescore.slo_json import SloAnswer

VARIATION, BREAKDOWN = "Variation of bounds", "Groups and definitions"
_EPILOG = """
\b
Examples
  bench slo bench-runs/chatbot-sim-20260101T120000Z --slo ttft=0.5,tpot=50ms
      the same run under other bounds
  bench slo RUN --slo ttft=0.25,tpot=0.1 --slo ttft=1,tpot=0.1 --goal 90%,99% --by prompt
      two SLOs, two goals, and attainment by length of the prompt
  bench slo RUN --scale 0.25:4
      attainment against the SLO scale
  bench slo RUN --profile all
      what vLLM, SGLang, guidellm, aiperf, ... would report for the same tokens
  bench slo SWEEP_FOLDER --slo ttft=0.5 --scale 0.5:2:x2
      curves over the rate under an SLO other than the sweep's

\b
Values
  RUN     the folder of a run, a folder of runs (a sweep), or a result file of another tool
  BOUNDS  METRIC=TIME,... as in bench run; or fastgen:rate=4, the success rule of FastGen
  RANGE   LOW:HIGH, LOW:HIGH:STEP, LOW:HIGH:x2 or 1,2,3
  NAME    class, turn, prompt, output, prefix, cached, replica, time

\b
Exit codes
  0 success                                    1 --fail-under: too few requests met the SLO
  2 wrong usage                                4 a run is not valid
  5 --fail-under: met so far, but a run was overloaded or ended early, nothing was measured,
    or the measurement error of the client decides the result
"""


def _shares(value: object, name: str) -> tuple[float, ...]:
    return tuple(dict.fromkeys(share(part.strip(), name) for part in str(value).split(",")))


@click.command("slo", cls=GroupedCommand, epilog=_EPILOG, short_help="Score stored runs under other objectives.")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@option("--slo", type=BOUNDS, metavar="BOUNDS", multiple=True, group=OBJECTIVES,
        help="Latency objectives. Repeatable. Default: the SLO of each run.")  # fmt: skip
@option("--goal", type=Value(_shares), metavar="SHARES", group=OBJECTIVES,
        help="Shares of requests that must meet the SLO: 90%,99%. Default: that of the run.")  # fmt: skip
@option("--conditions", type=click.Choice(["joint", "separate"]), default="joint", group=OBJECTIVES,
        help="joint (default): a request meets all bounds; separate: each bound by itself.")  # fmt: skip
@option("--fail-under", type=SHARE, metavar="SHARE", group=OBJECTIVES,
        help="Exit with code 1 if fewer requests meet an objective.")  # fmt: skip
@option("--scale", metavar="RANGE", group=VARIATION, help="Attainment with all bounds scaled by these factors: 0.25:4.")
@option("--by", metavar="NAME", multiple=True, group=BREAKDOWN, help="Attainment by group of requests. Repeatable.")
@option("--tokens", is_flag=True, group=BREAKDOWN,
        help="Token goodput: token k is due at TTFT bound + k x TPOT bound.")  # fmt: skip
@option("--profile", metavar="NAMES", group=BREAKDOWN,
        help="Metric definitions of other tools, side by side: all, or vllm,sglang,...")  # fmt: skip
@formats
@option("--out", type=NEW_FILE, metavar="FILE", help="Also write JSON to FILE, for bench report.")
def command(runs: tuple[str, ...], form: str, out: str | None, **options: Any) -> int:
    """Score stored runs again: other bounds, SLO scales, groups, definitions of other tools.

    Nothing is run: a run folder stores all token times. Requests that the run discarded as warm-up stay excluded.
    """
    from pathlib import Path

    from harness.cli import _terminal
    from harness.data.codec import encode
    from harness.data.storage import write_json
    from harness.experiments.rescore.answer import answer
    from harness.experiments.rescore.reading import sources

    query = _query(options)
    info = answer((source for run in runs for source in sources(run)), query)
    if out is not None:
        write_json(Path(out), encode(info))
    _terminal.show(form, info)
    for sentence in _reasons(info):
        _terminal.complain(sentence)
    return info.exit_code


def _query(options: dict[str, Any]) -> RescoreOptions:
    from harness.experiments.rescore import objectives, side_by_side
    from harness.experiments.rescore.answer import RescoreOptions, numbers
    from harness.experiments.rescore.reading import check

    by = (check(name) for text in options["by"] for name in text.split(","))
    return RescoreOptions(
        objectives=tuple(dict.fromkeys(objectives.read(text) for text in options["slo"])),
        goals=options["goal"] or (),
        conditions=options["conditions"],
        factors=() if options["scale"] is None else tuple(numbers(options["scale"], "--scale")),
        by=tuple(dict.fromkeys(by)),
        profiles=() if options["profile"] is None else tuple(side_by_side.made(options["profile"].split(","))),
        tokens=options["tokens"],
        fail_under=options["fail_under"],
    )


def _reasons(info: SloAnswer) -> list[str]:
    """One sentence on an exit code other than 0."""
    code, under = info.exit_code, info.fail_under or 0
    if code == 4:
        first = next(run for run in info.runs if run.valid is False)
        why = f": {first.reasons[0]}" if first.reasons else "."
        return [f"exit code 4: '{first.path}' is not valid{why}"]
    if code == 1:
        return [(f"exit code 1: an objective was met by fewer than {under:.4g} of the requests, or a bound on a "
                 "percentile is broken.")]  # fmt: skip
    if code == 5:
        return [(f"exit code 5: --fail-under {under:.4g} is not decided; a run was overloaded or ended early, nothing "
                "was measured, or the client's own error is larger than the distance to a bound.")]  # fmt: skip
    return []
