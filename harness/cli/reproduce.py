"""`bench reproduce`: published results of serving systems beside what their commands give here."""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.cli._options import NEW_FILE, formats, option, out, quiet, workers
from harness.errors import UsageError

if TYPE_CHECKING:
    from harness.experiments.reproduce import Output

_EPILOG = """
\b
Examples
  bench reproduce sarathi-serve
      the published results of a system (bench list systems), each beside what is obtained here
  bench reproduce S09.b --quick
      one row, with one seed
  bench reproduce marlin --page marlin.md
      also a page with the commands and the source of each row
  bench reproduce --all
      every row; takes some hours

\b
Verdicts
  holds, misses    the median over seeds is in the band of what is published, or is not
  informs          no band: no size is published, or the setting differs
  cannot run       a command failed, such as a download; the reason is below the table
  needs a clone    a test proves it, which is named below the table
  unavailable      neither a command nor a test obtains it
Bands are set before a value is seen: the range or error that the source names, else a factor of 1.5 on
each side. Formulas are counted apart: they hold for any system. 'within 1.02' is the largest factor by
which one of several published numbers is off.

\b
Exit codes
  0 every row holds, or has no band        1 a row misses its band
  2 wrong usage                            3 a command of a row failed
  130 interrupted; rerun the command to continue
"""


@click.command("reproduce", epilog=_EPILOG, short_help="Compare with published results of serving systems.")
@click.argument("names", nargs=-1, metavar="[SYSTEM|ID]...")
@option("--all", "every", is_flag=True, group="Rows", help="Every row of every system.")
@option("--quick", is_flag=True, group="Rows", help="One seed for each row; with all seeds verdicts may differ.")
@option("--force", is_flag=True, help="Run commands again whose results are stored.")
@workers
@out("Store results here, those of each command at once; rerun to resume. Default: bench-runs/reproduce.")
@option("--page", type=NEW_FILE, metavar="FILE", help="Also write a markdown page, a table for each subject.")
@quiet
@formats
def command(
    names: tuple[str, ...], every: bool, quick: bool, force: bool, workers: int | None, out: str | None,
    page: str | None, quiet: bool, form: str,
) -> int:  # fmt: skip
    """Run the commands of published results and print published, obtained, band and verdict.

    A row is a result that a paper, a repository or a measurement publishes; 'bench explain SYSTEM' lists those of a
    system. Equal commands run once, several at a time. Rows that a test proves are named and not run.
    """
    from harness.cli import _terminal
    from harness.data import files
    from harness.data.codec import encode
    from harness.data.storage import write_json
    from harness.experiments.reproduce import chosen, reproduce

    if every == bool(names):
        raise UsageError("Name systems (bench list systems), rows such as S09.b, or --all.")
    home = Path(out or "bench-runs/reproduce").absolute()
    rows = chosen(names)
    home.mkdir(parents=True, exist_ok=True)
    tell = _terminal.nothing if quiet else _terminal.note
    info = reproduce(rows, home, execute, options_of, quick=quick, again=force, workers=workers, tell=tell)
    write_json(home / "reproduce.json", encode(info))
    _terminal.show(form, info)
    if page is not None:
        from reports.answers import reproduce as report

        files.write(Path(page), report.page(info))
        tell(f"Written to {page}.")
    return info.exit_code


def execute(words: tuple[str, ...]) -> Output:
    """Run bench with these words in this process, which is a worker's; its output is captured."""
    from harness.cli import main
    from harness.experiments.reproduce import Output

    printed, noted = io.StringIO(), io.StringIO()
    start_s = time.monotonic()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(noted):
        code = main(words)
    csv = printed.getvalue()
    if not csv and code == 0 and "--out" in words and (out := words[words.index("--out") + 1]).endswith(".csv"):
        csv = Path(out).read_text(encoding="utf-8")  # bench theory writes its table there instead
    last_line = noted.getvalue().strip().rpartition("\n")[2].removeprefix("bench: ")
    return Output(exit_code=code, csv=csv, last_line=last_line, seconds=time.monotonic() - start_s)


def options_of(words: Sequence[str]) -> set[str]:
    """Return the options of the command of these words; none of an unknown one."""
    from harness.cli._commands import bench

    group: click.Command | None = bench
    for word in words:
        if isinstance(group, click.Group) and word in group.list_commands(click.Context(group)):
            group = group.get_command(click.Context(group), word)
    return {name for param in group.params for name in param.opts} if group is not None else set()
