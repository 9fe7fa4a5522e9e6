"""Metrics of series of nights that are shown and never judged: tails, rates and attainment at one rate."""

from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go

from reports.figures import _trend

ORDER = 2
OF = "trend"
SECTION = "series"
TITLE = "Metrics that are only shown, night by night"


def figure(info: Mapping[str, Any]) -> go.Figure | str:
    """A panel for each metric that is only shown of each series in the answer of `bench compare --trend`."""
    return _trend.figure(info, judged=False) or (
        "Only a search or no valid run is in this series; with bench run --out FOLDER/WORKLOAD/BACKEND/DATE-COMMIT "
        "its p99, rates and attainment are shown too."
    )
