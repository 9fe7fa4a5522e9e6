"""How a table of requests scores under a service level objective."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from harness.api import Bound, Slo
from harness.measure import is_pooled, metrics, per_request, sample, succeeded
from harness.quantiles import quantile, with_failures
from harness.slo_text import bound_text, parse, text

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["BoundScore", "Score", "bound_text", "parse", "restored", "score", "stored", "text"]

Mask: TypeAlias = npt.NDArray[np.bool_]
Floats: TypeAlias = npt.NDArray[np.float64]

OWN = {"ttft": "slo_ttft_s", "tpot": "slo_tpot_s", "task": "slo_task_s"}
"""Metrics whose bound a request may bring along, and the column that holds it."""

UNTAGGED = "(untagged)"
"""The class of requests without a tag, where others have one."""


@dataclass(frozen=True, slots=True, eq=False)
class BoundScore:
    """How one bound fared.

    `applies` (requests,) is the class of traffic it binds; `met` (requests,) is True outside that class,
    unless the request failed. `attainment` is the share met within the class, `room` that share minus the
    one it needs. A percentile bound is decided by its `value_s`; its `met` plays no part in the joint score.
    """

    bound: Bound
    text: str
    applies: Mask
    met: Mask
    attainment: float
    value_s: float | None
    passed: bool
    room: float


@dataclass(frozen=True, slots=True, eq=False)
class Score:
    """How a table fared under an SLO: `met` (requests,) joint over the bounds that bind every request.

    `passed`: attainment reaches the goal and every percentile bound holds. `binding` is the bound with the
    least room. A request that failed meets nothing. A share of no requests is NaN.
    """

    met: Mask
    attainment: float
    bounds: tuple[BoundScore, ...]
    binding: BoundScore | None
    by_class: dict[str, float]
    passed: bool


def score(table: pa.Table, slo: Slo) -> Score:
    """Score the requests of a table, failed ones included.

    An undefined value (TPOT of one token) meets its bound, and so does an equal one. A bound for a class
    takes the place of the bound for all there; a request's own `slo_ttft_s` or `slo_tpot_s` that of both. For
    a percentile bound a failed request counts as infinitely slow. No bound at all: `met` is `ok`.
    """
    run = _Run(table, slo)
    each = [run.score_each(b) for b in slo.bounds if b.percentile is None] + run.score_own()
    whole = [run.score_percentile(b) for b in slo.bounds if b.percentile is not None]
    met: Mask = np.logical_and.reduce([run.ok, *(s.met for s in each)])
    attainment = share(met)
    passed = attainment >= slo.goal and all(s.passed for s in whole)
    binding = min((s for s in [*each, *whole] if s.applies.any()), key=lambda s: s.room, default=None)
    return Score(met, attainment, (*each, *whole), binding, _by_class(table, met), passed)


def stored(slo: Slo) -> dict[str, Any]:
    """The SLO as run.json holds it: the text for people, the bounds for `restored`."""
    return {"text": text(slo), "bounds": [asdict(bound) for bound in slo.bounds], "goal": slo.goal}


def restored(info: Mapping[str, Any]) -> Slo:
    """The SLO that a run was asked to keep, from its run.json; without bounds when it had none."""
    kept = info.get("slo")
    if not isinstance(kept, Mapping):
        return Slo()
    goal = float(kept.get("goal") or Slo().goal)
    if "bounds" not in kept:
        return parse(str(kept.get("text") or ""), goal=goal)
    return Slo(tuple(_restored(bound) for bound in kept["bounds"] or []), goal)


def _restored(kept: Mapping[str, Any]) -> Bound:
    return Bound(str(kept["metric"]), float(kept["limit"]), kept.get("tag"), kept.get("percentile"))


def share(met: Mask) -> float:
    """Share of True, NaN of nothing."""
    return float(met.mean()) if len(met) else float("nan")


class _Run:
    """A table under an SLO, with what several bounds need computed once."""

    def __init__(self, table: pa.Table, slo: Slo) -> None:
        self.table = table
        self.slo = slo
        self.ok = succeeded(table)
        self._values: dict[str, Floats] = {}

    def values(self, metric: str) -> Floats:
        if metric not in self._values:
            self._values[metric] = per_request(metrics()[metric], self.table)
        return self._values[metric]

    def applies(self, bound: Bound) -> Mask:
        """(requests,) whom a bound binds: its class, or all that have no bound of their class."""
        if bound.tag is not None:
            return self._tagged(bound.tag)
        found = np.ones(len(self.table), bool)
        for other in self.slo.bounds:
            if other.tag is not None and (other.metric, other.percentile) == (bound.metric, bound.percentile):
                found &= ~self._tagged(other.tag)
        return found

    def _tagged(self, tag: str) -> Mask:
        found: Mask = pc.fill_null(pc.equal(self.table["tag"], tag), False).to_numpy()
        return found

    def own(self, metric: str) -> Floats:
        """(requests,) the bounds that requests bring along, NaN where they bring none."""
        if metric not in OWN:
            return np.full(len(self.table), np.nan)
        return np.asarray(self.table[OWN[metric]].to_numpy(), np.float64)

    def score_each(self, bound: Bound) -> BoundScore:
        """A bound that every request of its class must meet."""
        own = self.own(bound.metric)
        return self._scored(bound, self.applies(bound), np.where(np.isnan(own), bound.limit, own))

    def score_own(self) -> list[BoundScore]:
        """The bounds that only requests themselves bring along."""
        found = []
        for metric in OWN:
            own = self.own(metric)
            if not np.isnan(own).all() and not any(
                b.metric == metric and b.percentile is None for b in self.slo.bounds
            ):
                found.append(self._scored(Bound(metric, float("inf")), ~np.isnan(own), own))
        return found

    def _scored(self, bound: Bound, applies: Mask, limit_s: Floats) -> BoundScore:
        met = self.ok & ~(applies & (self.values(bound.metric) > limit_s))  # NaN compares False: it meets
        attainment = share(met[applies])
        room = attainment - self.slo.goal
        return BoundScore(bound, _text(bound), applies, met, attainment, None, room >= 0, room)

    def score_percentile(self, bound: Bound) -> BoundScore:
        """A bound on a percentile of the run."""
        q = (bound.percentile or 0.0) / 100
        applies = self.applies(bound)
        met = self.ok & ~(applies & (self.values(bound.metric) > bound.limit))
        value_s = self._percentile(bound, q, applies)
        attainment = share(met[applies])
        passed = not value_s > bound.limit
        return BoundScore(bound, _text(bound), applies, met, attainment, value_s, passed, attainment - q)

    def _percentile(self, bound: Bound, q: float, applies: Mask) -> float:
        failed = int((applies & ~self.ok).sum())
        if not is_pooled(metrics()[bound.metric]):
            return with_failures(self.values(bound.metric)[applies & self.ok], failed, q)
        if failed > (1 - q) * applies.sum():  # a failed request has no events to count: the share decides
            return float("inf")
        return quantile(sample(metrics()[bound.metric], self.table, applies & self.ok), q)


def _text(bound: Bound) -> str:
    return bound_text(bound) if np.isfinite(bound.limit) else f"{bound.metric} (per request)"


def _by_class(table: pa.Table, met: Mask) -> dict[str, float]:
    """Joint attainment of each class of traffic; empty where no request has a tag."""
    tags = table["tag"]
    if tags.null_count == len(tags):
        return {}
    coded = pc.fill_null(tags, UNTAGGED).combine_chunks().dictionary_encode()
    codes = coded.indices.to_numpy()
    met_of = np.bincount(codes, met) / np.bincount(codes)
    return dict(sorted(zip(coded.dictionary.to_pylist(), met_of.tolist(), strict=True)))
