"""One page of several runs, sweeps and searches: their systems in the same figures, each with its own tables."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.data.folder import Run
from harness.errors import UsageError
from harness.experiments.sweep.gathered import gathered
from reports import _format, _sweep_verdict
from reports._format import clean, quoted
from reports._sheet import Section, Sheet, Table
from reports.answers import _capacity_said, _sweep_said
from reports.figures import curves
from reports.pages import sweep
from reports.study import of_capacity, of_many, of_sweep
from reports.study.runs import Info, Study

RUNS = "runs"
"""How the runs are called that no sweep made."""

MOST = 6
"""Folders that a command can name."""

Named = Mapping[str, tuple["Info", Path]]


def sheet(answers: Sequence[tuple[Mapping[str, Any], Path]], runs: Iterable[Run], home: Path = Path()) -> Sheet:
    """What stands on a page of these answers, each with where it is stored, and runs; the page will stand in `home`.

    Raises UsageError where there is nothing to show.
    """
    made = gathered((run, os.path.relpath(run.path, home)) for run in runs)
    found = dict(_named(answers))
    if made["points"] or made["warnings"]:
        found[RUNS] = (made, home)
    if not found:
        raise UsageError("There is no run, sweep or search to report; name their folders.")
    if list(found) == [RUNS]:
        return _of_runs(made, home)
    studies = {name: _study(info, path) for name, (info, path) in found.items()}
    study = of_many(studies) if len(studies) > 1 else next(iter(studies.values()))
    return Sheet(
        title=f"{_format.count(len(study.systems), 'system')} side by side",
        subtitle=", ".join(found),
        mark="SIDE BY SIDE",
        good=None,
        answer=curves.finding(study),
        state="The curves stand beside one another and are not tested; bench compare tells whether they differ.",
        heads=tuple(_heads(study, found)),
        warnings=tuple(_warnings(study, found)),
        sections=(*sweep.of_figures(study, *_paths(found)), *_sections(found, home)),
        commands=(f"bench report {' '.join(map(quoted, _paths(found)))}",) if _paths(found) else (),
    )


def _of_runs(info: Info, home: Path) -> Sheet:
    """The page of runs alone: that of a sweep which nobody planned."""
    study = of_sweep(info, home)
    folders = [run["folder"] for point in info["points"] for run in point["runs"]]
    found = sweep.sheet(info, home, folders if len(folders) <= MOST else [os.path.commonpath(folders)])
    count, systems = len(folders), len(study.systems)
    return Sheet(
        title=f"{_format.count(count, 'run')} of {_format.count(systems, 'system')}",
        subtitle=f"made one by one; goal {' and '.join(f'{100 * goal:g}%' for goal in info['goals'])}",
        mark=found.mark,
        good=found.good,
        answer=found.answer,
        state=_sweep_verdict.state(info),
        heads=found.heads,
        warnings=(*_slos(study), *found.warnings, *_traffic(study)),
        sections=found.sections,
        facts=found.facts,
    )


def _named(answers: Sequence[tuple[Mapping[str, Any], Path]]) -> Iterator[tuple[str, tuple[Info, Path]]]:
    """Each answer under the name of its folder, or as much of its path as tells it from the others."""
    homes = [path if path.is_dir() else path.parent for _, path in answers]
    names = [home.resolve().name for home in homes]
    for (info, _), home, name in zip(answers, homes, names, strict=True):
        yield (clean(name, 60) if names.count(name) == 1 else clean(home, 100)), (info, home)


def _study(info: Info, home: Path) -> Study:
    return of_capacity(info, home) if info["kind"] == "capacity" else of_sweep(info, home)


def _paths(found: Named) -> list[str]:
    return [str(home) for name, (_, home) in found.items() if name != RUNS]


def _heads(study: Study, found: Named) -> Iterator[tuple[str, str]]:
    if study.slo:
        yield "SLO", f"{clean(study.slo, 400)} (seconds)"
    for name, (info, home) in found.items():
        told = dict(sweep.heads(info, _study(info, home)))
        what = told.get("System") or clean((info.get("spec") or {}).get("backend") or info["kind"], 200)
        yield name, "; ".join(text for text in (what, told.get("Workload", "")) if text)


def _warnings(study: Study, found: Named) -> Iterator[tuple[str, str]]:
    yield from _slos(study)
    names = {str((info.get("spec") or {}).get("workload") or info.get("workload")) for info, _ in found.values()}
    if len(names) > 1:
        yield f"The traffic differs ({clean(', '.join(sorted(names)), 200)}): the curves are of other work too.", ""
    yield from _traffic(study)
    for name, (info, _) in found.items():
        for text in (*([info["error"]] if info.get("error") else []), *info.get("warnings", ())):
            yield f"{name}: {clean(text, None)}", ""


def _slos(study: Study) -> Iterator[tuple[str, str]]:
    if len({system.slo for system in study.systems}) > 1:
        yield (
            "The systems were scored under different SLOs, so their curves do not tell which is better.",
            "Score them alike: bench slo, with each folder and one --slo.",
        )


def _traffic(study: Study) -> Iterator[tuple[str, str]]:
    """Whether systems were sent the same requests at the same rate and seed."""
    sent: dict[tuple[Any, Any], set[str]] = {}
    for source in study.sources:
        for point in source.get("points") or ():
            for run in point["runs"]:
                sent.setdefault((point["values"].get("rate"), run["seed"]), set()).add(str(run["schedule_sha256"]))
    apart = sum(len(schedules) > 1 for schedules in sent.values())
    if apart and len(study.systems) > 1:
        of = f"{apart} of {_format.count(len(sent), 'pair')} of rate and seed"
        yield (
            f"Systems were not sent the same requests (at {of}), so part of what parts them is chance.",
            ("Make their runs with the same workload, rates, number of requests and seeds."),
        )


def _sections(found: Named, home: Path) -> Iterator[Section]:
    """The tables of each, and its own page where there is one."""
    for number, (name, (info, path)) in enumerate(found.items(), 1):
        if info["kind"] == "sweep":
            tables = [sweep.table(t) for t in _sweep_said.tables(info)]
            tables += [sweep.runs(info, path, home)]
            texts = tuple(_sweep_said.crossings(info))
        else:
            tables = [Table(_capacity_said.curve_title(info), _capacity_said.heads(info),
                            tuple(tuple(row) for row in _capacity_said.curve_rows(info)))]  # fmt: skip
            texts = tuple(_capacity_said.headline(info, one) for one in info.get("answers") or ())
        yield Section(f"part-{number}", name, texts, tuple(tables))
