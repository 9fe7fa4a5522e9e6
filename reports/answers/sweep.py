"""The report of `bench sweep`: attainment and goodput over seeds at each point, latencies, crossed goals."""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations, product
from pathlib import Path
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from harness.data.codec import encode
from harness.data.run_json import RunInfo, StepTimes, Workload
from harness.experiments.capacity.capacity_json import CapacityAnswer
from harness.experiments.sweep.axes import RATE, RESCORED, SCALE, SLO
from harness.experiments.sweep.crossings import ratio
from harness.experiments.sweep.sweep_json import SweepAnswer, SweepPoint, SweptBound, SweptRun
from harness.metrics.measure import headline, metrics
from harness.metrics.objective import meets
from harness.stats.seeds import Spread
from harness.validity.remote import floors_s
from reports import _format, _system
from reports._format import clean, percent
from reports._system import Facts, flat, part
from reports._verdict import FIND_CAPACITY
from reports.document import Cell, Command, Document, Finding, Notice, Section, Table, figures_of, listed, page_of
from reports.study import Capacity, Study, System, along, at, axis_title, floor_s, infos, named, of_sweep

FIGURE_SECTIONS = {
    "figures": "Goodput",
    "latency": "Latency and throughput",
    "time": "Where the time goes",
}
"""Sections of the figures of a study that a page of sweeps has, with their titles."""
MOST_ROWS = 200
"""Rows of the table of runs; all are in sweep.json."""
PERCENTILES = ("p50", "p90", "p99")
_ALWAYS = ("attainment", "goodput (req/s)")
"""Columns that stay where they have nothing to show."""
_INTERVAL = (
    "95% interval",
    "of the mean over the seeds; above 95% attainment it holds less often than it says, as a far worse seed is rare",
)
_ENDED = {"running": "NOT FINISHED", "interrupted": "INTERRUPTED", "failed": "BACKEND FAILED"}
_JUDGED = {0: ("MET AT EVERY POINT", True), 1: ("NOT MET AT EVERY POINT", False), 5: ("NOT DECIDED", None)}
NOT_OF_A_SEARCH = ("rate", "duration", "fail-under")
"""Options of a run that `bench capacity` has not."""


def document(info: SweepAnswer, path: Path | None = None) -> Document:
    """The report of a sweep whose sweep.json is `info`; its runs are looked for below `path`, where that is given."""
    home = None if path is None else path if path.is_dir() else path.parent
    study = None if home is None else of_sweep(info, home)
    mark, good = _mark(info)
    warnings = [f"The sweep ended early: {info.error}"] if info.error else []
    warnings += [text[:1].upper() + text[1:] for text in info.warnings]
    capacity = _capacity(info)
    folder = "" if home is None else home.name
    rescore = f"bench slo {shlex.quote(clean(folder, None))} --slo ttft=0.5,tpot=0.1" if folder else ""
    spec = info.spec
    trace = str(spec.get("trace") or "").replace("\\", "/").rpartition("/")[2]
    traffic = trace or spec.get("workload") or "several workloads"
    over = ", ".join(clean(axis.name) for axis in info.axes) or "seeds"
    return Document(
        title=f"Sweep over {over}: {clean(traffic)} on {clean(spec.get('backend') or 'several backends')}",
        subtitle=_subtitle(info),
        mark=mark,
        good=good,
        findings=(
            Finding(answer(info, of_sweep(info, Path()) if study is None else study), good),
            Finding(_state(info)),
        ),
        key_facts=key_facts(info, study),
        warnings=tuple(Notice(clean(warning, None)) for warning in warnings),
        sections=tuple(_sections(info, study, home)),
        next=None if capacity is None else Command(FIND_CAPACITY, capacity),
        commands=tuple(filter(None, (_repeat(info), capacity, rescore))),
        used=_used(info, study),
        definitions=(*_system.in_use(), _INTERVAL),
    )


def _subtitle(info: SweepAnswer) -> str:
    spec = info.spec
    goals = " and ".join(percent(goal) for goal in info.goals)
    parts = [f"goal {goals}", f"{_format.count(len(info.seeds), 'seed')} at each point"]
    if isinstance(requests := spec.get("requests"), int) and requests:
        parts.append(f"{_format.count(requests, 'request')} a run")
    return "; ".join([*parts, f"warm-up cut: {clean(spec.get('warmup', 'several rules'))}"])


def _mark(info: SweepAnswer) -> tuple[str, bool | None]:
    """The state in capitals, and whether it is good or bad news (None: neither)."""
    if info.state in _ENDED:
        return _ENDED[info.state], None
    points = [point for point in info.points if point.valid]
    if not points or any(point.invalid for point in points):
        return "NOT VALID", None
    points = [point for point in points if point.bounds]
    if not points:
        return "NO GOAL GIVEN", None
    if info.fail_under is not None:
        return _JUDGED.get(info.exit_code, ("NOT DECIDED", None))
    met = [_met(point, info.goals[0]) for point in points]
    if any(met) and not all(met):
        crossed = any(crossing.at is not None for crossing in info.crossings)
        return "GOAL CROSSED" if crossed else "GOAL REACHED IN PART", None
    if any(point.overloaded for point in points) and all(met):
        return "OVERLOADED", False
    return ("GOAL REACHED", True) if all(met) else ("GOAL MISSED", False)


def _met(point: SweepPoint, goal: float) -> bool:
    return meets(point.mean_attainment, [bound.passed for bound in point.bounds], goal)


def answer(info: SweepAnswer, study: Study) -> str:
    """Where the curves cross the goals; of points without a rate in common the best and the worst."""
    if any(system.points for system in study.systems) and not any(system.slo for system in study.systems):
        return "No SLO was given, so attainment counts every request that succeeded."
    study = study.over or study
    if any(len({point.rate_rps for point in system.points}) > 1 for system in study.systems):
        from reports.figures import curves

        return curves.finding(study)
    scored = [point for point in info.points if point.bounds]
    goal, ranked = info.goals[0], [point for point in scored if point.attainment is not None]
    if not ranked:  # all bounds are on percentiles, or nothing was scored
        met = sum(_met(point, goal) for point in scored)
        many = f"Every bound holds at {met:,} of {_format.count(len(scored), 'point')}."
        return many if scored else "No run has ended that could be scored."
    ordered = sorted(ranked, key=lambda point: -(point.mean_attainment or 0))
    best, worst = ordered[0], ordered[-1]
    text = f"{_share(best, goal)} of the requests meet the SLO{_at(best)}"
    return f"{text}, {_share(worst, goal)}{_at(worst)}." if len(ranked) > 1 else f"{text}; the goal is {percent(goal)}."


def _share(point: SweepPoint, goal: float) -> str:
    share_text = _format.share(point.mean_attainment, goal)
    between = interval(point.attainment)
    return share_text if between == "-" else f"{share_text} ({between})"


def _at(point: SweepPoint) -> str:
    values = at(point.values.items())
    return f" at {values}" if values else ""


def _state(info: SweepAnswer) -> str:
    """How much of the sweep there is, and how far it can be trusted."""
    runs, points = info.runs, info.points
    invalid = sum(point.invalid for point in {point.folder: point for point in points}.values())
    valid = f"{invalid:,} not valid, which do not count" if invalid else "all of them valid"
    texts = [
        f"{runs.done:,} of {_format.count(runs.planned, 'run')} done",
        valid if runs.done else "",
        _format.count(len(info.seeds), "seed") + (" at each point" if len(points) > 1 else ""),
    ]
    return "; ".join(text for text in texts if text) + "."


def key_facts(info: SweepAnswer | CapacityAnswer, study: Study | None) -> Facts:
    """SLO, system, workload, client floor."""
    stored = _first_run(study)
    traffic, slo_text, compared = info.traffic or stored.workload, None, list[StepTimes]()
    if isinstance(info, CapacityAnswer):
        traffic, slo_text, compared = info.traffic or Workload(name=info.workload), info.slo.text, info.step_times
    backend = stored.backend if info.backend is UNSET else info.backend
    # without the rate, which is what a sweep varies
    source = _system.source(replace(traffic, rate_rps=None), info.spec)
    text = clean((slo_text or info.spec.get("slo") or "") if study is None else study.slo, 400)
    return (
        ("SLO", f"{text} (seconds)" if text else ""),
        ("System", _system.system(backend, stored.host) or clean(info.spec.get("backend") or "", 200)),
        ("Step times", _system.step_times(compared, backend)),
        ("Workload", ", ".join(text for text in (clean(traffic.name or "", 60), *source) if text)),
        ("Client floor", _floor(info, study)),
    )


def _first_run(study: Study | None) -> RunInfo:
    """run.json of the first run, for sweeps that do not hold system and traffic themselves; empty where it is gone."""
    systems = () if study is None else study.systems
    stored = infos(f for system in systems for point in system.points for f in point.folders)
    return next(stored, RunInfo.of({}))


def _floor(info: SweepAnswer | CapacityAnswer, study: Study | None) -> str:
    if info.clock == "virtual":
        return "none: times are those of a simulator"
    floors = {} if study is None else floor_s(study)
    if isinstance(info, CapacityAnswer) and info.floor is not None:
        floors = floors_s(info.floor)
    texts = [f"{m.label} {_format.seconds(floors[m.name])}" for m in headline() if m.name in floors]
    return f"{', '.join(texts)} (p99 of the timestamp error)" if texts else "" if study is None else "not measured"


def _sections(info: SweepAnswer, study: Study | None, home: Path | None) -> Iterator[Section]:
    crossings = crossings_of(info, home or Path())
    if study is not None and home is not None:
        yield from of_figures(study, crossings)
        crossings = []
    yield Section("points", "Points", (*crossings, *tables(info)))
    if home is not None:
        yield Section("runs", "Runs", runs(info, home), detail=True)


def crossings_of(info: SweepAnswer, home: Path) -> list[Table]:
    """Where the goals are crossed, along each axis that crosses them."""
    return [crossed(along(info, axis, home)) for axis in dict.fromkeys(cross.along for cross in info.crossings)]


def of_figures(study: Study, crossings: Sequence[Table] = ()) -> Iterator[Section]:
    """The figures of a study in their sections; below the first of them where the goals are crossed."""
    for key, title in FIGURE_SECTIONS.items():
        below = crossings if key == "figures" else ()
        yield Section(key, title, (*figures_of("study", study, section=key), *below))


def crossed(study: Study) -> Table:
    """A row for each system and goal: where it is crossed and how often what the first system sustains that is.

    The first one that has a ratio to another, as sweep.json has them. Rates that were tried are not divided by GPUs.
    """
    pairs = [*combinations(study.systems, 2)] if study.axis == RATE else []
    base = next((base for (base, head), goal in product(pairs, study.goals) if _ratio(base, head, goal)), None)
    rows = []
    for goal, system in product(study.goals, study.systems):
        capacity, share = system.capacity(goal) or Capacity(goal, None, None, None, "searched"), study.share(system)
        at = [_divided(end, share) for end in (capacity.rps, capacity.low_rps, capacity.high_rps)]
        side = "-" if capacity.side is None else f"all {capacity.side}"
        row = [percent(goal), _format.number(at[0]), _format.between(at[1], at[2]),
               " to ".join(map(_format.option, capacity.between)) if capacity.between else side]  # fmt: skip
        if base is not None:  # a ratio of rates per GPU, where these are compared
            ends = None if system is base else _ratio(base, system, goal)
            times = [_divided(end, share / study.share(base)) for end in ends or (None, None, None)]
            row += [_format.number(times[0]), _format.between(times[1], times[2])]
        rows.append((system.name, *row) if len(study.systems) > 1 else tuple(row))
    what = f"sustains ({study.rate_unit})" if study.axis == RATE else f"crossed at {axis_title(study.axis)}"
    between = "between (req/s)" if study.axis == RATE else "between"
    several = len(study.systems) > 1
    heads = (*(["system"] if several else []), "goal", what, "95% interval", between,
             *([f"times {base.name}{study.per_gpu_text}", "95% interval"] if base is not None else []))  # fmt: skip
    how = " or ".join(dict.fromkeys(capacity.how for system in study.systems for capacity in system.capacities))
    caption = ", ".join(filter(None, ("where attainment crosses the goals", how)))
    return Table(caption, heads, tuple(rows), int(several))


def _divided(end: float | None, by: float) -> float | None:
    return None if end is None else end / by


def _ratio(base: System, head: System, goal: float) -> tuple[float, float | None, float | None] | None:
    """What `head` sustains over what `base` does; None where they were not swept over the rate under the same SLO."""
    return ratio(base.line, head.line, goal) if base.slo == head.slo and base.line and head.line else None


def tables(info: SweepAnswer) -> Iterator[Table]:
    """Attainment, latencies, and differences between systems."""
    yield _attainment(info)
    timed = [m.name for m in headline() if any(m.name in point.metrics for point in info.points)]
    if timed:  # of runs: axes that only score the same runs again have no part in it
        names = [axis.name for axis in info.axes if axis.name not in RESCORED]
        heads = [f"{metrics()[name].label} {part} (ms)" for name in timed for part in PERCENTILES]
        points = {point.folder: point for point in info.points if point.metrics}.values()
        rows = tuple((*_values(names, point), *_latencies(point, timed)) for point in points)
        yield Table("latencies, mean over seeds", (*map(axis_title, names), *heads), rows, len(names))
    if info.differences:
        yield _differences(info)


def _attainment(info: SweepAnswer) -> Table:
    names, goal = [axis.name for axis in info.axes], info.goals[0]
    bounds = {
        _bound(bound): f"{_bound(bound)}{' met' if bound.percentile is None else ''}"
        for point in info.points
        for bound in point.bounds
    }
    columns: dict[str, Callable[[SweepPoint], str | Cell]] = {
        "attainment": lambda point: mean(point.attainment, partial(_format.share, goal=goal)),
        "95% interval": lambda point: interval(point.attainment),
        "range of seeds": lambda point: seed_range(point.attainment),
        **{head: partial(_within, name=name) for name, head in bounds.items()},
        "goodput (req/s)": lambda point: mean(point.goodput_rps, _format.number),
        "overload": lambda point: "saturated" if point.saturated else _of(point.overloaded, point),
        "not valid": lambda point: _of(point.invalid, point),
    }
    cells = {head: [cell(point) for point in info.points] for head, cell in columns.items()}
    printed = {head: column for head, column in cells.items() if head in _ALWAYS or set(column) - {"-"}}
    # a column of the SLO where points have different ones and no axis tells which
    differ = [] if SLO in names or len({point.slo for point in info.points}) < 2 else [SLO]
    rows = tuple(
        (*_values(names, point), *(clean(point.slo) for _ in differ), *(column[i] for column in printed.values()))
        for i, point in enumerate(info.points)
    )
    heads = (*map(axis_title, names), *(name.upper() for name in differ), *printed)
    return Table("attainment and goodput over seeds", heads, rows, len(names) + len(differ))


def _differences(info: SweepAnswer) -> Table:
    names = [*info.differences[0].at]
    rows = tuple(
        (
            *(clean(row.at[name]) for name in names),
            named(row.head.items()),
            f"{100 * row.difference:+.1f}",
            _format.between(row.low, row.high, lambda end: f"{100 * end:+.1f}"),
        )
        for row in info.differences
    )
    return Table(f"attainment less that of {named(info.differences[0].base.items())}, in points, paired by seed",
                 (*map(axis_title, names), "system", "difference", "95% interval"), rows, len(names) + 1)  # fmt: skip


def runs(info: SweepAnswer, home: Path, page: Path | None = None) -> tuple[Table, ...]:
    """Every run with a link to its folder below `home`, where it is still there; `page` is where the page stands."""
    axes = [axis.name for axis in info.axes]
    rows = [(*_values(axes, point), *_run(run, home, page or home)) for point in info.points for run in point.runs]
    heads = (*map(axis_title, axes), "run", "state", "requests", "attainment", "goodput (req/s)",
             *(f"{metric.label} p99 (ms)" for metric in headline()))  # fmt: skip
    return listed("runs, scored under their own SLO", heads, rows, MOST_ROWS, len(axes) + 2)


def _run(run: SweptRun, home: Path, page: Path) -> tuple[str | Cell, ...]:
    usable = run.valid and not run.overloaded
    p99 = [run.metrics.get(metric.name, {}).get("p99") for metric in headline()]
    link = page_of(home / run.folder, page)
    return (
        Cell(f"seed {clean(run.seed)}", link=link),
        Cell("valid" if usable else "overloaded" if run.valid else "not valid", good=None if usable else False),
        f"{run.requests:,}",
        _format.share(run.attainment),
        _format.number(run.goodput_rps),
        *(_format.in_unit(value, "ms") if usable else "-" for value in p99),
    )


def rows(info: SweepAnswer) -> Iterator[dict[str, Any]]:
    """A row per point, times in seconds and shares from 0 to 1: the form csv."""
    for point in info.points:
        row: dict[str, Any] = {**point.values}
        row |= {name: getattr(point, name) for name in ("slo", "valid", "invalid", "overloaded")}
        row["measured_requests"] = point.requests  # `requests` may be an axis
        row |= _columns("attainment", point.attainment)
        for bound in point.bounds:
            tag = "" if bound.tag is None else f"@{bound.tag}"
            if bound.percentile is not None:
                row |= _columns(f"p{bound.percentile:g}_{bound.metric}_s{tag}", bound.value_s)
            else:
                row |= _columns(f"attainment_{bound.metric}{tag}", bound.attainment)
        for name in ("goodput_rps", "throughput_rps", "output_tps", "failed"):
            row |= _columns(name, getattr(point, name))
        for metric, parts in point.metrics.items():
            for statistic, spread in parts.items():
                row |= _columns(f"{metric}_{statistic}_s", spread)
        yield row


def _columns(name: str, spread: Spread | None) -> dict[str, Any]:
    parts = {"": "mean", "_low": "low", "_high": "high", "_least": "least", "_most": "most"}
    return {f"{name}{end}": None if spread is None else getattr(spread, part) for end, part in parts.items()}


def _bound(bound: SweptBound) -> str:
    percentile = "" if bound.percentile is None else f" p{bound.percentile:g}"
    return f"{bound.metric}{percentile}{'' if bound.tag is None else '@' + clean(bound.tag)}"


def _within(point: SweepPoint, name: str) -> str | Cell:
    """The share that met a bound; of a bound on a percentile its value, beside the limit where it is missed."""
    bound = next((bound for bound in point.bounds if _bound(bound) == name), None)
    if bound is None:
        return "-"
    if bound.percentile is None:
        return mean(bound.attainment, _format.share)
    value = "too many failed" if bound.value_s is None else _format.seconds(bound.value_s.mean)
    return value if bound.passed else Cell(f"{value} > {_format.seconds(bound.limit_s)}, missed", good=False)


def _values(names: Sequence[str], point: SweepPoint) -> list[str]:
    return [clean(point.values[name]) for name in names]


def mean(spread: Spread | None, shown: Callable[[float | None], str]) -> str:
    """The mean over the seeds; '-' for none."""
    return "-" if spread is None else shown(spread.mean)


def interval(spread: Spread | None) -> str:
    """The 95% interval of the mean, as shares."""
    return "-" if spread is None else _format.between(spread.low, spread.high, _format.share)


def seed_range(spread: Spread | None) -> str:
    """The least and the greatest share of the seeds, where there are several."""
    return "-" if spread is None or spread.n < 2 else _format.between(spread.least, spread.most, _format.share)


def _latencies(point: SweepPoint, timed: Sequence[str]) -> Iterator[str]:
    """In milliseconds; none where the queue grew, because they would tell how long the run was."""
    for name in timed:
        parts = point.metrics.get(name) or {}
        yield from (mean(parts.get(statistic), lambda v: _format.in_unit(v, "ms")) for statistic in PERCENTILES)


def _of(runs: int, point: SweepPoint) -> str:
    """So many of the runs of the point; '-' for none."""
    return f"{runs} of {point.valid + point.invalid}" if runs else "-"


def _repeat(info: SweepAnswer) -> str:
    """The command that repeats the sweep."""
    axes = {axis.name: [str(value) for value in axis.values] for axis in info.axes}
    seeds = info.seeds
    counted = bool(seeds) and list(seeds) == list(range(seeds[0], seeds[0] + len(seeds)))
    overrides = {
        "rate": _listed(axes[RATE]) if RATE in axes else None,
        "seeds": str(len(seeds)) if counted else ",".join(map(str, seeds)),
        "seed": seeds[0] or None if counted else None,
        "fail-under": info.fail_under,
        "goal": ",".join(map(percent, info.goals)),
    }
    over = [f"--over {shlex.quote(f'{clean(n)}={clean(_listed(v), None)}')}" for n, v in axes.items() if n != RATE]
    return " ".join([command("sweep", {**_given(info), **overrides}), *over])


def _given(info: SweepAnswer) -> dict[str, Any]:
    """The options that all runs share, without the wait for late answers where there is none: a simulator has no use
    for what is stored as its default."""
    return {name: value for name, value in info.spec.items() if name != "drain" or info.clock != "virtual"}


def _capacity(info: SweepAnswer) -> str | None:
    """The command that finds the capacity of the system that sustains most, with its interval; None for a sweep that is
    not over the rate of an SLO."""
    if not info.spec.get("slo") or all(axis.name != RATE for axis in info.axes):
        return None
    along = [crossing for crossing in info.crossings if crossing.along == RATE]
    above = [crossing for crossing in along if crossing.side == "above"]  # sustains more than was tried
    crossed = [crossing for crossing in along if crossing.at is not None]
    best = above[0] if above else max(crossed, key=lambda one: (one.goal, one.at), default=None)
    fixed = {axis.name: axis.values[0] for axis in info.axes if axis.name != RATE} | dict(best.where if best else {})
    plain = {name: value for name, value in fixed.items() if "." not in name and name != SCALE}
    options = {**_given(info), **plain, "goal": ",".join(map(percent, info.goals))}
    if info.clock == "virtual" and not options.get("trace"):  # runs last as long as the horizon
        counted = str(options.get("warmup") or "").isdecimal() or options.get("warmup") == "mser5"
        options |= {"requests": None, **({"warmup": None} if counted else {})}
    return command("capacity", options)


def _listed(values: list[str]) -> str:
    """Values as --rate and --over take them."""
    if any("," in value for value in values):
        return "|".join(values) + ("|" if len(values) == 1 else "")
    return ",".join(values)


def command(name: str, options: Mapping[str, Any]) -> str:
    """A command of bench with these options, those that are not None and that it takes."""
    usable = {k: v for k, v in options.items() if name != "capacity" or k not in NOT_OF_A_SEARCH}
    words = [f"--{clean(key)} {shlex.quote(clean(value, None))}" for key, value in usable.items() if value is not None]
    return " ".join(["bench", name, *words])


def _used(info: SweepAnswer, study: Study | None) -> Facts:
    sweep_facts, stored = encode(info), encode(_first_run(study))
    rows = [("clock", clean(info.clock)), ("seeds", clean(", ".join(map(str, info.seeds)), 300))]
    for title in ("spec", "traffic", "backend", "versions"):
        rows += [(f"{title}: {name}", value) for name, value in flat(part(sweep_facts, title))]
    for title in ("host", *(name for name in ("workload", "backend") if not part(sweep_facts, name))):
        rows += [(f"first run, {title}: {name}", value) for name, value in flat(part(stored, title))]
    return tuple(rows)
