"""Stacked bars over the rate, a panel for each system, or over the systems."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import plotly.graph_objects as go

from reports.figures import _phases, _systems
from reports.figures import _style as style
from reports.figures._systems import Group

if TYPE_CHECKING:
    from reports.study import Study

Percents = dict[str, dict[str, float]]
"""Label of a group -> key of a part -> percent."""


def figure(
    study: Study,
    found: Sequence[tuple[Group, Percents]],
    title: str,
    look: Callable[[str], _phases.Look],
    top: float | None = None,
) -> go.Figure:
    """The panels; `look` gives name, colour and hatch of a key, `title` the y axis, `top` its end."""
    drawn = style.panels([1 / len(found)] * len(found), 160 + 260 * len(found), spacing=0.2 / len(found))
    bars = [parts for _, percents in found for parts in percents.values()]
    keys = dict.fromkeys(key for parts in bars for key in parts)
    looks = {key: look(key) for key in keys if any(parts.get(key, 0.0) > 0 for parts in bars)}
    for row, (group, percents) in enumerate(found, 1):
        _panel(drawn, row, group, percents, looks, alone=len(found) == 1)
        span = {"range": [0, top]} if top is not None else {"rangemode": "tozero"}
        name = f"{group.name}<br>{title}" if group.name else title
        drawn.update_yaxes(style.axis(name, **span), row=row, col=1)
        last = _systems.group_axis(study, [group]) if row == len(found) else style.axis("", type="category")
        drawn.update_xaxes(last, row=row, col=1)
    drawn.update_layout(barmode="stack", bargap=0.3)
    return drawn


def _panel(
    drawn: go.Figure, row: int, group: Group, percents: Percents, looks: Mapping[str, _phases.Look], *, alone: bool
) -> None:
    """Bars of one system; of several the legend has entries of its own, so that the bars can be named after both."""
    for key, look in looks.items():
        marker = _phases.marked(look)
        if not alone and row == 1:
            drawn.add_bar(
                x=[next(iter(percents))], y=[None], row=1, col=1, name=look.name, legendgroup=key, marker=marker,
                meta=style.MARKS,
            )  # fmt: skip
        drawn.add_bar(
            x=list(percents), y=[parts.get(key, 0.0) for parts in percents.values()], row=row, col=1, legendgroup=key,
            name=look.name if alone else f"{group.name}: {look.name}", showlegend=alone, marker=marker,
            hovertemplate="%{x}: %{y:.2f}%",
        )  # fmt: skip
