"""Tables that others wrote: parquet or CSV."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from harness.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa


def table(path: Path, what: str) -> pa.Table:
    """The rows of a file. Raises UsageError where it is not there, or neither parquet nor CSV."""
    import pyarrow as pa  # heavy

    if not path.is_file():
        raise UsageError(f"'{path}' does not exist; name the folder of a run, or a table of {what} (parquet or CSV).")
    if path.suffix not in (".parquet", ".csv"):
        raise UsageError(f"'{path}' is no table of {what}: its name must end with .parquet or .csv.")
    try:
        if path.suffix == ".parquet":
            import pyarrow.parquet as pq

            held = pq.read_table(path)
        else:
            from pyarrow import csv

            held = csv.read_csv(path)
    except MemoryError:  # an ArrowException too, where Arrow has no memory
        raise
    except (pa.ArrowException, OSError) as error:
        raise UsageError(f"'{path}' cannot be read: {str(error).splitlines()[0].rstrip(' .:')}.") from None
    twice = next((name for name in held.column_names if held.column_names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"'{path}' has more than one column {twice}; leave one of them.")
    return held


def numbers(held: pa.Table, name: str, path: Path) -> np.ndarray:
    """(rows,) float64 of a column, nan for null. Raises UsageError for text and dates."""
    import pyarrow as pa  # heavy

    of = held[name].type
    if not (pa.types.is_integer(of) or pa.types.is_floating(of) or pa.types.is_decimal(of) or pa.types.is_null(of)):
        raise UsageError(f"'{path}': the column {name} must hold numbers, it holds {of}.")
    return np.asarray(held[name].cast(pa.float64(), safe=False).to_numpy(), np.float64)
