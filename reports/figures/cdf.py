"""Distributions: shares of requests at or below a latency or a length, and tails beyond one."""

from collections.abc import Callable, Iterable, Sequence
from itertools import cycle
from typing import NamedTuple

import numpy as np
import pyarrow.compute as pc

from harness.data.folder import Run
from harness.data.lists import ascending, number
from harness.metrics.measure import in_summary
from harness.metrics.quantiles import quantile
from harness.metrics.summary import percentiles_of
from reports import _data, _format
from reports.figures import style
from reports.figures.drawing import Drawing
from reports.figures.style import Look
from reports.figures.traffic import Stream

_LATENCIES = (
    style.TTFT,
    style.TPOT,
    Look(style.BLUE, "longdash", "cross"),
    Look(style.PURPLE),
    Look(style.GREY, "dashdot", "triangle-up"),
    Look(style.VERMILLION, "longdashdot", "x"),
    Look(style.BLUE, "dot", "star"),
)
_TOKENS = (
    ("prompt_tokens", "prompt", Look(style.BLUE)),
    ("output_tokens_asked", "output requested", style.TPOT._replace(symbol="circle")),
    ("output_tokens", "output got", style.TTFT._replace(symbol="circle")),
)


class Latency(NamedTuple):
    """A metric of the requests of a run that ended well, in seconds."""

    metric: str
    name: str
    look: Look
    run: Run
    limit_s: float | None

    @property
    def values(self) -> np.ndarray:
        """Sorted, (requests,); of gaps the worst of each."""
        return of_requests(self.run, self.metric)

    def within(self) -> float:
        """Share of the requests within the bound."""
        return float(np.searchsorted(self.values, self.limit_s or np.inf, side="right")) / len(self.values)


def _latencies(run: Run) -> list[Latency]:
    """Those of the metrics that every run shows in seconds, with the bound on every request of all classes."""
    bounds = [b for b in _data.slo(run).bounds if b.tag is None and b.percentile is None and np.isfinite(b.limit)]
    limits = {bound.metric: bound.limit for bound in bounds}
    metrics = [metric for metric in in_summary() if metric.unit == "s"]
    latencies = [
        Latency(m.name, m.worst_title or m.label, look, run, limits.get(m.name))
        for m, look in zip(metrics, cycle(_LATENCIES), strict=False)
    ]
    return [latency for latency in latencies if len(latency.values)]


def of_requests(run: Run, metric: str) -> np.ndarray:
    """Sorted values of the requests that ended well: of gaps the worst of each request, not each single one."""
    if not _data.pooled(metric):
        return _data.sample(run, metric)

    def worst() -> np.ndarray:
        values = _data.metric(run, metric)
        return ascending(values, _data.answered(run) & np.isfinite(values))

    return _data.kept(run, f"worst {metric}", worst)


def latency_cdf(run: Run) -> Drawing | str:
    """Cumulative share of the requests that have the latency, against seconds on a log axis."""
    latencies = _latencies(run)
    if not latencies:
        return style.UNANSWERED if run.requests.num_rows else _data.EMPTY
    drawn = style.new()
    points = 0
    for cdf in latencies:
        points += style.cumulative(drawn, cdf.values, cdf.name, cdf.look, style.OF_SECONDS, legendgroup=cdf.metric)
        _marks(drawn, percentiles_of(run.info.spec), cdf)
    limits = [cdf.limit_s for cdf in latencies if cdf.limit_s is not None]
    x = style.log_axis("seconds (log scale)", [*_ends(cdf.values for cdf in latencies), *limits])
    style.axes(drawn, x, style.share_axis(style.BELOW))
    _bounds(drawn, [(cdf, f": {_format.share(cdf.within())}") for cdf in latencies])
    zeros = {cdf.name: int(np.sum(cdf.values <= 0)) for cdf in latencies}
    hidden = [f"Values at 0 s, which a log axis does not show: {n:,} of {name}." for name, n in zeros.items() if n]
    note = style.reduced(sum(len(cdf.values) for cdf in latencies), points, "values", style.RANKS)
    # shares within a bound on TPOT are not those of the table, which counts all requests
    counts = [len(cdf.values) for cdf in latencies]
    short = max(counts) - min(counts)
    one_token = f"Left out of TPOT and gaps: {_format.count(short, 'request')} of one token." if short else ""
    values = {
        cdf.name: [
            f"p50 {_format.seconds(quantile(cdf.values, 0.5))}",
            f"p99 {_format.seconds(quantile(cdf.values, 0.99))}",
            "" if cdf.limit_s is None else f"{_format.share(cdf.within())} within {_format.limit(cdf.limit_s)}",
        ]
        for cdf in latencies
    }
    return style.done(drawn, style.finding(values), ["Requests that ended well.", one_token, note, *hidden])


def _marks(drawn: Drawing, percentiles: Sequence[float], one: Latency) -> None:
    x = [quantile(one.values, percentile / 100) for percentile in percentiles]
    name = f"{one.name} {', '.join(f'p{percentile:g}' for percentile in percentiles)}"
    style.curve(drawn, x, percentiles, name, one.look, "p%{y:g}: %{x:.4r} s", mode="markers", size=9, showlegend=False,
                meta=style.MARKS, legendgroup=one.metric)  # fmt: skip


def _bounds(drawn: Drawing, texts: Iterable[tuple[Latency, str]]) -> None:
    """A line at each bound, in the look of its curve."""
    bounded = [(cdf, text) for cdf, text in texts if cdf.limit_s is not None]
    for place, (cdf, text) in enumerate(bounded):
        assert cdf.limit_s is not None
        style.upright(drawn, cdf.limit_s, f"{cdf.name} SLO {_format.limit(cdf.limit_s)}{text}", place, look=cdf.look)


def _ends(samples: Iterable[np.ndarray]) -> list[float]:
    """The least and the greatest positive value of each, which are sorted."""
    positive = (sample[np.searchsorted(sample, 0.0, side="right") :] for sample in samples)
    return [float(end) for sample in positive if len(sample) for end in sample[[0, -1]]]


def lengths(run: Run) -> Drawing | str:
    """Prompt tokens, output tokens requested and output tokens that came: cumulative shares against tokens."""
    if run.requests.num_rows == 0:
        return _data.EMPTY
    drawn, note = _tokens(((name, number(run.requests, column), look) for column, name, look in _TOKENS), style.MOST)
    other = pc.not_equal(run.requests["output_tokens"], run.requests["output_tokens_asked"])
    different = int(np.sum(other.to_numpy() & _data.answered(run)))
    values = {name: _quantiles(number(run.requests, column), quantile) for column, name, _ in _TOKENS[:2]}
    values["answers of another length than requested"] = [f"{different:,} of {int(np.sum(_data.answered(run))):,}"]
    return style.done(drawn, style.finding(values), [note])


def lengths_of_traffic(streams: Sequence[Stream]) -> Drawing:
    """Prompt and output tokens of each stream."""
    styles = (
        (("prompt", Look(style.BLUE)), ("output", style.TPOT)),
        (("prompt", Look(style.PURPLE, "dot")), ("output", Look(style.VERMILLION, "dashdot"))),
    )
    counted = [stream for stream in streams if stream.prompt_tokens is not None]
    curves = [
        (kind if len(counted) == 1 else f"{kind}, {stream.name}", tokens, look)
        for stream, two in zip(counted, styles, strict=False)
        for tokens, (kind, look) in zip((stream.prompt_tokens, stream.output_tokens), two, strict=True)
        if tokens is not None
    ]
    drawn, note = _tokens(curves, 1000)
    values = {}
    for kind, tokens in (("prompt", counted[0].prompt_tokens), ("output", counted[0].output_tokens)):
        if tokens is not None:
            zero = int(np.sum(tokens <= 0))
            values[kind] = [*_quantiles(tokens, np.quantile), f"{zero:,} of 0 tokens" if zero else ""]
    return style.done(drawn, style.finding(values), [note])


def _quantiles(tokens: np.ndarray, of: Callable[..., float]) -> list[str]:
    return [f"p50 {of(tokens, 0.5):,.0f} tokens", f"p99 {of(tokens, 0.99):,.0f}"]


def _tokens(shown: Iterable[tuple[str, np.ndarray, Look]], most: int) -> tuple[Drawing, str]:
    """Cumulative shares against tokens on a log axis, with the note on how many points are drawn."""
    drawn, points, total, ends = style.new(360), 0, 0, list[float]()
    for name, tokens, look in shown:
        values = np.sort(tokens)
        points += style.cumulative(drawn, values, name, look, style.OF_TOKENS, most=most, step="hv")
        total, ends = total + len(values), ends + _ends([values])
    style.axes(drawn, style.log_axis("tokens (log scale)", ends), style.share_axis(style.BELOW))
    return drawn, style.reduced(total, points, "values", style.RANKS)
