"""Finds and builds workloads by name: presets, lengths specs, trace files; and explains them."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

from harness import registry
from harness.errors import UsageError, no_such
from harness.spec import Spec, build, parse, text_of
from workloads import _explain, _presets, traces
from workloads._loaded import Loaded
from workloads.listed import Listed
from workloads.mixed import Mixed
from workloads.replay import Replay

if TYPE_CHECKING:
    from harness.api import Arrivals, Content, Lengths

__all__ = ["Loaded", "explain", "load", "load_trace", "preset_text", "presets", "refusal_of_rate"]


def presets() -> list[str]:
    """Sorted names of the presets."""
    return _presets.names()


def preset_text(name: str) -> str:
    """The TOML of a preset. Raises UsageError with the nearest known name."""
    return _presets.text(_known_preset(name))


def load(
    name_or_spec: str,
    *,
    rate_rps: float | None = None,
    arrivals: str | None = None,
    lengths: str | None = None,
    content: str | None = None,
    seed: int = 0,
) -> Loaded:
    """The workload of a preset name or a lengths spec; the other arguments replace its parts.

    Raises UsageError for unknown names and for parts that do not go together.
    """
    name, preset = _preset(name_or_spec)
    if preset.request:
        _refuse_for_list(name, rate_rps=rate_rps, arrivals=arrivals, lengths=lengths)
        return _listed(name, preset, content, seed)
    arrivals_name, made = _arrivals(arrivals, rate_rps, preset)
    lengths_spec = parse(lengths or preset.lengths or "")
    lengths_made: Lengths = registry.make("lengths", lengths_spec)
    provenance = {**getattr(lengths_made, "facts", {}), **preset.provenance}
    if (stamps := getattr(made, "facts", None)) is not None:
        provenance["arrivals"] = stamps
    return Loaded(
        name=name,
        workload=Mixed(made, lengths_made, facts=provenance),
        content=_content(content or preset.content, seed),
        arrivals_text=text_of(made, arrivals_name),
        lengths_text=text_of(lengths_made, lengths_spec.name),
        rate_rps=made.mean_rate_rps,
        slo=preset.slo,
        requests=_at_most(preset.requests, getattr(made, "trace", None)),
        gap_cdf=getattr(made, "gap_cdf", None),
        provenance=provenance,
    )


def load_trace(
    path: str,
    *,
    reader: str | None = None,
    start_s: float | None = None,
    stop_s: float | None = None,
    limit: int | None = None,
    content: str | None = None,
    seed: int = 0,
) -> Loaded:
    """The workload that replays a trace file, or a slice of it (see `traces.Slice`).

    Raises UsageError naming file, line and column for whatever is wrong with the file.
    """
    try:
        part = traces.Slice(start_s, stop_s, limit)
    except ValueError as error:
        raise UsageError(f"Trace '{path}': {error}") from None
    trace = traces.read(path, reader, part)
    given = {"path": path, "reader": reader, "start_s": start_s, "stop_s": stop_s, "limit": limit}
    arguments = {key: str(value) for key, value in given.items() if value is not None}
    return Loaded(
        name=str(trace.facts["file"]),
        workload=Replay(trace),
        content=_content(content or "tokens", seed),
        arrivals_text=str(Spec("trace", arguments)),
        lengths_text="those of the trace",
        rate_rps=trace.mean_rate_rps,
        requests=len(trace),
        provenance=trace.facts,
    )


def explain(name: str) -> str:
    """A readable text about a preset or a lengths spec: what it is, lengths, SLO, source, preparation."""
    loaded = load(name)
    _, preset = _preset(name)
    return _explain.text(loaded, preset.about)


def _preset(name_or_spec: str) -> tuple[str, _presets.Preset]:
    """Name and preset; a lengths spec is a preset made on the spot."""
    given = parse(name_or_spec)
    if given.name in presets():
        if given.args or given.first is not None:
            raise UsageError(
                f"'{name_or_spec}': preset {given.name} takes no arguments; "
                "use --rate, --arrivals, --lengths or --content to change it."
            )
        return given.name, _presets.read(given.name)
    if given.name in registry.names("lengths"):
        about = registry.summary("lengths", given.name)
        return str(given), _presets.Preset(about=about, lengths=name_or_spec)
    raise no_such("workload", given.name, [*presets(), *registry.names("lengths")])


def _known_preset(name: str) -> str:
    if name not in presets():
        raise no_such("preset", name, presets())
    return name


def _arrivals(spec: str | None, rate_rps: float | None, preset: _presets.Preset) -> tuple[str, Arrivals]:
    """Name and arrivals; the rate is that of their spec, else the one asked for, else that of the preset."""
    if rate_rps is not None and not (math.isfinite(rate_rps) and rate_rps > 0):
        raise UsageError(f"--rate must be above 0 requests/s, got {rate_rps:g}.")
    own_spec = parse(preset.arrivals)
    own = registry.make("arrivals", own_spec)
    if spec is None:
        return own_spec.name, own if rate_rps is None else dataclasses.replace(own, rate_rps=rate_rps)
    asked = parse(spec)
    kind = registry.find("arrivals", asked.name)
    if "rate_rps" not in {f.name for f in dataclasses.fields(kind)}:
        if rate_rps is not None:
            raise UsageError(refusal_of_rate(rate_rps, f"'{asked}'"))
        return asked.name, build(kind, asked)
    made: Arrivals = build(kind, asked, rate_rps=own.mean_rate_rps if rate_rps is None else rate_rps)
    if rate_rps is not None and made.mean_rate_rps != rate_rps:
        raise UsageError(f"--rate {rate_rps:g} and '{asked}' give two rates; leave one of them out.")
    return asked.name, made


def refusal_of_rate(rate_rps: float, what: str) -> str:
    """The sentence for a rate that is asked of recorded arrivals (`what` names them)."""
    return (
        f"--rate {rate_rps:g} does not go with {what}: requests come at their recorded times; leave out --rate, "
        "or draw arrivals of that rate with a --workload and --arrivals poisson."
    )


def _at_most(requests: int | None, trace: traces.Trace | None) -> int | None:
    """Default number of requests, where a trace of arrivals may end before."""
    if trace is None:
        return requests
    return len(trace) if requests is None else min(requests, len(trace))


def _content(spec: str, seed: int) -> Content:
    made: Content = registry.make("content", spec, seed=seed)
    return made


def _refuse_for_list(name: str, **given: object) -> None:
    for option, value in given.items():
        if value is not None:
            raise UsageError(
                f"Preset {name} is a list of requests with fixed times and lengths; "
                f"leave out --{option.removesuffix('_rps')}."
            )


def _listed(name: str, preset: _presets.Preset, content: str | None, seed: int) -> Loaded:
    requests = preset.listed()
    span_s = requests[-1].scheduled_s - requests[0].scheduled_s
    return Loaded(
        name=name,
        workload=Listed(requests, preset.provenance),
        content=_content(content or preset.content, seed),
        arrivals_text="as listed",
        lengths_text="as listed",
        rate_rps=(len(requests) - 1) / span_s if span_s > 0 else 0.0,
        slo=preset.slo,
        requests=len(requests),
        provenance=preset.provenance,
    )
