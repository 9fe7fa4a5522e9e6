"""Rows of an answer as CSV: a line of heads, values as they are, empty where there is none."""

import csv
import io
from collections.abc import Iterable, Mapping

from reports._format import clean


def render(rows: Iterable[Mapping[str, object]]) -> str:
    """The rows, times in seconds and shares from 0 to 1; a row may lack some of the columns."""
    found = [dict(row) for row in rows]
    heads = [*dict.fromkeys(name for row in found for name in row)]
    file = io.StringIO()
    writer = csv.DictWriter(file, heads, lineterminator="\n")
    writer.writerow({head: clean(head) for head in heads})
    writer.writerows({key: clean(v) if isinstance(v, str) else v for key, v in row.items()} for row in found)
    return file.getvalue()
