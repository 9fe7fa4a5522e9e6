"""`bench report`: reports of stored runs, sweeps, searches, comparisons and series, as a page or in other formats."""

import click

from harness.cli._options import GroupedCommand, option

_EPILOG = """
\b
Examples
  bench report bench-runs/chatbot-sim-20260101T120000Z --open
      write the page of a run into its folder and open it in the browser
  bench report curve
      write the page of a sweep, curve/report.html, and print its results; likewise for capacity and compare
  bench report before after --out both.html
      curves of several runs, sweeps or searches on one page
  bench report RUN --format markdown
      print to standard output; also text, json, csv and junit
  bench report RUN --format html,md,csv,parquet,perfetto --out made
      write report.html, report.md, ...
  bench report RUN --format vllm --out result.json
      the run as 'vllm bench serve --save-result' writes it; likewise llm-d
  bench report curve --figure attainment_rate --format pdf --out attainment.pdf
      one figure, for a paper or a slide; an unknown NAME lists all names

\b
Values
  RUN     the folder of a run, a sweep, a search or a comparison, its JSON file (slo.json, compare.json), a folder of
          runs, a folder of nightly runs (WORKLOAD/BACKEND/DATE-COMMIT, the trend of bench compare), or a result file
          of vLLM, SGLang, GuideLLM, AIPerf or inference-perf
  NAMES   html, text, markdown (md), json, csv, junit, parquet,
          perfetto (timeline for ui.perfetto.dev); with options: perfetto:requests=500
          vllm, llm-d: the run as a result of that tool, for what reads it
          of one --figure: svg, pdf, png; by default NAME.svg in the current folder
"""


@click.command(
    "report",
    cls=GroupedCommand,
    epilog=_EPILOG,
    short_help="Report stored runs, sweeps and comparisons as HTML or text.",
)
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@option("--format", "forms", metavar="NAMES", multiple=True, help="Formats: html (default), md, json, csv, ...")
@option("--figure", metavar="NAME", help="Draw one figure, as --format svg (default), pdf or png; needs Chromium.")
@option("--out", metavar="PATH", help="Output file, or a folder for several files.")
@option("--open", is_flag=True, help="Open the page in the browser.")
def command(
    runs: tuple[str, ...], forms: tuple[str, ...], figure: str | None, out: str | None,
    open: bool,  # noqa: A002  # the option's name
) -> int:  # fmt: skip
    """Write an HTML page of each RUN, one file that opens without a network, or other formats.

    The page is report.html in the folder of the RUN, or FILE.report.html beside a file. Several RUNs, or a folder of
    runs, share one page: bench-report.html here, or report.html in the folder.

    A run that was killed, or is still in progress, is reported with the data written so far.
    """
    import webbrowser

    from harness.cli import _report, _terminal
    from harness.data import files
    from reports.document import rendered

    # a wrong name is reported before the first run is read
    options = _report.report_options(forms, out, show=open, figure=figure)
    subject = _report.of(runs)
    for form in options.forms or subject.default:
        for part in _report.split(subject, form):
            if options.prints(form):
                part.show(form)
                continue
            path = _report.place(part, form, options)
            files.write(path, part.form(form, options))
            _terminal.say(str(path))
            if options.show and form == "html":
                webbrowser.open(path.resolve().as_uri())
        if (lost := rendered.omitted(form)) is not None:
            _terminal.note(f"The format of {form.partition(':')[0]} does not hold {lost}.")
    return 0
