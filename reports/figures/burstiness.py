"""How bursty the requests were, as planned and as sent: the index of dispersion against the width of the bins."""

import numpy as np
import plotly.graph_objects as go

from harness.data.folder import Run
from reports import _data
from reports.figures import _dispersion
from reports.figures._traffic import Stream

ORDER = 12
OF = "run"
SECTION = "fidelity"
TITLE = "How bursty the requests came"


def figure(run: Run) -> go.Figure | str:
    """Dispersion curves of plan and sending on two log axes, with the range in which chance puts Poisson."""
    if run.requests.num_rows == 0:
        return _data.EMPTY
    times = _data.sending(run)
    named = [("planned", times.planned), ("sent", times.sent)]
    if times.everything is not None:
        named = [*([] if times.closed else named), ("sent, follow-ups included", times.everything)]
    streams = [Stream(name, np.asarray(values, np.float64)) for name, values in named if len(values)]
    if not streams:
        return _data.EMPTY
    tick_s = run.info.fidelity.tick_s
    grain_s = None if tick_s is None else float(tick_s)
    widths_s = _dispersion.widths(streams[0].span_s, streams[0].arrivals, grain_s)
    curves = [_dispersion.Curve(s.name, widths_s, _dispersion.curve(s, widths_s, grain_s)) for s in streams]
    return _dispersion.figure(curves, streams[0].span_s)
