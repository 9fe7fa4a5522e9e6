"""Whether a file can be written, asked before the work that is to fill it, and how it gets there whole."""

from __future__ import annotations

import tempfile
from pathlib import Path

from harness.errors import UsageError


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


def put(path: Path, content: bytes) -> None:
    """Write the file aside and move it in one step; a device is written to. Raises OSError where that fails."""
    if is_device(path):
        path.write_bytes(content)
        return
    part = path.with_name(f"{path.name}.part")
    try:
        part.write_bytes(content)
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise
