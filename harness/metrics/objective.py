"""Objectives: what an SLO asks, and how requests score under it, at once or counted piece by piece.

How an SLO is written: `ttft=0.25,tpot=100ms,ttft@long=2,p99:itl=0.2`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from harness.api import Bound, Metric, Slo
from harness.data.folder import Aggregate
from harness.data.lists import Floats, Mask, kept, pieces
from harness.data.mapped import stored
from harness.data.run_json import RunInfo, StoredBound, StoredSlo
from harness.errors import UsageError, no_such
from harness.metrics.measure import check_bounds, held_back, joined, metrics, per_request, sample, succeeded
from harness.metrics.quantiles import Counted, Selected, quantile, selected, with_failures
from harness.spec import seconds

Counts: TypeAlias = npt.NDArray[np.int64]
ShareKey: TypeAlias = Bound | Literal["joint"]

JOINT: Final = "joint"
"""ShareKey of the share of requests that meet all bounds on single requests."""

BROUGHT = {"ttft": "slo_ttft_s", "tpot": "slo_tpot_s", "e2e": "slo_e2e_s", "task": "slo_task_s"}
"""Metrics whose bound a request may bring along, and the column that holds it."""

UNTAGGED = "(untagged)"
"""The class of requests without a tag, where others have one."""
_BOUND = re.compile(r"(?:[pP](?P<percentile>[^:=@]*):)?(?P<metric>[^:=@]*)(?:@(?P<tag>[^=]*))?(?:=(?P<limit>.*))?")


@dataclass(frozen=True, slots=True, eq=False)
class BoundScore:
    """How one bound fared.

    `applies` (requests,) is the class of traffic it binds; `met` (requests,) is True outside that class,
    unless the request failed. `limit_s` is the limit, (requests,) where requests bring one along. `attainment` is the
    share met within the class, `room` that share minus the one it needs. A percentile bound is decided by its
    `value_s`; its `met` plays no part in the joint score.
    """

    bound: Bound
    limit_s: Floats | float
    applies: Mask
    met: Mask
    attainment: float
    value_s: float | None
    passed: bool
    room: float

    def counts(self, table: pa.Table) -> tuple[Counts | Mask, Counts | Mask]:
        """How many values of each request are within the bound, of how many, both (requests,) of the scored table.

        They are one and one for a request of its class, but of a percentile of pooled gaps every gap counts, and a
        failed request as one gap beyond the bound.
        """
        metric = metrics()[self.bound.metric]
        if self.bound.percentile is None or not metric.pooled:
            return self.met & self.applies, self.applies
        ok = self.applies & succeeded(table)
        within, total, rest = np.zeros(len(table), np.int64), (self.applies & ~ok).astype(np.int64), np.flatnonzero(ok)
        for piece in kept(table, ok):  # the gaps of all would be as large as the table
            rows, rest = rest[: len(piece)], rest[len(piece) :]
            total[rows] = gaps = np.maximum(0, pc.list_value_length(piece["token_s"]).to_numpy() - 1)
            late = np.flatnonzero(metric.of(piece) > self.bound.limit)  # few, so that only they are looked up
            late_row = np.searchsorted(np.cumsum(gaps), late, side="right")
            within[rows] = gaps - np.bincount(late_row, minlength=len(piece))
        return within, total


@dataclass(frozen=True, slots=True, eq=False)
class Score:
    """How a table fared under an SLO: `met` (requests,) joint over the bounds that bind every request.

    A request that failed meets nothing. A share of no requests is NaN, and so is the attainment where every
    bound is on a percentile: then the percentiles alone decide, for which a failed request is infinitely slow.
    """

    met: Mask
    attainment: float
    goal: float
    bounds: tuple[BoundScore, ...]
    by_class: dict[str, float]
    unknown: bool = False

    @property
    def by_request(self) -> bool:
        """Whether single requests are scored: not where every bound is on a percentile of the run."""
        return not self.bounds or any(scored.bound.percentile is None for scored in self.bounds)

    @property
    def binding(self) -> BoundScore | None:
        """The bound with the least room."""
        return min((row for row in self.bounds if row.room == row.room), key=lambda each: each.room, default=None)

    @property
    def passed(self) -> bool:
        """Whether attainment reaches the goal and every percentile bound holds."""
        return self.reaches(self.goal)

    @property
    def percentiles_hold(self) -> bool:
        """Whether every bound on a percentile holds."""
        return all(scored.passed for scored in self.bounds if scored.bound.percentile is not None)

    def limits_s(self, metric: str) -> Floats:
        """(requests,) the tightest bound that each request has on a metric, infinite where it has none."""
        limits_s = np.full(len(self.met), np.inf)
        for scored in self.bounds:
            if scored.bound.metric == metric and scored.bound.percentile is None:
                limits_s = np.where(scored.applies, np.minimum(scored.limit_s, limits_s), limits_s)
        return limits_s

    def reaches(self, goal: float) -> bool:
        """Whether a share `goal` of the requests meets everything, and every percentile bound holds."""
        enough = self.attainment >= goal if self.by_request else len(self.met) > 0
        return enough and self.percentiles_hold


class ObjectiveCounts:
    """Requests counted under an SLO piece by piece: memory does not grow with their number.

    `met` and `of` hold, for the joint share and for each bound, counts by part (parts,), such as blocks of time. They
    count requests; under a bound on a percentile of pooled gaps they count gaps.
    """

    def __init__(self, slo: Slo) -> None:
        self._slo = slo
        self.met: dict[ShareKey, Counts] = {}
        self.of: dict[ShareKey, Counts] = {}

    def __repr__(self) -> str:
        return (
            f"<ObjectiveCounts {', '.join(f'{key}: {self.met[key].sum()}/{of.sum()}' for key, of in self.of.items())}>"
        )

    def add(self, table: pa.Table, part: Counts) -> None:
        """Count the requests of a table, each in its part (requests,); those of a part below 0 are left out."""
        scored = score(table, self._slo)
        self._add(JOINT, part, scored.met, np.ones(len(part), bool))
        for row in scored.bounds:
            self._add(row.bound, part, *row.counts(table))

    def _add(self, key: ShareKey, part: Counts, met: Counts | Mask, of: Counts | Mask) -> None:
        inside = part >= 0
        for total, weight in ((self.met, met), (self.of, of)):
            total[key] = added(total.get(key, np.zeros(0, np.int64)), np.bincount(part[inside], weight[inside]))


def added(counts: Counts, more: npt.NDArray[np.generic]) -> Counts:
    """Counts by part (parts,) and more of them, as long as the longer of both."""
    total = np.zeros(max(len(counts), len(more)), np.int64)
    total[: len(counts)] = counts
    total[: len(more)] += more.astype(np.int64)
    return total


Pieces: TypeAlias = Callable[[], Iterator[pa.Table]]


class Pooled(Aggregate):
    """What is counted of the pooled metrics of the requests that ended well, as they pass."""

    def __init__(self) -> None:
        self.counted = {name: Counted() for name, metric in metrics().items() if metric.pooled}

    def add(self, piece: pa.Table) -> None:
        """Count the next requests."""
        for name, counted in self.counted.items():
            counted.add(sample(metrics()[name], piece, succeeded(piece)))


class Seen:
    """A table with what SLOs ask of it, computed once for however many of them.

    `whole` gives the same requests with all their token times, piece by piece, where `table` has only the first and
    the last of each, and `counted` what was counted of a pooled metric of those that ended well.
    """

    def __init__(self, table: pa.Table, whole: Pieces | None = None, counted: dict[str, Counted] | None = None) -> None:
        self.table = table
        self.ok = succeeded(table)
        self._whole = whole
        self._counted = counted or {}
        self._values: dict[str, Callable[[], Floats]] = {}
        self._own: dict[str, Floats | None] = {}
        self._tagged: dict[str, Mask] = {}
        self._classes: tuple[npt.NDArray[np.int64], list[str]] | None = None

    def of(self, table: pa.Table) -> Seen:
        """The same requests in a table that differs in the bounds that they bring along."""
        seen = Seen(table, self._whole)
        seen._values = self._values
        return seen

    @property
    def is_thin(self) -> bool:
        """Whether the table has only the first and the last token time of each request."""
        return self._whole is not None

    def values(self, metric: str) -> Floats:
        """(requests,) values of a metric, NaN where undefined, infinite where unknown: no bound is shown to be met.

        Do not change them.
        """
        if metric not in self._values:
            plugin = metrics()[metric]
            thin = self._whole is None or not plugin.gaps
            parts = iter([self.table]) if thin else self.pieces()
            values = joined((per_request(plugin, part) for part in parts), len(self.table))
            if (unknown := self.unknown(metric)) is not None:  # pieces of a large run do not tell it
                values[unknown] = np.inf
            self._values[metric] = stored(values)
        return self._values[metric]()

    def unknown(self, metric: str) -> Mask | None:
        """(requests,) whose value is unknown, as the answer was held back on its way; None where none was."""
        return held_back(metrics()[metric], self.table)

    def sample(self, metric: str, wanted: Mask) -> Floats:
        """The values of a pooled metric over the requests in `wanted` (requests,), one per token event at most."""
        if self._whole is None:
            return sample(metrics()[metric], self.table, wanted)
        return joined(self._sampled(metrics()[metric], wanted), pc.sum(self.table["events"]).as_py() or 0)

    def selected(self, metric: str, wanted: Mask, qs: Sequence[float]) -> Selected:
        """What the values of `sample` are, without holding them: those of a large run do not fit into memory."""
        counted = self._counted.get(metric) if wanted is self.ok and self.unknown(metric) is None else None
        return selected(lambda: self._sampled(metrics()[metric], wanted), qs, counted)

    def _sampled(self, metric: Metric, wanted: Mask) -> Iterator[Floats]:
        start = 0
        if (unknown := self.unknown(metric.name)) is not None:
            wanted = wanted & ~unknown
        for piece in self.pieces():
            yield sample(metric, piece, wanted[start : start + len(piece)])
            start += len(piece)

    def pieces(self) -> Iterator[pa.Table]:
        """The requests with all their token times, in pieces."""
        return pieces(self.table) if self._whole is None else self._whole()

    def own(self, metric: str) -> Floats | None:
        """(requests,) the bounds that requests bring along, NaN where one brings none; None where none does."""
        if metric not in BROUGHT or self.table[BROUGHT[metric]].null_count == len(self.table):
            return None
        if metric not in self._own:
            self._own[metric] = np.asarray(self.table[BROUGHT[metric]].to_numpy(), np.float64)
        return self._own[metric]

    def tagged(self, tag: str) -> Mask:
        """(requests,) whether a request is of this class."""
        if tag not in self._tagged:
            self._tagged[tag] = pc.fill_null(pc.equal(self.table["tag"], tag), False).to_numpy()
        return self._tagged[tag]

    def classes(self) -> tuple[npt.NDArray[np.int64], list[str]] | None:
        """(requests,) number of the class of each, and the names; None where no request has a tag."""
        tags = self.table["tag"]
        if tags.null_count == len(tags):
            return None
        if self._classes is None:
            coded = pc.fill_null(tags, UNTAGGED).combine_chunks().dictionary_encode()
            self._classes = coded.indices.to_numpy().astype(np.int64), coded.dictionary.to_pylist()
        return self._classes


def score(table: pa.Table, slo: Slo, seen: Seen | None = None, *, unknown_meets: bool = False) -> Score:
    """Score the requests of a table, failed ones included; `seen` of that table is reused by other SLOs.

    A value that is unknown, as its answer was held back, misses its bound, or meets it with `unknown_meets`: the truth
    lies between these two (`harness.validity.remote.resolution`). Where all are, the score is `unknown`.

    An undefined value (TPOT of one token) meets its bound, and so does an equal one. A bound for a class
    takes the place of the bound for all there; a request's own `slo_ttft_s` or `slo_tpot_s` that of both. For
    a percentile bound a failed request counts as infinitely slow. No bound at all: `met` is `ok`.
    Raises UsageError for a bound on a metric that the table cannot tell (`harness.metrics.measure.missing`).
    """
    check_bounds(table, (bound.metric for bound in slo.bounds))
    run = _Run(Seen(table) if seen is None else seen, slo, unknown_meets=unknown_meets)
    singles = [run.score_each(b) for b in slo.bounds if b.percentile is None] + run.score_own()
    percentiles = [run.score_percentile(b) for b in slo.bounds if b.percentile is not None]
    met = run.seen.ok.copy()
    for scored in singles:
        met &= scored.met
    unknown = any(run.nothing_known(scored.bound) for scored in singles + percentiles)
    if (percentiles and not singles) or unknown:  # a percentile binds no single request: `met` is then merely `ok`
        return Score(met, float("nan"), slo.goal, (*singles, *percentiles), {}, unknown)
    return Score(met, share(met), slo.goal, (*singles, *percentiles), _by_class(run.seen, met))


def stored_slo(slo: Slo) -> StoredSlo:
    """The SLO as run.json and answers hold it: the text for people, the bounds for `restored_slo`."""
    bounds = [StoredBound(metric=b.metric, limit=b.limit, tag=b.tag, percentile=b.percentile) for b in slo.bounds]
    return StoredSlo(text=str(slo), bounds=bounds, goal=slo.goal)


def restored_slo(info: RunInfo | StoredSlo) -> Slo:
    """The SLO that a run was to meet, from its run.json or an answer; without bounds when it had none."""
    held = info if isinstance(info, StoredSlo) else info.slo
    goal = float(held.goal or Slo().goal)
    if held.bounds is None:
        return parse_slo(held.text or "", goal=goal)
    for bound in held.bounds:
        if bound.metric not in metrics():
            raise no_such("metric", bound.metric, metrics(), "The SLO of the run has a bound on it.")
    return Slo(tuple(Bound(b.metric, float(b.limit), b.tag, b.percentile) for b in held.bounds), goal)


def restored_key(text: str) -> ShareKey:
    """The key of a share, from its text in the file of a search."""
    if text == JOINT:
        return JOINT
    metric, brought, _ = text.partition(" (")
    return Bound(metric, float("inf")) if brought else parse_slo(text).bounds[0]


def meets(attainment: float | None, percentiles: Iterable[bool | None], least: float) -> bool:
    """Whether a stored score has `least` of the requests within the SLO, and passed all bounds on `percentiles`.

    Where every bound is on a percentile there is no such share (None), and the percentiles decide alone.
    """
    passed = list(percentiles)
    enough = bool(passed) if attainment is None else attainment >= least
    return enough and False not in passed


def met_bounds(values: Mapping[str, Floats], bounds: Iterable[Bound]) -> Mask:
    """(requests,) whether each request meets the bounds, of its values of each metric; NaN meets, as in `score`."""
    met = np.ones(len(next(iter(values.values()))), bool)
    for bound in bounds:
        met &= ~(values[bound.metric] > bound.limit)
    return met


def share(met: Mask) -> float:
    """Share of True, NaN of nothing."""
    return float(np.count_nonzero(met) / len(met)) if len(met) else float("nan")


class _Run:
    """A table under an SLO."""

    def __init__(self, seen: Seen, slo: Slo, *, unknown_meets: bool) -> None:
        self.seen = seen
        self.slo = slo
        self._unknown_meets = unknown_meets

    def nothing_known(self, bound: Bound) -> bool:
        """Whether all answers were held back and hide what this bound is on."""
        unknown = None if self._unknown_meets else self.seen.unknown(bound.metric)
        return unknown is not None and bool(unknown.all())

    def attainment(self, bound: Bound, met: Mask, applies: Mask) -> float:
        """The share within the bound of its class of traffic; NaN of none, and where nothing is known."""
        return float("nan") if self.nothing_known(bound) else share(met[applies])

    def applies(self, bound: Bound) -> Mask:
        """(requests,) which requests a bound applies to: its class, or all that have no bound of their class."""
        if bound.tag is not None:
            return self.seen.tagged(bound.tag)
        mask = np.ones(len(self.seen.ok), bool)
        for other in self.slo.bounds:
            if other.tag is not None and (other.metric, other.percentile) == (bound.metric, bound.percentile):
                mask &= ~self.seen.tagged(other.tag)
        return mask

    def score_each(self, bound: Bound) -> BoundScore:
        """A bound that every request of its class must meet."""
        brought_s = self.seen.own(bound.metric)
        limit_s = bound.limit if brought_s is None else np.where(np.isnan(brought_s), bound.limit, brought_s)
        return self._scored(bound, self.applies(bound), limit_s)

    def score_own(self) -> list[BoundScore]:
        """The bounds that requests bring along where the SLO has none for them: no bound on the metric, or no class."""
        scored = []
        for metric in BROUGHT:
            if (brought_s := self.seen.own(metric)) is None:
                continue
            applies = ~np.isnan(brought_s)
            for bound in self.slo.bounds:
                if bound.metric == metric and bound.percentile is None:
                    applies &= ~self.applies(bound)
            if applies.any():
                scored.append(self._scored(Bound(metric, float("inf")), applies, brought_s))
        return scored

    def _scored(self, bound: Bound, applies: Mask, limit_s: Floats | float) -> BoundScore:
        met = self._met(bound, applies, limit_s)
        attainment = self.attainment(bound, met, applies)
        room = attainment - self.slo.goal
        return BoundScore(bound, limit_s, applies, met, attainment, None, room >= 0, room)

    def _met(self, bound: Bound, applies: Mask, limit_s: Floats | float) -> Mask:
        late: Mask = self.seen.values(bound.metric) > limit_s  # NaN compares False: it meets
        if self._unknown_meets and (unknown := self.seen.unknown(bound.metric)) is not None:
            late &= ~unknown
        late &= applies
        late |= ~self.seen.ok
        return np.logical_not(late, out=late)

    def score_percentile(self, bound: Bound) -> BoundScore:
        """A bound on a percentile of the run."""
        q = (bound.percentile or 0.0) / 100
        applies = self.applies(bound)
        met = self._met(bound, applies, bound.limit)
        value_s = self._percentile(bound, q, applies)
        attainment = self.attainment(bound, met, applies)
        passed = not value_s > bound.limit
        return BoundScore(bound, bound.limit, applies, met, attainment, value_s, passed, attainment - q)

    def _percentile(self, bound: Bound, q: float, applies: Mask) -> float:
        ok = self.seen.ok
        if (unknown := self.seen.unknown(bound.metric)) is not None:
            # as slow as a failed request, or with `unknown_meets` left out
            applies, ok = (applies & ~unknown, ok) if self._unknown_meets else (applies, ok & ~unknown)
        failed = int((applies & ~ok).sum())
        if not metrics()[bound.metric].pooled:
            return with_failures(self.seen.values(bound.metric)[applies & ok], failed, q)
        if failed > (1 - q) * applies.sum():  # a failed request has no events to count: the share decides
            return float("inf")
        if self.seen.is_thin:
            return self.seen.selected(bound.metric, applies & ok, [q]).quantiles[0]
        return quantile(self.seen.sample(bound.metric, applies & ok), q)


def _by_class(seen: Seen, met: Mask) -> dict[str, float]:
    """Joint attainment of each class of traffic; empty where no request has a tag."""
    coded = seen.classes()
    if coded is None:
        return {}
    codes, names = coded
    met_of = np.bincount(codes, met) / np.bincount(codes)
    return dict(sorted(zip(names, met_of.tolist(), strict=True)))


def parse_slo(text: str, *, goal: float = 0.9) -> Slo:
    """The SLO of `metric=seconds` parts joined by commas: 'ttft=0.25,tpot=100ms,ttft@long=2,p99:itl=0.2'.

    `@class` binds one class of traffic, in the place of the bound for all; `p99:` binds a percentile of the
    run instead of each request; an empty text has no bounds. Raises UsageError for whatever it cannot take.
    """
    if not 0 < goal <= 1:
        raise UsageError(f"The goal must be a share above 0 and up to 1, got {goal:g}.")
    bounds: list[Bound] = []
    for part in text.split(",") if text.strip() else []:
        bound = _bound(part.strip(), text)
        if any(bound.name == other.name for other in bounds):
            raise UsageError(f"'{text}': the bound on {bound.name} is given twice.")
        bounds.append(bound)
    return Slo(tuple(bounds), goal)


def _bound(part: str, whole: str) -> Bound:
    match = _BOUND.fullmatch(part)
    if not part or match is None:
        quoted = f"'{part}'" if part == whole.strip() else f"'{whole}': '{part}'"
        raise UsageError(f"{quoted} is no bound; write metric=seconds, such as ttft=0.25,tpot=100ms.")
    name, limit, tag = match["metric"].strip(), match["limit"], match["tag"]
    metric = _metric(name)
    if limit is None or not limit.strip():
        raise UsageError(
            f"'{whole}': the bound on {name} has no value; write {metric.name}=0.25 or {metric.name}=250ms."
        )
    if tag is not None and not tag.strip():
        raise UsageError(f"'{whole}': no class of traffic follows the @; write {metric.name}@class={limit}.")
    limit_s = seconds(limit, f"'{whole}': {name}")
    if limit_s <= 0:
        raise UsageError(f"'{whole}': the bound on {name} must be above 0 s, got {limit.strip()}.")
    return Bound(metric.name, limit_s, tag.strip() if tag else None, _percentile(match["percentile"], whole))


def _metric(name: str) -> Metric:
    latencies = {n: m for n, m in metrics().items() if m.unit == "s"}
    plain = name.lower().replace("-", "_")
    if plain not in latencies:
        raise no_such("latency metric", name, latencies)
    return latencies[plain]


def _percentile(given: str | None, whole: str) -> float | None:
    if given is None:
        return None
    try:
        value = float(given)
    except ValueError:
        value = -1.0
    if not 0 < value <= 100:
        raise UsageError(f"'{whole}': 'p{given}:' is no percentile; write p99:metric=seconds, above 0 and up to 100.")
    return value
