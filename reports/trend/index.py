"""The index of many series: a row each with a small picture, the last value, what changed in a week and in a month.

Where the reports of stored nights stand, seen from a page that links to them by relative path.
"""

import datetime as dt
import math
import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from reports._format import clean, number
from reports._sheet import Cell, Table
from reports.trend import wording as said

Info = Mapping[str, Any]
HEADS = ("series", "metric", "state", "the latest nights", "last night", "last value", "over 7 days", "over 30 days")
CAPTION = "All series, each by one metric"
EXPLAINED = (
    "A series stands in the table by the first of its judged metrics that is worse, else by the first of all. Over 7 "
    "(30) days: the last value beside the median of the values 7 to 13 (30 to 36) days before it; ~ where the rule "
    "would not call that a step, - where there is none to compare with."
)
_WORST = ("longer", "regressed", "none", "suspect", "changed", "improved", "few", "steady")
_WEEK = 7
_DRAWN = 60
_WIDE, _HIGH, _EDGE = 150, 30, 3


@dataclass(frozen=True, slots=True)
class Points:
    """The values of a metric that may be compared with its last one: those since the series was last connected."""

    days: Sequence[dt.date]
    values: Sequence[float]


def table(info: Info, links: Mapping[str, str]) -> Table:
    """A row for each series; `links` has where the report of a night stands, by its path."""
    rows = tuple(_row(place, series, links) for place, series in enumerate(info["series"], start=1))
    return Table(CAPTION, HEADS, rows, left=1)


def anchor(place: int) -> str:
    """Where the page tells of the series at that place, counted from 1."""
    return f"series-{place}"


def leading(series: Info) -> Info | None:
    """The metric that stands for a series: the first judged one that is worst off; None where no night has a value."""
    judged = [metric for metric in series["metrics"] if metric["judged"]]
    return min(judged or series["metrics"], key=lambda metric: _WORST.index(metric["state"]), default=None)


def _row(place: int, series: Info, links: Mapping[str, str]) -> tuple[str | Cell, ...]:
    metric = leading(series)
    name = Cell(clean(series["name"], 80), link=f"#{anchor(place)}")
    if metric is None:
        return (name, "-", Cell("no valid night", good=False), "", _night(series, links), "-", "-", "-")
    state = "too few nights" if metric["state"] == "few" else said.state_of(metric).partition(":")[0]
    good = {"regressed": False, "none": False, "improved": True}.get(metric["state"])
    last = "overloaded" if said.last_of(metric)["overloaded"] else said.value_of(metric, metric["last"])
    over = [_over(metric, series, days) for days in (_WEEK, 30)]
    picture = Cell("", picture=sparkline(metric, {str(one["night"]) for one in series["breaks"]}))
    return (name, clean(metric["name"], 60), Cell(state, good=good), picture, _night(series, links), last, *over)


def _night(series: Info, links: Mapping[str, str]) -> Cell:
    """The last night, with a link to its report where there is one."""
    nights = series["metrics"][0]["nights"] if series["metrics"] else []
    return Cell(series["last"], link=links.get(nights[-1]["path"]) if nights else None)


def _over(metric: Info, series: Info, days: int) -> str:
    """The last value beside the median of a week that lies so many days back."""
    points = _comparable(metric, series)
    if not points.values or not math.isfinite(points.values[-1]):
        return "-"
    ago = [(points.days[-1] - day).days for day in points.days]
    before = [value for value, back in zip(points.values, ago, strict=True) if days <= back < days + _WEEK]
    if not before or not math.isfinite(middle := statistics.median(before)):
        return "-"
    last = points.values[-1]
    if metric["unit"] == "share":
        change, unit = 100 * (last - middle), " points"
    elif middle:
        change, unit = 100 * (last / middle - 1), "%"
    else:
        return "-"
    # in percent or points: below that of the last night, or of a rule without any scatter, nothing is called a step
    told = [night["threshold_pct"] for night in metric["nights"] if night["threshold_pct"] is not None]
    return f"{change:+.1f}{unit}" if abs(change) > (float(told[-1]) if told else 5.0) else "~"


def _comparable(metric: Info, series: Info) -> Points:
    since = max((str(one["night"]) for one in series["breaks"]), default="")
    nights = [n for n in metric["nights"] if n["state"] != "gap" and str(n["night"]) >= since]
    days = [dt.date.fromisoformat(str(night["night"])[:10]) for night in nights]
    return Points(days, [math.inf if night["value"] is None else night["value"] for night in nights])


def sparkline(metric: Info, breaks: set[str]) -> str:
    """The latest nights as an SVG line that is not connected over gaps and `breaks`; a ring marks the last value."""
    nights = metric["nights"][-_DRAWN:]
    values = [night["value"] for night in nights if night["value"] is not None]
    if not values:
        return ""
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    step = (_WIDE - 2 * _EDGE) / max(1, len(nights) - 1)

    def place(i: int) -> str:
        y = _HIGH / 2 if high == low else _HIGH - _EDGE - (nights[i]["value"] - low) / span * (_HIGH - 2 * _EDGE)
        return f"{_EDGE + i * step:.1f},{y:.1f}"

    lines = [" ".join(place(i) for i in piece) for piece in _pieces(nights, breaks)]
    drawn = "".join(f'<polyline points="{line}"/>' for line in lines if " " in line)
    dots = "".join(_dot(line, 1.5) for line in lines if " " not in line)
    at = max(i for i, night in enumerate(nights) if night["value"] is not None)
    name = clean(
        f"{metric['name']} of {len(nights)} nights: {said.value_of(metric, low)} to {said.value_of(metric, high)}"
    )
    ring = _dot(place(at), 2.5)
    return (
        f'<svg role="img" aria-label="{escape(name, quote=True)}" width="{_WIDE}" height="{_HIGH}" '
        f'viewBox="0 0 {_WIDE} {_HIGH}" fill="none" stroke="currentColor" stroke-width="1.5" '
        f'style="color:var(--link)">{drawn}{dots}{ring}</svg>'
    )


def _dot(place: str, radius: float) -> str:
    x, _, y = place.partition(",")
    return f'<circle cx="{x}" cy="{y}" r="{number(radius)}"/>'


def _pieces(nights: Sequence[Info], breaks: set[str]) -> Iterator[list[int]]:
    """Places of nights that are connected with one another."""
    piece: list[int] = []
    for i, night in enumerate(nights):
        if piece and (night["value"] is None or str(night["night"]) in breaks):
            yield piece
            piece = []
        if night["value"] is not None:
            piece.append(i)
    if piece:
        yield piece


REPORT = "report.html"


def links(info: Mapping[str, Any], page: Path) -> dict[str, str]:
    """Path of a night -> link to its report, of those nights that have one; of several runs a night, the first.

    `page` is the file or the folder that the page will stand in. Nights are looked for where they were, and, of an
    answer that was moved together with its folder, below that of the page.
    """
    start = page if page.is_dir() else page.parent
    paths = {n["path"] for one in info["series"] for metric in one["metrics"] for n in metric["nights"]}
    found = {path: _report(path, info, start) for path in sorted(paths)}
    # as URLs: slashes, and nothing in them that a browser reads otherwise
    return {
        path: quote(Path(os.path.relpath(report, start)).as_posix())
        for path, report in found.items()
        if report is not None
    }


def _report(path: str, info: Mapping[str, Any], start: Path) -> Path | None:
    """The report of a night, in its folder or in that of one of its runs."""
    folder = next((place for place in _places(path, info, start) if place.is_dir()), None)
    if folder is None:
        return None
    if (folder / REPORT).is_file():
        return folder / REPORT
    return next(iter(sorted(folder.glob(f"*/{REPORT}"))), None)


def _places(path: str, info: Mapping[str, Any], start: Path) -> Iterator[Path]:
    yield Path(path)
    root = Path(str(info["folder"]))
    try:
        below = Path(path).relative_to(root)
    except ValueError:
        return
    yield start / below
    yield start / root.name / below
