"""Builds a mix of classes from what a preset and options say."""

import dataclasses
import math

from harness import registry
from harness.api import Arrivals, Content, GapLaw, Lengths, Loaded, RateCurve
from harness.errors import UsageError
from workloads._build import (
    arrivals_of,
    at_most,
    expectation,
    for_run,
    prefixes_of,
    provenance,
    sessions_of,
    settles_s,
    slowed,
    span_of,
    spec_of,
    timing_of,
)
from workloads._presets import Class, Preset
from workloads.arrivals.closed import Closed
from workloads.blend import Blend
from workloads.mixed import Mixed, Sessions
from workloads.prefixes import MOST_GROUPS
from workloads.sessions.builtin import Fixed


def mix(
    name: str,
    preset: Preset,
    content: Content,
    *,
    rate_rps: float | None,
    arrivals: str | None,
    run: tuple[int | None, float | None],
) -> Loaded:
    """A mix of classes; arrivals that are given are split among the classes."""
    classes = copied(preset.classes)
    if len(classes) > MOST_GROUPS:
        raise UsageError(f"'{name}': a mix holds at most {MOST_GROUPS} classes, got {len(classes)}.")
    sessions: list[Sessions | None] = [
        Fixed(turns=1) if (s := sessions_of(c.sessions)) is None and c.deadline_s is not None else s
        for c in classes  # a deadline is that of a task, so a request with one is a task of one
    ]
    per_task = [1.0 if s is None else s.mean_requests for s in sessions]
    weights = weights_of(classes, per_task, preset.shares_of)  # of arrivals
    shared_spec = arrivals or preset.arrivals
    shared = None if shared_spec is None else _shared(shared_spec, rate_rps, preset, _mean(weights, per_task))
    tasks_rps = shared.mean_rate_rps if shared else (rate_rps or preset.rate_rps) / _mean(weights, per_task)
    total_rps = tasks_rps * _mean(weights, per_task)
    span_s = span_of(total_rps, run)
    shared = shared and for_run(shared, span_s)
    streams = tuple(
        _class(c, number, s, tasks_rps * weight, span_s)
        for number, (c, s, weight) in enumerate(zip(classes, sessions, weights, strict=True))
    )
    facts = _mixed_facts(classes, streams, preset)
    try:
        workload = Blend(streams, shared, tuple(weights) if shared else (), facts)
    except ValueError as error:
        raise UsageError(f"'{name}': {error}") from None
    parts = [shared] if shared else [c.arrivals for c in streams]
    names = ",".join(f"{c.tag}={registry.name_of(c.arrivals)}" for c in streams)
    return Loaded(
        name=name,
        workload=workload,
        content=content,
        arrivals_text=spec_of(shared) if shared else f"mix:{names}",
        lengths_text="; ".join(f"{c.tag}: {spec_of(c.lengths)}" for c in streams),
        rate_rps=total_rps,
        slo={**preset.slo, **{f"{metric}@{c.name}": bound for c in classes for metric, bound in c.slo.items()}},
        requests=at_most(preset.requests, shared),
        gap_cdf=shared.gap_cdf if isinstance(shared, GapLaw) else None,
        provenance=facts,
        operational_time=shared.operational_time if isinstance(shared, RateCurve) else None,
        settles_s=max(settles_s(c.arrivals) for c in streams),
        arrivals_rps=tasks_rps,
        timing=timing_of(shared),
        expected=expectation(parts, span_s, sessions),
    )


def weights_of(classes: tuple[Class, ...], each: list[float], shares_of: str) -> list[float]:
    """Probability that an arrival is of each class, where it brings about `each` requests in the mean."""
    for c in classes:
        if not (math.isfinite(c.share) and c.share > 0):
            raise UsageError(f"class {c.name}: share must be above 0, got {c.share:g}.")
    of_arrivals = [c.share / (n if shares_of == "requests" else 1.0) for c, n in zip(classes, each, strict=True)]
    return [share / sum(of_arrivals) for share in of_arrivals]


def copied(classes: tuple[Class, ...]) -> tuple[Class, ...]:
    """The classes, one that has copies replaced by them."""
    expanded: list[Class] = []
    for c in classes:
        if c.copies is None:
            expanded.append(_named(c, c.name))
            continue
        if c.copies < 1:
            raise UsageError(f"class {c.name}: copies must be at least 1, got {c.copies}.")
        digits = len(str(c.copies))
        popularity = [k ** -float(c.zipf) for k in range(1, c.copies + 1)]
        expanded += [
            _named(dataclasses.replace(c, share=c.share * p / sum(popularity), copies=None), f"{c.name}-{k:0{digits}}")
            for k, p in enumerate(popularity, 1)
        ]
    return tuple(expanded)


def _named(c: Class, name: str) -> Class:
    """The class under a name, which its model may have too."""
    return dataclasses.replace(c, name=name, model=None if c.model is None else c.model.replace("<class>", name))


def _class(
    c: Class,
    number: int,
    sessions: Sessions | None,
    tasks_rps: float,
    span_s: float | None,
) -> Mixed:
    arrivals = registry.make("arrivals", c.arrivals)
    if "rate_rps" not in {f.name for f in dataclasses.fields(arrivals)}:
        raise UsageError(f"class {c.name}: '{c.arrivals}' has a rate of its own, so it cannot be given a share.")
    arrivals = for_run(dataclasses.replace(arrivals, rate_rps=tasks_rps), span_s)
    lengths: Lengths = registry.make("lengths", c.lengths)
    slo = {} if c.deadline_s is None else {"task": c.deadline_s}
    prefixes = prefixes_of(c.prefixes, number)
    try:
        return Mixed(
            arrivals, lengths, sessions, prefixes, c.name, slo, c.priority, number, offline=c.offline, model=c.model
        )
    except ValueError as error:
        raise UsageError(f"class {c.name}: {error}") from None


def _shared(spec: str, rate_rps: float | None, preset: Preset, mean_requests: float) -> Arrivals:
    """Arrivals that are split among the classes; each brings about `mean_requests` requests in the mean."""
    base = dataclasses.replace(preset, arrivals=f"poisson:rate_rps={preset.rate_rps!r}")  # for its rate
    _, process = arrivals_of(spec, rate_rps, base)
    if isinstance(process, Closed):
        raise UsageError(f"'{spec}': a closed loop has no rate to share out; run it with a workload of one class.")
    return slowed(process, mean_requests)[0]


def _mixed_facts(classes: tuple[Class, ...], made: tuple[Mixed, ...], preset: Preset) -> dict[str, object]:
    """Facts of all classes: equal ones once, others by class."""
    facts: dict[str, object] = {}
    parts = {str(c.tag): provenance(c.lengths, c.arrivals, {}) for c in made}
    for key in ("source", "preparation", "tokenizer", "licence"):
        texts = {name: str(part[key]) for name, part in parts.items() if key in part}
        if texts:
            alike = len(set(texts.values())) == 1
            facts[key] = next(iter(texts.values())) if alike else "; ".join(f"{n}: {v}" for n, v in texts.items())
    facts |= preset.provenance
    if preset.arguments:
        facts["arguments"] = dict(preset.arguments)
    facts["classes"] = {
        c.name: {key: value for key, value in dataclasses.asdict(c).items() if value not in (None, {}, "single", 0)}
        for c in classes
    }
    return facts


def _mean(weights: list[float], values: list[float]) -> float:
    return math.fsum(w * v for w, v in zip(weights, values, strict=True))
