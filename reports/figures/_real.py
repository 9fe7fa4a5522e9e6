"""What the figures of a simulator against real systems share: which pairs belong together, and how a group looks."""

from collections.abc import Mapping, Sequence
from typing import Any

from reports._format import in_figure
from reports.answers import validate as said
from reports.figures import _style as style

Pair = Mapping[str, Any]
LOOKS = (
    (style.BLUE, "circle", "solid"), (style.VERMILLION, "square", "dash"), (style.GREEN, "diamond", "dashdot"),
    (style.PURPLE, "x", "dot"), (style.OCHRE, "triangle-up", "longdash"), (style.GREY, "cross", "longdashdot"),
)  # fmt: skip
"""Colour, marker and dash of each group, in order."""
HOLLOW = "-open"
"""What is added to the marker of a pair that the calibration saw."""
MOST = 2000
"""Points that are drawn."""


def look(place: int) -> tuple[str, str, str]:
    """Colour, marker and dash of the group at that place; beyond the last colour, one again with another marker."""
    lap, slot = divmod(place, len(LOOKS))
    _, symbol, dash = LOOKS[(slot + lap) % len(LOOKS)]
    return LOOKS[slot][0], symbol, dash


def symbols(pairs: Sequence[Pair], symbol: str) -> list[str]:
    """A marker for each pair; hollow where the calibration saw it."""
    return [f"{symbol}{HOLLOW if pair['calibrated'] else ''}" for pair in pairs]


def panels(pairs: Sequence[Pair]) -> dict[str, list[Pair]]:
    """The pairs by the unit of their errors, '%' or 'points'."""
    found: dict[str, list[Pair]] = {}
    for pair in pairs:
        found.setdefault(said.unit(pair["metric"]), []).append(pair)
    return found


def groups(pairs: Sequence[Pair]) -> dict[str, list[Pair]]:
    """The pairs by curve and metric, under a name for the legend."""
    found: dict[str, list[Pair]] = {}
    for pair in pairs:
        label = f"{said.name(pair['metric'])}, {pair['curve']}" if pair["curve"] else said.name(pair["metric"])
        found.setdefault(in_figure(label, 70), []).append(pair)
    return found


def thinned(pairs: Sequence[Pair]) -> Sequence[Pair]:
    """At most `MOST` pairs, evenly chosen."""
    if len(pairs) <= MOST:
        return pairs
    return [pairs[i * len(pairs) // MOST] for i in range(MOST)]


SEEN = "Hollow marks were seen by the calibration and are not scored."


def notes(pairs: Sequence[Pair], drawn: int) -> list[str]:
    """What is to be said below a figure."""
    return [
        SEEN if any(pair["calibrated"] for pair in pairs) else "",
        f"{drawn:,} of {len(pairs):,} points are drawn, evenly chosen." if drawn < len(pairs) else "",
    ]
