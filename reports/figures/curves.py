"""Curves of systems over the rate: attainment (over another option where no rate is varied), latency, throughput.

After figures 8 and 9 of DistServe (OSDI 2024): all bounds together solid, TTFT alone dotted, TPOT alone dashed.
"""

from collections.abc import Sequence
from itertools import cycle
from typing import Any

import numpy as np

from harness.experiments.sweep.axes import RATE
from harness.experiments.sweep.crossings import ratio
from harness.metrics.objective import JOINT
from harness.stats import crossing as stats_crossing
from reports import _data, _format
from reports._format import clean, in_figure
from reports.figures import style, systems
from reports.figures.drawing import Drawing
from reports.figures.style import Look
from reports.figures.systems import Line
from reports.study import Point, Study, System, axis_title, floor_s

BY_PERCENTILE = "Every bound is on a percentile of a run, so there is no share of requests to draw."
_OTHERS = (Look(style.PURPLE, "dashdot", "x"), Look(style.OCHRE, "longdash", "cross"),
           Look(style.GREY, "longdashdot", "star"))  # fmt: skip
"""Styles of bounds on other metrics than TTFT and TPOT and of those of a class."""
_WITH_BOUNDS = 2
"""Systems up to which the bounds are drawn one by one, and bands from the start."""
_APART = 1.0
"""Percent by which a bound has to differ from all bounds somewhere, to be drawn beside them."""
_NAMED = 3
"""Systems that a sentence can name."""
_METRICS = ("ttft", "tpot")
_PARTS = {"p50": Look(style.GREEN), "p90": Look(style.BLUE, "dash", "square"),
          "p99": Look(style.VERMILLION, "dot", "diamond")}  # fmt: skip
_NEAR = 10.0
"""A floor that lies further below the latencies than this is in the text and not drawn."""
_NO_LATENCY = (
    "At too few rates the system kept up, and where a queue grows latencies tell how long the run was; "
    "bench sweep with lower rates brings them."
)


def attainment_rate(study: Study) -> Drawing | str:
    """Share of requests within the SLO against the rate, with a band over seeds, and the rates that are sustained; of
    rates that are not varied against the option that is."""
    all_lines = systems.lines(study)
    if not all_lines and study.over is not None:
        return attainment_rate(study.over)
    lines = [line for line in all_lines if any(point.attainment for point in line.points)]
    if not lines:
        return BY_PERCENTILE if _percentile([p for line in all_lines for p in line.points]) else systems.NO_CURVE
    drawn = style.new(460)
    first = lines[0].name.partition(" ")[0]
    alike = all(line.name.startswith(f"{first} ") for line in lines)  # 'policy' before the name of each
    labels = []
    for line in lines:
        name = line.name.removeprefix(f"{first} ") if alike else line.name
        labels += _attainment(drawn, line, name, bounds=len(lines) <= _WITH_BOUNDS)
    if len(lines) > _WITH_BOUNDS:  # bands over bands would hide the curves
        style.at_a_press(drawn, "bands", [i for i, trace in enumerate(drawn.data) if not trace["line"]["width"]])
    style.axes(drawn, systems.rate_axis(study, lines), style.share_axis(style.WITHIN))
    for goal in study.goals:
        style.level(drawn, goal * 100)
    style.end_labels(drawn, labels, {goal * 100: f"goal {goal * 100:g}%" for goal in study.goals})
    marks = [(line, cross) for goal in study.goals for line in lines
             if (cross := line.system.capacity(goal)) is not None and cross.rps is not None]  # fmt: skip
    for line, cross in marks:
        share = study.share(line.system)
        rate, *ends = [None if end is None else end / share for end in (cross.rps, cross.low_rps, cross.high_rps)]
        assert rate is not None
        span = (ends[0], ends[1]) if ends[0] is not None and ends[1] is not None else None
        style.upright(drawn, rate, look=line.look._replace(dash="dot", width=1.5), top=cross.goal * 100,
                      span=span if len(lines) <= _WITH_BOUNDS else None)  # fmt: skip
        if len(lines) == len(marks) == 1:  # more would lie on one another, or on the curves
            style.above(drawn, rate, f"{cross.goal * 100:g}% up to {_format.number(rate)}{_between(ends, 1.0)}")
    points = [point for line in lines for point in line.points if point.attainment is not None]
    excluded = in_figure(", ".join(_percentile(points)))
    return style.done(drawn, finding(study), [
        _seeds_note(points, pressed=len(lines) > _WITH_BOUNDS),
        "The line is a monotone fit." if any(map(_searched, lines)) else "",
        style.HOLLOW if any(point.overloaded for point in points) else "",
        "Capacity is not read from the curve of all bounds." if _rule(study) else "",
        f"No part of these shares: {excluded}, kept or broken by a run as a whole." if excluded else "",
        systems.left_out(study, len(lines)),
    ])  # fmt: skip


def _attainment(drawn: Drawing, line: Line, label: str, *, bounds: bool) -> list[tuple[float, float, str, str]]:
    """Draws a system: all bounds, with a band, and beneath it the bound that is met furthest from it.

    Returns where the lines end, with their names and colours.
    """
    points = [point for point in line.points if point.attainment is not None]
    x = line.x[[point.attainment is not None for point in line.points]]
    spreads = [point.attainment for point in points if point.attainment is not None]
    if max(point.valid for point in points) > 1:  # the interval of the mean over the seeds, or their range
        low, high = np.array([spread.ends for spread in spreads]).T * 100
        names = f"{line.prefix}lower end of the band", f"{line.prefix}upper end of the band"
        style.band(drawn, x, (low, high), names, line.look.color)
    look, hollow = line.look._replace(width=3.0), [point.overloaded for point in points]
    means = 100 * np.array([spread.mean for spread in spreads])
    name = "bounds on single requests" if _percentile(points) else "all bounds"
    joint = f"{line.prefix}{name}" if bounds else line.name
    ends = []
    if bounds and (single := _furthest(points, means)) is not None:
        text, bound_look, y = single
        bound_look = bound_look._replace(color=bound_look.color if not line.prefix else line.look.color, width=1.5)
        style.curve(drawn, x, y, f"{line.prefix}{text}", bound_look, style.PERCENT, symbols=bound_look.symbols(hollow))
        ends.append((float(x[-1]), float(y[-1]), text, bound_look.color))
    if _searched(line):
        # a search tries a rate with few seeds: the line may only fall, which takes their chance out of it
        more: dict[str, Any] = {"mode": "markers", "symbols": look.symbols(hollow)}
        style.curve(drawn, x, means, f"{joint}, as found", look, style.PERCENT, **more)
        means = np.array(stats_crossing.falling(means.tolist(), [max(p.requests, 1) for p in points]))
        style.curve(drawn, x, means, joint, look, None, mode="lines")
    else:
        style.curve(drawn, x, means, joint, look, style.PERCENT, symbols=look.symbols(hollow))
    return [*ends, (float(x[-1]), float(means[-1]), label or name, look.color)]


def _furthest(points: Sequence[Point], joint: np.ndarray) -> tuple[str, Look, np.ndarray] | None:
    """The bound on single requests whose share is furthest from that of all bounds: name, look, percent at each point.

    None where there is one bound only, and where none can be distinguished from all bounds.
    """
    single = {bound.text: bound for point in points for bound in point.bounds
              if bound.attainment is not None and bound.percentile is None}  # fmt: skip
    styles, others = {"ttft": style.TTFT, "tpot": style.TPOT}, cycle(_OTHERS)
    met = [{b.text: 100 * b.attainment.mean for b in p.bounds if b.attainment is not None} for p in points]
    candidates = []
    for text, bound in single.items() if len(single) > 1 else ():
        look = styles[bound.metric] if bound.metric in styles and bound.tag is None else next(others)
        y = np.array([shares.get(text, np.nan) for shares in met])
        candidates.append((in_figure(f"{_data.bound_label(bound.metric, tag=bound.tag)} only"), look, y))
    best = max(candidates, key=lambda one: float(np.nanmax(one[2] - joint)), default=None)
    return best if best is not None and np.isfinite(best[2][-1]) and np.nanmax(best[2] - joint) > _APART else None


def _searched(line: Line) -> bool:
    """Whether the points are those of a search: of few seeds each, so that the curve is drawn through all of them."""
    return any(capacity.how == "searched" for capacity in line.system.capacities)


def _percentile(points: Sequence[Point]) -> list[str]:
    """The bounds on percentiles."""
    return list(dict.fromkeys(bound.text for p in points for bound in p.bounds if bound.percentile is not None))


def _seeds_note(points: Sequence[Point], *, pressed: bool) -> str:
    """What the ends of the bands are, and over how many seeds."""
    least, most = (end(point.valid for point in points) for end in (min, max))
    if most < 2:
        return "One run at each point, so there is no band."
    intervals = [point.attainment is not None and point.attainment.low is not None for point in points]
    what = "the range of the seeds"
    if any(intervals):
        rest = "" if all(intervals) else f", or {what} where they do not give one"
        what = f"95% interval of the mean over seeds{rest}"
    bands = "Bands (at a press of the button)" if pressed else "Bands"
    return f"{bands}: {what} (seeds: {least if least == most else f'{least} to {most}'})."


def _rule(study: Study) -> str:
    """The definition of capacity under which a search went by something else than all bounds together."""
    names = [str(source.get("definition") or JOINT) for source in study.sources]
    return clean(next((name for name in names if name != JOINT), ""), 40)


def finding(study: Study) -> str:
    """Capacity at the first goal; of several systems that of the best, and which are not significantly worse."""
    goal = study.goals[0] if study.goals else 0.9
    capacities = [(system, cross) for system in study.systems if (cross := system.capacity(goal)) is not None]
    sustained = [(system, cross.rps / study.share(system), cross) for system, cross in capacities if cross.rps]
    if not sustained:
        if len(capacities) == 1 and (note := capacities[0][1].note):
            return f"{goal * 100:g}% is not crossed: {note}."
        sides = {cross.side for _, cross in capacities}
        side_text = f": attainment is {sides.pop()} it" if len(sides) == 1 and None not in sides else ""
        return f"{goal * 100:g}% is not crossed by any of the rates tried{side_text}."
    first, best, how = max(sustained, key=lambda found: found[1])
    sure = "found by a search" if how.how == "searched" else "interpolated between those tried"
    value = f"{_format.number(best)} {study.rate_unit}"
    if study.axis != RATE:
        value = f"{axis_title(study.axis)} {_format.number(best)}"
    value += _between([how.low_rps, how.high_rps], study.share(first))
    if len(study.systems) == 1 and (rule := _rule(study)):
        return f"With definition {rule}, {value} is sustained at {goal * 100:g}%, {sure}."
    if len(study.systems) == 1:
        crosses = "falls below" if study.axis == RATE else "crosses"
        return f"Attainment {crosses} {goal * 100:g}% at {value}, {sure}."
    # a lead that the seeds do not prove is named beside the systems that it is not proven over
    alike = [other.name for other, *_ in sustained if other is not first and _alike(study, other, first, goal)]
    doubt = f"; no significant difference from {', '.join(alike[:_NAMED])}" if alike else ""
    above = [system.name for system, cross in capacities if not cross.rps and cross.side == "above"]
    if above:
        names = ", ".join(above[:_NAMED]) + (f" and {len(above) - _NAMED} others" if len(above) > _NAMED else "")
        most = "sustains" if len(sustained) == 1 else "sustains most of the others"
        return f"{names}: all rates tried are above {goal * 100:g}%; {first.name} {most}: {value}, {sure}{doubt}."
    return f"At {goal * 100:g}% {first.name} sustains most: {value}, {sure}{doubt}."


def _alike(study: Study, base: System, head: System, goal: float) -> bool:
    """Whether the interval of what `head` sustains over `base`, over the seeds that they share, holds 1."""
    times = ratio(base.line, head.line, goal) if base.line and head.line else None
    _, low, high = times or (None, None, None)
    share = study.share(head) / study.share(base)
    return low is not None and high is not None and low / share <= 1 <= high / share


def _between(ends: Sequence[float | None], share: float) -> str:
    low, high = ends
    return "" if low is None or high is None else f" ({_format.number(low / share)} to {_format.number(high / share)})"


def latency_rate(study: Study) -> Drawing | str:
    """Percentiles of TTFT above those of TPOT on log axes against the rate, with bounds and the client's own error."""
    all_lines = systems.lines(study)
    lines = [line for line in all_lines if sum(bool(point.metrics) for point in line.points) > 1]
    if not lines:
        grown = any(point.overloaded for line in all_lines for point in line.points)
        return _NO_LATENCY if grown else systems.NO_CURVE
    floors = floor_s(study)
    drawn = style.panels([0.5, 0.5], 620, spacing=0.06)
    x, notes = systems.rate_axis(study, lines), []
    alike, single = all(np.array_equal(line.x, lines[0].x) for line in lines), len(lines) == 1
    for row, metric in enumerate(_METRICS, 1):
        label, values = _data.label(metric), []
        for line in lines:
            hollow = [point.overloaded for point in line.points]
            for part, part_look in _PARTS.items():
                y = np.array([_value(point, metric, part) for point in line.points])
                values += [float(value) for value in y if value > 0]
                if single or part != "p90":
                    look = part_look if single else line.look._replace(dash=part_look.dash)
                    style.curve(
                        drawn, line.x, y, f"{line.prefix}{'' if alike else f'{label} '}{part}", look,
                        "%{x:.4r}: %{y:.4r} s", row=row, symbols=look.symbols(hollow), showlegend=row == 1,
                        legendgroup=f"{line.prefix}{part}",
                    )  # fmt: skip
        drawn.axis("x", row).update({**x, "title": {"text": ""}} if row == 1 else x)
        notes.append(_bounds(drawn, row, metric, lines, values, floors.get(metric)) if values else "")
    without = [float(x) for line in lines for x, point in zip(line.x, line.points, strict=True) if point.overloaded]
    if without:
        notes.append(f"No latencies from {_format.plain(min(without), 4)} {study.rate_unit} on where a queue grew all "
                     "through a run: they would tell how long the run was.")  # fmt: skip
    seeds = "Means over the seeds." if any(p.valid > 1 for line in lines for p in line.points) else ""
    return style.done(drawn, _latency_finding(study, lines[0]), [seeds, *notes, systems.left_out(study, len(lines))])


def _value(point: Point, metric: str, part: str) -> float:
    spread = point.metrics.get(metric, {}).get(part)
    return np.nan if spread is None else spread.mean


def _bounds(
    drawn: Drawing, row: int, metric: str, lines: Sequence[Line], values: list[float], floor_s: float | None
) -> str:
    """The y axis of a panel, with bounds and floor; returns the note on the floor."""
    limits_s = {
        f"SLO {'' if bound.percentile is None else f'p{bound.percentile:g} '}{_format.limit(limit_s)}": limit_s
        for line in lines for point in line.points for bound in point.bounds
        if bound.metric == metric and bound.tag is None and (limit_s := bound.limit_s) is not None
    }  # fmt: skip
    # a floor far below all latencies would squeeze them into the upper end of a log axis
    in_view = floor_s is not None and floor_s * _NEAR >= min(values)
    ends = [*values, *limits_s.values(), *([floor_s] if in_view and floor_s else [])]
    axis = style.log_axis(f"{_data.label(metric)} (s)", ends)
    drawn.axis("y", row).update(axis)
    for text, limit_s in limits_s.items():
        style.level(drawn, limit_s, text, row)
    if floor_s is None:
        return ""
    text = f"the client's floor for {_data.label(metric)} ({_format.seconds(floor_s)})"
    if not in_view:
        return f"Below the drawing: {text}."
    _, _, data, parts = style.panel_of(drawn, row)
    drawn.shape(
        "rect", x0=0, x1=1, y0=10 ** axis["range"][0], y1=floor_s, xref=parts["xref"], yref=data["yref"],
        fillcolor=style.faint(style.GREY), line={"width": 0},
    )  # fmt: skip
    return f"Grey: below {text}."


def _latency_finding(study: Study, line: Line) -> str:
    measured = [i for i, point in enumerate(line.points) if point.metrics]
    values = {}
    for metric in _METRICS:
        ends = [(_value(line.points[i], metric, "p99"), line.at(i)) for i in (measured[0], measured[-1])]
        if all(np.isfinite(value) for value, _ in ends):
            at_rates = [f"{_format.seconds(value)} at {rate} {study.rate_unit}" for value, rate in ends]
            values[f"{line.prefix}{_data.label(metric)} p99"] = at_rates
    return style.finding(values)


def interactivity(study: Study) -> Drawing | str:
    """Output tokens per second and GPU against tokens per second of one user, a point for each rate."""
    all_lines = systems.lines(study, least=1)
    curves = [(line, points) for line in all_lines if (points := _throughputs(study, line))]
    if sum(len(points) for _, points in curves) < 2:
        return systems.NO_CURVE
    goal = study.goals[0] if study.goals else 0.9
    unit = "tok/s per GPU" if study.per_gpu else "tok/s"
    drawn = style.new(460)
    best = {}
    for line, points in curves:
        users, gpus, rates = (np.array(column) for column in zip(*(entry[:3] for entry in points), strict=True))
        fits = np.array([point.keeps(goal) for *_, point in points])
        style.curve(
            drawn, users, gpus, line.name or "all rates", line.look._replace(dash="dot", width=1.5),
            "%{text} req/s: %{x:.3r} tok/s per user, %{y:.4r} tok/s", mode="lines+markers+text", size=9,
            symbols=line.look.symbols(~fits), text=[_format.plain(float(rate), 3) for rate in rates],
            textposition="top right", textfont={"size": 11}, cliponaxis=False,
        )  # fmt: skip
        if fits.sum() > 1:
            style.curve(drawn, users[fits], gpus[fits], f"{line.prefix}meets the SLO", line.look._replace(width=4.0),
                        None, mode="lines", meta=style.MARKS, showlegend=not line.prefix)  # fmt: skip
        if fits.any():
            gpu, user = max(zip(gpus[fits].tolist(), users[fits].tolist(), strict=True))
            most = "most throughput of a rate that met the SLO"
            best[f"{line.name}, {most}" if line.name else f"M{most[1:]}"] = [
                f"{_format.number(gpu)} {unit} at {_format.number(user)} tok/s per user"
            ]
    style.axes(
        drawn,
        style.axis("interactivity: 1 / median TPOT (tok/s per user)", rangemode="tozero"),
        style.axis(f"throughput ({unit})", rangemode="tozero"),
    )
    hollow = f"Filled points meet the SLO for {goal * 100:g}% of the requests, hollow ones do not"
    lines = [line for line, _ in curves]
    none = {"Rates tried that met the SLO": [f"none for {goal * 100:g}% of the requests"]}
    finding = style.finding(dict(list(best.items())[:4]) or none)
    return style.done(drawn, finding, [
        f"{hollow}; the numbers are rates ({study.rate_unit}).",
        systems.left_out(study, len(lines)),
    ])  # fmt: skip


def _throughputs(study: Study, line: Line) -> list[tuple[float, float, float, Point]]:
    """tok/s of a user, tok/s per GPU, rate and point, of the points with latencies."""
    share = study.share(line.system)
    return [
        (1.0 / tpot.mean, point.output_tps.mean / share, point.rate_rps / share, point)
        for point in line.points
        if point.output_tps is not None and (tpot := point.metrics.get("tpot", {}).get("p50")) is not None
    ]
