"""The numbers of a run as a Parquet table, tidy: run, class, metric, unit, statistic, value, low, high."""

import io
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow.parquet as pq

from harness.data.folder import Run
from reports import _tables


@dataclass(frozen=True, slots=True)
class Parquet:
    """The table of `csv` for programs: nulls where there is no class, no value or no interval; times in seconds."""

    def render(self, run: Run) -> bytes:
        return self.render_all([run])

    def render_all(self, runs: Sequence[Run]) -> bytes:
        """The same of several runs in one table."""
        file = io.BytesIO()
        pq.write_table(_tables.table(runs), file, compression="zstd")
        return file.getvalue()
