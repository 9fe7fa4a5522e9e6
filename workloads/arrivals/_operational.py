"""Renewal processes: independent gaps at one rate, and in operational time, of mean gap 1, at rates that change.

A renewal process that begins with an ordinary gap begins with an arrival just before time 0, and so with a burst where
the law is bursty: (cv**2 - 1) / 2 arrivals too many, which is 25 for a gamma law of shape 0.02. The first gap must be
what is left of the gap under way: a gap chosen with probability in proportion to its length, cut at a uniform point.
Source: Cox, Renewal Theory (1962), sections 5.1 and 5.4.

Operational time is the integral of the rate, so a gap that is under way when the rate changes is stretched or
shortened, and neither lost nor begun anew. The gap law and the rate stay apart: scaling the rate leaves the
coefficient of variation of neighbouring gaps as it is. Source: time change of a point process (Daley and Vere-Jones,
An Introduction to the Theory of Point Processes, 2003, section 7.4). For rates on a grid of equal steps, which change
every few seconds, whole blocks of steps are turned into times together, so that a million arrivals take a fraction of
a second.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from typing import Annotated, NamedTuple, TypeAlias

import numpy as np
from msgspec import Meta

from harness.bounds import Checked
from harness.errors import UsageError

CHUNK = 4096  # gaps drawn at once, whatever the caller takes, so that its chunks do not change the stream
MOST_IDLE = 1_000_000  # changes of the rate in a row without an arrival: some seconds of drawing
Gaps = Callable[[int], np.ndarray]
"""Draws n gaps of mean 1."""

# outside, the sums of float64 gaps lose the law
GapCv: TypeAlias = Annotated[float, Meta(ge=1e-3, le=100.0, description="equal gaps are 'constant'")]


class Piece(NamedTuple):
    """A stretch of `duration_s` in which the rate goes in a straight line from `start_rps` to `end_rps`.

    Rates are >= 0. The last piece may be endless (`math.inf`), at a constant rate.
    """

    duration_s: float
    start_rps: float
    end_rps: float
    gaps: Gaps | None = None  # another gap law from here on; None: as before

    @property
    def arrivals(self) -> float:
        """The integral of the rate: how many arrivals are expected."""
        mean_rps = (self.start_rps + self.end_rps) / 2
        return self.duration_s * mean_rps if mean_rps else 0.0


class Stretch(NamedTuple):
    """Seconds at one rate; `shape` of the gamma gaps from here on, None: as before."""

    duration_s: float
    rate: float
    shape: float | None = None


def times_along(pieces: Iterable[Piece], gaps: Gaps) -> Iterator[float]:
    """Arrival times (s) of a renewal process with `gaps` of mean 1, whose rate follows the `pieces`.

    The first gap comes before the first arrival. Ends when the pieces do. Times never fall, and the stream does not
    depend on how much of it is taken at a time. Pieces are drawn as they are reached, so they may be endless;
    endless pieces of rate 0 are never left. Raises UsageError for MOST_IDLE pieces without an arrival.
    """
    for chunk in chunks_along(pieces, gaps):
        yield from chunk.tolist()


def chunks_along(pieces: Iterable[Piece], gaps: Gaps) -> Iterator[np.ndarray]:
    """The times of `times_along` in arrays (n,) of 1 to CHUNK float64: those of one piece, or a part of them."""
    start_s = lost_s = last_s = 0.0  # start of the piece; what the sum of durations lost (Kahan); the last arrival
    source, waiting, next_ = gaps, np.zeros(0), 0  # arrivals from waiting[next_] on are still to come
    base = last = 0.0  # operational times, like `waiting` since it was drawn: start of the piece, last arrival
    idle = 0
    for piece in pieces:
        if piece.gaps is not None and piece.gaps is not source:
            source, waiting, next_ = piece.gaps, waiting[next_ : next_ + 1], 0  # the gap under way stays as drawn
        end = base + piece.arrivals
        while True:
            if next_ == len(waiting):
                # few at once for a short piece with a law of its own, whose other draws may go to waste
                ahead = CHUNK if piece.gaps is None else int(min(CHUNK, 16 + piece.arrivals))
                waiting, next_ = np.cumsum(source(ahead)), 0
                # Counted from the last arrival anew: in a sum of very many gaps a short one would be rounded away.
                base, end, last = base - last, end - last, 0.0
            stop = int(waiting.searchsorted(end))
            if stop > next_:
                inside, next_ = waiting[next_:stop], stop
                times = start_s + _elapsed(piece, inside - base)
                if piece.end_rps > piece.start_rps:  # the quotient of two growing numbers may fall by a rounding
                    times = np.maximum.accumulate(np.maximum(times, last_s))
                yield times
                last_s, last, idle = float(times[-1]), float(inside[-1]), 0
            if next_ < len(waiting):
                break
        step_s = piece.duration_s - lost_s
        end_s = start_s + step_s
        start_s, lost_s, base = end_s, (end_s - start_s) - step_s, end
        idle = one_more_idle(idle, MOST_IDLE)


def one_more_idle(idle: int, most: int) -> int:
    """Count one more change of the rate without an arrival. Raises UsageError beyond `most` of them."""
    if idle >= most:
        raise UsageError(
            f"The rate of --arrivals changes {most:,} times without a request; give a higher --rate, "
            "or arrivals whose rate changes less often."
        )
    return idle + 1


def _elapsed(piece: Piece, operational: np.ndarray) -> np.ndarray:
    """(n,) seconds since the start of the piece at which its integral of the rate reaches `operational`."""
    rise = (piece.end_rps - piece.start_rps) / piece.duration_s
    if rise == 0:
        return np.asarray(np.minimum(operational / piece.start_rps, piece.duration_s))
    root = np.sqrt(np.maximum(piece.start_rps**2 + 2 * rise * operational, 0))
    divisor = piece.start_rps + root  # 0 only where both the rate and `operational` are
    elapsed = np.divide(2 * operational, divisor, out=np.zeros_like(operational), where=divisor > 0)
    return np.asarray(np.minimum(elapsed, piece.duration_s))


def times_on_grid(step_s: float, rates_rps: Iterable[np.ndarray], gaps: Gaps) -> Iterator[np.ndarray]:
    """Blocks of arrival times (s), one for each block of rates; each rate holds for `step_s`, 0 is allowed.

    Ends when the rates do. `gaps(n)` draws n gaps of mean 1. The stream does not depend on how much is taken.
    """
    steps = 0  # before this block
    waiting = np.cumsum(gaps(CHUNK))  # operational times of the next arrivals, from the start of the block
    for rates in rates_rps:
        reached = np.concatenate([[0.0], np.cumsum(rates)]) * step_s  # (N + 1,) operational time at each edge
        # One arrival beyond the block is always known, for its gap began under the rates of this one.
        while waiting[-1] <= reached[-1]:
            waiting = np.concatenate([waiting, waiting[-1] + np.cumsum(gaps(CHUNK))])
        inside = int(np.searchsorted(waiting, reached[-1]))
        edges = (steps + np.arange(len(rates) + 1)) * step_s
        yield np.interp(waiting[:inside], reached, edges)
        waiting = waiting[inside:] - reached[-1]
        steps += len(rates)


def times_from(gaps: Callable[[int], np.ndarray]) -> Iterator[float]:
    """Endless arrival times (s): running sums of `gaps(n)`; the first gap comes before the first arrival."""
    last_s = 0.0
    while True:
        chunk = gaps(CHUNK)
        chunk[0] += last_s
        times = np.cumsum(chunk).tolist()
        last_s = times[-1]
        yield from times


def merged(streams: Sequence[Iterator[np.ndarray]], step_s: float) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The endless streams as one, in blocks of `step_s`; of equal times the lower index comes first."""
    held = [np.zeros(0) for _ in streams]
    for end_s in (step_s * i for i in count(1)):
        inside = []
        for i, stream in enumerate(streams):
            parts = [held[i]]
            # A stream is read beyond the step, so that no later arrival of it can belong into the step.
            while not len(parts[-1]) or parts[-1][-1] < end_s:
                parts.append(next(stream))
            times = np.concatenate(parts)
            cut = int(np.searchsorted(times, end_s))
            inside.append(times[:cut])
            held[i] = times[cut:]
        times = np.concatenate(inside)
        order = np.argsort(times, kind="stable")
        if len(order):
            yield times[order], np.repeat(np.arange(len(streams)), [len(part) for part in inside])[order]


class AtRate(Checked):
    """Arrivals whose long-run mean is their `rate_rps`, requests per second."""

    __slots__ = ()
    rate_rps: float

    @property
    def mean_rate_rps(self) -> float:
        return self.rate_rps


def gamma_gaps(rng: np.random.Generator, cv: float) -> Gaps:
    """Draws of gamma gaps of mean 1 and coefficient of variation `cv`; 1 is exponential (Poisson arrivals)."""
    if cv == 1:
        return lambda n: rng.standard_exponential(n)
    return lambda n: rng.gamma(1 / cv**2, cv**2, n)


def gamma_cdf(gaps: np.ndarray, cv: float) -> np.ndarray:
    """Probability that a gap of that law is at most each of `gaps` (N,)."""
    from scipy.special import gammainc  # heavy: only where a run is judged

    return np.asarray(gammainc(1 / cv**2, np.maximum(gaps, 0) / cv**2))


def gamma(shape: float, rng: np.random.Generator, *, running: bool = False) -> Gaps:
    """Draws of gamma gaps of mean 1 and this shape; where `running`, the very first is what is left of one."""
    gaps: Gaps = lambda n: rng.gamma(shape, 1 / shape, n)  # noqa: E731  # one line a law
    return _after(float(rng.random() * rng.gamma(shape + 1, 1 / shape)), gaps) if running else gaps


def gamma_pieces(stretches: Iterable[Stretch], rng: np.random.Generator) -> Iterator[Piece]:
    """The stretches as pieces; the very first gap is what is left of one."""
    for i, (duration_s, rate, shape) in enumerate(stretches):
        yield Piece(duration_s, rate, rate, None if shape is None else gamma(shape, rng, running=i == 0))


def wandering(
    path: Iterator[Stretch], windows: Iterable[tuple[float, float | None]], window_s: float
) -> Iterator[Stretch]:
    """Stretches of a path in windows of `window_s`, each with a factor of the rate, and a shape or None for that of the
    path; ends with the windows.
    """
    left_s, rate, shape = next(path)
    for factor, of_window in windows:
        shape = shape if of_window is None else of_window
        to_go_s = window_s
        while to_go_s > 0:
            part_s = min(left_s, to_go_s)
            yield Stretch(part_s, rate * factor, shape)
            shape, to_go_s, left_s = None, to_go_s - part_s, left_s - part_s
            if left_s <= 0:
                left_s, rate, shape = next(path)


def weibull(shape: float, rng: np.random.Generator, *, running: bool = False) -> Gaps:
    """Draws of Weibull gaps of mean 1 and this shape; where `running`, the very first is what is left of one."""
    scale = 1 / math.gamma(1 + 1 / shape)
    gaps: Gaps = lambda n: scale * rng.weibull(shape, n)  # noqa: E731  # one line a law
    if not running:
        return gaps
    return _after(float(rng.random() * scale * rng.gamma(1 + 1 / shape) ** (1 / shape)), gaps)


def _after(first: float, gaps: Gaps) -> Gaps:
    """`gaps`, with `first` in place of the first draw of all."""
    pending = [first]

    def draw(n: int) -> np.ndarray:
        drawn = gaps(n)
        if pending and n:
            drawn[0] = pending.pop()
        return drawn

    return draw
