"""How close draws of a fitted model come to the trace it was fitted to, and how far toys stay from it.

Model, toys and trace are measured by the same statistics.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.data.lists import Floats
from harness.metrics.quantiles import spearman
from harness.stats import arrivals
from workloads import transforms
from workloads.fit import _draw, _verdict, _whole_quality
from workloads.fit._rate import Stamps
from workloads.lengths import _empirical

if TYPE_CHECKING:
    from workloads.fit.model import Model
    from workloads.traces import Trace

Draw = Callable[[np.random.Generator], Iterator[Floats]]
"""Endless blocks of arrival times in seconds."""

LONG_S = (300.0, 1200.0, 3600.0, 21_600.0, 86_400.0)
"""Widths beyond those of `burstiness.WIDTHS_S`, where the trace is long enough."""

ACF_S = (1.0, 10.0, 60.0, 3600.0)
MOST_BINS, MOST_PER_ROW = 10_000_000, 100  # of a longer or emptier trace the narrowest widths are left out
MOST_GAPS = 200_000  # compared; the distance of so many is known to 0.003

MOST_ROWS = 6_000_000  # drawn for all seeds together; a longer trace is held against fewer seeds
MOST_TOY_ROWS = 2_000_000  # the same for a toy, whose draws are all alike
LEAST_SEEDS = 3
USUAL_S = arrivals.WIDTHS_S[-1]  # widest bin of the usual distance
LENGTHS = 50_000  # pairs drawn


def measure(model: Model, trace: Trace, seeds: int = 20) -> dict[str, Any]:
    """Statistics of a trace beside those of draws of its model (5 %, median, 95 % over seeds) and of two toys.

    Toys: `poisson`, and `gamma` (gamma renewal with the CV of all gaps of the trace), of the same rate and span. Fewer
    seeds than requested (at least 3) for more than 300,000 rows. Plain data for JSON and pictures; None where a
    statistic is unknown:
    `mode`, `rows`, `span_s`, `rate_rps`, `seeds`, `grain_s`, `widths_s` [bin widths],
    `dispersion`: {`trace` [one per width], `median` [..], `low` [5 %], `high` [95 %], `poisson` [..], `gamma`},
    `curve_distance`: {`model`, `poisson`, `gamma`} (root mean square of log2, widths from 0.5 s, or the grain, to
    120 s, or a tenth of the span), `curve_distance_all` the same over all widths,
    `gap_cv`: {`trace`, `median`, `low`, `high`, `poisson`, `gamma`} (of all gaps; None on a coarse grid),
    `gaps_ks`: {`model`, `poisson`, `gamma`} (median over seeds; None where stamps sit on a coarse grid),
    `acf`: {`widths_s` [..], `trace` [lag-1 of counts], `median`, `low`, `high`, `poisson`, `gamma`},
    `rate_rps_drawn`: {`low`, `median`, `high`},
    `lengths`: {`prompt_ks`, `output_ks`, `spearman_trace`, `spearman_model`, `mean_prompt_tokens` [trace, model],
    `mean_output_tokens` [trace, model], `rows`, `drawn` pairs},
    `prefix_reuse`: {`trace` [share of prompt blocks that repeat an earlier one, None without blocks], `model`} of
    single requests, `sessions`: those of whole sessions (`_whole_quality.measure`), None where the model has none,
    `verdict`: [sentences], `checks`: [{`name`, `off`, `limit`, `text`}].
    """
    stamps = Stamps.of(np.asarray(trace.at_s, np.float64), transforms.grain_s(trace.at_s))
    statistics = Statistics.of_trace(stamps)
    seeds = max(min(seeds, LEAST_SEEDS), min(seeds, MOST_ROWS // len(trace)))
    cv = arrivals.gap_cv(stamps.spread_s) or 1.0
    draws: dict[str, Draw] = {
        "model": lambda rng: (at_s for at_s, _ in _draw.arrivals(model, rng)),
        "poisson": toy(stamps.rate_rps, 1.0),
        "gamma": toy(stamps.rate_rps, cv),
    }
    few = max(min(seeds, MOST_TOY_ROWS // len(trace)), 1)
    rows = {
        name: statistics.drawn(draw, stamps.span_s, seeds if name == "model" else few) for name, draw in draws.items()
    }
    facts = {
        "mode": model.method.get("mode"),
        "rows": len(trace),
        "span_s": stamps.span_s,
        "rate_rps": stamps.rate_rps,
        "seeds": seeds,
        "grain_s": stamps.grain_s,
        **_compared(statistics, statistics.measure(stamps.at_s), rows),
        "lengths": _compared_lengths(model, trace),
        # single requests share no prefix
        "prefix_reuse": {"trace": model.source.get("prefix_reuse"), "model": 0.0},
        "sessions": None,
    }
    if model.whole is not None:
        facts["sessions"] = _whole_quality.measure(
            model, trace, statistics.widths_s, min(seeds, _whole_quality.MOST_DRAWS)
        )
    plain: dict[str, Any] = _plain(facts)
    checks = [check._asdict() for check in _verdict.checks(plain)]
    return plain | {"verdict": _verdict.sentences(plain), "checks": checks}


def _compared(statistics: Statistics, own: Floats, rows: Mapping[str, Floats]) -> dict[str, Any]:
    middle = {name: _quantile(values, 0.5) for name, values in rows.items()}
    band = {"low": _quantile(rows["model"], 0.05), "high": _quantile(rows["model"], 0.95)}
    toys = {"poisson": middle["poisson"], "gamma": middle["gamma"]}
    series = {"trace": own, "median": middle["model"], **band, **toys}
    curve, acf = slice(0, len(statistics.widths_s)), slice(len(statistics.widths_s), -3)
    compared = [w <= USUAL_S for w in statistics.widths_s]
    distances = {name: arrivals.curve_distance(values[curve], own[curve]) for name, values in middle.items()}
    usual = {name: arrivals.curve_distance(x[curve][compared], own[curve][compared]) for name, x in middle.items()}
    return {
        "widths_s": statistics.widths_s,
        "dispersion": {name: row[curve] for name, row in series.items()},
        "curve_distance": usual,
        "curve_distance_all": distances,
        "gap_cv": {name: row[-3] for name, row in series.items()},
        "gaps_ks": {name: values[-2] for name, values in middle.items()},
        "acf": {"widths_s": statistics.acf_s, **{name: row[acf] for name, row in series.items()}},
        "rate_rps_drawn": {name: series[name][-1] for name in ("low", "median", "high")},
    }


def _quantile(rows: Floats, share: float) -> Floats:
    """Over seeds, for each statistic; NaN where no seed has it."""
    quantiles = np.full(rows.shape[1], math.nan)
    measured = np.isfinite(rows).any(axis=0)
    quantiles[measured] = np.nanquantile(rows[:, measured], share, axis=0)
    return quantiles


def _compared_lengths(model: Model, trace: Trace) -> dict[str, Any]:
    prompt, output = (np.asarray(trace.table[name]) for name in ("prompt_tokens", "output_tokens"))
    full = (prompt > 0) & (output > 0)
    recorded = prompt[full], output[full]
    drawn = _drawn_lengths(model)
    few = slice(None, None, -(-len(recorded[0]) // _empirical.MOST_JOINT))
    ranks = [spearman(*(side[few] for side in recorded)), spearman(*drawn)]
    return {
        "prompt_ks": arrivals.distance(np.sort(recorded[0]).astype(np.float64), np.sort(drawn[0]).astype(np.float64)),
        "output_ks": arrivals.distance(np.sort(recorded[1]).astype(np.float64), np.sort(drawn[1]).astype(np.float64)),
        "spearman_trace": ranks[0],
        "spearman_model": ranks[1],
        "mean_prompt_tokens": [recorded[0].mean(), drawn[0].mean()],
        "mean_output_tokens": [recorded[1].mean(), drawn[1].mean()],
        "rows": len(recorded[0]),
        "drawn": len(drawn[0]),
    }


def _drawn_lengths(model: Model) -> tuple[np.ndarray, np.ndarray]:
    """Lengths in the mix of the trace: each service's share of the arrivals."""
    rng = np.random.default_rng(0)
    parts = []
    for service in model.services:
        count = max(round(LENGTHS * service.process.rate_rps / model.rate_rps), 2)
        parts.append(_empirical.sampler(service.lengths).draw(rng.random((5, count))))
    prompt, output = (np.concatenate(side) for side in zip(*parts, strict=True))
    return prompt, output


def _plain(value: Any) -> Any:
    """For JSON: lists and numbers of six digits, None for what is not a number."""
    if isinstance(value, Mapping):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [_plain(part) for part in value]
    if isinstance(value, (float, np.floating)):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value


@dataclass(frozen=True, slots=True)
class Statistics:
    """What is measured on a series of arrivals (s): the widths that the trace allows, and its gaps to compare with."""

    widths_s: tuple[float, ...]
    acf_s: tuple[float, ...]
    gaps_s: Floats | None  # sorted, of the trace; None where their distribution is not identifiable

    @classmethod
    def of_trace(cls, stamps: Stamps) -> Statistics:
        """The statistics that suit a trace."""
        grain_s, span_s = stamps.grain_s or 0.0, stamps.span_s
        least_s = span_s / min(MOST_BINS, MOST_PER_ROW * len(stamps.at_s))
        widths = _within((*arrivals.WIDTHS_S, *LONG_S), grain_s, least_s, span_s / arrivals.MIN_BINS)
        acf = _within(ACF_S, grain_s, least_s, span_s / (arrivals.MIN_BINS + 1))
        exact = stamps.gaps_known
        gaps_s = sorted_gaps(stamps.spread_s) if exact else None
        return cls(widths, acf, gaps_s)

    def measure(self, at_s: Floats) -> Floats:
        """Dispersion at each width, lag-1 autocorrelation at each, CV of gaps, KS of gaps, rate."""
        values = arrivals.dispersion_curve(at_s, self.widths_s).tolist()
        values += [_nan(arrivals.autocorrelation(arrivals.counts(at_s, width_s))) for width_s in self.acf_s]
        values.append(_nan(arrivals.gap_cv(at_s)) if self.gaps_s is not None else math.nan)
        values.append(arrivals.distance(sorted_gaps(at_s), self.gaps_s) if self.gaps_s is not None else math.nan)
        return np.array([*values, (len(at_s) - 1) / (at_s[-1] - at_s[0])])

    def drawn(self, draw: Draw, span_s: float, seeds: int) -> Floats:
        """(seeds, statistics) of draws of `span_s`; those that bring fewer than 3 arrivals count as unknown."""
        draws = (until(draw(np.random.default_rng(seed)), span_s) for seed in range(seeds))
        empty = np.full(len(self.widths_s) + len(self.acf_s) + 3, math.nan)
        return np.array([self.measure(at_s) if len(at_s) > 2 else empty for at_s in draws])


def sorted_gaps(at_s: Floats) -> Floats:
    """At most about 200,000 of the gaps, evenly spaced over the series."""
    gaps_s = np.diff(at_s)
    return np.sort(gaps_s[:: -(-len(gaps_s) // MOST_GAPS) or 1])


def toy(rate_rps: float, cv: float) -> Draw:
    """Gamma renewal arrivals at a constant rate; `cv` 1 is Poisson."""

    def blocks(rng: np.random.Generator) -> Iterator[Floats]:
        last_s = 0.0
        while True:
            block = last_s + np.cumsum(rng.gamma(cv**-2, cv**2 / rate_rps, 4096))
            yield block
            last_s = float(block[-1])

    return blocks


def until(blocks: Iterator[Floats], span_s: float) -> Floats:
    """The times up to `span_s`."""
    parts = []
    for block in blocks:
        parts.append(block)
        if len(block) and block[-1] > span_s:
            break
    at_s = np.concatenate(parts)
    return np.asarray(at_s[at_s <= span_s])


def _within(widths_s: Sequence[float], grain_s: float, least_s: float, most_s: float) -> tuple[float, ...]:
    """Those widths of which the span holds enough and not too many; on a grid the nearest whole ticks, each once."""
    if grain_s:
        widths_s = [max(round(w / grain_s), 1) * grain_s for w in widths_s]
    return tuple(sorted({w for w in widths_s if least_s <= w <= most_s}))


def _nan(value: float | None) -> float:
    return math.nan if value is None else value
