"""Lengths drawn from the stored quantiles of a real list, with the rank correlation of prompt and output.

Sampling: inverse CDF. A copula gives two uniform ranks; each rank is looked up between the stored quantiles.
The figures that it needs are measured on raw prompt and output lengths by the functions at the end.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

CHUNK = 4096  # pairs drawn at once, whatever the caller takes
EDGES = np.array([*range(100), 99.9, 100]) / 100  # (102,) ranks of the stored quantiles
TEXTS = ("preparation", "tokenizer", "source", "licence")
_PSEUDO_COUNT = 0.01  # of a decile pair, so that an empty one cannot make the limit on the total unreachable
_ROUNDS = 1000  # of scaling: 13 to 20 are enough for all lists but LongBench
MOST_JOINT = 1_000_000  # rows that the rank correlation is measured on; of more, evenly spaced ones
SPLIT = 100  # quantiles of a side, and one more at 99.9 %
_EVEN: Mapping[str, Any] = {"spearman": 0.0, "rank_decile_table_rows_prompt_cols_output": [[10.0] * 10] * 10}


@dataclass(frozen=True, slots=True)
class Marginal:
    """Prompt or output lengths alone: knots of the CDF, and the mean of each segment between them.

    A segment holds the whole numbers above its lower knot up to its upper one, so the CDF is exact at every
    stored quantile (with `shared_knots` it holds the lower knot too, for lists of few different values, whose mean
    could not be kept otherwise). Inside, the length is low + (high - low) * v**bend for v uniform, where the bend
    gives the segment its mean, then rounded up or down at random so that this mean stays exact.
    """

    low: np.ndarray  # (101,)
    high: np.ndarray  # (101,)
    means: np.ndarray  # (101,)

    @classmethod
    def from_figures(cls, side: Mapping[str, Any]) -> Marginal:
        """From the `prompt` or `output` part of a figures file."""
        knots = np.insert(np.array(side["quantiles"], dtype=float), 100, side["quantile_99_9"])
        low = np.minimum(knots[:-1] + (0 if side.get("shared_knots") else 1), knots[1:])
        low[0] = knots[0]
        return cls(low, knots[1:], np.array(side["segment_means"]))

    def mean(self, shares: np.ndarray) -> float:
        """Exact mean of `draw` when percentile i is taken with probability shares[i], (100,)."""
        return float(shares @ np.append(self.means[:99], 0.9 * self.means[99] + 0.1 * self.means[100]))

    def mid_ranks(self) -> np.ndarray:
        """(100,) mean rank of each percentile; percentiles that hold one and the same value share theirs."""
        tops, lows = np.delete(self.high, 99), np.delete(self.low, 100)
        begins = (np.diff(tops, prepend=-1) > 0) | (lows < tops)
        group = np.cumsum(begins) - 1
        ranks = (np.arange(100) + 0.5) / 100
        return np.asarray((np.bincount(group, ranks) / np.bincount(group))[group])

    def draw(self, ranks: np.ndarray, rounding: np.ndarray) -> np.ndarray:
        """Whole numbers for `ranks` in [0, 1) and `rounding` in [0, 1), all (N,)."""
        segment = np.searchsorted(EDGES, ranks, side="right") - 1
        within = (ranks - EDGES[segment]) / np.diff(EDGES)[segment]
        span, rise = self.high - self.low, self.means - self.low
        bend = np.divide(span, rise, out=np.ones_like(span), where=rise > 0) - 1
        lengths = self.low[segment] + np.where(rise > 0, span, 0)[segment] * np.clip(within, 0, 1) ** bend[segment]
        return np.asarray(np.minimum(np.floor(lengths + rounding), self.high[segment]).astype(np.int64))


@dataclass(frozen=True, slots=True)
class Copula:
    """How the ranks of prompt and output go together: shares of the 100 x 100 percentile pairs.

    Ranks are uniform inside a pair of percentiles; in a `crossed` pair the output's falls as the prompt's rises. Rows
    and columns sum to 1/100 each, so that the copula leaves both marginals alone.
    """

    shares: np.ndarray  # (100, 100)
    crossed: np.ndarray | None = None  # (100, 100) bool

    @classmethod
    def fit(
        cls, deciles: list[list[float]], prompt: Marginal, output: Marginal, limit: int | None, tilt: float
    ) -> Copula:
        """The table of rank deciles spread evenly, without the pairs whose total could exceed `limit`.

        A percentile that has no other pair (the longest outputs of the arXiv list) takes those that stay within the
        limit when crossed.

        `tilt` weighs a pair by exp(tilt * a * b), a and b being ranks from -1/2 to 1/2; it makes up for the rank
        correlation that spreading and the limit change. Rows and columns are then scaled in turn until each
        sums to 1/100 (iterative proportional fitting: Deming and Stephan, Annals of Mathematical Statistics 11,
        1940), which keeps the odds ratios. Where the limit leaves hardly any choice (LongBench, arXiv) this is slow
        and stops with columns right to about 0.1%; the stated means count that in.
        """
        centred = (np.arange(100) + 0.5) / 100 - 0.5
        counts = np.asarray(deciles) + (_PSEUDO_COUNT if limit else 0.0)
        shares = np.kron(counts, np.ones((10, 10))) * np.exp(tilt * np.outer(centred, centred))
        crossed = None
        if limit is not None:
            allowed, crossed = _within(limit, prompt, output)
            shares = np.where(allowed, shares, 0.0)
        for _ in range(_ROUNDS):
            shares /= 100 * shares.sum(axis=0)
            rows = 100 * shares.sum(axis=1, keepdims=True)
            shares /= rows
            if np.abs(rows - 1).max() < 1e-12:
                break
        return cls(shares / shares.sum(), crossed)

    def spearman(self, prompt: Marginal, output: Marginal) -> float:
        """Rank correlation of the lengths drawn (ties take their mean rank)."""
        x, y = prompt.mid_ranks() - 0.5, output.mid_ranks() - 0.5
        rows, cols = self.shares.sum(axis=1), self.shares.sum(axis=0)
        return float(x @ self.shares @ y / np.sqrt((rows @ x**2) * (cols @ y**2)))

    def draw(self, uniforms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Two (N,) arrays of ranks in [0, 1) from (3, N) uniform numbers."""
        cumulative = np.cumsum(self.shares)
        pair = np.searchsorted(cumulative, uniforms[0] * cumulative[-1], side="right")
        rows, cols = np.divmod(np.minimum(pair, self.shares.size - 1), 100)
        within = uniforms[1]
        if self.crossed is not None:
            # Below 1, so that a crossed rank stays in its percentile.
            within = np.where(self.crossed[rows, cols], np.nextafter(1 - uniforms[2], 0), within)
        return (rows + within) / 100, (cols + uniforms[2]) / 100


def _within(limit: int, prompt: Marginal, output: Marginal) -> tuple[np.ndarray, np.ndarray | None]:
    """(100, 100) pairs of percentiles that stay within the limit, and which of them only when crossed."""
    ends = [(np.delete(side.low, 100), np.delete(side.high, 99)) for side in (prompt, output)]
    (prompt_low, prompt_high), (output_low, output_high) = ends
    allowed = np.add.outer(prompt_high, output_high) <= limit
    if allowed.any(axis=0).all() and allowed.any(axis=1).all():
        return allowed, None
    needy = ~allowed.any(axis=1)[:, None] | ~allowed.any(axis=0)[None, :]
    longest = np.maximum(np.add.outer(prompt_low, output_high), np.add.outer(prompt_high, output_low))
    crossed = needy & (longest <= limit)
    return allowed | crossed, crossed


@dataclass(frozen=True, slots=True)
class Empirical:
    """The sampler of one list, and what is known about the list."""

    prompt: Marginal
    output: Marginal
    copula: Copula
    facts: Mapping[str, object]

    @classmethod
    def of(cls, figures: Mapping[str, Any], facts: Mapping[str, object], limit: int | None = None) -> Empirical:
        """From a figures file; `limit` is that on the total of a pair."""
        prompt, output = Marginal.from_figures(figures["prompt"]), Marginal.from_figures(figures["output"])
        return cls(prompt, output, Copula.fit(figures["rank_deciles"], prompt, output, limit, figures["tilt"]), facts)

    @property
    def mean_tokens(self) -> tuple[float, float]:
        """Exact means of the sampler: those of the list, but for the last digits of LongBench, arXiv and BWB."""
        shares = self.copula.shares
        return self.prompt.mean(shares.sum(axis=1)), self.output.mean(shares.sum(axis=0))

    def quantile_tokens(self, percent: int) -> tuple[int, int]:
        """Stored quantile (0..100) of prompt and output."""
        index = percent - 1 if 0 < percent < 100 else 100 if percent == 100 else None
        if index is None:
            return int(self.prompt.low[0]), int(self.output.low[0])
        return int(self.prompt.high[index]), int(self.output.high[index])

    def pairs(self, rng: np.random.Generator) -> Iterator[tuple[int, int]]:
        while True:
            for uniforms in np.split(rng.random((5, CHUNK)), 8, axis=1):  # a part, as a short run takes no more
                prompts, outputs = self.draw(uniforms)
                yield from zip(prompts.tolist(), outputs.tolist(), strict=True)

    def draw(self, uniforms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(N,) prompt and output tokens from (5, N) uniform numbers."""
        prompt_ranks, output_ranks = self.copula.draw(uniforms[:3])
        return self.prompt.draw(prompt_ranks, uniforms[3]), self.output.draw(output_ranks, uniforms[4])


@cache
def load(name: str) -> Empirical:
    """The sampler of `figures/<name>.json`, made once: a mix of a thousand classes has one."""
    figures = json.loads((Path(__file__).with_name("figures") / f"{name}.json").read_text(encoding="utf-8"))
    limit = figures["max_total_tokens"]
    facts = {key: figures[key] for key in TEXTS} | {
        "rows": figures["rows"],
        "spearman": figures["spearman"],
        "max_total_tokens": limit,
        "mean_prompt_tokens": figures["prompt"]["mean"],
        "mean_output_tokens": figures["output"]["mean"],
    }
    return Empirical.of(figures, facts, limit)


def side_of(values: np.ndarray) -> dict[str, Any]:
    """Quantiles (inverted empirical CDF) and the means between them, of prompts or of outputs."""
    ordered = np.sort(values)
    knots = np.quantile(ordered, EDGES, method="inverted_cdf").astype(int)
    raw = _raw_means(ordered)
    means = _segment_means(raw, knots)
    return {
        "mean": round(float(ordered.mean()), 3),
        "quantiles": np.delete(knots, 100).tolist(),
        "quantile_99_9": int(knots[100]),
        "segment_means": np.round(raw if means is None else means, 6).tolist(),
        **({"shared_knots": True} if means is None else {}),
    }


def _raw_means(ordered: np.ndarray) -> np.ndarray:
    """(101,) mean of the values between neighbouring ranks."""
    sums = np.interp(EDGES * len(ordered), np.arange(len(ordered) + 1), np.concatenate([[0], np.cumsum(ordered)]))
    return np.asarray(np.diff(sums) / (np.diff(EDGES) * len(ordered)))


def _segment_means(raw: np.ndarray, knots: np.ndarray) -> np.ndarray | None:
    """(101,) mean between neighbouring knots, moved as little as needed into what the sampler can draw there.

    A segment holds the whole numbers above its lower knot up to its upper one, so that the CDF at a stored
    quantile is exact; what that moves the means is taken back from the other segments in proportion to their room.
    None where they have not room enough (few different values).
    """
    weights = np.diff(EDGES)
    low, high = np.minimum(knots[:-1] + 1, knots[1:]), knots[1:]
    low[0] = knots[0]
    means = np.clip(raw, low, high)
    excess = float(weights @ (means - raw))
    room = means - low if excess > 0 else high - means
    total = float(weights @ room)
    if total == 0 and abs(excess) > 1e-9:
        return None
    if total > 0:
        means = means - excess * room / total
    if not (np.all(means >= low - 1e-9) and np.all(means <= high + 1e-9)):
        return None
    return np.asarray(np.clip(means, low, high))


def joint_of(prompt: np.ndarray, output: np.ndarray) -> dict[str, Any]:
    """Spearman's rho and the 10 x 10 table of rank deciles, where equal values share their ranks evenly."""
    from scipy.stats import spearmanr

    rows, cols = _decile_shares(prompt), _decile_shares(output)
    return {
        "spearman": round(float(spearmanr(prompt, output).statistic), 4),
        "rank_decile_table_rows_prompt_cols_output": np.round(rows.T @ cols / len(prompt) * 1000, 3).tolist(),
    }


def _decile_shares(values: np.ndarray) -> np.ndarray:
    """(N, 10) how much of each value's rank interval lies in each decile."""
    ordered = np.sort(values)
    low = np.searchsorted(ordered, values, "left") / len(values)
    high = np.searchsorted(ordered, values, "right") / len(values)
    start = np.arange(10) / 10
    overlap = np.minimum(high[:, None], start + 0.1) - np.maximum(low[:, None], start)
    return np.asarray(np.clip(overlap, 0, None) / (high - low)[:, None])


def tilt_of(sides: Mapping[str, Any], deciles: list[list[float]], limit: int | None, spearman: float) -> float:
    """The tilt of the copula that gives the rank correlation of the list, by bisection."""
    prompt, output = Marginal.from_figures(sides["prompt"]), Marginal.from_figures(sides["output"])
    low, high = -50.0, 50.0
    for _ in range(40):
        middle = (low + high) / 2
        reached = Copula.fit(deciles, prompt, output, limit, middle).spearman(prompt, output)
        low, high = (middle, high) if reached < spearman else (low, middle)
    return round((low + high) / 2, 6)


def measure(prompt: np.ndarray, output: np.ndarray) -> dict[str, Any]:
    """Figures of (N,) prompts and (N,) outputs, all at least 1 token, as plain data."""
    step = -(-len(prompt) // MOST_JOINT)
    joint = joint_of(prompt[::step], output[::step]) if _vary(prompt) and _vary(output) else _EVEN
    deciles, spearman = joint["rank_decile_table_rows_prompt_cols_output"], joint["spearman"]
    sides = {"prompt": side_of(prompt), "output": side_of(output)}
    tilt = tilt_of(sides, deciles, None, spearman) if spearman else 0.0
    return {"rows": len(prompt), "spearman": spearman, "rank_deciles": deciles, "tilt": tilt, **sides}


def _vary(values: np.ndarray) -> bool:
    return bool(values.min() < values.max())


def sampler(figures: Mapping[str, Any]) -> Empirical:
    """The sampler of `measure`'s figures. Raises KeyError, TypeError or ValueError for anything else."""
    for name in ("prompt", "output"):
        _check(name, figures[name])
    deciles = np.asarray(figures["rank_deciles"], np.float64)
    if deciles.shape != (10, 10) or not np.isfinite(deciles).all() or (deciles < 0).any():
        raise ValueError("rank_deciles must be 10 x 10 numbers, none negative.")
    return Empirical.of(figures, {"rows": figures["rows"], "spearman": figures["spearman"]})


def _check(name: str, side: Mapping[str, Any]) -> None:
    knots = np.asarray([*side["quantiles"], side["quantile_99_9"]], np.float64)
    means = np.asarray(side["segment_means"], np.float64)
    if len(side["quantiles"]) != SPLIT + 1 or len(means) != len(EDGES) - 1:
        raise ValueError(f"{name} must have {SPLIT + 1} quantiles and {len(EDGES) - 1} segment_means.")
    if not (np.isfinite(knots).all() and np.isfinite(means).all() and knots.min() >= 1):
        raise ValueError(f"quantiles and segment_means of {name} must be at least 1 token.")
    if (np.diff(np.sort(knots[:-1]) - knots[:-1]) != 0).any():
        raise ValueError(f"quantiles of {name} must not fall.")


def mixed(samplers: Sequence[Empirical], which: np.ndarray, uniforms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(N,) prompt and output tokens, row i from sampler which[i], from (5, N) uniform numbers."""
    prompt, output = np.empty(len(which), np.int64), np.empty(len(which), np.int64)
    for i, figures in enumerate(samplers):
        rows = which == i
        prompt[rows], output[rows] = figures.draw(uniforms[:, rows])
    return prompt, output
