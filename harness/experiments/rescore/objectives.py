"""What stored runs are scored under: an SLO, all its bounds scaled, a success rule, tokens due one by one, and tasks.

Scale: attainment of all bounds times a factor, exactly, for every factor in one pass. Source of the axis: Zhong et al.,
DistServe, OSDI 2024, figures 8 and 9, drawn there from a run per point.

Goodput in tokens: token k is due at TTFT bound + k times the TPOT bound. A bound on the whole answer (e2e), on a task,
or any other, counts for all tokens of a request at once. Sources: the deadline line of Etalon (Agrawal et al. 2024);
the SLO classes and the service goodput of JITServe (NSDI 2026).

Tasks: requests that belong together are of use only if all of them met the objective.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from harness.api import Bound, Slo
from harness.data.lists import BLOCK, Lists, gap_lists, lists, number
from harness.data.run_json import ScoredBound
from harness.experiments.rescore.slo_json import TaskScore
from harness.metrics.measure import check_bounds, first_last
from harness.metrics.objective import Score, Seen, parse_slo, score, share
from harness.metrics.summary import known, scored_bound
from harness.spec import build, parse, text_of

Mask: TypeAlias = npt.NDArray[np.bool_]
Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]

LINE = ("ttft", "tpot")
"""The metrics whose bounds make the line."""
PACE_SPAN = 16
"""Tokens of the moving average in FastGen's success rule (plot_effective_throughput.py, --ema_span)."""

Objective: TypeAlias = "Slo | Fastgen"


@dataclass(frozen=True, slots=True)
class Fastgen:
    """FastGen's success rule, `fastgen:rate=4`: a TTFT by the length of the prompt, and a rate that gaps keep.

    TTFT <= prompt tokens / `prompt_tps`, and the gaps keep `rate` tokens per second. An event with several tokens
    counts as one token.

    Rule `ema`: every exponential moving average (span 16) of a request's gaps is below 1/rate. Rule `cumulative`: the
    first i gaps together take at most i/rate. One token has no gaps. A request that failed did not succeed.

    Source: deepspeedai/DeepSpeedExamples, benchmarks/inference/mii/src/plot_effective_throughput.py.
    """

    rate: float = 4.0
    rule: Literal["ema", "cumulative"] = "ema"
    prompt_tps: float = 512.0

    def __post_init__(self) -> None:
        if self.rate <= 0 or self.prompt_tps <= 0:
            raise ValueError("rate and prompt_tps must be above 0 tokens per second.")


def success(seen: Seen, rule: Fastgen) -> tuple[Mask, Mask]:
    """(requests,) whether the prompt, and whether the answer was fast enough."""
    allowed_s = number(seen.table, "prompt_tokens") / rule.prompt_tps
    prompt = seen.ok & ~(seen.values("ttft") > allowed_s)
    step_s = 1.0 / rule.rate
    parts = []
    for piece in seen.pieces():
        gaps = gap_lists(lists(piece, "token_s"))
        late = worst_moving_average(gaps) >= step_s if rule.rule == "ema" else worst_lag(gaps, step_s) > 0
        parts.append(~late)  # of no gap, NaN is not late
    return prompt, seen.ok & np.concatenate([np.empty(0, bool), *parts])


# Rules that look at the gaps of a request one after the other. Rows are ordered by length, so that at each place the
# requests that still have a gap stand together: the loop is over places, the arithmetic over requests, in the order in
# which a loop over one request would do it.


def worst_moving_average(gaps: Lists) -> Floats:
    """(requests,) largest exponential moving average of the gaps, NaN for no gap; as pandas' ewm(PACE_SPAN).mean().

    Source: deepspeedai/DeepSpeedExamples, benchmarks/inference/mii/src/plot_effective_throughput.py.
    """
    order, alive = _by_length(gaps)
    mean, worst = np.zeros(len(order)), np.full(len(order), -np.inf)
    keep, weight = 1.0 - 1.0 / (1.0 + (PACE_SPAN - 1) / 2), 0.0
    for place, n in enumerate(alive):
        gap = gaps.values[gaps.offsets[order[:n]] + place]
        if place:
            old = mean[:n]
            mean[:n] = np.where(old == gap, old, (weight * old + gap) / (weight + 1.0))
        else:
            mean[:n] = gap
        np.maximum(worst[:n], mean[:n], out=worst[:n])
        weight = (weight + 1.0) * keep
    return _back(np.where(np.isinf(worst), np.nan, worst), order)


def worst_lag(gaps: Lists, step_s: float) -> Floats:
    """(requests,) largest (sum of the first i gaps) - i * step_s over all i, NaN for no gap; above 0 is late."""
    order, alive = _by_length(gaps)
    total, worst = np.zeros(len(order)), np.full(len(order), -np.inf)
    for place, n in enumerate(alive):
        total[:n] += gaps.values[gaps.offsets[order[:n]] + place]
        np.maximum(worst[:n], total[:n] - step_s * (place + 1), out=worst[:n])
    return _back(np.where(np.isinf(worst), np.nan, worst), order)


def _by_length(rows: Lists) -> tuple[Ints, Ints]:
    """Rows from the longest to the shortest, and at each place how many of them reach it."""
    lengths = np.diff(rows.offsets)
    order = np.argsort(-lengths, kind="stable")
    longest = int(lengths.max(initial=0))
    alive = np.searchsorted(-lengths[order], -np.arange(1, longest + 1), side="right")
    return order, alive


def _back(values: Floats, order: Ints) -> Floats:
    restored = np.empty_like(values)
    restored[order] = values
    return restored


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """How a run fares under an objective: `met` (requests,) joint, then each condition, and the one that binds."""

    text: str
    met: Mask
    parts: tuple[ScoredBound, ...]
    binding: str | None
    score: Score | None = None

    @property
    def attainment(self) -> float:
        """Share of all requests that meet everything, NaN of no request and where only percentiles are bound."""
        return share(self.met) if self.score is None else self.score.attainment

    @property
    def by_request(self) -> bool:
        """Whether single requests are scored."""
        return self.score is None or self.score.by_request

    def kept(self, goal: float) -> bool:
        """Whether a share `goal` of the requests meets everything, and every percentile bound holds."""
        return share(self.met) >= goal if self.score is None else self.score.reaches(goal)

    def kept_separately(self, goal: float) -> bool:
        """Whether each condition reaches the goal by itself, as DistServe's placement search asks."""
        shares = [p.attainment or 0.0 for p in self.parts if p.percentile is None and p.requests]
        enough = min(shares, default=self.attainment) >= goal if self.by_request else len(self.met) > 0
        return enough and (self.score is None or self.score.percentiles_hold)


def read(given: str) -> Objective:
    """An SLO such as 'ttft=0.25,tpot=0.1', or 'fastgen:rate=4'. Raises UsageError."""
    spec = given.strip().lower()
    if spec.partition(":")[0] != "fastgen":
        return parse_slo(given)
    rule: Fastgen = build(Fastgen, parse(spec))
    return rule


def outcome(seen: Seen, objective: Objective, goal: float) -> Outcome:
    """A run under an objective; `goal` decides which bound of an SLO binds."""
    if isinstance(objective, Slo):
        slo = replace(objective, goal=goal)
        scored = score(seen.table, slo, seen)
        parts = tuple(map(scored_bound, scored.bounds))
        binding = None if scored.binding is None else str(scored.binding.bound)
        return Outcome(str(slo) or "no bound", scored.met, parts, binding, scored)
    check_bounds(seen.table, ("itl",))
    prompt, in_time = success(seen, objective)
    parts = tuple(
        ScoredBound(text=name, metric=name, requests=len(mask), attainment=known(share(mask)))
        for name, mask in (("prompt in time", prompt), ("answer in time", in_time))
    )
    binding = min(parts, key=lambda p: p.attainment or 0.0).text if len(prompt) else None
    text = text_of(objective, "fastgen") if objective != Fastgen() else "fastgen:rate=4"
    return Outcome(text, prompt & in_time, parts, binding)


@dataclass(frozen=True, slots=True, eq=False)
class Tokens:
    """(requests,) good output tokens, good prompt tokens, and the output tokens that there should have been.

    A request that failed has no good token; the requested tokens are those that there should have been.
    """

    output: Ints
    prompt: Ints
    due: Ints


def tokens(seen: Seen, slo: Slo, scored: Score | None = None) -> Tokens:
    """The good tokens of each request. Bounds on percentiles play no part."""
    scored = score(seen.table, slo, seen) if scored is None else scored
    others = [b.met for b in scored.bounds if b.bound.percentile is None and b.bound.metric not in LINE]
    gate = seen.ok & np.logical_and.reduce([np.ones(len(seen.ok), bool), *others])
    ttft_s, tpot_s = (scored.limits_s(metric) for metric in LINE)
    in_time = gate & ~(seen.values("ttft") > ttft_s)
    requested, generated = (number(seen.table, c) for c in ("output_tokens_asked", "output_tokens"))
    return Tokens(
        _on_line(seen, gate, in_time, ttft_s, tpot_s),
        np.where(in_time, number(seen.table, "prompt_tokens"), 0).astype(np.int64),
        np.where(seen.ok, generated, requested).astype(np.int64),
    )


def _on_line(seen: Seen, gate: Mask, in_time: Mask, ttft_s: Floats, tpot_s: Floats) -> Ints:
    """(requests,) output tokens on the line. Without a bound on TPOT all are good if the first one is.

    Without a bound on TTFT the line begins at the first token.
    """
    generated = number(seen.table, "output_tokens")
    lined = gate & np.isfinite(tpot_s)
    good = np.where(in_time & ~lined, generated, 0)
    if not lined.any():
        return good.astype(np.int64)
    due_s, first_s = number(seen.table, "scheduled_s"), first_last(seen.table)[0]
    from_s = np.where(np.isfinite(ttft_s), due_s, first_s)
    base_s = np.where(np.isfinite(ttft_s), ttft_s, 0.0)
    start = 0
    for piece in seen.pieces():
        rows = slice(start, start + len(piece))
        piece_tokens = _piece(piece, from_s[rows], base_s[rows], np.where(lined[rows], tpot_s[rows], 0.0))
        good[rows] = np.where(lined[rows], piece_tokens, good[rows])
        start += len(piece)
    return np.minimum(good, generated).astype(np.int64)  # a file of another tool may have an event more than tokens


def _piece(piece: pa.Table, from_s: Floats, base_s: Floats, step_s: Floats) -> Ints:
    """(requests,) tokens j of a piece with time - from <= base + j * step; tokens of an event share its time."""
    events, counts = lists(piece, "token_s"), lists(piece, "token_n").values.astype(np.int64)
    plain = not len(counts) or int(counts.max()) == 1
    times = events.values if plain else np.repeat(events.values, counts)
    ends = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=ends[1:])
    offsets = events.offsets if plain else ends[events.offsets]
    lengths = np.diff(offsets)
    row = np.repeat(np.arange(len(lengths)), lengths)
    j = np.arange(len(times)) - offsets[row]
    in_time = times - from_s[row] <= base_s[row] + j * step_s[row]
    return np.bincount(row, in_time, minlength=len(lengths)).astype(np.int64)


def tasks(seen: Seen, met: Mask, per_second: Callable[[int], float | None]) -> TaskScore | None:
    """How many sessions had every request meet the objective; None where no request is part of a session.

    The first goodput counts those, the second also the requests that stand alone: a task counts once.
    """
    if seen.table["session"].null_count == len(seen.table):
        return None
    session = number(seen.table, "session")
    inside = ~np.isnan(session)
    sessions, group = np.unique(session[inside], return_inverse=True)
    missed = np.bincount(group, ~met[inside], len(sessions))
    good, single = int(np.count_nonzero(missed == 0)), int(np.count_nonzero(met & ~inside))
    return TaskScore(len(sessions), good, good / len(sessions), per_second(good), per_second(good + single))


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """Attainment at each factor: joint, and per bound, as it is at factor 1.

    Where every bound is on a percentile no single request is scored, and the joint attainment is NaN.
    `ratio` (requests,) is the factor from which on a request meets everything, infinite for one that failed. Bounds
    on percentiles are not in the joint attainment; `holds_from` has the factor from which on each of them holds.
    """

    factors: Floats
    attainment: Floats
    bounds: dict[Bound, Floats]
    ratio: Floats
    holds_from: dict[Bound, float]

    def crossing(self, goal: float) -> float | None:
        """The smallest factor at which a share `goal` of the requests meets the bounds; None when none does."""
        if not len(self.ratio):
            return None
        needed = max(1, int(np.ceil(goal * len(self.ratio) - 1e-9)))
        factor = float(np.partition(self.ratio, needed - 1)[needed - 1])
        return factor if np.isfinite(factor) else None


def curve(seen: Seen, slo: Slo, factors: Sequence[float], scored: Score | None = None) -> Curve:
    """The curve over rising `factors`: at each what scoring under the scaled SLO gives, equal to the last bit.

    `scored` is the score under the SLO itself, where it is known.
    """
    rising = np.asarray(factors, np.float64)
    scored = score(seen.table, slo, seen) if scored is None else scored
    per_request = [b for b in scored.bounds if b.bound.percentile is None]
    counts = np.zeros((len(per_request) + 1, len(rising) + 1), np.int64)  # of requests by place; of all bounds last
    ratio = np.where(seen.ok, 0.0, np.inf)
    for start in range(0, len(ratio), BLOCK):
        rows = slice(start, start + BLOCK)
        # (block,) the first factor at which each request meets the bounds; beyond all of them for one that failed
        failed = np.where(seen.ok[rows], 0, len(rising))
        joint = failed.copy()
        for b, counted in zip(per_request, counts, strict=False):
            values, applies = seen.values(b.bound.metric)[rows], b.applies[rows]
            limit_s = b.limit_s if np.ndim(b.limit_s) == 0 else np.asarray(b.limit_s)[rows]
            place = np.maximum(first_within(values, limit_s, rising), failed)
            counted += np.bincount(place[applies], minlength=len(rising) + 1)
            np.maximum(joint, place, out=joint, where=applies)
            with np.errstate(invalid="ignore"):  # a task that failed, of a request that it does not bind: inf / inf
                least = np.where(applies, values / limit_s, 0.0)
            np.fmax(ratio[rows], least, out=ratio[rows])  # not np.maximum: a request without a value meets the bound
        counts[-1] += np.bincount(joint, minlength=len(rising) + 1)
    joint_share, *shares = (_shares(counted) for counted in (counts[-1], *counts[:-1]))
    return Curve(
        rising,
        joint_share if scored.by_request and not scored.unknown else np.full(len(rising), np.nan),
        dict(zip((b.bound for b in per_request), shares, strict=True)),
        ratio,
        {
            b.bound: 0.0 if b.value_s is None or np.isnan(b.value_s) else b.value_s / b.bound.limit
            for b in scored.bounds
            if b.bound.percentile is not None
        },
    )


def first_within(values: Floats, limit: Floats | float, factors: Floats) -> npt.NDArray[np.int32]:
    """(requests,) the first of the rising factors with value <= factor * limit; 0 for no value, their number for none.

    Note: dividing by a limit of each request would round otherwise than multiplying it.
    """
    if np.ndim(limit) == 0:
        places = np.searchsorted(factors * limit, values).astype(np.int32)
        places[np.isnan(values)] = 0
        return places
    places = np.zeros(len(values), np.int32)
    for factor in factors:
        places += values > factor * limit
    return places


def _shares(counts: Ints) -> Floats:
    """At each factor the share of requests whose place is at or before it, of their counts; NaN of no requests."""
    with np.errstate(invalid="ignore"):
        return np.asarray(np.cumsum(counts)[:-1] / counts.sum())
