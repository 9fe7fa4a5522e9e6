"""`bench compare`: a candidate beside a baseline, paired, with a verdict that a nightly job can trust."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from harness.compare.answer import Settings

_EPILOG = """
\b
Examples
  bench compare before after
      two runs, two folders of runs, two sweeps: matched by the schedule that was sent
  bench compare baselines/chatbot out/chatbot --markdown summary.md --junit bench.xml
      a simulator against a stored baseline: exact, any difference is told with its cause
  bench compare before after --gate tpot=1%:3%,p99:ttft=10%:20%
      other gates: a loss below the first share is of no interest, one above the second must be found

\b
Gates
  on real systems  capacity_rps=2%:5%,tpot=2%:5%,ttft=5%:15%,failed=0.5%:0.5%
  on simulators    goodput_rps, ttft, tpot, failed: any loss at all
  others           e2e, itl, p50:ttft, p99:tpot, attainment, throughput_rps, output_tps; a share is
                   compared in points, all else in percent

\b
Exit codes
  0 equivalent or improved   1 regressed             2 wrong usage
  4 not comparable, or a run is not valid            5 inconclusive
"""


@click.command("compare", epilog=_EPILOG, short_help="Compare a candidate with a baseline: paired, with a verdict.")
@click.argument("runs", nargs=-1, metavar="BASE HEAD")
@click.option(
    "--gate", metavar="GATES", help="What decides: NAME=IGNORED:FOUND,... (default: tpot=2%:5%,ttft=5%:15%,...)."
)
@click.option("--alpha", metavar="SHARE", help="One-sided chance to call a loss where there is none (default 1%).")
@click.option("--allow-different", metavar="FIELDS", help="Compare although these differ: hardware,model,slo,...")
@click.option("--slo", metavar="BOUNDS", help="Score both sides under these bounds; default: those of the runs.")
@click.option("--goal", metavar="SHARE", help="Share of requests that must keep the SLO (default 0.9).")
@click.option("--warmup", metavar="CUT", help="Cut both sides anew: mser5, 30s, 200, none; default: as stored.")
@click.option("--markdown", metavar="FILE", help="Write the answer as markdown; - for standard output.")
@click.option("--junit", metavar="FILE", help="Write it as JUnit XML: a test case for each gate.")
@click.option("--json", "as_json", metavar="FILE", help="Write it as JSON, with everything in it.")
@click.option(
    "--export",
    multiple=True,
    metavar="FORM=FILE",
    help="For trend services: github-smaller, github-bigger, bencher, pytorch.",
)
def command(runs: tuple[str, ...], **options: Any) -> int:
    """Compare HEAD (the candidate) with BASE: stored runs, folders of runs, sweeps, searches, files of other tools."""
    from harness.cli import _compare_files
    from harness.errors import UsageError

    if len(runs) != 2:
        raise UsageError(
            f"bench compare takes two paths, BASE and HEAD, got {len(runs)}; several runs of a side: one folder, or a,b."
        )
    files = _compare_files.checked(options)
    info = _stored(runs[0], runs[1], _settings(options))
    _compare_files.write(info, files)
    return int(info["exit_code"])


def _stored(base: str, head: str, settings: Settings) -> dict[str, Any]:
    """The answer on stored runs."""
    from harness.compare import answer, pairing

    matched = pairing.match(pairing.opened(base), pairing.opened(head), any_schedule="schedule" in settings.allowed)
    return answer.compare(matched.pairs, settings, base=base, head=head, alone=matched.alone)


def _settings(options: dict[str, Any]) -> Settings:
    from harness.cli import _compare_files

    return _compare_files.settings(options)
