"""Attainment of a run against the SLO scale as a small curve in text."""

import numpy as np

from harness.data.folder import Run
from reports import _data
from reports.document.curve import Curve

ENDS = (0.25, 4.0)
"""Scales between which the curve is drawn, as `bench slo --scale 0.25:4` has them."""
POINTS = 97


def curve(run: Run) -> Curve | None:
    """The curve, where the run has bounds on single requests."""
    if run.requests.num_rows == 0:
        return None
    shown = _data.measured(run)
    found = _data.margins(shown)
    if not found or not shown.requests.num_rows:
        return None
    ratio = np.sort(_data.joint(found))
    scales = np.geomspace(*ENDS, POINTS)
    shares = np.searchsorted(ratio, scales, side="right") / len(ratio)
    points = list(zip(scales.tolist(), shares.tolist(), strict=True))
    title = "attainment against SLO scale: every bound times the scale, a column at 1"
    return Curve(points, [_data.slo(run).goal], title, "x", [1.0], log=True)
