"""Builds a workload of one stream, or a mix of classes, from what a preset and options say.

Arrivals at the rate of the user, the spec or the preset; errors for arrivals without a free rate.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from harness import registry
from harness.api import (
    Arrivals,
    Content,
    GapLaw,
    Lengths,
    Loaded,
    RandomRate,
    RateCurve,
    RecordedArrivals,
    Sourced,
    Timing,
)
from harness.errors import UsageError, no_such
from harness.spec import Spec, build, parse, text_of
from workloads._presets import Class, Preset
from workloads.arrivals._exact import Conditional, expected
from workloads.arrivals.closed import Closed
from workloads.blend import Blend
from workloads.mixed import Mixed, Sessions
from workloads.prefixes import MOST_GROUPS, Prefixes
from workloads.sessions.builtin import Fixed, Single

PREFIXES = "shared"
"""Name of the one kind of prefixes."""

OWN = ("levels", "path")
"""Arguments of arrivals that bring rates of their own, beside those whose names end in _rps."""

CLIENTS = "servegen"
"""The workload whose clients bring their own times and lengths."""


def one(
    name: str,
    preset: Preset,
    content: Content,
    *,
    rate_rps: float | None,
    arrivals: str | None,
    lengths: str | None,
    sessions: str | None,
    prefixes: str | None,
    run: tuple[int | None, float | None],
) -> Loaded:
    """One stream: the parts of the preset, replaced by those that are given.

    A rate is that of requests, so sessions begin at the rate divided by their mean number of requests.
    """
    arrivals_name, process = arrivals_of(arrivals, rate_rps, preset)
    lengths_spec = parse(lengths or preset.lengths or "")
    lengths_made: Lengths = registry.make("lengths", lengths_spec)
    sessions_made = sessions_of(sessions or preset.sessions)
    total_rps = process.mean_rate_rps
    if sessions_made is not None and not isinstance(process, Closed):
        process, total_rps = slowed(process, sessions_made.mean_requests)
    span_s = span_of(total_rps, run)
    process = for_run(process, span_s)
    facts = provenance(lengths_made, process, preset.provenance)
    if sessions_made is not None:
        facts["sessions"] = spec_of(sessions_made)
    shared = prefixes_of(prefixes or preset.prefixes)
    if shared is not None:
        facts["prefixes"] = text_of(shared, PREFIXES)
    try:
        workload = Mixed(process, lengths_made, sessions_made, shared, facts=facts)
    except ValueError as error:
        raise UsageError(f"'{name}': {error}") from None
    timing = timing_of(process)
    return Loaded(
        name=name,
        workload=workload,
        content=content,
        arrivals_text=text_of(process, arrivals_name),
        lengths_text=text_of(lengths_made, lengths_spec.name),
        rate_rps=None if timing == "closed" else total_rps,
        slo=preset.slo,
        requests=at_most(preset.requests, process),
        gap_cdf=process.gap_cdf if isinstance(process, GapLaw) else None,
        provenance=facts,
        operational_time=process.operational_time if isinstance(process, RateCurve) else None,
        settles_s=settles_s(process),
        arrivals_rps=None if timing == "closed" else process.mean_rate_rps,
        warmup=process.warm_up(process.users) if isinstance(process, Closed) and process.steady else None,
        timing=timing,
        expected=expectation([process], span_s, [sessions_made]),
    )


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
        questions = None if c.clusters is None else Prefixes(c.clusters, zipf=c.zipf)
        return Mixed(
            arrivals, lengths, sessions, prefixes, c.name, slo, c.priority, number, offline=c.offline, model=c.model,
            n=1 if c.n is None else c.n, kind=c.kind, questions=questions, image_tokens=c.image_tokens,
        )  # fmt: skip
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


def timing_of(arrivals: Arrivals | None) -> Timing:
    """What decides when requests come."""
    if isinstance(arrivals, Closed):
        return "closed"
    return "recorded" if isinstance(arrivals, RecordedArrivals) else "drawn"


def span_of(rate_rps: float, run: tuple[int | None, float | None]) -> float | None:
    """Seconds of a run of so many requests (all at `rate_rps`) or seconds; None for one without end."""
    requests, duration_s = run
    return min((s for s in (requests and requests / rate_rps, duration_s) if s), default=None)


def for_run(arrivals: Arrivals, span_s: float | None) -> Arrivals:
    """Arrivals whose rate is exact over a run of so many seconds, where they can."""
    return arrivals.for_run(span_s) if span_s is not None and isinstance(arrivals, Conditional) else arrivals


def expectation(
    parts: Sequence[Arrivals], span_s: float | None, sessions: Iterable[Sessions | None]
) -> Callable[[], str] | None:
    """`_expected.expected` of a run of so many seconds; None where no arrivals draw a rate, or the run has no end."""
    if span_s is None or not any(isinstance(part, RandomRate) for part in parts):
        return None
    what = "sessions" if any(law is not None and law.mean_requests > 1 for law in sessions) else "req"
    return partial(expected, parts, span_s, what)


def settles_s(arrivals: Arrivals) -> float:
    """A shorter run need not have the mean rate."""
    return arrivals.settles_s if isinstance(arrivals, RandomRate) else 0.0


def clients(spec: Spec, content: Content, rate_rps: float | None) -> Loaded:
    """The clients of a ServeGen pool, `servegen:FOLDER`: times and lengths drawn together, client by client."""
    from workloads.clients import Clients  # with the readers of such pools

    pool = build(Clients, spec) if rate_rps is None else build(Clients, spec, rate_rps=rate_rps)
    if rate_rps is not None and not math.isclose(pool.mean_rate_rps, rate_rps):
        raise UsageError(f"--rate {rate_rps:g} and '{spec}' give two rates; leave one of them out.")
    return Loaded(
        name=str(spec),
        workload=pool,
        content=content,
        arrivals_text=text_of(pool, CLIENTS),
        lengths_text="those of each client",
        rate_rps=pool.mean_rate_rps,
        provenance=pool.facts,
        settles_s=pool.settles_s,
    )


def sessions_of(spec: str) -> Sessions | None:
    """Sessions of a spec; None for single requests."""
    sessions: Sessions = registry.make("sessions", spec)
    return None if isinstance(sessions, Single) else sessions


def prefixes_of(spec: str | None, group: int = 0) -> Prefixes | None:
    """Shared prefixes of a spec such as 'shared:count=10,tokens=341'."""
    if spec is None:
        return None
    parsed = parse(spec)
    if parsed.name != PREFIXES:
        raise no_such("kind of prefixes", parsed.name, [PREFIXES], "Write shared:count=10,tokens=341,zipf=1.")
    return build(Prefixes, parsed, group=group)


def spec_of(part: Any) -> str:
    """The spec of a plug-in's object: its name is that of its file."""
    return text_of(part, registry.name_of(part))


def provenance(lengths: Lengths, arrivals: Arrivals, own: Mapping[str, object]) -> dict[str, object]:
    """What is known of the lengths and arrivals; what the preset itself says comes first."""
    facts = {**(lengths.facts if isinstance(lengths, Sourced) else {}), **own}
    if isinstance(arrivals, Sourced):
        facts["arrivals"] = arrivals.facts
    return facts


def at_most(requests: int | None, arrivals: Arrivals | None) -> int | None:
    """Default number of requests, where a trace of arrivals may end before."""
    if not isinstance(arrivals, RecordedArrivals):
        return requests
    return len(arrivals.trace) if requests is None else min(requests, len(arrivals.trace))


def arrivals_of(spec: str | None, rate_rps: float | None, preset: Preset) -> tuple[str, Arrivals]:
    """Name and arrivals; the rate is that of their spec, else `rate_rps`, else that of the preset."""
    own_spec = parse(preset.arrivals or "poisson")
    preset_arrivals = registry.make("arrivals", own_spec)
    if spec is None:
        if rate_rps is None:
            return own_spec.name, preset_arrivals
        if "rate_rps" not in {f.name for f in dataclasses.fields(preset_arrivals)}:
            raise UsageError(refusal_of_rate(rate_rps, preset_arrivals, f"'{preset.arrivals}'"))
        return own_spec.name, dataclasses.replace(preset_arrivals, rate_rps=rate_rps)
    parsed = parse(spec)
    kind = registry.find("arrivals", parsed.name)
    fields = {f.name: f for f in dataclasses.fields(kind)}
    if "rate_rps" not in fields:
        process = build(kind, parsed)
        if rate_rps is not None:
            raise UsageError(refusal_of_rate(rate_rps, process, f"'{parsed}'"))
        return parsed.name, process
    target_rps = rate_rps
    if rate_rps is None and not isinstance(preset_arrivals, Closed):
        # Arrivals that are made of rates (a ramp, steps) or fitted to a file come at a rate of their own, and so do
        # published ones where there is no preset; all others come at the rate of the preset.
        levels = any(name in OWN or (name.endswith("_rps") and name != "rate_rps") for name in fields)
        if fields["rate_rps"].default is not None or not (levels or preset.arrivals is None):
            target_rps = preset_arrivals.mean_rate_rps
    process = build(kind, parsed) if target_rps is None else build(kind, parsed, rate_rps=target_rps)
    if rate_rps is not None and process.mean_rate_rps != rate_rps:
        raise UsageError(f"--rate {rate_rps:g} and '{parsed}' give two rates; leave one of them out.")
    return parsed.name, process


def slowed(arrivals: Arrivals, mean_requests: float) -> tuple[Arrivals, float]:
    """Arrivals of sessions, and the rate of all their requests."""
    if "rate_rps" not in {f.name for f in dataclasses.fields(arrivals)}:  # type: ignore[arg-type]  # a dataclass
        return arrivals, arrivals.mean_rate_rps * mean_requests
    rate_rps = arrivals.mean_rate_rps
    return dataclasses.replace(arrivals, rate_rps=rate_rps / mean_requests), rate_rps  # type: ignore[type-var]


def refusal_of_rate(rate_rps: float, arrivals: object, what: str) -> str:
    """The error message for a rate given to arrivals that accept none (`what` names them)."""
    if isinstance(arrivals, Closed):
        return (
            f"--rate {rate_rps:g} does not go with {what}: in a closed loop the answers decide the rate; "
            "change users or think, or take --arrivals poisson."
        )
    return (
        f"--rate {rate_rps:g} does not go with {what}: requests come at their recorded times; leave out --rate, "
        "or draw arrivals of that rate with a --workload and --arrivals poisson."
    )
