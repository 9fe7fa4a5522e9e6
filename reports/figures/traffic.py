"""Traffic without a run: streams of arrivals and lengths as arrays, their rate over time, lengths and sessions.

How bursty they are is in `bursts`, lengths alone in `cdf`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go

from harness.metrics.quantiles import spearman
from harness.stats import arrivals as stats_arrivals
from reports import _format
from reports.figures import style
from reports.figures.style import Look

Floats: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Stream:
    """Arrivals and lengths under one name: sorted times, or counts per bin where they are too many to hold."""

    name: str
    times_s: Floats | None = None  # (n,) sorted
    counts: Floats | None = None  # (bins,) of bin_s seconds
    bin_s: float | None = None
    prompt_tokens: Floats | None = None  # (m,)
    output_tokens: Floats | None = None  # (m,)

    @property
    def arrivals(self) -> int:
        """How many there are."""
        if self.times_s is not None:
            return len(self.times_s)
        return 0 if self.counts is None else int(self.counts.sum())

    @property
    def span_s(self) -> float:
        """Seconds from the first arrival to the last."""
        if self.times_s is not None:
            return float(self.times_s[-1] - self.times_s[0]) if len(self.times_s) else 0.0
        return 0.0 if self.counts is None or self.bin_s is None else len(self.counts) * self.bin_s

    def dispersion(self, width_s: float, tick_s: float | None = None) -> float | None:
        """Index of dispersion at a width; None where it is unknown. Stamps on ticks are counted in whole ones."""
        if self.times_s is not None and tick_s is not None:
            return _in_groups(stats_arrivals.per_tick(self.times_s, tick_s), round(width_s / tick_s))
        if self.times_s is not None:
            return stats_arrivals.dispersion(self.times_s, width_s)
        if self.counts is None or self.bin_s is None or width_s < self.bin_s:
            return None
        per = round(width_s / self.bin_s)
        return _in_groups(self.counts, per) if abs(per * self.bin_s - width_s) <= 0.01 * width_s else None

    def per_bin(self, width_s: float) -> tuple[Floats, Floats]:
        """(bins + 1,) edges in seconds, and (bins,) arrivals per bin of about `width_s` seconds."""
        if self.times_s is not None:
            bins = int(self.times_s[-1] / width_s) + 1 if len(self.times_s) else 1
            first = int(np.floor(self.times_s[0] / width_s)) if len(self.times_s) else 0
            index = np.floor(self.times_s / width_s).astype(np.int64) - first
            found = np.bincount(index, minlength=max(1, bins - first)).astype(np.float64)
            edges = np.asarray((first + np.arange(len(found) + 1)) * width_s, np.float64)
            return edges, found
        counts, bin_s = (np.zeros(1), 1.0) if self.counts is None or not self.bin_s else (self.counts, self.bin_s)
        per = max(1, round(width_s / bin_s))
        starts = np.arange(0, len(counts), per)
        found = np.add.reduceat(counts, starts)
        return np.asarray(np.arange(len(found) + 1) * per * bin_s, np.float64), found


def _in_groups(counts: npt.NDArray[np.int64] | Floats, per: int) -> float | None:
    """Index of dispersion of counts that are added up `per` at a time."""
    whole = len(counts) // per * per
    return stats_arrivals.spread(counts[:whole].reshape(-1, per).sum(axis=1))


@dataclass(frozen=True, slots=True)
class Rate:
    """A rate that was wanted: straight lines between (at_s, rps)."""

    name: str
    at_s: Floats
    rps: Floats


@dataclass(frozen=True, slots=True)
class Band:
    """Lower and upper end of what a fit gives, at the widths of its `Curves`."""

    name: str
    low: Floats
    high: Floats


@dataclass(frozen=True, slots=True)
class Curves:
    """Dispersion curves computed elsewhere: of the stream itself, of a fit, of toys."""

    widths_s: Floats | None = None
    found: Floats | None = None
    band: Band | None = None
    toys: Mapping[str, Floats] = field(default_factory=dict)


WIDTHS_S = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400)
MOST_BINS = 200
UNITS = ((2 * 86400.0, 86400.0, "days"), (3 * 3600.0, 3600.0, "hours"), (0.0, 1.0, "s"))
"""From this span on (s), the axis counts in this many seconds, called so."""


def rate(streams: Sequence[Stream], wanted: Rate | None = None) -> go.Figure:
    """Arrivals per second in equal stretches, one step line per stream; the wanted rate as a grey line."""
    shown = [stream for stream in streams if stream.arrivals]
    end_s = max(_end(stream) for stream in shown)
    width = stretch(end_s, max(stream.arrivals for stream in shown))
    scale, unit = next((by, name) for least, by, name in UNITS if end_s >= least)
    hover = "%{x:.6~r} " + unit + ": %{y:.3r} req/s"
    drawn = style.new(340)
    styles = (Look(style.BLUE), Look(style.VERMILLION, "dot", width=2.5))
    for stream, look in zip(shown, styles, strict=False):
        edges, per_s = _rates(stream, width)
        y = np.append(per_s, per_s[-1])
        style.curve(drawn, edges / scale, y, stream.name, look, hover, mode="lines", step="hv")
    if wanted is not None:
        look = Look(style.GREY, "dash", width=1.5)
        style.curve(drawn, wanted.at_s / scale, wanted.rps, wanted.name, look, hover, mode="lines")
    x = style.axis(f"time since the start ({unit})")
    style.axes(drawn, x, style.axis("requests per second", rangemode="tozero"))
    first = shown[0]
    values = {"Arrivals": [f"{first.arrivals:,} in {span_text(first.span_s)}"]}
    if first.span_s > 0:
        per_s = _rates(first, width)[1]
        values["arrivals per second"] = [
            f"mean {_format.number(first.arrivals / first.span_s)}",
            f"busiest {span_text(width)} {_format.number(float(per_s.max()))}",
            f"quietest {_format.number(float(per_s.min()))}",
        ]
    return style.done(drawn, style.finding(values), [f"Rates are counts of {span_text(width)} each."])


def stretch(span_s: float, arrivals: int, most: int = MOST_BINS) -> float:
    """A round width that leaves about eight arrivals or more in a stretch, and no more than `most` stretches."""
    bins = min(most, max(4, arrivals // 8))
    return float(next((w for w in WIDTHS_S if span_s / w <= bins), span_s / bins))


def _rates(stream: Stream, width: float) -> tuple[Floats, Floats]:
    """(k + 1,) edges and (k,) rates; the last stretch ends with the stream; a short rest joins the one before."""
    edges, counts = stream.per_bin(width)
    edges[-1] = max(_end(stream), edges[-2] + 1e-3 * width)
    if len(counts) > 1 and edges[-1] - edges[-2] < width / 2:
        edges, counts = np.delete(edges, -2), np.append(counts[:-2], counts[-2:].sum())
    return edges, counts / np.diff(edges)


def _end(stream: Stream) -> float:
    return float(stream.times_s[-1]) if stream.times_s is not None else stream.span_s


def span_text(seconds: float) -> str:
    """A stretch of time in the largest unit of which it has several: '31 days', '58.4 minutes', '20 s'."""
    for least, by, unit in ((2 * 86400, 86400, "days"), (3 * 3600, 3600, "hours"), (10 * 60, 60, "minutes")):
        if seconds >= least:
            return f"{_format.plain(seconds / by, 3)} {unit}"
    return _format.limit(float(f"{seconds:.4g}"))


MOST = 1200
"""Requests that are drawn."""

PARTS = 20
FEW = "Prompt against output needs ten requests or more."
CONSTANT = "All prompts or all outputs have one length, so there is nothing to see in them together."


def joint(streams: Sequence[Stream]) -> go.Figure | str:
    """Prompt against output tokens, a point per request, and per twentieth of the prompts the median of its outputs."""
    pairs = []
    for s in streams:
        if s.prompt_tokens is not None and s.output_tokens is not None:
            shown = (s.prompt_tokens > 0) & (s.output_tokens > 0)  # by a log axis
            if np.count_nonzero(shown) >= 10:
                pairs.append((s.name, s.prompt_tokens[shown], s.output_tokens[shown]))
    if not pairs:
        return FEW
    if np.ptp(pairs[0][1]) == 0 or np.ptp(pairs[0][2]) == 0:
        return CONSTANT
    styles = (Look(style.BLUE, width=3.0), Look(style.VERMILLION, "dash", "diamond-open", 3.0))
    drawn = style.new(440)
    for (name, prompt, output), look in zip(pairs, styles, strict=False):
        kept = np.linspace(0, len(prompt) - 1, min(MOST, len(prompt))).astype(np.int64)
        hover = "prompt %{x:,}, output %{y:,}"
        style.curve(drawn, prompt[kept], output[kept], name, look, hover, mode="markers", size=3.5, opacity=0.45)
    for (name, prompt, output), look in zip(pairs, styles, strict=False):
        order = np.argsort(prompt, kind="stable")
        parts = np.array_split(order, min(PARTS, len(order) // 5 or 1))  # of equally many requests
        at, middle = (np.array([np.median(tokens[part]) for part in parts]) for tokens in (prompt, output))
        hover = "prompts near %{x:,.0f}: output %{y:,.0f}"
        style.curve(drawn, at, middle, f"{name}, median output", look, hover, mode="lines")
    prompts, outputs = np.concatenate([pair[1] for pair in pairs]), np.concatenate([pair[2] for pair in pairs])
    x = style.log_axis("prompt (tokens, log scale)", [prompts.min(), prompts.max()])
    style.axes(drawn, x, style.log_axis("output (tokens, log scale)", [outputs.min(), outputs.max()]))
    found = [f"{spearman(prompt, output):.2f} ({name})" for name, prompt, output in pairs]
    n = len(pairs[0][1])
    note = style.reduced(n, min(MOST, n), "requests", "evenly chosen")
    return style.done(drawn, style.finding({"Rank correlation of output with prompt": found}), [note])


def turns(counts: Floats) -> go.Figure:
    """Share of the sessions that have at least so many requests, on two log axes."""
    drawn = style.new(360)
    at, of = np.unique(counts, return_counts=True)
    share = (len(counts) - np.cumsum(of) + of) / len(counts) * 100
    kept = style.extremes([share])
    style.curve(drawn, at[kept], share[kept], "sessions", Look(style.BLUE), "%{x} or more: %{y:.3r}%", size=6)
    style.axes(
        drawn,
        style.log_axis("requests of the session, or more (log scale)", [float(at[0]), float(at[-1])]),
        style.log_axis("sessions (%, log scale)", [100.0, float(share[-1])]),
    )
    middle, high = np.quantile(counts, [0.5, 0.99])
    return style.done(drawn, style.finding({
        "Sessions": [f"{len(counts):,}", f"{_format.share(float(np.mean(counts == 1)))} of a single request"],
        "requests of a session": [
            f"mean {_format.number(float(counts.mean()))}", f"p50 {middle:,.0f}", f"p99 {high:,.0f}"
        ],
    }))  # fmt: skip
