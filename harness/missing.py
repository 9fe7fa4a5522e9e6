"""What a table of requests cannot tell, because the file it was read from does not hold it.

Columns and metrics by name, in the metadata of the table's schema, which slices and filters keep. A metric that is
missing has no value: it is not made up from what stands in its columns for want of better.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from harness.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

_KEY = b"bench.missing"


def marked(table: pa.Table, names: Iterable[str]) -> pa.Table:
    """The same table, which says that these columns and metrics are missing."""
    metadata = {**(table.schema.metadata or {}), _KEY: ",".join(sorted(names)).encode()}
    return table.replace_schema_metadata(metadata)


def missing(table: pa.Table) -> frozenset[str]:
    """Names of the columns and metrics that the table cannot tell; none of a run of ours."""
    told = (table.schema.metadata or {}).get(_KEY, b"").decode()
    return frozenset(told.split(",")) if told else frozenset()


def check_bounds(table: pa.Table, names: Iterable[str]) -> None:
    """Raises UsageError when an SLO bounds one of these metrics and the table cannot tell it."""
    lost = sorted(missing(table).intersection(names))
    if lost:
        raise UsageError(f"The file that these requests were read from cannot tell '{lost[0]}'; bound another metric.")
