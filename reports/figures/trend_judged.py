"""Judged metrics of series of nights over the date: what decides whether a series has a step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from reports.figures import _trend

if TYPE_CHECKING:
    import plotly.graph_objects as go

ORDER = 1
OF = "trend"
SECTION = "series"
TITLE = "Metrics that are judged, night by night"


def figure(info: Mapping[str, Any]) -> go.Figure | str:
    """A panel for each judged metric of each series in the answer of `bench compare --trend`."""
    return _trend.figure(info, judged=True) or (
        "No night has a valid run with a metric that is judged (mean TTFT and TPOT, failures, capacity); "
        "bench report NIGHT tells why."
    )
