"""What `bench validate --acceptance` does: the table of published facts beside what is obtained here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness import answers, public_data, writable
from harness.acceptance import table
from harness.cli import _terminal
from harness.errors import UsageError

_ENDS = {".md": "markdown", ".json": "json", ".txt": "text"}


def tell(
    only: str | None, topics: Sequence[str], *, data: str | None, form: str, out: str | None, workers: int | None
) -> int:
    """Run the topics, print the table or write it to `out` in the form that its ending names; returns the exit code."""
    if out is not None:
        writable.check(out)
        if Path(out).suffix not in _ENDS:
            raise UsageError(f"--out '{out}' must end in {', '.join(_ENDS)}: the ending names the form.")
    asked = [one.strip() for one in (only or "").split(",") if one.strip()]
    names = table.chosen(asked, topics)
    found = public_data.folder(data)
    if found is None:
        _terminal.note("No folder of public measurements; rows that need it are told as not run (--data names it).")
    info = table.answer(names, asked, found, workers=workers, say=_terminal.note)
    if out is None:
        _terminal.tell(form, info)
    else:
        writable.put(Path(out), answers.render(info, _ENDS[Path(out).suffix]).encode())
        _terminal.note(f"Written to {out}.")
    code = info["exit_code"]
    assert isinstance(code, int)
    return code
