"""Lognormal lengths: prompt and output drawn independently from lognormal laws given by mean and spread."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, TypeAlias

import numpy as np
from msgspec import Meta

from harness.bounds import AtLeastTwo, check
from workloads._checks import LARGEST_TOKENS, MeanTokens

CHUNK = 4096  # pairs drawn at once, whatever the caller takes
LengthCv: TypeAlias = Annotated[float, Meta(ge=0.01, le=10.0)]
MIN_KEPT = 0.01  # share of the draws that a bound must leave
_SUMMED = 1 << 15  # lengths whose probabilities are summed one by one for the mean; an integral takes the rest


@dataclass(frozen=True, slots=True)
class Lognormal:
    """Prompt and output tokens, each lognormal with the given mean and coefficient of variation (cv).

    sigma**2 = ln(1 + cv**2), median = mean / sqrt(1 + cv**2). Draws are rounded to whole tokens; one that
    rounds to 0 is drawn again. With `max_total_tokens`, a pair whose prompt + output is above it is drawn again
    as a pair, which lowers both means. `prompt_clip=8..4000` moves what lies outside to the nearer end instead, as
    generators of synthetic traffic do, and so does `output_clip`. `mean_tokens` is exact and counts all of it in.
    Source of the defaults: the lengths of the request set `var` with which public simulators are compared (mean 390
    in, 199 out).
    """

    prompt_mean_tokens: MeanTokens = 390.0
    prompt_cv: LengthCv = 1.0
    output_mean_tokens: MeanTokens = 199.0
    output_cv: LengthCv = 1.0
    max_total_tokens: AtLeastTwo | None = None
    prompt_clip: str | None = None
    output_clip: str | None = None

    def __post_init__(self) -> None:
        check(self)
        clipped = [_ends(name, getattr(self, name)) for name in ("prompt_clip", "output_clip") if getattr(self, name)]
        if self.max_total_tokens is None:
            return
        if clipped:
            raise ValueError("max_total_tokens and a clip exclude each other; give one of them.")
        if (kept := self._kept(self.max_total_tokens)) < MIN_KEPT:
            raise ValueError(
                f"max_total_tokens={self.max_total_tokens} leaves {kept:.2%} of the pairs; raise it or lower the means."
            )

    @property
    def mean_tokens(self) -> tuple[float, float]:
        """Exact means of the whole numbers drawn, bound included."""
        prompt, output = _law(self.prompt_mean_tokens, self.prompt_cv), _law(self.output_mean_tokens, self.output_cv)
        if self.max_total_tokens is None:
            return _mean(*prompt, self.prompt_clip), _mean(*output, self.output_clip)
        p, q = _masses(*prompt, self.max_total_tokens), _masses(*output, self.max_total_tokens)
        return _bounded_mean(p, q), _bounded_mean(q, p)

    def pairs(self, rng: np.random.Generator) -> Iterator[tuple[int, int]]:
        (prompt_mu, prompt_sigma), (output_mu, output_sigma) = (
            _law(self.prompt_mean_tokens, self.prompt_cv),
            _law(self.output_mean_tokens, self.output_cv),
        )
        limit = np.inf if self.max_total_tokens is None else self.max_total_tokens
        while True:
            prompts = np.floor(rng.lognormal(prompt_mu, prompt_sigma, CHUNK) + 0.5)
            outputs = np.floor(rng.lognormal(output_mu, output_sigma, CHUNK) + 0.5)
            good = (prompts >= 1) & (outputs >= 1) & (prompts + outputs <= limit)
            yield from zip(
                _whole(prompts[good], "prompt_clip", self.prompt_clip),
                _whole(outputs[good], "output_clip", self.output_clip),
                strict=True,
            )

    def _kept(self, limit: int) -> float:
        p = _masses(*_law(self.prompt_mean_tokens, self.prompt_cv), limit)
        q = _masses(*_law(self.output_mean_tokens, self.output_cv), limit)
        return float(p @ np.cumsum(q)[::-1])


def _law(mean: float, cv: float) -> tuple[float, float]:
    """(mu, sigma) of the lognormal with this mean and coefficient of variation."""
    variance = math.log1p(cv**2)
    return math.log(mean) - variance / 2, math.sqrt(variance)


def _above(mu: float, sigma: float, tokens: np.ndarray) -> np.ndarray:
    """P(Y > tokens), element by element."""
    from scipy.special import ndtr

    return np.asarray(ndtr((mu - np.log(tokens)) / sigma))


def _ends(name: str, clip: str) -> tuple[int, int]:
    """The least and the most tokens of a clip `8..4000`. Raises ValueError, calling it `name`."""
    low, dots, high = clip.partition("..")
    if not dots or not (low.isdecimal() and high.isdecimal()) or not 1 <= int(low) <= int(high):
        raise ValueError(f"{name} must be the least and the most tokens, such as 8..4000, got '{clip}'.")
    if int(high) > LARGEST_TOKENS:
        raise ValueError(f"{name} must not exceed {LARGEST_TOKENS:,} tokens, got '{clip}'.")
    return int(low), int(high)


def _whole(tokens: np.ndarray, name: str, clip: str | None) -> list[int]:
    """Drawn lengths as whole numbers, those outside a clip at its nearer end."""
    found: list[int] = (tokens if clip is None else np.clip(tokens, *_ends(name, clip))).astype(np.int64).tolist()
    return found


def _mean(mu: float, sigma: float, clip: str | None = None) -> float:
    """E[round(Y) | round(Y) >= 1]: the sum of P(Y > j + 1/2) over j >= 0, over P(Y > 1/2).

    From _SUMMED on the sum is the integral of P(Y > x), i.e. E[(Y - x)+], by the midpoint rule. Of a clip a..b it is
    a plus the sum over j in a..b-1.
    """
    from scipy.special import ndtr

    if clip is not None:
        low, high = _ends("clip", clip)
        return float(low + _above(mu, sigma, np.arange(low, high) + 0.5).sum() / _above(mu, sigma, np.array(0.5)))
    above = _above(mu, sigma, np.arange(_SUMMED) + 0.5)
    d = (mu - math.log(_SUMMED)) / sigma
    rest = math.exp(mu + sigma**2 / 2) * ndtr(d + sigma) - _SUMMED * ndtr(d)
    return float((above.sum() + rest) / above[0])


def _masses(mu: float, sigma: float, limit: int) -> np.ndarray:
    """(limit - 1,) P(round(Y) = k | round(Y) >= 1) for k = 1..limit-1."""
    above = _above(mu, sigma, np.arange(limit) + 0.5)
    return np.asarray(-np.diff(above) / above[0])


def _bounded_mean(p: np.ndarray, q: np.ndarray) -> float:
    """E[X | X + Y <= limit] for independent X ~ p and Y ~ q, both on 1..limit-1."""
    weights = p * np.cumsum(q)[::-1]  # X = k leaves Y in 1..limit-k
    return float(weights @ np.arange(1, len(p) + 1) / weights.sum())
