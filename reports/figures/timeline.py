"""A run over its time: what replicas or a server did, when requests were sent, how long they and their gaps took."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from harness.data.folder import Run
from harness.data.lists import BLOCK, ascending, lateness, number, pieces
from harness.metrics.measure import joined, missing
from harness.metrics.quantiles import quantile
from harness.validity import server_metrics
from reports import _data, _format
from reports._counted import PARTS, Gaps, Stretches
from reports.figures import style
from reports.figures.drawing import Drawing
from reports.figures.style import Look
from reports.figures.traffic import stretch

SINCE = "time since the start (s)"
_STEP = "%{x:.2f} s: %{y:,.4~g}"
NO_STEPS = (
    "This backend does not show its steps; --backend engine or --backend sim records batch size, queue and free "
    "blocks, and of a remote server its own metrics show them, where it has some that are known."
)
_FREE = "free_blocks"
_PART_COLORS = (style.BLUE, style.OCHRE, style.PURPLE, style.VERMILLION, style.GREY)
_IDLE = 0.01
"""Of the run: a replica without a step for longer has no line there, because it has no work or has failed."""
_RAW = 600
"""Steps up to which each is drawn."""
_STRETCHES = 300
_DASHES = ("solid", "dash", "dot", "dashdot")
"""Of the replicas that are drawn."""
_PARTS = 40
"""Stretches that percentiles are drawn of."""
_LEAST = 10
"""Requests that a stretch must have for a percentile of its own."""
LATE_S = 0.010
_MOST_BINS = 120
NO_GAPS = (
    "No request has two tokens or more, so there are no gaps; ask for longer answers, or see the counts by status."
)
LOST = "The file that these requests were read from does not hold the times of single tokens, so gaps are not drawn."
_TIMES, _HEIGHT = 120, 60
_DEEP = 20
"""The picture reaches down to this part of the median gap at most: below are tokens that came together."""
_ENOUGH = 100
"""Gaps that a stretch must have for a percentile of its own."""


class Panel(NamedTuple):
    """A column of the steps: short name, title of its axis, colour, and what to draw of its values."""

    column: str
    short: str
    title: str
    color: str
    shown: Callable[[np.ndarray], np.ndarray] = np.asarray


_STEPS = (
    Panel("decode_seqs", "decoding", "decoding<br>sequences", style.BLUE),
    Panel("prefill_tokens", "prefill", "prefill<br>tokens", style.VERMILLION),
    Panel("waiting", "waiting", "waiting<br>requests", style.PURPLE),
)
_BLOCKS = Panel(_FREE, "free blocks", "free<br>blocks", style.GREEN)
_GAUGES = (
    Panel("running", "running", "running<br>requests", style.BLUE),
    Panel("waiting", "waiting", "waiting<br>requests", style.PURPLE),
    Panel("kv_use", "KV memory", "KV memory<br>in use (%)", style.GREEN, lambda share: share * 100.0),
)


def timeline(run: Run) -> Drawing | str:
    """Batch size, prefill tokens, queue and KV memory: every step, or stretches of them; then the parts of the time of
    steps, where the latency model knows them, or how many are under way where replicas have lanes, and preemptions.
    """
    if not _data.has_steps(run):
        return _gauges(run) or NO_STEPS
    spans = _data.stretches(run)
    if spans is None:
        return "No step was recorded: no request reached a batch, or the run was stopped before its first flush."
    stored = run.info.backend.get("kv_blocks")
    blocks = stored if isinstance(stored, int) and stored > 0 else None  # of KV memory of one replica
    memory = _BLOCKS
    if blocks is not None:
        memory = Panel(
            _FREE, "KV memory", "KV memory<br>in use (%)", style.GREEN, lambda free: (1 - free / blocks) * 100
        )
    panels, again_s = (*_STEPS, memory), _preempted_s(run)
    parts = {PARTS[name]: seconds for name, seconds in spans.parts_s.items() if seconds.any()}
    unit, stacked = _under_way(run)
    if parts:  # unknown where there are lanes
        unit, total_s = "parts of<br>steps (%)", np.maximum(sum(parts.values()), 1e-12)
        stacked = {name: (spans.start_s, seconds / total_s * 100) for name, seconds in parts.items()}
    rows = len(panels) + bool(stacked) + bool(len(again_s))
    drawn = style.panels([1 / rows] * rows, 160 * rows)
    steps = _single_steps(run)
    notes = _stretches(drawn, panels, spans) if steps is None else _replicas(drawn, panels, steps)
    titles = [panel.title for panel in panels] + [unit] * bool(stacked)
    _over_time(drawn, titles + ["preemptions<br>(count)"] * bool(len(again_s)))
    for (name, (at_s, y)), color in zip(stacked.items(), _PART_COLORS, strict=False):
        look = Look(color, "solid", width=1.0)
        row = len(panels) + 1
        style.curve(drawn, at_s, y, name, look, _STEP, row=row, mode="lines", step="hv", stackgroup="parts")
    if len(again_s):
        width = stretch(_data.end_s(run), len(again_s), _STRETCHES // 3)
        counts = np.bincount((again_s // width).astype(np.int64))
        _steps(
            drawn, rows, np.arange(len(counts) + 1) * width, np.append(counts, counts[-1]), "preemptions", style.OCHRE
        )
        notes.append(f"Preemptions are counted per {_format.limit(width)}, when the preempted request ended.")
    if stacked and not parts:
        means = ", ".join(f"{name} {_format.number(float(y.mean()))}" for name, (_, y) in stacked.items())
        notes.append(f"{unit.replace('<br>', ' ').capitalize()} in the mean: {means}; drawn of each stretch of time.")
    return style.done(drawn, _timeline_finding(spans, blocks, len(again_s), parts), notes)


def _over_time(drawn: Drawing, titles: Sequence[str], **x: Any) -> None:
    """The axes of panels above one another, over the time of the run."""
    for row, title in enumerate(titles, start=1):
        last = SINCE if row == len(titles) else ""
        style.axes(drawn, style.axis(last, **x), style.axis(title, rangemode="tozero"), row)


def _steps(
    drawn: Drawing, row: int, x: Any, y: Any, name: str, color: str, dash: str = "solid", step: str = "hv"
) -> None:  # fmt: skip
    style.curve(drawn, x, y, name, Look(color, dash, width=1.5), _STEP, row=row, mode="lines", step=step)


def _single_steps(run: Run) -> dict[str, np.ndarray] | None:
    """The steps, where they are few or of several replicas; None of a large run, whose steps are only counted."""
    if run.steps is None:
        return None
    # bands of several replicas would hide one another, so these get a line each, however many their steps are
    steps = {name: run.steps.column(name).to_numpy() for name in run.steps.column_names}
    return steps if len(steps["replica"]) <= _RAW or np.ptp(steps["replica"]) > 0 else None


def _under_way(run: Run) -> tuple[str, dict[str, tuple[np.ndarray, np.ndarray]]]:
    """What is counted, and of decodes and of prompts: when each stretch of time begins, and how many are under way in
    its mean. Batches are counted, or the instances that run them; nothing where replicas have no lanes.
    """
    steps = run.steps
    if steps is None or steps["lane"].null_count == len(steps):
        return "", {}
    start_s, end_s, decodes = (steps[name].to_numpy() for name in ("start_s", "end_s", "decode_seqs"))
    edges_s = np.linspace(start_s.min(), end_s.max(), _TIMES + 1)
    instances = number(steps, "instances")

    def since(at_s: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """(edges,) seconds since each of these times, those to come left out, weighted and summed."""
        order = np.argsort(at_s)
        past = np.searchsorted(at_s[order], edges_s)
        count, seconds = (np.append(0.0, np.cumsum(part[order]))[past] for part in (weights, weights * at_s))
        return np.asarray(edges_s * count - seconds)

    stacked = {}
    for name, rows in (("decodes", decodes > 0), ("prompts", decodes == 0)):
        weights = np.nan_to_num(instances[rows], nan=1.0)
        busy_s = np.diff(since(start_s[rows], weights) - since(end_s[rows], weights))
        stacked[name] = edges_s[:-1], busy_s / np.diff(edges_s)
    return ("batches" if np.isnan(instances).all() else "instances") + "<br>under way", stacked


def _preempted_s(run: Run) -> np.ndarray:
    """When the requests that were preempted ended (s), once for each time that they were."""
    times = np.nan_to_num(number(run.requests, "preemptions")).astype(np.int64)
    ended = np.where(times > 0, number(run.requests, "scheduled_s") + _data.metric(run, "e2e"), np.nan)
    ends_s = np.repeat(ended, times)
    return np.asarray(ends_s[np.isfinite(ends_s)], np.float64)


def _replicas(drawn: Drawing, panels: Sequence[Panel], steps: Mapping[str, np.ndarray]) -> list[str]:
    """A line per replica, through its steps or through the least and the greatest of stretches of them."""
    replicas = np.unique(steps["replica"])
    points = total = 0
    for replica, dash in zip(replicas, _DASHES, strict=False):
        rows = np.flatnonzero(steps["replica"] == replica)
        rows = rows[np.argsort(steps["start_s"][rows], kind="stable")]
        columns = [panel.shown(steps[panel.column][rows]) for panel in panels]
        start_s, end_s = steps["start_s"][rows], steps["end_s"][rows]
        # a line through the time without a step would show work where the replica had none, or had failed
        idle = np.flatnonzero(start_s[1:] - end_s[:-1] > _IDLE * np.ptp(steps["start_s"]))
        indices = np.union1d(style.extremes(columns), idle)
        gaps = np.repeat(np.searchsorted(indices, idle) + 1, 2)  # the line goes on to the end of the step, and stops
        at_s = np.insert(start_s[indices], gaps, np.repeat(end_s[idle], 2))
        name = "" if len(replicas) == 1 else f", replica {replica}"
        for row, (panel, values) in enumerate(zip(panels, columns, strict=True), start=1):
            ends = np.column_stack([values[idle], np.full(len(idle), np.nan)]).ravel()
            y = np.insert(values[indices].astype(np.float64), gaps, ends)
            _steps(drawn, row, at_s, y, panel.short + name, panel.color, dash)
        points, total = points + len(indices), total + len(rows)
    few, most = min(len(replicas), len(_DASHES)), len(replicas)
    some = f"The first {few} of {most} replicas are drawn." if few < most else ""
    return [style.reduced(total, points, "steps", style.EXTREMES), some]


def _stretches(drawn: Drawing, panels: Sequence[Panel], found: Stretches) -> list[str]:
    """Least to greatest as a band and the mean over time as a line, of stretches of equally many steps."""
    for row, panel in enumerate(panels, start=1):
        ends = [panel.shown(extreme[panel.column]) for extreme in (found.least, found.greatest)]
        names = f"{panel.short}, least", f"{panel.short}, greatest"
        edges = np.minimum(*ends), np.maximum(*ends)
        style.band(drawn, found.start_s, edges, names, panel.color, row=row, hover=_STEP, step="hv")
        mean = panel.shown(found.mean(panel.column))
        _steps(drawn, row, found.start_s, mean, f"{panel.short}, mean", panel.color)
    per_stretch = -(-found.steps // len(found.start_s))
    what = f"{len(found.start_s)} stretches of about {per_stretch:,} steps are drawn"
    return [f"{what}: least to greatest as a band, the mean as a line."]


def _timeline_finding(found: Stretches, blocks: int | None, preemptions: int, parts: Mapping[str, np.ndarray]) -> str:
    fewest = int(found.least[_FREE].min())
    memory = {"fewest free blocks": [f"{fewest:,}"]}
    if blocks is not None:
        memory = {"KV memory": [f"{_format.share(1.0 - fewest / blocks)} in use at most"]}
    decoding = float(found.total["decode_seqs"].sum()) / found.busy_s
    mean = f"{_format.number(decoding)} in the mean of the busy time"
    return style.finding({
        "Steps": [f"{found.steps:,}"],
        "sequences decoding": [mean, f"{found.greatest['decode_seqs'].max():,} at most"],
        "requests waiting": [f"{_format.share(found.waited_s / found.busy_s)} of the busy time"],
        **memory,
        **({"preemptions": [f"{preemptions:,}"]} if preemptions else {}),
        **({"parts of their time": _shares(parts)} if parts else {}),
    })  # fmt: skip


def _shares(parts: Mapping[str, np.ndarray]) -> list[str]:
    """Each part of the time of steps, the largest first."""
    total = {name: float(seconds.sum()) for name, seconds in parts.items()}
    ordered = sorted(total, key=lambda name: -total[name])
    return [f"{name} {_format.share(total[name] / sum(total.values()))}" for name in ordered]


def _gauges(run: Run) -> Drawing | None:
    """What a remote server reported of itself at its readings, a panel per gauge; None where it has none."""
    metrics = server_metrics.view(run)
    if metrics is None:
        return None
    at_s = metrics.read_s[
        metrics.read_s >= 0.0
    ]  # between the reading before and the start lies the client's calibration
    if len(at_s) < 2:
        return None
    readings = [(panel, metrics.gauge(panel.column, at_s, mean=panel.column == "kv_use")) for panel in _GAUGES]
    gauges = {panel: values for panel, values in readings if values is not None}
    if _GAUGES[0] not in gauges:
        return None
    drawn = style.panels([1 / len(gauges)] * len(gauges), 180 + 150 * len(gauges))
    unended = server_metrics.in_flight(run.requests, at_s)
    points = style.extremes([*gauges.values(), unended])
    values = {}
    for row, (panel, gauge) in enumerate(gauges.items(), start=1):
        _steps(drawn, row, at_s[points], panel.shown(gauge[points]), panel.short, panel.color, step="")
        if row == 1:
            _steps(drawn, row, at_s[points], unended[points], "sent and not ended (client)", style.GREY, "dot", "")
            mean = _format.number(float(gauge.mean()))
            values["Requests running"] = [f"{mean} in the mean of the readings", f"{gauge.max():,.0f} at most"]
        elif panel.column == "waiting":
            values["requests waiting"] = [f"at {_format.share(float((gauge > 0).mean()))} of the readings"]
        else:
            values["KV memory"] = [f"{_format.share(float(gauge.max()))} in use at most"]
    _over_time(drawn, [panel.title for panel in gauges], range=[0.0, float(at_s[-1])])
    note = style.reduced(len(at_s), len(points), "readings", style.EXTREMES)
    return style.done(drawn, style.finding(values), ["From the metrics of the server, each second.", note])


def _percentiles(at: np.ndarray, values: np.ndarray, qs: tuple[float, ...]) -> list[np.ndarray]:
    """Of stretches of equally many requests, in the order of `at`: the middle of each, then its quantiles `qs`.

    There are at most forty, each of at least ten requests; fewer than three are none.
    """
    count = min(_PARTS, len(at) // _LEAST) if len(at) >= 3 * _LEAST else 0
    middles, parts = (np.array_split(column, count) if count else [] for column in (at, values))
    middle = np.array([float(np.mean(part)) for part in middles])
    return [middle, *(np.array([quantile(part, q) for part in parts]) for q in qs)]


def latency_over_time(run: Run) -> Drawing | str:
    """TTFT in seconds (log axis) against the planned time, met and missed apart, with p50 and p90 of stretches."""
    shown = (_data.metric(run, "ttft") > 0) & (_data.metric(run, "ttft") < np.inf)
    if not shown.any():
        return style.UNANSWERED if run.requests.num_rows else _data.EMPTY
    order = np.argsort(number(run.requests, "scheduled_s"), kind="stable")
    order = order[shown[order]]
    bounded = (known := _data.met(run)) is not None
    met = np.ones(len(order), dtype=bool) if known is None else known[order]
    ttft = _data.metric(run, "ttft")[order]
    del order
    due_s = ascending(number(run.requests, "scheduled_s"), shown)
    drawn = style.new()
    dots = style.sampled(ttft)
    for which, name, look in (
        (met, "met the SLO" if bounded else "requests", Look(style.BLUE)),
        (~met, "missed the SLO", Look(style.VERMILLION, symbol="x")),
    ):
        rows = dots[which[dots]]
        if len(rows):
            style.curve(drawn, due_s[rows], ttft[rows], name, look, style.SECONDS, mode="markers", size=5, opacity=0.75)
    # stretches of equally many requests, not of equal time: a percentile of a quiet minute would rest on two or three
    middle, *percentiles = _percentiles(due_s, ttft, (0.5, 0.9))
    for name, values, dash in zip(("p50", "p90"), percentiles, ("solid", "dash"), strict=True):
        if len(middle):
            look = Look(style.GREY, dash, width=2.5)
            name = f"{name} of {len(middle)} stretches"
            style.curve(drawn, middle, values, name, look, style.SECONDS, mode="lines")
    y = style.log_axis("TTFT (s, log scale)", [ttft.min(), ttft.max()])
    style.axes(drawn, style.axis("planned time since the start (s)"), y)
    cut = run.info.warmup
    if cut.requests:
        line = Look(style.GREY, "dot", width=1.0).line
        drawn.shape("line", x0=cut.at_s, x1=cut.at_s, y0=0, y1=1, xref="x", yref="y domain", line=line)
        drawn.text(
            x=cut.at_s, y=1, xref="x", yref="y domain", text="measured from here", xanchor="left", yanchor="top",
            showarrow=False, font={"size": 12},
        )  # fmt: skip
    third = len(ttft) // 3  # a queue that grows makes the later requests wait longer
    spans = {"TTFT": [f"{_format.seconds(float(ttft.min()))} to {_format.seconds(float(ttft.max()))}"]}
    if third >= _LEAST:
        first, last = (_format.seconds(quantile(part, 0.5)) for part in (ttft[:third], ttft[-third:]))
        spans = {"Median TTFT": [f"{first} in the first third of the requests", f"{last} in the last third"]}
    note = style.reduced(len(due_s), len(dots), "requests", style.EVENLY)
    return style.done(drawn, style.finding(spans), [note, _data.warmed_up(run)])


def arrivals(run: Run) -> Drawing | str:
    """Requests per second by the plan and as sent, in equal stretches of time, above the lateness of each request."""
    times = _data.sending(run)
    if len(times.planned) == 0:
        return _data.EMPTY
    dotted = Look(style.VERMILLION, "dot", width=2.5)
    series = [("planned", times.planned, Look(style.BLUE)), ("sent", times.sent, dotted)]
    if times.everything is not None:  # what users of a closed loop do was not planned
        followed = ("sent, follow-ups included", times.everything, Look(style.GREEN, "dash"))
        series = [followed] if times.closed else [*series, followed]
    end_s = max(float(np.max(values, initial=0.0)) for _, values, _ in series)
    width = stretch(end_s, max(len(values) for _, values, _ in series), _MOST_BINS)
    drawn = style.panels([0.6, 0.4], 520)
    for name, values, look in series:
        bins = int(np.floor(float(np.max(values)) / width)) + 1 if len(values) else 1
        counts = np.zeros(bins, np.int64)
        for start in range(0, len(values), BLOCK):
            counts += np.bincount(
                np.maximum(values[start : start + BLOCK] // width, 0).astype(np.int64), minlength=bins
            )
        _rate(drawn, np.arange(len(counts) + 1) * width, np.append(counts, counts[-1]) / width, name, look)
    if (declared := _declared(run, end_s)) is not None:
        _rate(drawn, *declared, "declared", Look(style.GREY, "dash"))
    _over_time(drawn, ["requests per second", "lateness (ms)"])
    due = len(times.planned) if run.schedule is None else run.schedule.num_rows
    del times, series, values  # as large as what follows
    was_sent = ~np.isnan(number(run.requests, "sent_s"))
    order = np.argsort(number(run.requests, "sent_s"), kind="stable")[: was_sent.sum()]  # those never sent come last
    late = joined(map(lateness, pieces(run.requests)), len(run.requests))[order]
    del order  # as large as each of them
    points = _lateness(drawn, ascending(number(run.requests, "sent_s"), was_sent), late * 1000.0)
    facts = {"Sent": [f"{len(late):,} of {due:,} planned requests"]}
    if len(late):
        facts["lateness"] = [
            f"p50 {_format.seconds(quantile(late, 0.5))}",
            f"largest {_format.seconds(float(np.max(late)))}",
            f"{_format.share(float(np.mean(late > LATE_S)))} of the requests more than 10 ms late",
        ]
    return style.done(drawn, style.finding(facts), [
        f"Rates are counts of {_format.limit(width)} each.",
        style.reduced(len(late), points, "values of lateness", style.EVENLY),
    ])  # fmt: skip


def _rate(drawn: Drawing, x: np.ndarray, y: np.ndarray, name: str, look: Look) -> None:
    style.curve(drawn, x, y, name, look, "%{x:.6~r} s: %{y:.3r} req/s", row=1, mode="lines", step="hv")


def _declared(run: Run, end_s: float) -> tuple[np.ndarray, np.ndarray] | None:
    """The rate that the arrivals declare; not that of a recording, which is only what was measured."""
    course, rate_rps = run.info.fidelity.rate_curve, run.info.fidelity.requested_rps
    if course and course.rps and course.end_s is not None:
        return np.linspace(0.0, course.end_s, len(course.rps) + 1), np.array([*course.rps, course.rps[-1]], np.float64)
    if rate_rps is not None and not run.info.workload.recorded:
        return np.array([0.0, end_s]), np.array([rate_rps, rate_rps], np.float64)
    return None


def _lateness(drawn: Drawing, sent: np.ndarray, late_ms: np.ndarray) -> int:
    """Each request, and p50 and p99 of stretches; of a simulator, which is never late, no percentiles."""
    dots = style.sampled(late_ms)
    hover = "%{x:.2f} s: %{y:.3r} ms late"
    style.curve(drawn, sent[dots], late_ms[dots], "lateness", Look(style.GREEN), hover, row=2, mode="markers", size=4)
    if len(late_ms) and float(np.max(late_ms)) > LATE_S * 1000 / 4:
        style.level(drawn, LATE_S * 1000, "late from 10 ms", 2)
    middle, *percentiles = _percentiles(sent, late_ms, (0.5, 0.99))
    for name, values, dash in zip(("p50", "p99"), percentiles, ("solid", "dash"), strict=True):
        if np.any(values > 0):
            hover = f"%{{x:.2f}} s: {name} %{{y:.3r}} ms late"
            look = Look(style.GREY, dash, width=2.5)
            style.curve(drawn, middle, values, f"lateness {name}", look, hover, row=2, mode="lines")
    return len(dots)


def itl_over_time(run: Run) -> Drawing | str:
    """Counts of gaps by when they ended and how long they were (ms, log axis), with lines at p50 and p99.

    Prefills that stall decodes show as bands.
    """
    if run.requests.num_rows == 0:
        return _data.EMPTY
    if "itl" in missing(run.requests):
        return LOST
    binned = _data.gaps(run)
    if not binned.total or len(binned.bins_s) < 2:
        return NO_GAPS
    by = -(-(len(binned.edges_s) - 1) // _TIMES)
    edges_s = np.append(binned.edges_s[:-1:by], binned.edges_s[-1])
    counts = np.add.reduceat(binned.counts, np.arange(0, len(binned.counts), by), axis=0)
    drawn = style.new(460)
    _cells(drawn, edges_s, binned.bins_s, counts)
    enough = np.flatnonzero(counts.sum(axis=1) >= _ENOUGH)
    middle = ((edges_s[:-1] + edges_s[1:]) / 2)[enough]
    for q, name, dash in ((0.5, "p50", "solid"), (0.99, "p99", "dash")):
        if len(enough):
            y = np.array([binned_quantile(binned.bins_s, counts[i], q) for i in enough]) * 1000.0
            more: dict[str, Any] = {"mode": "lines", "meta": style.MARKS}
            # without a line of the ground below it, p50 would vanish in the dark cells that it runs through
            halo, look = Look(style.HALO, width=4.5), Look(style.VERMILLION, dash, width=2.5)
            style.curve(drawn, middle, y, f"ground of {name}", halo, None, showlegend=False, **more)
            hover = f"{name} at %{{x:.1f}} s: %{{y:.3r}} ms"
            style.curve(drawn, middle, y, f"{name} of the stretch", look, hover, **more)
    deepest = binned_quantile(binned.bins_s, binned.counts.sum(axis=0), 0.5) / _DEEP
    span_s = np.maximum(binned.bins_s[[0, -1]], deepest)  # the shortest and the longest gap of the picture
    below = float(binned.counts[:, binned.bins_s[1:] <= span_s[0]].sum()) / binned.total
    x = style.axis(SINCE, range=[float(edges_s[0]), float(edges_s[-1])])
    style.axes(drawn, x, style.log_axis("gap between tokens (ms, log scale)", span_s * 1000.0))
    return style.done(drawn, _gaps_finding(run, binned), [
        f"{binned.total:,} gaps are counted, in stretches of {_format.seconds(float(edges_s[1] - edges_s[0]))}.",
        "Lines are read off the bins of the counts, which are at most 3.2% wide.",
        f"{_format.share(below)} of the gaps are shorter than the picture reaches." if below else "",
        _data.warmed_up(run),
    ])  # fmt: skip


def _cells(drawn: Drawing, edges_s: np.ndarray, bins_s: np.ndarray, counts: np.ndarray) -> None:
    """Neighbouring bins together, so that there are about sixty; cells without a gap stay empty."""
    by = max(1, -(-counts.shape[1] // _HEIGHT))
    first = np.arange(0, counts.shape[1], by)
    cells = np.add.reduceat(counts, first, axis=1).T.astype(np.float64)  # (bins, times)
    tops = np.append(bins_s[first], bins_s[-1])
    most = float(cells.max())
    decades = range(int(np.floor(np.log10(most))) + 1)
    # counts span decades: on a linear scale of colours all but the fullest cells would look empty
    shade = np.full(cells.shape, np.nan)
    shade[cells > 0] = np.log10(cells[cells > 0])
    drawn.trace(
        "heatmap", x=edges_s, y=np.maximum(tops, bins_s[1] / 2) * 1000.0, z=shade, name="gaps",
        customdata=cells, colorscale=style.SHADES, zmin=0.0, zmax=max(1.0, float(np.log10(most))), hoverongaps=False,
        colorbar={"title": {"text": "gaps", "side": "top"}, "thickness": 12, "len": 0.9, "outlinewidth": 0,
                  "tickvals": list(decades), "ticktext": [f"{10**n:,}" for n in decades]},
        hovertemplate="%{x:.1f} s, %{y:.3r} ms: %{customdata:,} gaps",
    )  # fmt: skip


def binned_quantile(bins_s: np.ndarray, counts: np.ndarray, q: float) -> float:
    """The middle of the bin in which quantile `q` lies."""
    i = int(np.searchsorted(np.cumsum(counts), q * counts.sum()))
    return float(bins_s[i] + bins_s[i + 1]) / 2


def _gaps_finding(run: Run, found: Gaps) -> str:
    """Long gaps are those from the bin on in which ten times the median lies: counts are exact at its edge."""
    middle, high = _data.quantiles(run, "itl", (0.5, 0.99))
    values = {"Gaps": [f"p50 {_format.seconds(middle)}", f"p99 {_format.seconds(high)}"]}
    if middle > 0:
        first = max(0, int(np.searchsorted(found.bins_s, 10 * middle, side="right")) - 1)
        long = found.counts[:, first:]
        when = int(np.count_nonzero(long.sum(axis=1))) / int(np.count_nonzero(found.counts.sum(axis=1)))
        least = _format.seconds(float(found.bins_s[first]))
        some = [
            f"{_format.share(float(long.sum()) / found.total)} of all",
            f"in {_format.share(when)} of the stretches",
        ]
        about = f"about ten times the median ({least}) or longer" if long.any() else "ten times the median or longer"
        values[about] = some if long.any() else ["none"]
    return style.finding(values)
