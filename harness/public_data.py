"""Where the public measurements and traces are, which are no part of the project."""

import os
from collections.abc import Iterator
from pathlib import Path

from harness.errors import UsageError

VARIABLE = "BENCH_DATA"
"""Names the folder where no option does."""


def folder(given: str | None = None) -> Path | None:
    """The folder `given`, else that of $BENCH_DATA, else `shared/data` beside or above this one; None without any.

    Raises UsageError where a folder was named that is not there.
    """
    for name, source in ((given, "--data"), (os.environ.get(VARIABLE), f"${VARIABLE}")):
        if name:
            if not Path(name).is_dir():
                raise UsageError(f"{source} names '{name}', which is no folder; name the folder of measurements.")
            return Path(name)
    return next((path for path in _near() if path.is_dir()), None)


def _near() -> Iterator[Path]:
    here = Path.cwd()
    for parent in (here, *here.parents):
        yield parent / "shared" / "data"
    yield Path(__file__).resolve().parents[2] / "shared" / "data"
