"""What stored runs are scored under: an SLO, or a success rule that is none."""

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from harness.api import Slo
from harness.data.lists import gap_lists, lists, number
from harness.metrics.deadlines import worst_lag, worst_moving_average
from harness.metrics.measure import check_bounds
from harness.metrics.objective import BoundScore, Score, Seen, parse_slo, score, share
from harness.spec import build, parse, text_of

Mask: TypeAlias = npt.NDArray[np.bool_]


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


@dataclass(frozen=True, slots=True, eq=False)
class Success:
    """(requests,) whether the prompt, and whether the answer was fast enough; `met` is both."""

    met: Mask
    prompt: Mask
    answer: Mask


def written(rule: Fastgen) -> str:
    """The text that `read` reads back."""
    return text_of(rule, "fastgen") if rule != Fastgen() else "fastgen:rate=4"


def success(seen: Seen, rule: Fastgen) -> Success:
    allowed_s = number(seen.table, "prompt_tokens") / rule.prompt_tps
    prompt = seen.ok & ~(seen.values("ttft") > allowed_s)
    step_s = 1.0 / rule.rate
    parts = []
    for piece in seen.pieces():
        gaps = gap_lists(lists(piece, "token_s"))
        if rule.rule == "ema":
            parts.append(~(worst_moving_average(gaps) >= step_s))
        else:
            parts.append(~(worst_lag(gaps, step_s) > 0))
    answer = seen.ok & np.concatenate([np.empty(0, bool), *parts])
    return Success(prompt & answer, prompt, answer)


Objective: TypeAlias = Slo | Fastgen


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
        parts = tuple(Part(str(b.bound), b.attainment, int(np.count_nonzero(b.applies)), b) for b in scored.bounds)
        binding = None if scored.binding is None else str(scored.binding.bound)
        return Outcome(str(slo) or "no bound", scored.met, parts, binding, scored)
    check_bounds(seen.table, ("itl",))
    found = success(seen, objective)
    named = (("prompt in time", found.prompt), ("answer in time", found.answer))
    parts = tuple(Part(name, share(mask), len(mask)) for name, mask in named)
    binding = min(parts, key=lambda p: p.attainment).text if len(found.met) else None
    return Outcome(written(objective), found.met, parts, binding)
