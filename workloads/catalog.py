"""Finds and builds workloads by name: presets, preset files, lengths specs, trace files; and explains them."""

from harness import registry
from harness.api import Content, Loaded
from harness.errors import UsageError, no_such
from harness.spec import parse
from workloads import _build, _presets
from workloads.content.recorded import Recorded

__all__ = ["Loaded", "explain", "load", "preset_text", "presets"]


def presets() -> list[str]:
    """Sorted names of the presets."""
    return _presets.names()


def preset_text(name: str) -> str:
    """The TOML of a preset. Raises UsageError with the nearest known name."""
    if name not in presets():
        raise no_such("preset", name, presets())
    return _presets.text(name)


def load(
    name_or_spec: str,
    *,
    rate_rps: float | None = None,
    arrivals: str | None = None,
    lengths: str | None = None,
    sessions: str | None = None,
    prefixes: str | None = None,
    content: str | None = None,
    seed: int = 0,
    requests: int | None = None,
    duration_s: float | None = None,
) -> Loaded:
    """The workload of a preset (a name, or a TOML file) or of a lengths spec; the others replace its parts.

    `rate_rps` is that of requests, those of sessions included. A run of `requests` or `duration_s` has that rate
    within 1 % where the arrivals can hold it; with neither it has that of a long run. Raises UsageError for unknown
    names and for parts that do not go together.
    """
    name, preset = _preset(name_or_spec)
    spec = parse(name)
    if rate_rps is not None and not 0 < rate_rps < float("inf"):
        raise UsageError(f"--rate must be above 0 requests/s, got {rate_rps:g}.")
    prompt_source: Content = registry.make("content", content or preset.content, seed=seed)
    if isinstance(prompt_source, Recorded):
        raise UsageError("--content recorded sends the prompts of a trace; give one with --trace FILE.")
    if spec.name == _build.CLIENTS:
        what = "draws times and lengths client by client"
        _refuse(name, what, arrivals=arrivals, lengths=lengths, sessions=sessions, prefixes=prefixes)
        return _build.clients(spec, prompt_source, rate_rps)
    if preset.request:
        what = "is a list of requests with fixed times and lengths"
        _refuse(name, what, rate=rate_rps, arrivals=arrivals, lengths=lengths, sessions=sessions, prefixes=prefixes)
        return _listed(name, preset, prompt_source)
    if preset.classes:
        what = "is a mix of classes with parts of their own"
        _refuse(name, what, lengths=lengths, sessions=sessions, prefixes=prefixes)
        return _build.mix(name, preset, prompt_source, rate_rps=rate_rps, arrivals=arrivals, run=(requests, duration_s))
    if not (lengths or preset.lengths):
        raise UsageError(f"'{name}' has no lengths; write a line such as lengths = \"sharegpt\" in it.")
    parts = {"arrivals": arrivals, "lengths": lengths, "sessions": sessions, "prefixes": prefixes}
    return _build.one(name, preset, prompt_source, rate_rps=rate_rps, run=(requests, duration_s), **parts)


def explain(name: str) -> str:
    """A readable text about a workload: what it is, classes, lengths, sessions, arrivals, SLO, where it is from."""
    from workloads import _explain

    loaded = load(name)
    _, preset = _preset(name)
    return _explain.text(loaded, preset)


def _preset(name_or_spec: str) -> tuple[str, _presets.Preset]:
    """Name and preset; a lengths spec is a preset made on the spot."""
    spec = parse(name_or_spec)
    lengths = registry.names("lengths")
    plain = not spec.args and spec.first is None  # `burstgpt` is a preset, `burstgpt:service=api` lengths
    if spec.name.endswith(".toml") or (spec.name in presets() and (plain or spec.name not in lengths)):
        return str(spec), _presets.read(spec)
    if spec.name == _build.CLIENTS:
        return str(spec), _presets.Preset(about="The clients of a ServeGen pool, each with its own times and lengths.")
    if spec.name in lengths:
        about = registry.summary("lengths", spec.name)
        return str(spec), _presets.Preset(about=about, lengths=name_or_spec)
    raise no_such("workload", spec.name, {*presets(), *lengths, _build.CLIENTS})


def _refuse(name: str, what: str, **given: object) -> None:
    for option, value in given.items():
        if value is not None:
            raise UsageError(f"Workload {name} {what}; leave out --{option}.")


def _listed(name: str, preset: _presets.Preset, content: Content) -> Loaded:
    requests = preset.listed()
    span_s = requests[-1].scheduled_s - requests[0].scheduled_s
    return Loaded(
        name=name,
        workload=_presets.Listed(requests, preset.provenance),
        content=content,
        arrivals_text="as listed",
        lengths_text="as listed",
        rate_rps=(len(requests) - 1) / span_s if span_s > 0 else 0.0,
        slo=preset.slo,
        requests=len(requests),
        provenance=preset.provenance,
        timing="recorded",
    )
