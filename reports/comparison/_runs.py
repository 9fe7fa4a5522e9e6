"""Where the runs of a stored comparison lie now: below its folder, or where they were when it was made."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from harness.data.folder import read_info
from harness.data.run_json import Cut
from harness.errors import UsageError
from harness.experiments import answers, imports
from harness.experiments.capacity.capacity_json import CapacityAnswer
from harness.experiments.compare import pairing
from harness.experiments.compare.compare_json import CompareAnswer, ComparedPair
from harness.experiments.rescore import reading
from harness.experiments.rescore.reading import Source
from reports import _data, _format, _sending
from reports._system import Facts

SEARCH = "capacity.json"


def folder_of(info: CompareAnswer, pair: ComparedPair, side: str, beside: Path) -> Path | None:
    """The run or search of a side of a pair, if it is still there: a folder or a file; None else.

    A run folder of another schedule than was compared is another run.
    """
    schedule = pair.schedule_hash if side == "base" or info.same_requests else None
    for path in _places(Path(pair.run(side)), beside):
        if path.is_file() or (path / SEARCH).is_file():
            return path
        if (path / "run.json").exists() and _is_it(path, schedule):
            return path
    return None


def source(info: CompareAnswer, pair: ComparedPair, side: str, beside: Path) -> Source | None:
    """The requests of a side of a pair, all that were sent; None where they cannot be found, or are ambiguous."""
    path = folder_of(info, pair, side, beside)
    if path is None or (path / SEARCH).is_file():
        return None
    found = [run for run in _read(path, float(pair.cut_s or 0.0)) if run.table.num_rows]
    wanted = [run for run in found if run.info.schedule.sha256 == pair.schedule_hash]
    kept = wanted if len(found) > 1 else found
    return kept[0] if len(kept) == 1 else None


def searches(info: CompareAnswer, beside: Path) -> dict[str, CapacityAnswer]:
    """The answers of both searches of the first valid pair, by side; empty where these were no searches."""
    pair = next((pair for pair in info.pairs if pair.valid), None)
    found: dict[str, CapacityAnswer] = {}
    if pair is None:
        return found
    for side in ("base", "head"):
        places = _places(Path(pair.run(side)), beside)
        stored = (answers.of(place) for place in places if (place / SEARCH).is_file())
        search = next((one for one in stored if isinstance(one, CapacityAnswer)), None)
        if search is None:
            return {}
        found[side] = search
    return found


def only_numbers(info: CompareAnswer, beside: Path) -> bool:
    """Whether the first pair left numbers that a command printed, and nothing else."""
    run = next((pair.base_run for pair in info.pairs), "")
    return any((place / pairing.FILE).is_file() for place in _places(Path(run), beside))


def floors(info: CompareAnswer, beside: Path) -> Facts:
    """The client's own error on each side, from the first of its runs that is there and that measured it."""
    return tuple(
        (f"Client floor, {side}", text)
        for side in ("base", "head")
        for text in [next(filter(None, (_floor(info, pair, side, beside) for pair in info.pairs[:LOOKED])), "")]
        if text
    )


LOOKED = 3
"""Pairs that are looked through for a client floor."""


def _floor(info: CompareAnswer, pair: ComparedPair, side: str, beside: Path) -> str:
    path = folder_of(info, pair, side, beside)
    if path is None or not (path / "run.json").is_file():
        return ""
    found = _sending.floors(read_info(path))
    units = {name: _format.unit_of([floor.p99_s]) for name, floor in found.items()}
    texts = [f"{_data.label(name)} {_sending.pair(floor, units[name])} {units[name]}" for name, floor in found.items()]
    return f"{', '.join(texts)} (half / 99% of all stamps are nearer to the truth)" if texts else ""


def _read(path: Path, cut_s: float) -> Iterator[Source]:
    """The runs at a path, with every request from `cut_s` on, whatever their own cut was."""
    for run in reading.sources(path):
        if run.info.warmup.at_s <= cut_s:
            yield run
        else:
            whole = Cut("none", 0.0, 0)
            yield from (
                reading.of_run(replace(each, info=each.info.change(warmup=whole))) for each in imports.open(path)
            )


def _places(stored: Path, beside: Path) -> Iterator[Path]:
    """Where a run may be: each end of its stored path below the folder of the comparison, then as it was stored."""
    parts = [part for part in stored.parts if part not in ("..", stored.anchor)]
    if not parts:
        return
    yield from (beside.joinpath(*parts[start:]) for start in range(len(parts)))
    yield stored


def _is_it(path: Path, schedule: object) -> bool:
    try:
        found = read_info(path).schedule.sha256
    except UsageError:
        return False
    return schedule is None or found == schedule
