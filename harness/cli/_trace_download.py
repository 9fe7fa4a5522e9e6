"""`bench trace download`: the list of public traces, and one of them fetched with its progress shown."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from harness import compose
from harness.cli import _terminal, _trace_text, _trace_tools

Progress = Callable[[int, int | None], None]


def listed() -> int:
    """Print the names that can be fetched."""
    _terminal.say(_trace_text.sources(compose.public_traces().values()))
    return 0


def fetch(name: str, folder: str, *, force: bool, timeout: str, quiet: bool) -> int:
    """Fetch one trace; the file, its hash and what is known about it are printed."""
    timeout_s = _trace_tools.duration(timeout, "--timeout")
    source = compose.public_trace(name)
    if not quiet:
        licence = f" ({source.licence})" if source.licence else ""
        _terminal.note(f"{source.url}{licence}")
    with _shown(quiet=quiet) as progress:
        note = _terminal.nothing if quiet else _terminal.note
        done = compose.download_trace(
            name, Path(folder), force=force, timeout_s=timeout_s, note=note, progress=progress
        )
    _terminal.say(_trace_text.fetched(done, source))
    return 0


@contextmanager
def _shown(*, quiet: bool) -> Iterator[Progress]:
    """A bar on a terminal; nothing elsewhere."""
    if quiet or not sys.stderr.isatty():
        yield lambda _, __: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bar

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Bar(*columns, console=Console(file=sys.stderr), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
