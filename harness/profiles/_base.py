"""What a definition profile sees of a run, and what it makes of it."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from harness.metrics._lists import Lists, ratio

Floats: TypeAlias = npt.NDArray[np.float64]
Mask: TypeAlias = npt.NDArray[np.bool_]
Limits: TypeAlias = Mapping[str, float]
"""Bounds on ttft, tpot and e2e in seconds; those that are missing bind nothing."""
Missing: TypeAlias = Literal["good", "bad", "out"]
"""What a request counts as that has no value for a bound: `out` is left out of the denominator."""


@dataclass(frozen=True, slots=True, eq=False)
class Events:
    """What is known of each request, all (requests,): times in seconds of the run, NaN where there is none.

    `due_s` is `scheduled_s`; `opened_s` the first event of any kind, such as a chunk with nothing but a role; `end_s`
    when it ended. `tokens` are those that the server counted, `first_tokens` those of the first of
    the `events`.
    `cut_off` was given up by the client. The measured part of the run begins at `start_s`. `gaps` gives the gaps
    between tokens of the requests that ended well, piece by piece, those of one event 0.
    """

    ok: Mask
    cut_off: Mask
    due_s: Floats
    sent_s: Floats
    opened_s: Floats
    first_s: Floats
    last_s: Floats
    end_s: Floats
    tokens: Floats
    first_tokens: Floats
    events: Floats
    start_s: float = 0.0
    gaps: Callable[[], Iterator[Lists]] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Gaps:
    """Gaps between token events of the requests that ended well, pooled, and how many tokens came inside events."""

    values_s: Floats
    inside: int

    def with_zeros(self) -> Floats:
        """The gaps, and a zero for every token after the first of an event."""
        return np.concatenate([self.values_s, np.zeros(self.inside)]) if self.inside else self.values_s


@dataclass(frozen=True, slots=True, eq=False)
class Times:
    """TTFT, TPOT and E2E of each request as a tool lists them, (requests,) seconds; NaN where it lists none.

    `tpot_weight` (requests,) is how much each TPOT counts in the tool's statistics; None where all count the same.
    """

    ttft: Floats
    tpot: Floats
    e2e: Floats
    tpot_weight: Floats | None = None

    def of(self, metric: str) -> Floats:
        """(requests,) of `ttft`, `tpot` or `e2e`."""
        return {"ttft": self.ttft, "tpot": self.tpot, "e2e": self.e2e}[metric]


@dataclass(frozen=True, slots=True)
class Judged:
    """`good` of `of` requests kept the bounds, in `duration_s`; `of` is None where the tool prints no attainment.

    `said` are further results under the tool's own names.
    """

    good: int | None
    of: int | None
    duration_s: float | None
    said: tuple[tuple[str, float], ...] = ()


class Profile(Protocol):
    """How one tool defines what it prints. A member has no arguments."""

    name: ClassVar[str]
    tool: ClassVar[str]
    notes: ClassVar[tuple[str, ...]]

    def times(self, events: Events) -> Times:
        """What the tool lists of each request."""
        ...

    def itl(self, gaps: Gaps) -> Floats | None:
        """The values of which it prints inter-token percentiles; None where it keeps no gaps."""
        ...

    def percentile(self, values: Floats, q: float) -> float:
        """Quantile `q` (0..1) of listed values without NaN."""
        ...

    def judge(self, events: Events, times: Times, limits: Limits) -> Judged:
        """Which requests keep the limits, and of how many."""
        ...


def per_later_token(elapsed_s: Floats, later_tokens: Floats) -> Floats:
    """(requests,) seconds per token after the first ones; NaN where there are none."""
    return ratio(elapsed_s, later_tokens)


def listed(values: Floats, ok: Mask) -> Floats:
    """(requests,) the values of requests that ended well, NaN for all others."""
    return np.where(ok, values, np.nan)


def kept(times: Times, limits: Limits, missing: Missing) -> tuple[Mask, Mask]:
    """(requests,) whether all limits are kept, and (requests,) whether a value was missing for one of them."""
    good, unknown = np.ones(len(times.ttft), bool), np.zeros(len(times.ttft), bool)
    for metric, limit_s in limits.items():
        values = times.of(metric)
        absent = np.isnan(values)
        unknown |= absent
        good &= (values <= limit_s) | (absent & (missing == "good"))
    return good, unknown


def step_quantile(values: Floats, q: float, weight: Floats | None = None) -> float:
    """The smallest value up to which a share `q` of the weight lies: an element of the list, nothing between two."""
    order = np.argsort(values, kind="stable")
    up_to = np.cumsum(np.ones(len(values)) if weight is None else weight[order])
    place = np.searchsorted(up_to, q * up_to[-1] * (1 - 1e-12))  # 0.29 * 100 is a little more than 29
    return float(values[order[place]])


def sending_s(due_s: Floats) -> float | None:
    """Seconds in which requests are due: n of them have n - 1 gaps. None where all are due at once."""
    span_s = float(np.ptp(due_s)) if len(due_s) else 0.0
    return span_s * len(due_s) / (len(due_s) - 1) if span_s > 0 else None


def count(mask: Mask) -> int:
    """How many are True, as a plain number."""
    return int(np.count_nonzero(mask))


def span_s(begin_s: Floats | float, end_s: Floats, among: Mask | None = None) -> float | None:
    """Seconds from the first beginning to the last end of some requests, else all; None where there is no such time."""
    chosen = np.ones(len(end_s), bool) if among is None else among
    first = begin_s if isinstance(begin_s, float) else _least(begin_s[chosen])
    known = end_s[chosen & np.isfinite(end_s)]
    if not len(known) or not np.isfinite(first) or known.max() <= first:
        return None
    return float(known.max() - first)


def _least(values: Floats) -> float:
    known = values[np.isfinite(values)]
    return float(known.min()) if len(known) else float("nan")
