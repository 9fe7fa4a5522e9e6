"""Answers as files: the ending of the name says in which form."""

import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from harness import compose, writable
from harness.cli import _terminal
from harness.errors import UsageError

_ENDS = {".html": "html", ".md": "markdown", ".json": "json", ".txt": "text"}


def check(out: str) -> None:
    """Raise UsageError where no answer can be written under this name, before the work that makes it."""
    if Path(out).suffix not in _ENDS:
        raise UsageError(f"--out '{out}' must end in {', '.join(_ENDS)}: the ending names the form.")
    writable.check(out)


def put(info: dict[str, Any], out: str) -> None:
    """Write an answer there."""
    check(out)
    form = _ENDS[Path(out).suffix]
    text = compose.answer_page(info, Path(out)) if form == "html" else compose.render_answer(info, form)
    compose.put(Path(out), text)
    _terminal.note(f"Written to {out}.")


def command(name: str, given: Iterable[tuple[str, str | None]]) -> str:
    """The command with those options that were given, as one would type it."""
    return " ".join([name, *(f"{option} {shlex.quote(text)}" for option, text in given if text is not None)])


def tell_verdict(info: dict[str, Any]) -> None:
    """Say how a validation that was written came out: its file alone would leave exit code 1 unexplained."""
    _terminal.say(compose.outcome_line(info))
