"""Draws requests from a model in blocks, in bounded memory.

Arrivals are one stream, cut into blocks of 65,536 rows. The lengths of block b come from a seed of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from workloads.arrivals._exact import LONGEST_S
from workloads.arrivals._operational import merged
from workloads.lengths import _empirical

if TYPE_CHECKING:
    from workloads.fit.model import Model

ROWS = 65_536
_ARRIVALS, _LENGTHS = 0, 1  # of the seed's children


class DrawnBlock(NamedTuple):
    """Rows of a draw: time (s), number of the service, prompt and output tokens, (N,) each."""

    at_s: np.ndarray
    service: np.ndarray
    prompt_tokens: np.ndarray
    output_tokens: np.ndarray


class DrawLimits(NamedTuple):
    """How much is drawn; at least one of both."""

    requests: int | None
    duration_s: float | None


def held_s(rate_rps: float, requests: int | None, duration_s: float | None) -> float | None:
    """The time of a draw over which its mean rate is that of the model; None for longer ones than two hours."""
    end_s = min(requests / rate_rps if requests else np.inf, duration_s or np.inf)
    return end_s if end_s <= LONGEST_S else None


def arrivals(
    model: Model, rng: np.random.Generator, rate_rps: float | None = None, over_s: float | None = None
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Endless blocks of (times in seconds, number of the service); a rate is shared out as in the trace, and is that
    over the first `over_s` (None: in the long run).
    """
    rate_rps = rate_rps or model.rate_rps
    scale = rate_rps / model.rate_rps
    streams = [
        service.process.times(stream_rng, service.process.rate_rps * scale, over_s)
        for service, stream_rng in zip(model.services, rng.spawn(len(model.services)), strict=True)
    ]
    return merged(streams, ROWS / rate_rps)


def blocks(model: Model, rate_rps: float | None, limits: DrawLimits, seed: int) -> Iterator[DrawnBlock]:
    """Blocks of 65,536 rows (the last one has fewer), in order of time."""
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_ARRIVALS,)))
    samplers = [_empirical.sampler(service.lengths) for service in model.services]
    over_s = held_s(rate_rps or model.rate_rps, *limits)
    for number, (at_s, which) in enumerate(_limited(_even(arrivals(model, rng, rate_rps, over_s)), limits)):
        lengths_rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_LENGTHS, number)))
        uniforms = lengths_rng.random((ROWS, 5))[: len(which)].T  # (5, N): a shorter block begins like a longer one
        yield DrawnBlock(at_s, which, *_empirical.mixed(samplers, which, uniforms))


def _even(stream: Iterator[tuple[np.ndarray, np.ndarray]]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The same rows in blocks of 65,536."""
    held: list[tuple[np.ndarray, np.ndarray]] = []
    rows = 0
    for block in stream:
        held.append(block)
        rows += len(block[0])
        if rows >= ROWS:
            at_s, which = (np.concatenate(parts) for parts in zip(*held, strict=True))
            for start in range(0, rows - ROWS + 1, ROWS):
                yield at_s[start : start + ROWS], which[start : start + ROWS]
            rest = rows - rows % ROWS
            held, rows = [(at_s[rest:], which[rest:])], rows % ROWS


def _limited(
    stream: Iterator[tuple[np.ndarray, np.ndarray]], limits: DrawLimits
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    requests_left = limits.requests
    for at_s, which in stream:
        end = len(at_s) if limits.duration_s is None else int(np.searchsorted(at_s, limits.duration_s))
        end = end if requests_left is None else min(end, requests_left)
        if end:
            yield at_s[:end], which[:end]
        requests_left = None if requests_left is None else requests_left - end
        if end < len(at_s) or requests_left == 0:
            return
