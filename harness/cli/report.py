"""`bench report`: the report of stored runs, also of one that was killed."""

from __future__ import annotations

import click


@click.command("report", short_help="Write report.html of a stored run, or print it.")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option("--format", "form", default="html", metavar="NAME", help="html (default), text, json, ...")
@click.option("--open", "show", is_flag=True, help="Open the report in the browser.")
def command(runs: tuple[str, ...], form: str, show: bool) -> int:
    """Write report.html into each RUN, the folder of a run, or print it in another format.

    A run that was killed, or that still goes on, is reported with everything it had written.
    """
    from harness import registry
    from harness.cli import _terminal
    from harness.conclude import completed
    from harness.errors import UsageError
    from harness.folder import load

    registry.find("reports", form)  # a wrong name is told before the first run is read
    if show and form != "html":
        raise UsageError(f"--open opens a report in the browser; it goes with --format html, not '{form}'.")
    for run in [completed(load(path)) for path in runs]:
        if form == "html":
            _html(run, show)
        else:
            _terminal.show(form, run)
    return 0


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
