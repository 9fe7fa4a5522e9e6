"""Which rows of a trace make one service, and the fit of each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from harness.errors import UsageError
from workloads.fit import _cox, _rate
from workloads.fit._cox import DispersionCurve
from workloads.fit._rate import LARGEST_SHAPE, SMALLEST_SHAPE, Stamps, gap_shape
from workloads.fit._verdict import Renewal
from workloads.fit.model import Service
from workloads.fit.process import Cox, Process, RateTracking
from workloads.lengths import _empirical

if TYPE_CHECKING:
    from workloads.traces import Trace

LEAST_ROWS = 100  # requests of a service: fewer tell hardly more than a mean
FEW_ROWS = 1000  # below, the model is taken with a warning
SHAPES = (0.1, 0.18, 0.32, 0.56, 1.8, 3.2, 5.6, 10.0, 32.0)
"""Times the shape of neighbouring gaps: tried where that shape does not go with the dispersion of counts."""
BURSTY, MANY_BINS = 1.3, 100
TREND = 0.2  # of the span: a memory above this is near the longest that is fitted


@dataclass(slots=True)
class Work:
    """Options of a fit, and its notes."""

    mode: str
    window_s: float | None
    grain_s: float | None
    notes: list[str] = field(default_factory=list)


def fit(trace: Trace, work: Work) -> tuple[Service, ...]:
    """A service per tag with at least 100 requests; the rest together, or with the largest. Adds notes to `work`."""
    if len(trace) < LEAST_ROWS:
        count = "1 request" if len(trace) == 1 else f"{len(trace)} requests"
        raise UsageError(
            f"Trace '{trace.facts.get('file')}' has {count}; a fit needs at least {LEAST_ROWS}: give a "
            "longer trace, or replay this one."
        )
    if len(trace) < FEW_ROWS:
        work.notes.append(f"{len(trace)} requests are few: burstiness above some seconds is hardly known.")
    return tuple(_service(tag, trace, rows, work) for tag, rows in _groups(trace, work))


def _groups(trace: Trace, work: Work) -> list[tuple[str | None, np.ndarray]]:
    """(tag, rows) of each service, the largest first."""
    if "tag" not in trace.table.column_names:
        return [(None, np.arange(len(trace)))]
    tags = trace.table["tag"].combine_chunks().dictionary_encode()
    names = [*tags.dictionary.to_pylist(), None]
    index = np.asarray(tags.indices.fill_null(len(names) - 1))
    groups = [(names[i], np.flatnonzero(index == i)) for i in range(len(names))]
    groups = sorted(((tag, rows) for tag, rows in groups if len(rows)), key=lambda group: -len(group[1]))
    large = [group for group in groups if len(group[1]) >= LEAST_ROWS]
    small = groups[len(large) :]
    if not small:
        return large
    rest = np.sort(np.concatenate([rows for _, rows in small]))
    counts = ", ".join(f"{len(rows)} of '{tag}'" for tag, rows in small)
    if large and len(rest) < LEAST_ROWS:
        work.notes.append(f"tags with too few requests for a service are counted with '{large[0][0]}': {counts}.")
        return [(large[0][0], np.sort(np.concatenate([large[0][1], rest]))), *large[1:]]
    work.notes.append(f"tags with too few requests for a service are one service without a tag: {counts}.")
    return [*large, (None, rest)]


def _service(tag: str | None, trace: Trace, rows: np.ndarray, work: Work) -> Service:
    table = trace.table.select(["at_s", "prompt_tokens", "output_tokens"]).take(pa.array(rows))
    at_s = np.asarray(table["at_s"], np.float64)
    if at_s[-1] <= at_s[0]:
        raise UsageError(f"{_named(tag)}all {len(at_s)} requests come at once: there is no rate to fit.")
    prompt, output = (np.asarray(table[name]) for name in ("prompt_tokens", "output_tokens"))
    full = (prompt > 0) & (output > 0)
    if full.sum() < LEAST_ROWS:
        raise UsageError(
            f"{_named(tag)}only {full.sum()} requests have a prompt and an answer; a fit needs at least {LEAST_ROWS}."
        )
    if not full.all():
        work.notes.append(f"{_named(tag)}{(~full).sum()} requests without tokens count as arrivals, not as lengths.")
    lengths = _empirical.measure(prompt[full], output[full])
    return Service(tag, _process(tag, at_s, work), lengths)


def _process(tag: str | None, at_s: np.ndarray, work: Work) -> Process:
    stamps = Stamps.of(at_s, work.grain_s)
    shape = gap_shape(stamps.spread_s) if stamps.gaps_known else None
    if shape is None:
        why = f"stamps sit on a grid of {work.grain_s:.4g} s" if work.grain_s else "too few gaps"
        work.notes.append(
            f"{_named(tag)}the gap distribution is not identifiable ({why}): exponential gaps in operational time are "
            "assumed, and requests are spread inside a tick."
        )
    gaps = Renewal(shape or 1.0)
    if work.mode == "rate-following":
        return _followed(tag, stamps, gaps, work)
    return _random(tag, stamps, gaps, work)


def _random(tag: str | None, stamps: Stamps, gaps: Renewal, work: Work) -> Cox:
    curve = DispersionCurve.of(stamps.at_s, stamps.least_s)
    day = _rate.periodic(stamps.at_s, _rate.HOUR_S, 24)
    week = _rate.periodic(stamps.at_s, _rate.DAY_S, 7) if day else ()
    profile = _rate.day_variance(curve, day, week)
    fits = {shape: _cox.fit(curve, Renewal(shape), profile) for shape in (gaps.shape,)}
    if fits[gaps.shape].off_by > _cox.GOOD and stamps.gaps_known:
        # other shapes, where the gaps alone would give clearly more dispersion than the trace has, at any rate
        gap_dispersion = gaps.dispersion(curve.rate_rps * curve.widths_s)
        if (gap_dispersion > BURSTY * curve.values)[curve.bins >= MANY_BINS].any():
            fits |= {shape: _cox.fit(curve, Renewal(shape), profile) for shape in _shapes(gaps.shape)}
    shape = gaps.shape if fits[gaps.shape].off_by <= _cox.GOOD else min(fits, key=lambda one: fits[one].off_by)
    components = fits[shape].components
    if shape != gaps.shape:
        work.notes.append(_other_shape(tag, gaps.shape, shape))
    if components and components[0].tau_s > TREND * curve.span_s:
        work.notes.append(
            f"{_named(tag)}the slowest ups and downs are as long as the trace can show ({components[0].tau_s:.3g} s of "
            f"{curve.span_s:.4g} s): how the rate goes on beyond is a guess; a longer trace would tell."
        )
    return Cox(stamps.rate_rps, shape, components, day, week)


def _shapes(shape: float) -> list[float]:
    """Other shapes, for gaps that are not gamma (batches of requests)."""
    return [min(max(shape * factor, SMALLEST_SHAPE), LARGEST_SHAPE) for factor in SHAPES]


def _other_shape(tag: str | None, own: float, taken: float) -> str:
    return (
        f"{_named(tag)}gaps are not gamma (batches?): their shape is {taken:.3g}, which goes with the "
        f"dispersion of counts, instead of {own:.3g}, which neighbouring gaps have."
    )


def _followed(tag: str | None, stamps: Stamps, gaps: Renewal, work: Work) -> RateTracking:
    levels = _rate.levels_for(len(stamps.at_s), stamps.span_s, stamps.grain_s, work.window_s)
    curve, keep = DispersionCurve.of(stamps.at_s, stamps.least_s), work.window_s is not None

    def followed(shape: float) -> tuple[float, np.ndarray]:
        window_factors = _rate.factors(stamps.spread_s, levels, Renewal(shape), keep=keep)
        return _rate.off_by(curve, window_factors, Renewal(shape)), window_factors

    fits = {gaps.shape: followed(gaps.shape)}
    if fits[gaps.shape][0] > _rate.GOOD and stamps.gaps_known:
        fits |= {shape: followed(shape) for shape in _shapes(gaps.shape)}
    shape = min(fits, key=lambda one: fits[one][0])
    if shape != gaps.shape:
        work.notes.append(_other_shape(tag, gaps.shape, shape))
    factors = fits[shape][1]
    window_s = stamps.span_s / len(factors)
    if work.window_s is not None and abs(window_s / work.window_s - 1) > 1e-3:
        work.notes.append(
            f"windows are {window_s:.4g} s, not {work.window_s:.4g} s: the span of the trace is halved again and again "
            f"(at most {_rate.MOST_LEVELS} times)."
        )
    return RateTracking(stamps.rate_rps, shape, window_s, tuple(float(x) for x in factors / factors.mean()))


def _named(tag: str | None) -> str:
    return f"'{tag}': " if tag else ""
