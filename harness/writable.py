"""Whether a file can be written, asked before the work that is to fill it."""

from __future__ import annotations

import tempfile
from pathlib import Path

from harness.errors import UsageError


def check(path: str) -> None:
    """Raise UsageError where no file can be written under this name; one that is there may be replaced."""
    file = Path(path)
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
