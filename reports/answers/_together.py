"""One page of several runs, sweeps and searches: their systems in the same figures, each with its own tables."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from harness.data.folder import Run
from harness.errors import UsageError
from harness.experiments.capacity.capacity_json import CapacityAnswer
from harness.experiments.sweep.answer import gathered
from harness.experiments.sweep.sweep_json import SweepAnswer
from reports import _format
from reports._format import clean, quoted
from reports.answers import capacity, sweep
from reports.document import Block, Document, Finding, Notice, Section
from reports.figures import curves
from reports.study import Study, of_capacity, of_many, of_sweep

UNTESTED = "bench compare tests whether two systems differ."
RUNS = "runs"
"""How the runs are called that no sweep made."""


Curve: TypeAlias = SweepAnswer | CapacityAnswer
Named: TypeAlias = Mapping[str, tuple[Curve, Path]]


def document(found: Sequence[tuple[Curve, Path]], runs: Iterable[Run], home: Path = Path()) -> Document:
    """What stands on a page of these answers, each with where it is stored, and runs; the page will stand in `home`.

    Raises UsageError where there is nothing to show.
    """
    from_runs = gathered((run, os.path.relpath(run.path, home)) for run in runs)
    folders = [path if path.is_dir() else path.parent for _, path in found]
    names = [folder.resolve().name for folder in folders]
    by_name = {  # by as much of the path as distinguishes it
        clean(name, 60) if names.count(name) == 1 else clean(folder, 100): (info, folder)
        for (info, _), folder, name in zip(found, folders, names, strict=True)
    }
    if from_runs.points or from_runs.warnings:
        by_name[RUNS] = (from_runs, home)
    if not by_name:
        raise UsageError("There is no run, sweep or search to report; name their folders.")
    if list(by_name) == [RUNS]:
        return _of_runs(from_runs, home)
    studies = {
        name: of_capacity(info, path) if isinstance(info, CapacityAnswer) else of_sweep(info, path)
        for name, (info, path) in by_name.items()
    }
    study = of_many(studies) if len(studies) > 1 else next(iter(studies.values()))
    return Document(
        title=f"{_format.count(len(study.systems), 'system')} side by side",
        subtitle=", ".join(by_name),
        mark="SIDE BY SIDE",
        good=None,
        findings=(Finding(curves.finding(study), None, (UNTESTED,)),),
        key_facts=tuple(_key_facts(study, by_name, studies)),
        warnings=tuple(_warnings(study, by_name)),
        sections=(*sweep.of_figures(study, [sweep.crossed(study)]), *_sections(by_name, home)),
        commands=(f"bench report {' '.join(map(quoted, folders))}",) if folders else (),
    )


def _of_runs(info: SweepAnswer, home: Path) -> Document:
    """The page of runs alone: that of a sweep which was not planned as one."""
    study = of_sweep(info, home)
    runs = sum(len(point.runs) for point in info.points)
    page = sweep.document(info, home)
    return replace(
        page,
        title=f"{_format.count(runs, 'run')} of {_format.count(len(study.systems), 'system')}",
        subtitle=f"made one by one; goal {' and '.join(map(_format.percent, info.goals))}",
        warnings=(*_slos(study), *page.warnings, *_traffic(study)),
        next=None,
        commands=(),
    )


def _key_facts(study: Study, found: Named, studies: Mapping[str, Study]) -> Iterator[tuple[str, str]]:
    yield "SLO", f"{clean(study.slo, 400)} (seconds)" if study.slo else ""
    for name, (info, _) in found.items():
        facts = dict(sweep.key_facts(info, studies[name]))
        what = facts.get("System") or clean(info.spec.get("backend") or info.kind, 200)
        yield name, "; ".join(text for text in (what, facts.get("Workload", "")) if text)


def _warnings(study: Study, found: Named) -> Iterator[Notice]:
    yield from _slos(study)
    names = {
        str(info.spec.get("workload") or (info.workload if isinstance(info, CapacityAnswer) else None))
        for info, _ in found.values()
    }
    if len(names) > 1:
        yield Notice(f"The traffic differs ({clean(', '.join(sorted(names)), 200)}), so the curves do too.")
    yield from _traffic(study)
    names_of: dict[str, list[str]] = {}
    for name, (info, _) in found.items():
        if isinstance(info, SweepAnswer):
            for text in (*([info.error] if info.error else []), *info.warnings):
                names_of.setdefault(clean(text, None), []).append(name)
    for text, of in names_of.items():
        yield Notice(f"{', '.join(of)}: {text}")


def _slos(study: Study) -> Iterator[Notice]:
    if len({system.slo for system in study.systems}) > 1:
        yield Notice(
            "The systems were scored under different SLOs, so their curves do not tell which is better.",
            "Score them alike: bench slo, with each folder and one --slo.",
        )


def _traffic(study: Study) -> Iterator[Notice]:
    """Whether systems were sent the same requests at the same rate and seed."""
    sent: dict[tuple[Any, Any], set[str]] = {}
    for source in study.sources:
        for point in source.get("points") or ():
            for run in point["runs"]:
                sent.setdefault((point["values"].get("rate"), run["seed"]), set()).add(str(run["schedule_sha256"]))
    unequal = sum(len(schedules) > 1 for schedules in sent.values())
    if unequal and len(study.systems) > 1:
        count_text = f"{unequal} of {_format.count(len(sent), 'pair')} of rate and seed"
        yield Notice(
            f"Systems were not sent the same requests (at {count_text}), so part of the difference is chance.",
            "Make their runs with the same workload, rates, number of requests and seeds.",
        )


def _sections(found: Named, home: Path) -> Iterator[Section]:
    """The tables of each; then the runs of all, with links to them."""
    for number, (name, (info, _)) in enumerate(found.items(), 1):
        if isinstance(info, CapacityAnswer):
            curve = [capacity.curve_table(info)] if info.curve else []
            blocks: tuple[Block, ...] = (*(capacity.headline(info, answer) for answer in info.answers), *curve)
        else:
            blocks = tuple(sweep.tables(info))
        yield Section(f"part-{number}", name, blocks)
    tables = [
        replace(table, caption=f"{name}: {table.caption}")
        for name, (info, path) in found.items() if isinstance(info, SweepAnswer)
        for table in sweep.runs(info, path, home)
    ]  # fmt: skip
    yield Section("runs", "Runs", tuple(tables), detail=True)
