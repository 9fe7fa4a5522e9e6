"""Where text goes: results to standard output, notes and complaints to standard error."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from harness.folder import Run


def say(text: str) -> None:
    """A result, on standard output. A reader who has left (`| head`) does not change the exit code."""
    try:
        click.echo(text)
    except BrokenPipeError:
        detach()


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


def show(form: str, run: Run) -> None:
    """Print a run in the form of that name."""
    from harness.run import render

    say(render(form, run, color=colored()).rstrip("\n"))


def colored() -> bool:
    """Whether standard output is a terminal whose user wants colours (no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")
