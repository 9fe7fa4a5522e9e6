"""Simulator against real, over the rate and as a plane."""

from collections.abc import Sequence

import plotly.graph_objects as go

from harness.experiments.validate.answer import Pair, Validation
from reports._format import in_figure
from reports.answers import validate as wording
from reports.figures import style
from reports.figures.style import Look

MOST = 2000
"""Points that are drawn."""

CURVES = 4
"""Metrics of which the curves are drawn."""

NO_RATES = "These measurements were not made at several rates; see the plane of measured and simulated, and the tables."
NO_TIMES = "There are no times among these measurements; the percentages stand in the tables."
_STYLES = (
    Look(style.BLUE), Look(style.VERMILLION, "dash", "square"), Look(style.GREEN, "dashdot", "diamond"),
    Look(style.PURPLE, "dot", "x"), Look(style.OCHRE, "longdash", "triangle-up"),
    Look(style.GREY, "longdashdot", "cross"),
)  # fmt: skip


def look_of(place: int) -> Look:
    """The look of the group at that place; beyond the last colour, one again with another marker."""
    lap, slot = divmod(place, len(_STYLES))
    other = _STYLES[(slot + lap) % len(_STYLES)]
    return _STYLES[slot]._replace(dash=other.dash, symbol=other.symbol)


def _by(pairs: Sequence[Pair], key: str) -> dict[str, list[Pair]]:
    found: dict[str, list[Pair]] = {}
    for pair in pairs:
        found.setdefault(wording.unit(pair.metric) if key == "unit" else getattr(pair, key), []).append(pair)
    return found


def _at_rates(one: Validation) -> list[Pair]:
    """The pairs that have a rate; none where that is the same for all."""
    pairs = [pair for pair in one.pairs if pair.x is not None]
    return pairs if len({pair.x for pair in pairs}) > 1 else []


def _notes(pairs: Sequence[Pair], drawn: int) -> list[str]:
    seen = any(pair.calibrated for pair in pairs)
    return [
        "Hollow marks were seen by the calibration and are not scored." if seen else "",
        style.reduced(len(pairs), drawn, "points", "evenly chosen"),
    ]


def real_curves(one: Validation) -> go.Figure | str:
    """Each metric against the rate: measured with marks and solid lines, simulated hollow and dashed."""
    pairs = _at_rates(one)
    if not pairs:
        return NO_RATES
    every = _by(pairs, "metric")
    shown = list(every.items())[:CURVES]
    drawn = style.panels([1.0] * len(shown), 120 + 280 * len(shown), shared=True, spacing=0.06)
    for row, (metric, group) in enumerate(shown, start=1):
        for place, (curve, points) in enumerate(_by(group, "curve").items()):
            for side, dash in (("measured", "solid"), ("simulated", "dash")):
                look, name = look_of(place)._replace(dash=dash), f"{in_figure(curve)} {side}".strip()
                symbols = look.symbols(side == "simulated" for _ in points)
                ordered = sorted(points, key=lambda pair: pair.x or 0.0)
                style.curve(
                    drawn, [pair.x for pair in ordered], [getattr(pair, side) for pair in ordered], name, look,
                    "%{x:.4r} req/s: %{y:.4r}", row=row, size=9, symbols=symbols, legendgroup=name,
                    showlegend=row == 1,
                )  # fmt: skip
        y = style.share_axis(f"{wording.name(metric)} (%)") | {"range": [-3, 104]}
        if not metric.endswith("_pct"):
            values = [float(getattr(pair, side)) for pair in group for side in ("measured", "simulated")]
            y = style.log_axis(f"{wording.name(metric)} (s)", values, title_standoff=10)
        style.axes(drawn, style.axis("rate (req/s)" if row == len(shown) else ""), y, row)
    more = len(every) - len(shown)
    return style.done(drawn, wording.verdict(one), [
        "Solid: measured; dashed: simulated.", f"Metrics that are not drawn: {more}." if more else ""
    ])  # fmt: skip


def real_plane(one: Validation) -> go.Figure | str:
    """Simulated against measured seconds, a mark for each run and metric, with the diagonal where both agree."""
    pairs = [
        pair for pair in one.pairs if not pair.metric.endswith("_pct") and pair.measured > 0 and pair.simulated > 0
    ]
    if not pairs:
        return NO_TIMES
    shown = pairs if len(pairs) <= MOST else [pairs[i * len(pairs) // MOST] for i in range(MOST)]
    drawn = style.new(520)
    for place, (metric, group) in enumerate(_by(shown, "metric").items()):
        look = look_of(place)
        style.curve(
            drawn, [pair.measured for pair in group], [pair.simulated for pair in group], wording.name(metric),
            look, "measured %{x:.4r} s, simulated %{y:.4r} s", mode="markers",
            symbols=look.symbols(pair.calibrated for pair in group), marker={"opacity": 0.8},
        )  # fmt: skip
    values = [float(getattr(pair, side)) for pair in shown for side in ("measured", "simulated")]
    style.diagonal(drawn, [min(values), max(values)], "both alike")
    style.axes(drawn, style.log_axis("measured (s)", values), style.log_axis("simulated (s)", values))
    scored = [pair for pair in pairs if not pair.calibrated] or pairs
    near = sum(abs(pair.error) <= 10 for pair in scored)
    finding = style.finding({"Simulated times within 10% of the measured ones": [f"{near:,} of {len(scored):,}"]})
    return style.done(drawn, finding, _notes(pairs, len(shown)))
