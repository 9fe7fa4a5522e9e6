"""`bench report`: the page of stored runs, sweeps, searches, comparisons and series, and their other forms."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.cli._run_options import Sectioned

if TYPE_CHECKING:
    from harness.cli._report import ReportOptions, Subject

_SECTIONS = {
    "What is made": ("forms", "out", "open"),
    "The page": ("sections", "plotly-bundle", "plain"),
}
_EPILOG = """
\b
Examples
  bench report bench-runs/chatbot-sim-20260101T120000Z --open
      the page of a run, in its folder, opened in the browser
  bench report curve
      the page of a sweep, curve/report.html, and its answer as text; so for bench capacity and bench compare
  bench report before after --out both.html
      several runs, sweeps or searches as curves on one page
  bench report RUN --format markdown
      printed; also text, json, csv and junit
  bench report RUN --format html,md,csv,parquet,png,perfetto --out made
      written as report.html, report.md, ..., a report-FIGURE.png of each figure

\b
Values
  RUN     the folder of a run, a sweep, a search or a comparison, its JSON file (slo.json, compare.json), a folder of
          runs, a folder of nights (WORKLOAD/BACKEND/DATE-COMMIT, the trend of bench compare), or a file of results of
          vLLM, SGLang, GuideLLM, AIPerf or inference-perf
  NAMES   html, text, markdown (md), json, csv, junit, parquet, png (one a figure; needs Chromium or Chrome),
          perfetto (the timeline for ui.perfetto.dev); options of a form follow it: perfetto:requests=500
"""


@click.command(
    "report", cls=Sectioned, sections=_SECTIONS, epilog=_EPILOG,
    short_help="The page of stored runs, sweeps, comparisons; other forms.",
)  # fmt: skip
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option("--format", "forms", metavar="NAMES", multiple=True, help="Forms, html by default: html,md,json,csv,png.")
@click.option("--out", metavar="PATH", help="Where to write it: a file, or a folder for several files.")
@click.option("--open", is_flag=True, help="Open the page in the browser.")
@click.option("--sections", metavar="NAMES", help="Only these parts of the page, by the names of its navigation.")
@click.option("--plotly-bundle", metavar="FILE", help="Put this plotly.js into the page, such as a smaller bundle.")
@click.option("--plain", is_flag=True, help="Do not compress the page, for a browser that cannot unpack it.")
def command(
    runs: tuple[str, ...], forms: tuple[str, ...], out: str | None, open: bool,  # noqa: A002  # the option's name
    sections: str | None, plotly_bundle: str | None, plain: bool,
) -> int:  # fmt: skip
    """Write the page of each RUN, one HTML file that opens without a network, or tell it in other forms.

    The page is report.html in the folder of the RUN, or FILE.report.html beside a file. Of several RUNs, or a folder of
    runs, one page shows all: bench-report.html here, or report.html in the folder.

    What was killed, or still goes on, is reported with everything it had written.
    """
    from harness.cli import _report as _report_files

    asked = _report_files.asked(
        forms, out, show=open, sections=sections, bundle=plotly_bundle, plain=plain
    )  # a wrong name is told before the first run is read
    return _report(_report_files.of(runs), asked)


def _report(subject: Subject, asked: ReportOptions) -> int:
    from harness.cli import _report as _report_files
    from harness.cli import _terminal

    for form in asked.forms or subject.default:
        for each in subject.split(form):
            for path in _made(each, form, asked):
                _terminal.say(str(path))
                if asked.show and form == "html":
                    _report_files.show(path)
    return 0


def _made(subject: Subject, form: str, asked: ReportOptions) -> Iterator[Path]:
    """Print the form, or write it; the files that were written."""
    from harness.cli import _report as _report_files

    if asked.prints(form):
        subject.tell(form)
        return
    yield from _report_files.write(subject.form(form, asked.look), subject, form, asked)
