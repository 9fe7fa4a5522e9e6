"""What stored runs are scored under: an SLO, or a success rule that is none."""

from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from harness.api import Slo
from harness.experiments.rescore import fastgen
from harness.metrics.measure import check_bounds
from harness.metrics.objective import BoundScore, Score, Seen, parse_slo, score, share

Mask: TypeAlias = npt.NDArray[np.bool_]
Objective: TypeAlias = Slo | fastgen.Fastgen


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """One condition of an objective: the share of `requests` that keeps it; `scored` where it is a bound."""

    text: str
    attainment: float
    requests: int
    scored: BoundScore | None = None

    @property
    def is_percentile(self) -> bool:
        """Whether it binds a percentile of the run instead of each request."""
        return self.scored is not None and self.scored.bound.percentile is not None


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """How a run fares under an objective: `met` (requests,) joint, then each condition, and the one that binds."""

    text: str
    met: Mask
    parts: tuple[Part, ...]
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
        shares = [p.attainment for p in self.parts if not p.is_percentile and p.requests]
        enough = min(shares, default=self.attainment) >= goal if self.by_request else len(self.met) > 0
        return enough and (self.score is None or self.score.percentiles_hold)


def read(given: str) -> Objective:
    """An SLO such as 'ttft=0.25,tpot=0.1', or 'fastgen:rate=4'. Raises UsageError."""
    return fastgen.read(given) if fastgen.is_fastgen(given) else parse_slo(given)


def outcome(seen: Seen, objective: Objective, goal: float) -> Outcome:
    """A run under an objective; `goal` decides which bound of an SLO binds."""
    if isinstance(objective, Slo):
        slo = replace(objective, goal=goal)
        scored = score(seen.table, slo, seen)
        parts = tuple(Part(str(b.bound), b.attainment, int(np.count_nonzero(b.applies)), b) for b in scored.bounds)
        binding = None if scored.binding is None else str(scored.binding.bound)
        return Outcome(str(slo) or "no bound", scored.met, parts, binding, scored)
    check_bounds(seen.table, ("itl",))
    found = fastgen.success(seen, objective)
    named = (("prompt in time", found.prompt), ("answer in time", found.answer))
    parts = tuple(Part(name, share(mask), len(mask)) for name, mask in named)
    binding = min(parts, key=lambda p: p.attainment).text if len(found.met) else None
    return Outcome(fastgen.written(objective), found.met, parts, binding)
