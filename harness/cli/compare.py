"""`bench compare`: a candidate against a baseline, paired, with a verdict for CI."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness import options as run
from harness.cli._options import (
    SEED,
    GroupedCommand,
    Value,
    config,
    formats,
    given,
    option,
    quiet,
    run_options,
    wait,
)  # fmt: skip
from harness.errors import UsageError
from harness.values import is_url, share

if TYPE_CHECKING:
    from harness.experiments.compare.compare_json import CompareAnswer, TrendAnswer
    from harness.options import Given

DECIDING = ("gate", "alpha", "allow_different")
PAIRED = ("base", "head", "run", "pairs", "seed", "out", "no_html", "wait")
RESCORED = ("slo", "goal", "warmup")
"""Options of a run that also decide how stored runs are scored."""
DECISION, PAIRS = "Decision", "New runs"

_EPILOG = """
\b
Examples
  bench compare before after
      two runs, folders of runs, sweeps or capacity searches, matched by the traffic sent
  bench compare baselines/chatbot out/chatbot --export markdown=summary.md --export junit=bench.xml
      a simulator against a stored baseline: exact, every difference is reported with its cause
  bench compare before after --gate tpot=1%:3%,p99:ttft=10%:20%
      other gates: IGNORED is the largest loss that does not matter, FOUND the smallest that must be detected
  bench compare --base openai:url=http://127.0.0.1:8001/v1 --head openai:url=http://127.0.0.1:8002/v1 \\
                --workload chatbot --rate 11 --requests 600 --pairs auto
      runs both backends, interleaved: A B, B A, ...
  bench compare --run 'CMD A' --run 'CMD B' --pairs 5
      any two commands that store a run, or a result file of another tool
  bench compare --trend results --html trend.html
      changes in a series of nightly runs against its accepted level or a lasting gain, with a page of all runs
  bench compare --trend results/chatbot/vllm --accept 2026-01-11 --reason 'new tokenizer'
      from that run on its level counts; written to accepted.json beside the runs, to be committed

\b
Gates
  on real systems  capacity_rps=2%:5%,tpot=2%:5%,ttft=5%:15%,failed=0.5%:0.5%
  on simulators    goodput_rps, ttft, tpot, failed: any loss at all
  others           e2e, itl, p50:ttft, p99:tpot, attainment, throughput_rps, output_tps; shares are
                   compared in percentage points, all else in percent

\b
Exit codes
  0 equivalent or improved   1 regressed             2 wrong usage
  3 the backend failed       4 not comparable, or a run is not valid
  5 inconclusive
"""


def _alpha(value: object, name: str) -> float:
    try:
        alpha = share(value, name)
    except UsageError:
        alpha = 1.0
    if not alpha < 0.5:
        raise UsageError(f"{name} must be a share above 0 and below 50%, such as 1%, got '{value}'.")
    return alpha


def _pairs(value: object, name: str) -> int | str:
    from harness.stats.paired import MOST_PAIRS

    if value == "auto":
        return "auto"
    if not str(value).isdecimal() or not 1 <= int(str(value)) <= MOST_PAIRS:
        raise UsageError(f"{name} must be 'auto' or a whole number from 1 to {MOST_PAIRS}, got '{value}'.")
    return int(str(value))


@click.command("compare", cls=GroupedCommand, epilog=_EPILOG, short_help="Compare a candidate with a baseline.")
@click.argument("runs", nargs=-1, metavar="[BASE HEAD]")
@option("--gate", metavar="GATES", group=DECISION, help="Metrics that decide: NAME=IGNORED:FOUND,... (see below).")
@option("--alpha", metavar="SHARE", type=Value(_alpha), group=DECISION,
        help="One-sided false positive rate of a regression. Default: 1%.")  # fmt: skip
@option("--allow-different", metavar="FIELDS", group=DECISION,
        help="Compare although these differ: hardware,model,output-lengths,...")  # fmt: skip
@option("--base", metavar="SPEC", group=PAIRS, help="Backend of the baseline; both get the same traffic.")
@option("--head", metavar="SPEC", group=PAIRS, help="Backend of the candidate.")
@option("--run", metavar="CMD", multiple=True, group=PAIRS,
        help="Instead of --base and --head, given twice: command of the baseline, then of the candidate; {seed} and "
        "{out} are substituted.")  # fmt: skip
@option("--pairs", metavar="N", type=Value(_pairs), group=PAIRS,
        help="Number of pairs, or auto: interim analyses after 3, 5, 7 and 10 (default; simulators: 1).")  # fmt: skip
@option("--seed", metavar="N", type=SEED, group=PAIRS, help="Seed of the first pair; then counting up. Default: 0.")
@option("--out", metavar="DIR", group=PAIRS, help="Folder of the pairs; rerun the command to resume.")
@option("--no-html", is_flag=True, group=PAIRS, help="Do not write report.html into the folder of the pairs.")
@wait
@option("--trend", metavar="DIR", group="History",
        help="Instead of a comparison: analyse the nightly runs in DIR/<workload>/<backend>/<utc>-<sha>/.")  # fmt: skip
@option("--accept", metavar="RUN", group="History",
        help="With --trend: accept the level from RUN on (its folder, date or commit, or latest).")  # fmt: skip
@option("--reason", metavar="TEXT", group="History", help="With --accept: why, for accepted.json.")
@run_options(
    without=("backend", "seed", "fail-under", "percentiles"),
    warmup={"help": "Warm-up to discard: mser5 (detected, default for new runs), 30s, 200 (requests), or none. "
                    "Default for stored runs: as recorded."},
)  # fmt: skip
@formats
@option("--html", metavar="FILE", help="Write an HTML page that opens without a network.")
@option("--export", multiple=True, metavar="FORM=FILE",
        help="Write markdown, json (all details), junit (a test case per gate), or the format of another tool: "
        "github-smaller, github-bigger. Repeatable.")  # fmt: skip
@quiet
@config
def command(runs: tuple[str, ...], config: str | None, **options: Any) -> int:
    """Compare HEAD, the candidate, with BASE, and report whether it regressed, improved, is equivalent or unresolved.

    BASE and HEAD are stored runs: a run, a folder of runs, a sweep, a capacity search, or a result file of another
    tool; or several, as a,b,c. Without them, new pairs of runs are made. An SLO, goal or warm-up given here rescores
    stored runs.
    """
    from harness.cli import _compare, _terminal

    forms = _compare.checked(options)
    of_a_run = {name.replace("-", "_") for name in run.OPTIONS} - {*PAIRED}
    query = given({name: value for name, value in options.items() if name in of_a_run})
    stray = next((name for name, other in (("accept", "trend"), ("reason", "accept")) if options[name] is not None
                  and options[other] is None), None)  # fmt: skip
    if stray is not None:
        raise UsageError(f"--{stray} goes with --trend FOLDER --accept RUN.")
    info: CompareAnswer | TrendAnswer
    page: Path | None = None
    if options["trend"] is not None:
        info = _trend(runs, options, {**query.values, **({"config": config} if config else {})}, forms)
    elif options["base"] or options["head"] or options["run"] or (runs and all(map(is_url, runs))):
        if len(runs) == 2 and not options["base"] and not options["head"]:  # two servers, as if by --base and --head
            options = {**options, "base": runs[0], "head": runs[1]}
            runs = ()
        info, page = _made(runs, options, query, config)
    else:
        info = _stored(runs, options, query, config)
    _terminal.show(options["form"], info)
    _compare.write(info, forms)
    if page is not None and not options["quiet"]:
        _terminal.note(f"report: {page}")
    return info.exit_code


def _set(options: Mapping[str, Any], *names: str) -> list[str]:
    """Those of the options that were given."""
    values = {name.replace("_", "-"): options[name] for name in names}
    return [name for name, value in values.items() if value is not None and value is not False and value != ()]


def _trend(
    runs: Sequence[str], options: Mapping[str, Any], query: Mapping[str, object], forms: Sequence[tuple[str, str]]
) -> TrendAnswer:
    """The answer on a series of nightly runs, scored as they are stored, by a rule of its own."""
    from pathlib import Path

    from harness.experiments.compare.history import accept
    from harness.experiments.compare.trend import trend

    folder = options["trend"]
    foreign = [*(f"'{path}'" for path in runs), *(f"--{name}" for name in (*_set(options, *DECIDING, *PAIRED), *query))]
    if foreign:
        raise UsageError(
            f"--trend analyses the nightly runs in '{folder}' alone, by a rule of its own; leave out {foreign[0]}."
        )
    other = next((form for form, _ in forms if form not in ("html", "markdown", "json")), None)
    if other is not None:
        raise UsageError(f"A trend is written as text, html, markdown or json; there is no {other} of it.")
    if options["accept"] is not None:
        accept(Path(folder), options["accept"], options["reason"])
    return trend(Path(folder))


def _stored(runs: Sequence[str], options: Mapping[str, Any], query: Given, config: str | None) -> CompareAnswer:
    """The answer on runs that are there."""
    from harness.cli import _compare
    from harness.experiments.compare import answer, pairing

    if len(runs) != 2:
        raise UsageError(
            f"bench compare takes two paths, BASE and HEAD, got {len(runs)}; several runs of a side are one folder, "
            "or a,b,c; --base and --head, or --run twice, make the runs."
        )
    foreign = [name for name in (*query.values, *(["config"] if config else [])) if name not in RESCORED]
    foreign += _set(options, *PAIRED)
    if foreign:
        raise UsageError(f"--{foreign[0]} is for runs that are made: give --base and --head, not stored runs.")
    settings = _compare.settings(options)
    matched = pairing.stored(runs[0], runs[1], settings.goal, any_schedule="schedule" in settings.allowed)
    return answer.compare(matched, settings, base=runs[0], head=runs[1])


def _made(
    runs: Sequence[str], options: Mapping[str, Any], query: Given, config: str | None
) -> tuple[CompareAnswer, Path | None]:
    """The answer on pairs that are made now, and its page; both stand in their folder."""
    from harness import configs
    from harness.cli import _compare, _terminal
    from harness.experiments.compare import live
    from harness.experiments.compare.pair_log import shown
    from reports.document import rendered

    if runs:
        raise UsageError(f"'{runs[0]}' is a stored run, but --base, --head and --run make runs; give one or the other.")
    settings = _compare.settings({**options, **dict.fromkeys(RESCORED)})
    file = configs.read(config).given if config is not None else None
    say = _terminal.nothing if options["quiet"] else _terminal.note
    names = None
    if options["run"]:
        sides = _compare.commands(options, query, file)
        names = shown(options["run"][0]), shown(options["run"][1])
    else:
        sides = live.backends(options["base"], options["head"], query, file, options["pairs"], seed=options["seed"],
                              wait_s=options["wait"], say=say)  # fmt: skip
    info, out = live.compare(
        sides, options["pairs"], options["out"], settings, say,
        first_seed=options["seed"] or 0, names=names,
    )  # fmt: skip
    return info, None if options["no_html"] else rendered.write_page(info, say, out)
