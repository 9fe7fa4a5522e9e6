"""agents.json as a type: the trials of a search, and for each tier how many agents were found."""

import math
from typing import Literal

from msgspec import field

from harness.data.codec import Count, Document, Facts, Number, Part, Positive, Share, Text
from harness.data.run_json import Warned, Workload
from harness.experiments.capacity.capacity_json import HorizonRuns, RunsNear


class TrialShare(Part, frozen=True, kw_only=True):
    """The share `met` / `of` of a condition in one trial, also by quarter of it; `sd` is its standard deviation over
    sessions, as whole."""

    text: str
    met: Count
    of: Count
    sd: Positive | None = None
    met_by: list[Count] = field(default_factory=list)
    of_by: list[Count] = field(default_factory=list)

    @property
    def independent(self) -> float:
        """The part of the requests that counts as independent, by the scatter of the sessions."""
        if self.sd is None or not self.of:
            return 1.0
        p = (self.met + 0.5) / (self.of + 1)
        binomial_sd = math.sqrt(p * (1 - p) / self.of)
        return min(1.0, (binomial_sd / max(self.sd, binomial_sd)) ** 2)


class AgentTrial(Part, frozen=True, kw_only=True):
    """One trial: so many agents for `seconds` of `span_s` after the warm-up. `settled` is the share of the
    prompts sent ahead, to warm the cache, that were answered before. `speed_p10` are tokens per second that nine tenths
    of the requests reach: the slowest decile."""

    users: Count
    seed: Count
    span_s: Positive = 0.0
    seconds: Positive
    requests: Count
    sessions: Count
    wall_s: Positive
    settled: Share = 1.0
    shares: list[TrialShare]
    ttft_p95_s: Positive | None = None
    speed_p10: Positive | None = None
    requests_rps: Positive = 0.0
    output_tps: Positive = 0.0
    cache_found: Share | None = None

    def share(self, text: str) -> TrialShare:
        """The share of the condition of that name."""
        return next(share for share in self.shares if share.text == text)


class TierAgents(Part, frozen=True, kw_only=True):
    """The agents at a tier, with their 95% interval, and what that is per GPU, kW and dollar.

    `agents` is where the condition `binding` crosses its goal, so that the whole number below meets it; None without an
    interval inside of what was tried. `horizon` and `near` are as in capacity.json.
    `met` is the largest number that was tried and met the tier, `missed` the least that missed it.
    """

    tier: str
    state: Literal["resolved", "unresolved", "unreachable"]
    agents: Positive | None = None
    low: Positive | None = None
    high: Positive | None = None
    binding: Text = None
    met: Count | None = None
    missed: Count | None = None
    per_gpu: Positive | None = None
    per_kw: Positive | None = None
    usd_per_agent_hour: Positive | None = None
    requests_rps: Positive | None = None
    why: Text = None
    horizon: HorizonRuns | None = None
    near: RunsNear | None = None


class AgentsAnswer(Document, frozen=True, kw_only=True):
    """agents.json. A search that is not over has no `answers`; `trials` are all that were made, and `invalid` tells why
    others do not count."""

    schema: int = 1
    kind: Literal["agents"] = "agents"
    versions: Facts = field(default_factory=dict)
    spec: Facts = field(default_factory=dict)
    workload: Text = None
    traffic: Workload = Workload()
    backend: Facts = field(default_factory=dict)
    tiers: list[str] = field(default_factory=list)
    goal: Share = 0.9
    clock: Text = None
    horizon_s: Positive = 0.0
    tolerance: Positive = 0.1
    state: Text = None
    exit_code: Count = 0
    gpus: Count | None = None
    kw: Positive | None = None
    usd_per_hour: Number | None = None
    answers: list[TierAgents] = field(default_factory=list)
    trials: list[AgentTrial] = field(default_factory=list)
    invalid: list[str] = field(default_factory=list)
    warnings: list[Warned] = field(default_factory=list)
    requests: Count = 0
    wall_s: Positive = 0.0
