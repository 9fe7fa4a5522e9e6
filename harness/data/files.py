"""Checks before a long computation that its output file can be written, and writes files atomically."""

import errno
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from harness.errors import BenchError, UsageError

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


def has_no_room(error: BaseException) -> bool:
    """Whether it is the disk that takes nothing more, and not the name that is wrong."""
    return isinstance(error, OSError) and error.errno in _NO_ROOM


def refused(path: str | os.PathLike[str], error: OSError) -> BenchError:
    """The error for a file that could not be written: a wrong name is wrong usage, a full disk is not."""
    why = os.strerror(error.errno) if error.errno else str(error)
    return (BenchError if has_no_room(error) else UsageError)(f"'{path}' cannot be written: {why}.")


def shortage(path: Path, needed_bytes: float) -> str | None:
    """What is needed and what is free, where the disk that `path` is on, or would be on, has less room."""
    existing = next((p for p in (path, *path.absolute().parents) if p.exists()), Path.cwd())
    try:
        free_bytes = shutil.disk_usage(existing).free
    except OSError:  # a system that does not say
        return None
    if free_bytes >= needed_bytes:
        return None
    return f"about {needed_bytes / 1e6:,.1f} MB are needed in '{path}', and {free_bytes / 1e6:,.1f} MB are free"


def check(path: str) -> None:
    """Raise UsageError where no file can be written under this name; one that is there may be replaced."""
    file = Path(path)
    if is_device(file):
        return
    try:
        if file.is_dir():
            raise UsageError(f"'{path}' is a folder; name a file in it.")
        if not file.parent.is_dir():
            raise UsageError(f"'{path}' cannot be written: there is no folder '{file.parent}'.")
        file.exists()  # raises for a name that is too long
        with tempfile.TemporaryFile(dir=file.parent):
            pass
    except (OSError, ValueError) as error:
        raise UsageError(f"'{path}' cannot be written: {getattr(error, 'strerror', None) or error}.") from None


def is_device(path: Path) -> bool:
    """Whether it is a device or a pipe, which is written to and must not become a file."""
    try:
        return path.exists() and not path.is_file() and not path.is_dir()
    except (OSError, ValueError):  # a name that is too long, or none
        return False


def put(path: Path, content: bytes | Iterable[bytes]) -> None:
    """Write the file, or its pieces, aside and move it in one step; a device is written to.

    Raises OSError where that fails.
    """
    device = is_device(path)
    part = path if device else path.with_name(f"{path.name}.part")
    try:
        with part.open("wb") as file:
            file.writelines([content] if isinstance(content, bytes) else content)
        if not device:
            part.replace(path)
    except OSError as error:
        if not device:
            part.unlink(missing_ok=True)
        error.filename = error.filename or str(path)  # the system names no file where a write fails
        raise


def write(path: Path, content: str | bytes | Iterator[str]) -> None:
    """Write the file whole or not at all, text in UTF-8. Raises the error of `refused`."""
    pieces = [content] if isinstance(content, str | bytes) else content
    try:
        put(path, (piece.encode() if isinstance(piece, str) else piece for piece in pieces))
    except OSError as error:
        raise refused(path, error) from None
