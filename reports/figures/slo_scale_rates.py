"""Attainment against SLO scale at one rate of each system: how much tighter its bounds could be there.

The second row of figures 8 and 9 of DistServe (OSDI 2024), from the stored runs at that rate.
"""

from functools import partial

import numpy as np
import plotly.graph_objects as go

from reports import _format, _replay
from reports._format import in_figure
from reports._replay import Cells, Rate, Replay, Scored
from reports.figures import _style as style
from reports.study.runs import Study

ORDER = 3
OF = "study"
SECTION = "sliders"
TITLE = "Attainment against SLO scale"
_COLORS = (style.BLUE, style.VERMILLION, style.GREEN, style.PURPLE)
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "star", "triangle-down", "hexagon")
_MARKS = 12
"""Markers that tell a curve from the others."""
_ALONE = (("TTFT only", style.VERMILLION, "dot", "square"), ("TPOT only", style.GREEN, "dash", "diamond"))


def figure(study: Study) -> go.Figure | str:
    """Share of requests within every bound times the scale, at the highest rate that reaches the first goal."""
    replay = _replay.of_study(study)
    if isinstance(replay, str):
        return replay
    if not replay.grid.factors:
        return "The runs had no bound on single requests; give --slo ttft=0.25,tpot=0.1 to see attainment."
    factors = np.array(replay.grid.factors)
    drawn = style.new()
    chosen = [(system, rate_of(replay, system)) for system in replay.systems[: len(_SYMBOLS)]]
    for number, (system, rate) in enumerate(chosen):
        _draw(drawn, replay, system, rate, number)
    drawn.update_layout(
        xaxis=style.log_axis("SLO scale (1 = the SLO)", factors.tolist()),
        yaxis=style.axis("requests within the bounds (%)", range=[-2, 104]),
    )
    for goal in replay.goals:
        style.level(drawn, goal * 100, f"goal {goal * 100:g}%")
    drawn.add_vline(x=1.0, line={"color": style.GREY, "width": 1, "dash": "dot"})
    for number, (_, rate) in enumerate(chosen):
        _mark(drawn, replay, rate, number)
    return style.done(drawn, _finding(replay, chosen), _notes(replay, chosen))


def rate_of(replay: Replay, system: Scored) -> Rate:
    """The highest rate at which the mean attainment reaches the first goal; the lowest where none does."""
    own = replay.grid.factors.index(1.0)
    kept = [rate for rate in system.rates if share(rate, own) >= replay.goals[0]]
    return kept[-1] if kept else system.rates[0]


def share(rate: Rate, factor: int) -> float:
    """The mean share of requests within every bound times a factor."""
    return rate.mean(lambda run: _replay.scaled(run, factor) / run.requests) or 0.0


def crossed(replay: Replay, rate: Rate, goal: float) -> float | None:
    """The scale from which on the mean reaches a goal, between two factors linearly in the logarithm; None if none."""
    found = [share(rate, i) for i in range(len(replay.grid.factors))]
    reached = [i for i, value in enumerate(found) if value >= goal]
    if not reached or reached[0] == 0:
        return None
    right = reached[0]
    ends = np.log(replay.grid.factors[right - 1 : right + 1])
    part = (goal - found[right - 1]) / (found[right] - found[right - 1])
    return float(np.exp(ends[0] + part * (ends[1] - ends[0])))


def _draw(drawn: go.Figure, replay: Replay, system: Scored, rate: Rate, number: int) -> None:
    one = not replay.named
    color, symbol = _COLORS[number % len(_COLORS)], _SYMBOLS[number % len(_SYMBOLS)]
    y = [share(rate, i) * 100 for i in range(len(replay.grid.factors))]
    name = "all bounds" if one else f"{in_figure(system.name)} at {_at(replay, system, rate)}"
    _curve(drawn, replay, y, name, style.line(color, width=3), symbol)
    for i, (name, own, dash, mark) in enumerate(_ALONE if one else ()):
        alone = [rate.mean(partial(_share_alone, axis=i, factor=k)) for k in range(len(replay.grid.factors))]
        if None not in alone:
            _curve(drawn, replay, [mean * 100 for mean in alone if mean is not None], name, style.line(own, dash), mark)


def _curve(drawn: go.Figure, replay: Replay, y: list[float], name: str, line: dict[str, object], symbol: str) -> None:
    drawn.add_scatter(
        x=np.array(replay.grid.factors), y=y, name=name, mode="lines+markers", line=line,
        marker={"size": 8, "maxdisplayed": _MARKS, "symbol": symbol, "color": line["color"]},
        hovertemplate="scale %{x:.3r}: %{y:.1f}%",
    )  # fmt: skip


def _share_alone(run: Cells, axis: int, factor: int) -> float | None:
    one = run.alone[axis]
    return None if one.scaled is None or not one.requests else float(one.scaled[factor]) / one.requests


def _at(replay: Replay, system: Scored, rate: Rate) -> str:
    return f"{_format.number(rate.rate_rps / system.share)} {replay.unit}"


def _mark(drawn: go.Figure, replay: Replay, rate: Rate, number: int) -> None:
    """Where goals are crossed: a line down, with the scale beside it, one below the other."""
    color = _COLORS[number % len(_COLORS)]
    for place, goal in enumerate(replay.goals):
        at = crossed(replay, rate, goal)
        if at is None:
            continue
        drawn.add_shape(
            type="line", x0=at, x1=at, y0=-2, y1=goal * 100, line={"color": color, "width": 1.5, "dash": "dot"}
        )
        drawn.add_annotation(
            x=float(np.log10(at)), y=2 + 7 * (number * len(replay.goals) + place), showarrow=False, xanchor="left",
            xshift=4, yanchor="bottom", font={"size": 12}, text=f"{goal * 100:g}% from scale {_format.number(at)}",
        )  # fmt: skip


def _finding(replay: Replay, chosen: list[tuple[Scored, Rate]]) -> str:
    goal = replay.goals[0]
    texts = []
    for system, rate in chosen:
        name = f"{system.name} at" if replay.named else "At"
        at = crossed(replay, rate, goal)
        known = "at no scale drawn" if at is None else f"from about {_format.number(at)} times the bounds on"
        texts.append(f"{name} {_at(replay, system, rate)}, {goal * 100:g}% of the requests are within the SLO {known}")
    return f"{'; '.join(texts)}."


def _notes(replay: Replay, chosen: list[tuple[Scored, Rate]]) -> list[str]:
    own = replay.grid.factors.index(1.0)
    short = [system.name for system, rate in chosen if share(rate, own) < replay.goals[0]]
    goal = f"{replay.goals[0] * 100:g}%"
    seeds, more = max(len(rate.runs) for _, rate in chosen), len(replay.systems) - len(chosen)
    several = any(len(system.rates) > 1 for system, _ in chosen)
    return [
        f"The rate is the highest one tried at which {goal} is reached." if several else "",
        _replay.PERCENTILE if replay.open else "",
        f"At no rate of {', '.join(short)} it is; the lowest is drawn." if short and replay.named else "",
        f"At no rate tried {goal} is reached, so the lowest is drawn." if short and not replay.named else "",
        f"Means over {seeds} seeds." if seeds > 1 else "",
        f"{_format.count(more, 'system')} more would not be told apart." if more > 0 else "",
    ]
