"""Simulator against real, as a plane."""

from collections.abc import Sequence

import plotly.graph_objects as go

from harness.experiments.validate.answer import Pair, Validation
from reports.answers import validate as wording
from reports.figures import style
from reports.figures.style import Look

MOST = 2000
"""Points that are drawn."""

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
    groups: dict[str, list[Pair]] = {}
    for pair in pairs:
        groups.setdefault(wording.unit(pair.metric) if key == "unit" else getattr(pair, key), []).append(pair)
    return groups


def _notes(pairs: Sequence[Pair], drawn: int) -> list[str]:
    seen = any(pair.calibrated for pair in pairs)
    return [
        "Hollow marks were seen by the calibration and are not scored." if seen else "",
        style.reduced(len(pairs), drawn, "points", "evenly chosen"),
    ]


def real_plane(one: Validation) -> go.Figure | str:
    """Simulated against measured seconds, a mark for each run and metric, with the diagonal where both agree."""
    pairs = [
        pair for pair in one.pairs if not pair.metric.endswith("_pct") and pair.measured > 0 and pair.simulated > 0
    ]
    if not pairs:
        return NO_TIMES
    plotted = pairs if len(pairs) <= MOST else [pairs[i * len(pairs) // MOST] for i in range(MOST)]
    drawn = style.new(520)
    for place, (metric, group) in enumerate(_by(plotted, "metric").items()):
        look = look_of(place)
        style.curve(
            drawn, [pair.measured for pair in group], [pair.simulated for pair in group], wording.name(metric),
            look, "measured %{x:.4r} s, simulated %{y:.4r} s", mode="markers",
            symbols=look.symbols(pair.calibrated for pair in group), marker={"opacity": 0.8},
        )  # fmt: skip
    values = [float(getattr(pair, side)) for pair in plotted for side in ("measured", "simulated")]
    style.diagonal(drawn, [min(values), max(values)], "both alike")
    style.axes(drawn, style.log_axis("measured (s)", values), style.log_axis("simulated (s)", values))
    scored = [pair for pair in pairs if not pair.calibrated] or pairs
    close = sum(abs(pair.error) <= 10 for pair in scored)
    finding = style.finding({"Simulated times within 10% of the measured ones": [f"{close:,} of {len(scored):,}"]})
    return style.done(drawn, finding, _notes(pairs, len(plotted)))
