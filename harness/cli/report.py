"""`bench report`: the report of stored runs, also of one that was killed."""

from __future__ import annotations

from typing import Any

import click


@click.command("report", short_help="Write report.html of a stored run, or print it.")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option("--format", "form", metavar="NAME", help="html (default of a run), text (of an answer), json, ...")
@click.option("--open", "show", is_flag=True, help="Open the report in the browser.")
def command(runs: tuple[str, ...], form: str | None, show: bool) -> int:
    """Write report.html into each RUN, the folder of a run, or print it in another format.

    RUN may be a folder of runs, or a file of results of vLLM, SGLang, GuideLLM, AIPerf or inference-perf, whose report
    is written beside it.

    The folder that bench sweep, bench capacity or bench compare wrote is told again, as text or markdown.

    A run that was killed, or that still goes on, is reported with everything it had written.
    """
    from harness import answers, registry
    from harness.cli import _terminal
    from harness.errors import UsageError

    if form is not None and form not in answers.FORMS:
        registry.find("reports", form)  # a wrong name is told before the first run is read
    if show and form not in (None, "html"):
        raise UsageError(f"--open opens a report in the browser; it goes with --format html, not '{form}'.")
    for found in [each for path in runs for each in _found(path)]:
        if isinstance(found, dict):
            _terminal.say(answers.render(found, form or "text").rstrip("\n"))
        elif form in (None, "html"):
            _html(found, show)
        else:
            _terminal.show(form, found)
    return 0


def _found(path: str) -> list[Any]:
    """The answer that a folder holds, or its runs, or those that another tool's file tells of."""
    from harness import answers, results
    from harness.conclude import completed

    answer = answers.of(path)
    return [completed(run) for run in results.open(path)] if answer is None else [answer]


def _html(run: object, show: bool) -> None:
    import webbrowser

    from harness.cli import _terminal
    from harness.errors import BenchError
    from harness.run import write_report

    path = write_report(run, _terminal.complain)  # type: ignore[arg-type]  # a Run, whose module is heavy to import
    if path is None:
        raise BenchError("no report was written.")
    _terminal.say(str(path))
    if show:
        webbrowser.open(path.resolve().as_uri())
