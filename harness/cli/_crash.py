"""Unexpected errors: one sentence for the user; the traceback goes to a file, without secrets."""

import errno
import os
import platform
import shlex
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from harness.errors import BenchError
from harness.version import __version__

MOST_CHARACTERS = 300
"""Of an exception's own message in the sentence; the file has it whole."""
PLACE = "the traceback is in "
_NO_MEMORY = "failed to map segment"
"""What the dynamic loader of glibc says, in an exception of another kind, where memory has run out."""
MOST_LINES = 200
"""From each end of a traceback."""


def describe(error: BaseException, arguments: Sequence[str] | None) -> str:
    """The sentence on a crash: what it was, and where its traceback is. Writes that file."""
    if isinstance(error, MemoryError):
        traceback.clear_frames(error.__traceback__)  # what they hold is what fills the memory
    words = ["bench", *(sys.argv[1:] if arguments is None else arguments)]
    hide = _redaction(words)
    if isinstance(error, BenchError) and PLACE in str(error):  # a child command has written it already
        return hide(str(error))
    return f"{_what(error, hide)}; {_where(error, words, hide)}."


def _what(error: BaseException, hide: Callable[[str], str]) -> str:
    message = " ".join(hide(str(error)).split())[:MOST_CHARACTERS].rstrip(".")
    if isinstance(error, BenchError):
        return message
    place = traceback.extract_tb(error.__traceback__)[-1:]
    location = f" in {Path(place[0].filename).name}, line {place[0].lineno}" if place else ""
    described = f"{type(error).__name__}{location}{f': {message}' if message else ''}"
    no_memory = isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM
    if no_memory or _NO_MEMORY in message:
        return f"memory was exhausted ({described})"
    if isinstance(error, RecursionError):
        return f"an input is nested too deeply, or this is a bug in bench ({described})"
    return f"this is a bug in bench ({described})"


def _where(error: BaseException, words: Sequence[str], hide: Callable[[str], str]) -> str:
    """Where the traceback is: in a new file of the folder for temporary files, which only this user can read."""
    try:
        lines = "".join(traceback.format_exception(error)).splitlines(keepends=True)
        cut = ["  ...\n"] if len(lines) > 2 * MOST_LINES else []  # an endless recursion repeats itself
        text = "".join([*lines[:MOST_LINES], *cut, *lines[-MOST_LINES:]] if cut else lines)
        head = f"bench {__version__}, Python {platform.python_version()}, {platform.platform()}"
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", errors="replace", prefix="bench-crash-", suffix=".txt", delete=False
        ) as file:
            file.write(f"{head}\n{hide(shlex.join(map(hide, words)))}\n\n{hide(text)}")
    except Exception as failure:  # noqa: BLE001  # whatever fails now, the exit code must come out
        return f"the traceback could not be written ({type(failure).__name__}: {failure})"
    return f"{PLACE}'{file.name}'"


def _redaction(words: Sequence[str]) -> Callable[[str], str]:
    """What hides the secrets of this command; everything, where they cannot be known."""
    try:
        from backends.client import secrets

        hide = secrets.of_command(words, os.environ).text
        hide("")
    except Exception:  # noqa: BLE001  # no crash of its own
        return lambda _: "[hidden]"
    return hide
