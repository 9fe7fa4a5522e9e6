"""Where text goes: results to standard output or to a file, notes and errors to standard error."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.data import files
from harness.errors import UsageError

if TYPE_CHECKING:
    from harness.data.folder import Run
    from harness.experiments.agents.agents_json import AgentsAnswer
    from harness.experiments.answers import Answer
    from harness.experiments.capacity.capacity_json import CapacityAnswer
    from harness.experiments.place.place_json import PlaceAnswer
    from harness.options import RunSpec
    from harness.runner.progress import Display
    from reports.document import Document
    from reports.document.rendered import Report


_ENDS = {".html": "html", ".md": "markdown", ".json": "json", ".csv": "csv", ".txt": "text"}


def say(text: str) -> None:
    """A result, on standard output. A reader who has left (`| head`) does not change the exit code."""
    try:
        click.echo(_encodable(text, sys.stdout.encoding))
    except BrokenPipeError:
        detach()


def _encodable(text: str, encoding: str | None) -> str:
    """The text with a '?' for what an encoding lacks: a name in another script must not cost the answer."""
    try:
        text.encode(encoding or "utf-8")
    except UnicodeEncodeError:
        plain = text.replace("\u2500", "-")
        return plain.encode(encoding or "utf-8", "replace").decode(encoding or "utf-8")
    return text


def detach() -> None:
    """After a broken pipe nothing may go to standard output, not even the interpreter's last flush."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def note(text: str) -> None:
    """Something the user may want to know, on standard error."""
    click.echo(text, err=True)


def nothing(_: str) -> None:
    """No notes at all."""


def complain(sentence: str) -> None:
    """What went wrong, in one sentence with a period."""
    text = " ".join(sentence.split())
    click.echo(f"bench: {text}{'' if text.endswith(('.', '!', '?')) else '.'}", err=True)


def show(form: str, result: Run | Answer | Report) -> None:
    """Print a result in the format of that name; on a terminal text has colours if wanted."""
    from reports.document import rendered

    if form == "text" and sys.stdout.isatty():
        text = rendered.render(result, form, color=colored(), blocks=blocks(sys.stdout.encoding))
    else:
        text = rendered.render(result, form)
    say(text.rstrip("\n"))


@contextmanager
def display(
    address: tuple[str, int] | None, *, quiet: bool, virtual: bool = False, terminal_only: bool = True
) -> Iterator[Display]:
    """What shows runs on standard error and, at the address of --metrics-port, to Prometheus. Raises UsageError."""
    from harness.runner.progress import Display

    terminal = Display(quiet, terminal_only)
    if address is None:
        yield terminal
        return
    if virtual:
        raise UsageError("--metrics-port is for runs in real time, and this search is simulated; leave it out.")
    from harness.runner.exporter import exported

    with exported(*address) as (exporter, port):
        if not quiet:
            host = f"[{address[0]}]" if ":" in address[0] else address[0]
            note(f"metrics at http://{host}:{port}/metrics")
        yield replace(terminal, exporter=exporter)


def await_servers(specs: Iterable[RunSpec], wait_s: float | None, say: Callable[[str], None]) -> None:
    """Wait until the servers of runs take requests, as --wait says. Raises UsageError for a backend that is none."""
    if wait_s is not None:
        from harness.runner.remote.run import await_servers  # with the client

        await_servers(specs, wait_s, say)


def stored_in(path: Path | None, *, quiet: bool) -> None:
    """Where every trial of a search is stored, and how to resume it."""
    if path is not None and not quiet:
        note(f"every trial is stored in '{path}'; rerun the command with --out '{path}' to resume")


def conclude(
    form: str, info: CapacityAnswer | PlaceAnswer | AgentsAnswer, path: Path | None, *, no_html: bool, quiet: bool
) -> int:
    """Print an answer, write its page into its folder, and return its exit code."""
    show(form, info)
    if path is not None and not no_html:
        from reports.document import rendered

        report = rendered.write_page(info, complain, path)
        if report is not None and not quiet:
            note(f"report: {report}")
    return info.exit_code


def blocks(encoding: str | None) -> bool:
    """Whether an encoding knows box characters."""
    try:
        "\u2500".encode(encoding or "ascii")
    except (LookupError, UnicodeEncodeError):
        return False
    return True


def colored() -> bool:
    """Whether standard output is a terminal that knows colours, and whose user wants them (no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def answer_file(out: str) -> str:
    """The name itself. Raises UsageError where no answer can be written under it, before the work that makes it."""
    if Path(out).suffix not in _ENDS:
        raise UsageError(f"--out '{out}' must end in {', '.join(_ENDS)}: the ending names the form.")
    files.check(out)
    return out


def give(form: str, info: Answer, out: str | None) -> None:
    """Print an answer, or write it to a file and print what it found: the file leaves exit code 1 unexplained."""
    if out is None:
        show(form, info)
        return
    from reports import answers
    from reports.document import rendered

    files.write(Path(out), rendered.render(info, _ENDS[Path(out).suffix], path=Path(out)))
    note(f"Written to {out}.")
    if findings := answers.document(info).findings:
        say("\n".join(finding.text for finding in findings))


def command(name: str, given: Iterable[tuple[str, str | None]]) -> str:
    """The command with those options that were given, as one would type it."""
    return " ".join([name, *(f"{option} {shlex.quote(text)}" for option, text in given if text is not None)])


def draw(html: str, document: Document, facts: Mapping[str, object]) -> None:
    """Write a page of pictures (`reports.answers.trace.page`); an existing file is replaced."""
    from reports.answers import trace

    files.write(Path(html), trace.page(document, facts))
    note(f"Pictures: {html}")
