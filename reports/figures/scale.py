"""Attainment over the scale of an SLO, every bound multiplied by it.

The curves that DistServe (OSDI 2024, figures 8 and 9) draws from many runs; the scale at which a request turns from
missed to met is the greatest of its value / bound, so one stored run gives a whole curve exactly.
"""

from itertools import chain, cycle

import numpy as np

from harness.data.folder import Run
from harness.experiments.rescore.objectives import curve
from reports import _data, _format
from reports._format import in_figure
from reports.figures import style
from reports.figures.drawing import Drawing

UNKNOWN = "The bounds of the SLO are on times that are unknown in this run, so there is no attainment to draw."
_GRID = 241


def slo_scale(run: Run) -> Drawing | str:
    """Share of requests that meet the SLO when every bound is multiplied by the scale on the x axis."""
    if run.requests.num_rows == 0:
        return _data.EMPTY
    slo, seen, scored = _data.slo(run), _data.seen(run), _data.scored(run)
    if _data.met(run) is None:
        return UNKNOWN if any(b.percentile is None for b in slo.bounds) else style.UNBOUND
    unscaled = curve(seen, slo, [], scored)
    cross = unscaled.crossing(slo.goal)
    finite = unscaled.ratio[np.isfinite(unscaled.ratio) & (unscaled.ratio > 0)]
    # by quantiles, as one request that waited for ever would leave the others a sliver of the axis
    low, high = np.quantile(finite, [0.02, 0.995]).tolist() if len(finite) else (0.25 / 0.8, 2.0)
    del finite  # as large as the curve
    low, high = low * 0.8, max(2.0, (cross or 1.0) * 1.3, high)
    low, high = min(max(low, 0.01), 0.5), min(high, 1000.0)
    marks = [1.0] if cross is None or not low <= cross <= high else [1.0, cross]
    factors = np.unique(np.concatenate([np.geomspace(low, high, _GRID), marks]))
    scaled = curve(seen, slo, factors.tolist(), scored)
    names = {bound: _data.bound_label(bound.metric, tag=bound.tag) for bound in scaled.bounds}
    single = {names[bound]: shares for bound, shares in scaled.bounds.items()}
    drawn = style.new()
    alone = {f"{name} only": shares for name, shares in single.items()} if len(single) > 1 else {}
    curves = {"all bounds": scaled.attainment, **alone}
    for (name, shares), look in zip(curves.items(), chain([style.ALL], cycle(style.BOUNDS)), strict=False):
        # a curve has hundreds of points: a few markers are enough to tell it from the others
        few = {"maxdisplayed": style.MARKED}
        percent = np.array(shares, np.float64) * 100
        style.curve(drawn, factors, percent, in_figure(name), look, style.OF_SCALE, marker=few)
    style.axes(drawn, style.log_axis("SLO scale (1 = the SLO of this run)", factors), style.share_axis(style.WITHIN))
    style.level(drawn, slo.goal * 100, f"goal {slo.goal * 100:g}%")
    style.upright(drawn, 1.0, "SLO of this run", 1)
    reached = f"at no scale: {np.sum(~np.isfinite(unscaled.ratio)):,} of {len(unscaled.ratio):,} requests failed"
    if cross is not None:
        style.upright(drawn, cross, f"{slo.goal * 100:g}% at scale {_format.number(cross)}")
        limits = [f"{name} {_format.seconds(bound.limit * cross)}" for bound, name in names.items()
                  if np.isfinite(bound.limit)]  # fmt: skip
        reached = f"from scale {_format.number(cross)} on ({', '.join(limits) or 'bounds of the requests'})"
    met = _format.share(float(np.mean(unscaled.ratio <= 1.0)), slo.goal)
    values = {"Met the SLO of this run": [met], f"{slo.goal * 100:g}% meet it": [reached]}
    return style.done(drawn, style.finding(values))
