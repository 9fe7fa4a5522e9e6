"""What a capacity is asked to keep: shares of requests, each with the goal that it has to reach."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from harness.api import Bound, Slo
from harness.errors import UsageError
from harness.measure import metrics, succeeded
from harness.metrics._lists import kept
from harness.slo import BoundScore, bound_text, score

Mask: TypeAlias = npt.NDArray[np.bool_]
Definition = Literal["joint", "separate", "sarathi"]

JOINT = "joint"
"""Name of the share of requests that keep every bound on a single request."""

_PERCENTILE = re.compile(r"p[\d.]+:")

DELAY_S = 2.0
"""Longest median wait for a first turn in the capacity of Sarathi-Serve (OSDI 2024, section 5)."""


@dataclass(frozen=True, slots=True)
class Condition:
    """The share `text` (`joint`, or a bound) must be at least `goal`.

    A bound on a percentile is such a share too: p99 of TTFT is at most 0.5 s just when 99% of the requests of all
    trials at a rate have it within 0.5 s.
    """

    text: str
    goal: float


@dataclass(frozen=True, slots=True, eq=False)
class Share:
    """How one trial fared in one share: `met` of `of`, and whom it met where it is a share of requests.

    `mask` (kept,) is in order of request ids; None for shares of gaps and of one class of traffic.
    """

    text: str
    met: int
    of: int
    mask: Mask | None = None

    @property
    def is_percentile(self) -> bool:
        """Whether it is that of a bound on a percentile, such as p99:ttft=0.5."""
        return _PERCENTILE.match(self.text) is not None


def under(definition: Definition, slo: Slo) -> Slo:
    """The SLO of a definition: Sarathi's adds its bound on the median scheduling delay. Raises UsageError."""
    if definition != "sarathi":
        return slo
    if not any(bound.metric == "itl" and bound.percentile is not None for bound in slo.bounds):
        raise UsageError(
            "--definition sarathi needs a bound on a percentile of itl; give one, such as --slo p99:itl=0.2."
        )
    delay = Bound("scheduling_delay", DELAY_S, None, 50.0)
    others = tuple(bound for bound in slo.bounds if bound.metric != delay.metric)
    return replace(slo, bounds=(*others, delay))


def conditions(slo: Slo, goal: float, definition: Definition) -> tuple[Condition, ...]:
    """What must hold at a goal: all bounds at once, or each of them, and every bound on a percentile."""
    each = [Condition(bound_text(bound), goal) for bound in slo.bounds if bound.percentile is None]
    whole = [Condition(bound_text(b), b.percentile / 100) for b in slo.bounds if b.percentile is not None]
    if definition == "separate" and each:
        return (*each, *whole)
    return (Condition(JOINT, goal), *whole)


def shares(table: pa.Table, slo: Slo) -> tuple[Share, ...]:
    """Every share of a table in order of request ids: joint, then one per bound."""
    scored = score(table, slo)
    joint = Share(JOINT, int(scored.met.sum()), len(table), scored.met)
    return (joint, *(_share(table, found) for found in scored.bounds))


def _share(table: pa.Table, found: BoundScore) -> Share:
    metric = metrics()[found.bound.metric]
    if found.bound.percentile is not None and metric.pooled:
        return Share(found.text, *_pooled(table, found))
    met = found.met[found.applies]
    return Share(found.text, int(met.sum()), len(met), met if found.applies.all() else None)


def _pooled(table: pa.Table, found: BoundScore) -> tuple[int, int]:
    """Values within the bound, of all: a value per gap, and one beyond it per failed request."""
    ok = succeeded(table)
    metric = metrics()[found.bound.metric]
    met = of = int((found.applies & ~ok).sum())
    met = 0
    for piece in kept(table, found.applies & ok):
        values = metric.of(piece)
        met += int((values <= found.bound.limit).sum())
        of += len(values)
    return met, of


def certain(shares: Sequence[Share], wanted: Sequence[Condition], planned: int) -> bool | None:
    """Whether a run of `planned` requests keeps its conditions, as soon as what has ended decides it; else None.

    Failed: more have missed than may. Passed: as many have met as must. A share of something else than all requests
    is decided by the end of the run alone.
    """
    found = {share.text: share for share in shares}
    sides = [_side(found[condition.text], condition, planned) for condition in wanted]
    if False in sides:
        return False
    return True if all(sides) else None


def _side(share: Share, condition: Condition, planned: int) -> bool | None:
    if share.mask is None:
        return None
    needed = condition.goal * planned
    if share.of - share.met > planned - needed:
        return False
    return True if share.met >= needed else None


def kept_all(shares: Sequence[Share], wanted: Sequence[Condition]) -> bool:
    """Whether a trial that is over keeps its conditions."""
    found = {share.text: share for share in shares}
    return all(found[c.text].met >= c.goal * found[c.text].of for c in wanted)


def bounds_of(slo: Slo, goal: float) -> Iterator[Condition]:
    """Each bound by itself, with the goal that it has: what tells which of them binds."""
    for bound in slo.bounds:
        yield Condition(bound_text(bound), goal if bound.percentile is None else bound.percentile / 100)
