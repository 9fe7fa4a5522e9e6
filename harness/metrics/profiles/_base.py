"""What a definition profile sees of a run, and what it makes of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

import numpy as np

from harness.data.lists import Floats, Mask, ratio

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
    `cut_off` was given up by the client. The measured part of the run begins at `start_s`.
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
    """`good` of `of` requests met the bounds, in `duration_s`; `of` is None where the tool prints no attainment.

    `more` are further results under the tool's own names.
    """

    good: int | None
    of: int | None
    duration_s: float | None
    more: tuple[tuple[str, float], ...] = ()


class Profile(Protocol):
    """How one tool defines what it prints. A member has no arguments."""

    @property
    def name(self) -> str:
        """As `--profile` has it, with dots."""
        ...

    @property
    def tool(self) -> str:
        """The tool and its version."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """What the profile cannot know of the tool."""
        ...

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """A tool's definitions as choices: a profile that is a row of a table.

    TTFT and E2E begin when a request was `start`; TTFT ends with the `first` token, or event of any kind, and may be
    missing for one token. E2E and TPOT have each an end: the last token, or the end of the stream. TPOT is what is left
    after the first, over `divisor` tokens, `weighted` by the later tokens in the tool's statistics. `gaps` are those of
    its ITL percentiles. Good requests (see `Missing`) count of `denominator`, None where the tool prints no attainment,
    per second of `window`; `judged` is the rule of a tool that counts otherwise. Only requests that ended well have
    times, and are good.
    """

    name: str
    tool: str
    about: str
    start: Literal["due", "sent"]
    first: Literal["token", "event"] = "token"
    ttft_of_one_token: bool = True
    e2e_end: Literal["last token", "end"] = "last token"
    tpot_end: Literal["last token", "end"] = "last token"
    divisor: Callable[[Events], Floats]
    weighted: bool = False
    gaps: Literal["pooled", "zeros inside chunks"] | None
    quantile: Callable[[Floats, float], float]
    missing: Missing = "good"
    denominator: Callable[[Events, Mask], Mask] | None = None
    window: Callable[[Events], float | None] | None = None
    judged: Callable[[Events, Times, Limits], Judged] | None = None
    notes: tuple[str, ...] = ()

    def times(self, events: Events) -> Times:
        """Of the requests that ended well."""
        begin_s = events.due_s if self.start == "due" else events.sent_s
        first_s = events.first_s if self.first == "token" else events.opened_s
        e2e_end_s, tpot_end_s = (
            events.last_s if end == "last token" else events.end_s for end in (self.e2e_end, self.tpot_end)
        )
        return Times(
            listed(first_s - begin_s, events.ok if self.ttft_of_one_token else events.ok & (events.tokens > 1)),
            listed(ratio(tpot_end_s - first_s, self.divisor(events)), events.ok),
            listed(e2e_end_s - begin_s, events.ok),
            tpot_weight=np.maximum(events.tokens - 1, 0.0) if self.weighted else None,
        )

    def itl(self, gaps: Gaps) -> Floats | None:
        """Every gap between token events, with or without zeros for tokens inside one; None: the tool keeps none."""
        if self.gaps is None:
            return None
        return gaps.values_s if self.gaps == "pooled" else gaps.with_zeros()

    def percentile(self, values: Floats, q: float) -> float:
        return self.quantile(values, q)

    def judge(self, events: Events, times: Times, limits: Limits) -> Judged:
        """Good requests of the denominator, and the window."""
        if self.judged is not None:
            return self.judged(events, times, limits)
        met, unknown = kept(times, limits, self.missing)
        good = met & events.ok
        window_s = None if self.window is None else self.window(events)
        if self.denominator is None:
            return Judged(count(good), None, window_s)
        among = self.denominator(events, unknown)
        return Judged(count(good & among), count(among), window_s)


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
    begins = np.full(1, begin_s) if isinstance(begin_s, float) else begin_s[chosen]
    begins, ends = begins[np.isfinite(begins)], end_s[chosen & np.isfinite(end_s)]
    if not len(ends) or not len(begins) or ends.max() <= begins.min():
        return None
    return float(ends.max() - begins.min())
