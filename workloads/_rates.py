"""Arrivals at the rate that a user, a spec or a preset asks for; refusals where no rate can be asked."""

import dataclasses

from harness import registry
from harness.api import Arrivals
from harness.errors import UsageError
from harness.spec import build, parse
from workloads._presets import Preset
from workloads.arrivals.closed import Closed

OWN = ("levels", "path")
"""Arguments of arrivals that bring rates of their own, beside those whose names end in _rps."""


def arrivals_of(spec: str | None, rate_rps: float | None, preset: Preset) -> tuple[str, Arrivals]:
    """Name and arrivals; the rate is that of their spec, else the one asked for, else that of the preset."""
    own_spec = parse(preset.arrivals or "poisson")
    own = registry.make("arrivals", own_spec)
    if spec is None:
        if rate_rps is None:
            return own_spec.name, own
        if "rate_rps" not in {f.name for f in dataclasses.fields(own)}:
            raise UsageError(refusal_of_rate(rate_rps, own, f"'{preset.arrivals}'"))
        return own_spec.name, dataclasses.replace(own, rate_rps=rate_rps)
    asked = parse(spec)
    kind = registry.find("arrivals", asked.name)
    fields = {f.name: f for f in dataclasses.fields(kind)}
    if "rate_rps" not in fields:
        made = build(kind, asked)
        if rate_rps is not None:
            raise UsageError(refusal_of_rate(rate_rps, made, f"'{asked}'"))
        return asked.name, made
    wanted = rate_rps
    if rate_rps is None and not isinstance(own, Closed):
        # Arrivals that are made of rates (a ramp, steps) or fitted to a file come at a rate of their own, and so do
        # published ones where there is no preset; all others come at the rate of the preset.
        levels = any(name in OWN or (name.endswith("_rps") and name != "rate_rps") for name in fields)
        if fields["rate_rps"].default is not None or not (levels or preset.arrivals is None):
            wanted = own.mean_rate_rps
    made = build(kind, asked) if wanted is None else build(kind, asked, rate_rps=wanted)
    if rate_rps is not None and made.mean_rate_rps != rate_rps:
        raise UsageError(f"--rate {rate_rps:g} and '{asked}' give two rates; leave one of them out.")
    return asked.name, made


def slowed(arrivals: Arrivals, mean_requests: float) -> tuple[Arrivals, float]:
    """Arrivals of sessions, and the rate of all their requests."""
    if isinstance(arrivals, Closed):
        raise UsageError(
            "In a closed loop users ask again by themselves; leave out --sessions, or take other arrivals."
        )
    if "rate_rps" not in {f.name for f in dataclasses.fields(arrivals)}:  # type: ignore[arg-type]  # a dataclass
        return arrivals, arrivals.mean_rate_rps * mean_requests
    rate_rps = arrivals.mean_rate_rps
    return dataclasses.replace(arrivals, rate_rps=rate_rps / mean_requests), rate_rps  # type: ignore[type-var]


def refusal_of_rate(rate_rps: float, arrivals: object, what: str) -> str:
    """The sentence for a rate that is asked of arrivals which take none (`what` names them)."""
    if isinstance(arrivals, Closed):
        return (
            f"--rate {rate_rps:g} does not go with {what}: in a closed loop the answers decide the rate; "
            "change users or think, or take --arrivals poisson."
        )
    return recorded_rate(rate_rps, what)


def recorded_rate(rate_rps: float, what: str) -> str:
    """The sentence for a rate that is asked of recorded arrivals (`what` names them)."""
    return (
        f"--rate {rate_rps:g} does not go with {what}: requests come at their recorded times; leave out --rate, "
        "or draw arrivals of that rate with a --workload and --arrivals poisson."
    )
