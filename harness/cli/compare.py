"""`bench compare`: a candidate beside a baseline, paired, with a verdict that a nightly job can trust."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.cli._compare_runs import OPTIONS, pair_options
from harness.cli._run_options import SECTIONS, Sectioned, given, run_options

if TYPE_CHECKING:
    from harness.cli._compare import Files
    from harness.experiments.compare.answer import Settings
    from harness.options import Given

OWN = ("gate", "alpha", "allow-different")
WRITTEN = ("form", "html", "markdown", "junit", "as-json", "export", "quiet")
RESCORED = ("slo", "goal", "warmup")
"""Options of a run that also tell how stored runs are read."""

_SECTIONS = {
    "What decides": OWN,
    "The answer": WRITTEN,
    "Pairs that are made now": (*OPTIONS, "config"),
    **{
        title: tuple(name for name in options if name != "seed")
        for title, options in SECTIONS.items()
        if "backend" not in options
    },
    "Parts of both backends": tuple(name for part in SECTIONS.values() if "backend" in part for name in part),
}
_EPILOG = """
\b
Examples
  bench compare before after
      two runs, two folders of runs, two sweeps or two searches, matched by what was sent
  bench compare baselines/chatbot out/chatbot --markdown summary.md --junit bench.xml
      a simulator against a stored baseline: exact, any difference is told with its cause
  bench compare before after --gate tpot=1%:3%,p99:ttft=10%:20%
      other gates: a loss below the first share is of no interest, one above the second must be found
  bench compare --base openai:url=http://127.0.0.1:8001/v1 --head openai:url=http://127.0.0.1:8002/v1 \\
                --workload chatbot --rate 11 --requests 600 --pairs auto
      makes the runs itself, interleaved: A B, B A, ...
  bench compare --run 'CMD A' --run 'CMD B' --pairs 5
      any two commands that leave a run, or print JSON with numbers
  bench compare --trend results --html trend.html
      a series of nights: has there been a step? with a page of all of them

\b
Gates
  on real systems  capacity_rps=2%:5%,tpot=2%:5%,ttft=5%:15%,failed=0.5%:0.5%
  on simulators    goodput_rps, ttft, tpot, failed: any loss at all
  others           e2e, itl, p50:ttft, p99:tpot, attainment, throughput_rps, output_tps; a share is
                   compared in points, all else in percent; NAME=2%:5%:lower for numbers of others

\b
Exit codes
  0 equivalent or improved   1 regressed             2 wrong usage
  3 the backend failed       4 not comparable, or a run is not valid
  5 inconclusive
"""


@click.command(
    "compare",
    cls=Sectioned,
    sections=_SECTIONS,
    epilog=_EPILOG,
    short_help="Compare a candidate with a baseline: paired, with a verdict.",
)
@click.argument("runs", nargs=-1, metavar="[BASE HEAD]")
@click.option("--gate", metavar="GATES", help="What decides: NAME=IGNORED:FOUND,... (see below).")
@click.option("--alpha", metavar="SHARE", help="One-sided chance to call a loss where there is none (default 1%).")
@click.option(
    "--allow-different", metavar="FIELDS", help="Compare although these differ: hardware,model,output-lengths,..."
)
@click.option(
    "--format", "form", default="text", metavar="NAME", help="What is printed: text (default), markdown, json."
)
@click.option("--html", metavar="FILE", help="Write it as a page that opens without a network.")
@click.option("--markdown", metavar="FILE", help="Write the answer as markdown; - for standard output.")
@click.option("--junit", metavar="FILE", help="Write it as JUnit XML: a test case for each gate.")
@click.option("--json", "as_json", metavar="FILE", help="Write it as JSON, with everything in it.")
@click.option(
    "--export", multiple=True, metavar="FORM=FILE", help="For others: github-smaller, github-bigger, bencher, pytorch."
)
@click.option("--quiet", is_flag=True, help="No progress and no notes; the answer is still printed.")
@click.option("--config", metavar="FILE", help="TOML file with the options of the runs to make; options win.")
@pair_options
@click.option(
    "--warmup",
    metavar="CUT",
    help="What is sent first and not measured: mser5 (default where runs are made), 30s, 200 (requests), none; "
    "stored runs: as they were told.",
)
@run_options(without=("backend", "seed", "fail-under", "warmup"))
def command(runs: tuple[str, ...], config: str | None, header: tuple[str, ...], **options: Any) -> int:
    """Compare HEAD, the candidate, with BASE, and tell whether it is worse, better, equivalent, or not to be told.

    BASE and HEAD are stored runs: a run, a folder of runs, a sweep, a search, a result file of another tool; or a,b,c.
    Without them the pairs are made now. From an SLO, a goal or a warm-up cut given here, stored runs are scored anew.
    """
    from harness.cli import _compare

    files = _compare.checked(options)
    asked = given({name: options[name] for name in options if name.replace("_", "-") not in _NOT_OF_A_RUN}, header)
    if options["trend"] is not None:
        info = _trend(runs, options, {**asked.values, **({"config": config} if config else {})}, files)
    elif options["base"] or options["head"] or options["run"]:
        info = _made(runs, options, asked, config)
    else:
        info = _stored(runs, options, asked, config)
    _compare.write(info, files)
    return int(info["exit_code"])


_NOT_OF_A_RUN = {*OWN, *WRITTEN, *OPTIONS}


def _trend(
    runs: Sequence[str], options: Mapping[str, Any], asked: Mapping[str, object], files: Files
) -> dict[str, Any]:
    """The answer on a series of nights, which are judged as they are stored, by a rule of their own."""
    from pathlib import Path

    from harness.errors import UsageError
    from harness.experiments.compare.trend import trend

    folder = options["trend"]
    given = [name for name in (*OWN, *OPTIONS) if name != "trend" and options.get(name.replace("-", "_"))]
    foreign = [*(f"'{run}'" for run in runs), *(f"--{name}" for name in (*given, *asked))]
    if foreign:
        raise UsageError(
            f"--trend looks at the nights in '{folder}' alone, by a rule of its own; leave out {foreign[0]}."
        )
    other = next((form for form, _ in files.forms if form not in ("html", "markdown", "json")), None)
    if other is not None:
        raise UsageError(f"A trend is told as text, html, markdown or json; there is no {other} of it.")
    return trend(Path(folder))


def _stored(runs: Sequence[str], options: Mapping[str, Any], asked: Given, config: str | None) -> dict[str, Any]:
    """The answer on runs that are there."""
    from harness.cli import _compare
    from harness.errors import NotValid, UsageError
    from harness.experiments.compare import answer, pairing

    if len(runs) != 2:
        raise UsageError(
            f"bench compare takes two paths, BASE and HEAD, got {len(runs)}; several runs of a side are one folder, "
            "or a,b,c; --base and --head, or --run twice, make the runs."
        )
    foreign = [name for name in (*asked.values, *(["config"] if config else [])) if name not in RESCORED]
    foreign += [name for name in OPTIONS if options.get(name.replace("-", "_"))]
    if foreign:
        raise UsageError(f"--{foreign[0]} is for runs that are made: give --base and --head, not stored runs.")
    settings = _compare.settings(options)
    base, head = (pairing.opened(path, settings.goal) for path in runs)
    if isinstance(base[0], pairing.Numbers) != isinstance(head[0], pairing.Numbers):
        raise NotValid(f"'{runs[0]}' and '{runs[1]}' are not of a kind: one holds runs, the other numbers or a search.")
    matched = pairing.match(base, head, any_schedule="schedule" in settings.allowed)
    return answer.compare(matched, settings, base=runs[0], head=runs[1])


def _made(runs: Sequence[str], options: Mapping[str, Any], asked: Given, config: str | None) -> dict[str, Any]:
    """The answer on pairs that are made now; it stands in their folder too."""
    from harness import compose, configs
    from harness.cli import _compare, _compare_runs, _terminal
    from harness.data.storage import write_json
    from harness.errors import UsageError, first_of
    from harness.experiments.compare.pair_log import shown

    if runs:
        raise UsageError(f"'{runs[0]}' is a stored run, but --base, --head and --run make runs; give one or the other.")
    commands = bool(options["run"])
    settings = _compare.settings({**options, **dict.fromkeys(RESCORED)}, free=commands)
    file = configs.read(config).given if config is not None else None
    say = _terminal.nothing if options["quiet"] else _terminal.note
    made = _compare_runs.made(options, asked, file, _judge(settings), say, settings.alpha)
    base, head = map(shown, options["run"]) if commands else _redacted(made.folders[0])
    compared = _answered(made.folders, replace(settings, alpha=made.alpha))
    info = compared(base=base, head=head, rows=made.rows, looks=made.looks, notes=made.notes)
    info["notes"] += _compare_runs.same_sides(made, info["gates"])
    info["exit_code"] = first_of(made.exit_code or 0, info["exit_code"])
    write_json(made.out / "compare.json", info)
    if not options["no_html"]:
        compose.write_answer_page(info, made.out, say)
    return info


def _redacted(folders: tuple[Path, Path]) -> tuple[str, str]:
    """The backends of a pair of runs as they are stored, which is without secrets."""
    from harness.experiments.compare.pairing import made

    base, head = (str(made(folder)[0].info.spec.get("backend")) for folder in folders)
    return base, head


def _judge(settings: Settings) -> Callable[[Sequence[tuple[Path, Path]], float], str]:
    """What tells the verdict on the pairs so far."""

    def judge(folders: Sequence[tuple[Path, Path]], alpha: float) -> str:
        return str(_answered(folders, replace(settings, alpha=alpha))()["verdict"])

    return judge


def _answered(folders: Sequence[tuple[Path, Path]], settings: Settings) -> Callable[..., dict[str, Any]]:
    """What compares the two sides that each pair of folders holds."""
    from functools import partial

    from harness.experiments.compare import answer, pairing

    matches = [pairing.match(pairing.made(base), pairing.made(head)) for base, head in folders]
    return partial(answer.compare, pairing.joined(matches), settings)
