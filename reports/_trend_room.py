"""How much of each series a page of nights has room for: its size stays the same, whatever the number of series."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from reports._twin import MOST_ROWS
from reports.figures._trend_panel import MOST

_SERIES = 12
_DRAWN, _DRAWN_OF_MANY = 10_000, 5_000
"""Values that are drawn on a page of at most `_SERIES` series, and of more, whose tables take the rest of its room."""
_ROWS = 160
_WEEK, _MONTH = 7, 31


@dataclass(frozen=True, slots=True)
class Room:
    """Nights that are drawn of a series, rows of each table of nights, and whether unjudged metrics are drawn."""

    nights: int
    rows: int
    shown: bool


def room(info: Mapping[str, Any]) -> Room:
    """What a page has room for. Of many series the last month and a week of rows are always there."""
    series = info["series"]
    shown = len(series) <= _SERIES
    panels = sum(shown or bool(metric["judged"]) for one in series for metric in one["metrics"])
    return Room(
        nights=min(MOST, max(_MONTH, (_DRAWN if shown else _DRAWN_OF_MANY) // max(1, panels))),
        rows=min(MOST_ROWS, max(_WEEK, _ROWS // max(1, len(series)))),
        shown=shown,
    )
