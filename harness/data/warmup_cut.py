"""The part of a run that is measured, where its warm-up is cut off."""

import pyarrow as pa
import pyarrow.compute as pc

from harness.data.run_json import Cut


def kept(table: pa.Table, cut: Cut) -> pa.Table:
    """The requests that are measured: those due at the cut or after it."""
    if not cut.requests:
        return table
    return table.filter(pc.greater_equal(table["scheduled_s"], cut.at_s))
