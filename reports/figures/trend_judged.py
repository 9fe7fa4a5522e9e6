"""Judged metrics of series of nights over the date: what decides whether a series has a step."""

from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go

from reports.figures import _trend

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
