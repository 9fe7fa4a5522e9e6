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

            return pq.read_table(path)
        from pyarrow import csv

        return csv.read_csv(path)
    except (pa.ArrowException, OSError) as error:
        raise UsageError(f"'{path}' cannot be read: {str(error).splitlines()[0].rstrip('.')}.") from None


def numbers(column: pa.ChunkedArray) -> np.ndarray:
    """(rows,) float64, nan for null. Raises ValueError for text."""
    return np.asarray(column.to_numpy(), np.float64)
