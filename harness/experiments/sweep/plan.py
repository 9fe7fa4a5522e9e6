"""What a sweep will do, decided and checked before anything runs: its points, its seeds, the spec of every run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness import values as check
from harness.api import Simulator
from harness.data.codec import alike, encode
from harness.data.folder import cleaned
from harness.data.host import versions
from harness.errors import UsageError
from harness.experiments.sweep.axes import (
    RATE,
    Axis,
    Layout,
    Values,
    applied,
    point_folder,
    points,
    run_folder,
    values,
)
from harness.experiments.trial import at_rate, own_rate
from harness.options import Given, RunSpec, run_spec
from harness.runner.plan import Plan, make_backend, plan
from harness.runner.run import default_folder

WARMUP = "mser5"
"""The rule by which a sweep cuts the warm-up unless another one is given."""

SIMULATED = 2200
"""Requests of a simulated run where nothing limits it: the warm-up cut leaves about 2,000 of them."""

SEEDS = 5
"""Seeds of a simulated point: the fewest that give an interval. One in real time, and where no seed moves anything."""


@dataclass(frozen=True, slots=True)
class Task:
    """One run: `name` is for messages, `folder` is its place in the sweep.

    `sending_s` is how long it sends, in its own time, where that is known beforehand.
    """

    name: str
    folder: str
    spec: RunSpec
    sending_s: float | None = None


@dataclass(frozen=True, slots=True)
class Sweep:
    """A sweep that can begin. `stored` is its plan as sweep.json holds it; tasks go seed by seed.

    `home` is its folder unless another one is given.
    """

    stored: Mapping[str, Any]
    layout: Layout
    tasks: tuple[Task, ...]
    virtual: bool
    home: Path


def plan_sweep(
    given: Given,
    file: Given | None,
    axes: Sequence[Axis],
    *,
    seeds: str | None = None,
    goals: str | None = None,
) -> Sweep:
    """The sweep over `axes` of the run that the options ask for.

    `seeds` is how many, counted from the seed of the options, or a list; `goals` a list of shares. Raises UsageError
    for whatever is wrong at any point.
    """
    if not axes and seeds is None:
        raise UsageError(
            "There is nothing to sweep over; give --rate 1:4:0.5, --over policy=sarathi,static or --seeds 5."
        )
    shares = goals if goals is not None else _texts(file).get("goal", "0.9")
    targets = tuple(check.share(value, "--goal") for value in values(str(shares), "--goal"))  # the runs have the first
    specs = {point: _spec(given.values, file, point, goal=targets[0]) for point in points(axes)}
    virtual = all(isinstance(make_backend(spec), Simulator) for spec in specs.values())
    for point, spec in specs.items():
        if virtual and spec.trace is None and spec.requests is None and spec.duration is None:
            specs[point] = replace(spec, requests=SIMULATED)  # a simulated run is long enough for its tail
    specs = _rated(specs)
    checked = _checked(specs, axes)
    first = checked[0]
    fixed = False
    if virtual and first.recorded:  # a recording that no seed moves: all simulated runs of a point are one
        other = plan(replace(first.spec, seed=first.spec.seed + 1))
        fixed = other.schedule.sha256 == first.schedule.sha256
    numbers = _seeds(seeds, given, file, SEEDS if virtual and not fixed else 1)
    layout = Layout.of(axes, numbers)
    fail_under = next(iter(specs.values())).fail_under
    if fail_under is not None and not first.slo.bounds:
        raise UsageError("--fail-under needs an SLO to judge by; give one, such as --slo ttft=0.25,tpot=0.1.")
    stored = {
        "schema": 1,
        "kind": "sweep",
        "versions": versions(),
        "spec": _common(checked, specs, given.values, axes),
        **_described(checked, rated=RATE in {a.name for a in axes}),
        "clock": "virtual" if virtual else "wall",
        "fixed": fixed,
        "axes": [a.stored for a in axes],
        "seeds": list(numbers),
        "goals": list(targets),
        "fail_under": fail_under,
    }
    folder = default_folder(first)
    home = folder.with_name(f"sweep-{folder.name}")
    return Sweep(stored, layout, tuple(_tasks(specs, layout, first)), virtual, home)


def _spec(options: Mapping[str, object], file: Given | None, point: Values, goal: float) -> RunSpec:
    """The spec of the runs at these values, with any rate still to be put in."""
    spec = run_spec(Given(applied(options, point, _texts(file))), file)
    return replace(spec, warmup=spec.warmup or WARMUP, goal=goal)


def _texts(file: Given | None) -> Mapping[str, object]:
    return {} if file is None else file.values


def _rated(specs: Mapping[Values, RunSpec]) -> dict[Values, RunSpec]:
    """The specs at the rates of their points; the own rate of each kind of traffic is found once."""
    rates: dict[RunSpec, float] = {}
    rated = {}
    for point, spec in specs.items():
        rate = dict(point).get(RATE)
        if rate is None:
            rated[point] = spec
            continue
        if spec not in rates:
            rates[spec] = own_rate(spec)
        rated[point] = at_rate(spec, check.rate_rps(rate, "--rate"), rates[spec])
    return rated


def _checked(specs: Mapping[Values, RunSpec], axes: Sequence[Axis]) -> list[Plan]:
    """Plans of the first point and of each other value of each axis: a wrong one is reported before the first run."""
    first = next(iter(specs))
    points = [first]
    for place, a in enumerate(axes):
        others = a.values[1:] if a.name != RATE else ()
        points += [(*first[:place], (a.name, value), *first[place + 1 :]) for value in others]
    return [plan(_short(specs[point])) for point in points]


def _short(spec: RunSpec) -> RunSpec:
    """The spec with no more requests than a check needs; a class that is bounded may be rare, so then all of them."""
    if spec.requests is None or spec.requests <= SIMULATED or "@" in (spec.slo or ""):
        return spec
    return replace(spec, requests=SIMULATED)


def _common(
    checked: Sequence[Plan], specs: Mapping[Values, RunSpec], options: Mapping[str, object], axes: Sequence[Axis]
) -> dict[str, Any]:
    """The options that all runs have in common, and those of which an argument is swept, as they were given."""
    swept = {a.name for a in axes}
    planned = [p.spec.options() for p in checked]
    original = [spec.options() for spec in specs.values()]
    shared = {name: value for name, value in planned[0].items() if all(opts.get(name) == value for opts in planned)}
    for name in ("requests", "scale"):
        shared.pop(name, None)
        if all(opts.get(name) == original[0].get(name) for opts in original) and name in original[0]:
            shared[name] = original[0][name]
    bases = {name.partition(".")[0] for name in swept if "." in name}
    shared |= {name: options[name] for name in bases if name in options}
    away = {*swept, "seed", "goal", "fail-under", *(["scale"] if RATE in swept else [])}
    redact = checked[0].redact
    common = {name: value for name, value in shared.items() if name not in away}
    return {name: redact(value) if isinstance(value, str) else value for name, value in common.items()}


def _described(checked: Sequence[Plan], *, rated: bool) -> dict[str, Any]:
    """What all runs have in common of their traffic and their system; no rates where they are swept over."""
    redact = checked[0].redact
    traffic = alike([encode(plan.traffic) for plan in checked])
    rates = {"rate_rps": None, "arrivals_rps": None} if rated else {}
    backend = alike([plan.backend.describe() for plan in checked])
    return {"traffic": cleaned({**traffic, **rates}, redact), "backend": cleaned(backend, redact)}


def _tasks(specs: Mapping[Values, RunSpec], layout: Layout, first: Plan) -> Iterator[Task]:
    """Seed by seed, so that a sweep that is cut short has the whole curve of some seeds."""
    for seed in layout.seeds:
        for point, spec in specs.items():
            name = ", ".join([*(f"{option}={text}" for option, text in point), f"seed {seed}"])
            place = run_folder(point_folder(point), seed)
            run = replace(spec, seed=seed, fail_under=None)
            yield Task(name, place, run, _sending_s(run, first))


def _sending_s(spec: RunSpec, first: Plan) -> float | None:
    """How long a run sends: its duration, or its requests at its rate; of a trace what the first run would send."""
    if spec.duration is not None:
        return spec.duration
    rate_rps = first.rate_rps if spec.rate is None else spec.rate
    requests = spec.requests or first.spec.requests
    if spec.trace is not None or requests is None or not rate_rps:
        return first.schedule.span_s or None
    return requests / rate_rps


def _seeds(text: str | None, given: Given, file: Given | None, usual: int) -> tuple[int, ...]:
    """The seeds: a list of them, or so many from the seed of the options on."""
    seed = given.values.get("seed", _texts(file).get("seed"))
    if text is not None and ("," in text or ":" in text):
        if "seed" in given.values:
            raise UsageError("--seed is the first of --seeds N; it does not go with a list of seeds.")
        return tuple(check.seed(value, "--seeds") for value in values(text, "--seeds"))
    count = usual if text is None else check.count(text, "--seeds")
    first = 0 if seed is None else check.seed(seed, "--seed")
    if count > 1000:
        raise UsageError(f"--seeds takes 1,000 at most, got {count:,}.")
    return tuple(range(first, first + count))
