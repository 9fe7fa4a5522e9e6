"""Attainment of a run against the SLO scale as a small curve in text."""

import numpy as np

from harness.data.folder import Run
from reports import _data
from reports.answers import _curve

ENDS = (0.25, 4.0)
"""Scales between which the curve is drawn, as `bench slo --scale 0.25:4` has them."""
POINTS = 97


def curve(run: Run, width: int, *, blocks: bool) -> str:
    """The curve, where the run has bounds on single requests and the window (`width` columns) has room for it."""
    if run.requests.num_rows == 0 or width < _curve.ROOM:
        return ""
    shown = _data.measured(run)
    found = _data.margins(shown)
    if not found or not shown.requests.num_rows:
        return ""
    ratio = np.sort(_data.joint(found))
    scales = np.geomspace(*ENDS, POINTS)
    shares = np.searchsorted(ratio, scales, side="right") / len(ratio)
    points = list(zip(scales.tolist(), shares.tolist(), strict=True))
    title = "attainment against SLO scale: every bound times the scale, a column at 1"
    drawn = _curve.Curve(points, [_data.slo(run).goal], title, "x", [1.0], log=True)
    return _curve.drawn(drawn, blocks=blocks)
