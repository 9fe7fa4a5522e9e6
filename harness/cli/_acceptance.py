"""What `bench validate --acceptance` does: the table of published facts beside what is obtained here."""

from collections.abc import Sequence

from harness import public_data
from harness.acceptance import table
from harness.cli import _terminal, _written


def tell(
    only: str | None, topics: Sequence[str], *, data: str | None, form: str, out: str | None, workers: int | None
) -> int:
    """Run the topics, print the table or write it to `out` in the form that its ending names; returns the exit code."""
    if out is not None:
        _written.check(out)
    asked = [one.strip() for one in (only or "").split(",") if one.strip()]
    names = table.chosen(asked, topics)
    found = public_data.folder(data)
    if found is None:
        _terminal.note("No folder of public measurements; rows that need it are told as not run (--data names it).")
    given = [("--only", only), *(("--topic", name) for name in topics), ("--data", data)]
    command = _written.command("bench validate --acceptance", given)
    info = table.answer(names, asked, found, workers=workers, say=_terminal.note, command=command)
    if out is None:
        _terminal.tell(form, info)
    else:
        _written.put(info, out)
        _written.tell_verdict(info)
    code = info["exit_code"]
    assert isinstance(code, int)
    return code
