"""What a deployment serves at most, from its step times and KV memory alone: no run, so it costs nothing.

In a steady state a step of `b` sequences that decode also computes the share of prompts that keeps `b` of them
decoding, and the replica answers `b / output` requests a step. The more sequences, the more requests, as long as their
KV fits and a step is no longer than a bound on TPOT. Waiting is left out, so that no replica serves more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from harness.api import LatencyModel, Slo
from harness.data.lists import number
from harness.data.schedule import Schedule
from harness.experiments.place.systems import Deployment, Group
from harness.options import RunSpec
from harness.runner.plan import load_workload
from harness.spec import parse

if TYPE_CHECKING:
    from harness.experiments.place.settings import PlaceOptions

DRAWN = 10_000
"""Requests whose mean lengths stand for the traffic."""
MOST_SEQS = 256
"""Sequences of a batch, as schedulers limit them."""
PROMPTS = (1, 4)
"""Prompts in a step of prefill alone."""
GAPS = ("tpot", "itl")
"""Metrics whose bounds limit how long a step may take."""
DRAFTED = 4.0
"""Tokens of a step at most where some are drafted."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """Mean tokens of a request: prompt, output, and those in KV memory while it decodes; and the longest prompt of the
    share of requests that is the goal."""

    prompt: float
    output: float
    cached: float
    long_prompt: float


def tokens_of(spec: RunSpec, goal: float) -> Tokens:
    """Those of the traffic of a spec."""
    workload = load_workload(replace(spec, requests=None)).workload
    drawn = Schedule.draw(workload, seed=spec.seed, requests=DRAWN if spec.trace is None else None).table
    prompt, output = number(drawn, "prompt_tokens"), number(drawn, "output_tokens")
    cached = np.average(prompt + output / 2, weights=np.maximum(output, 1e-9))
    return Tokens(float(prompt.mean()), float(output.mean()), float(cached), float(np.quantile(prompt, goal)))


def replica_rps(options: PlaceOptions, group: Group, model: LatencyModel, kv_tokens: int, tokens: Tokens) -> float:
    """Requests per second of one replica at most; of one role, of its part of the work. A prefix cache may spare all
    prompts. 0: the SLO is missed without load."""
    spec, shape = options.spec, group.shape
    no_prompt = group.role == "decode" or spec.prefix_cache not in (None, "off")
    prompt, long_prompt = (1, 1) if no_prompt else (max(1, round(tokens.prompt)), math.ceil(tokens.long_prompt))
    if float(model.step_s([(long_prompt, 0)], 0, 0)) * shape.pp > _limit_s(options.slo, ("ttft",)):
        return 0.0  # without load too
    if group.role == "prefill":
        return max(n / float(model.step_s([(prompt, 0)] * n, 0, 0)) for n in PROMPTS)
    a_step = DRAFTED if "speculate" in parse(spec.backend).args else 1.0
    longest_s = a_step * _limit_s(options.slo, GAPS)
    best_rps, seqs = 0.0, 1
    while seqs <= MOST_SEQS and seqs * shape.pp * tokens.cached <= kv_tokens:
        new = 0 if group.role == "decode" else round(seqs * prompt / tokens.output)
        pieces = [(min(new, prompt), 0)] * -(-new // prompt)
        step_s = float(model.step_s(pieces, seqs, round(seqs * tokens.cached)))
        if step_s * shape.pp > longest_s:
            break
        best_rps = max(best_rps, a_step * seqs / (tokens.output * step_s))
        seqs += max(1, seqs // 4)
    return best_rps


def _limit_s(slo: Slo, limited: tuple[str, ...]) -> float:
    """The lowest limit of these metrics that as many requests have to keep as the goal says, or more."""
    bounds = (bound for bound in slo.bounds if bound.metric in limited and bound.tag is None)
    return min((b.limit for b in bounds if b.percentile is None or b.percentile >= 100 * slo.goal), default=math.inf)


def served_rps(deployment: Deployment, rates: Mapping[Group, float]) -> float:
    """Requests per second that its weaker side serves at most; `rates` are those of single replicas."""
    return min(group.count * rates[replace(group, count=1)] for group in deployment.groups)


def units(options: PlaceOptions, rates: Mapping[Group, float]) -> list[Deployment]:
    """The units of the algorithms by what they serve at most per GPU, money or power, the best first; of equal ones
    that with fewer GPUs, as DistServe breaks ties."""

    def value(unit: Deployment) -> tuple[float, int, str]:
        return -options.objective.of(unit, served_rps(unit, rates)), unit.gpus, unit.key

    prefills, decodes = ([group for group in rates if group.role == role] for role in ("prefill", "decode"))
    candidates = [Deployment((group,)) for group in rates if group.role == "mixed"]
    for prefill, decode in product(prefills, decodes):
        alike = prefill.hardware == decode.hardware and options.cluster.share_nodes(prefill.shape, decode.shape)
        if "low" in options.algorithms and alike:
            candidates.append(Deployment((prefill, decode)))
        if "high" in options.algorithms and (ratios := [*_ratios(options, prefill, decode, rates)]):
            candidates.append(min(ratios, key=value))
    return sorted(dict.fromkeys(candidates), key=value)


def _ratios(options: PlaceOptions, prefill: Group, decode: Group, rates: Mapping[Group, float]) -> Iterator[Deployment]:
    """Numbers of both sides of which neither waits long for the other (DistServe, algorithm 1)."""
    pair, cluster = Deployment((prefill, decode)), options.cluster
    for n in range(1, cluster.gpus // prefill.gpus + 1):
        even = n * rates[prefill] / rates[decode]
        counts = {(n, max(1, math.floor(even))), (n, math.ceil(even))}
        for ratio in sorted(counts):
            if math.gcd(*ratio) == 1 and cluster.holds(unit := pair.counted(*ratio)):
                yield unit
