"""What a panel of nights is drawn of: a metric of a series in a readable unit, and the lines where things changed."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reports import _format
from reports._format import in_figure
from reports.answers.trend import MOST_NIGHTS, marked

Info = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Panel:
    """A metric of a series: its nights, and `scale`, by which its values become those of `unit`."""

    series: Info
    metric: Info
    nights: Sequence[Info]
    unit: str
    scale: float

    @property
    def at(self) -> list[str]:
        """Dates of the nights."""
        return [str(night["night"]) for night in self.nights]

    def scaled(self, key: str) -> list[float]:
        """Values of the nights in the unit of the panel, NaN where there is none."""
        return [math.nan if night.get(key) is None else self.scale * night[key] for night in self.nights]

    @property
    def edges(self) -> tuple[float, float]:
        """Lower and upper end of what is drawn, with room for marks at both."""
        keys = ("value", "low", "high", "reference")
        found = [v for key in keys for v in self.scaled(key) if math.isfinite(v)] or [0.0]
        low, high = min(found), max(found)
        room = 0.24 * (high - low) or 0.1 * abs(high) or 1.0
        floor = -0.12 * (high + room) if low >= 0 else -math.inf  # nothing that is followed can be negative
        return max(low - room, floor), high + room

    @property
    def breaks(self) -> set[str]:
        """Nights that are not connected with the one before."""
        return {str(one["night"]) for one in self.series["breaks"]}

    @property
    def lines(self) -> list[tuple[str, str, list[Info]]]:
        """The vertical lines among its nights."""
        return marked(self.series, set(self.at))


def panels(info: Info, *, judged: bool) -> list[Panel]:
    """A panel for each metric of each series, of those that are judged or of those that are only shown."""
    most = info.get("drawn", MOST_NIGHTS)  # the latest
    found = []
    for one in info["series"]:
        for metric in one["metrics"]:
            if bool(metric["judged"]) is judged:
                nights = metric["nights"][-most:]
                found.append(Panel(one, metric, nights, *_unit(metric, nights)))
    return found


def _unit(metric: Info, nights: Sequence[Info]) -> tuple[str, float]:
    if metric["unit"] == "s":
        unit = _format.unit_of(night["value"] for night in nights)
        return unit, 1000.0 if unit == "ms" else 1.0
    if metric["unit"] == "share":
        return "%", 100.0
    return ("req/s" if metric["unit"] == "1/s" else in_figure(metric["unit"], 20)), 1.0
