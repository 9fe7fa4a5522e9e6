"""Where the runs of a stored comparison lie now: below its folder, or where they were when it was made."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.data.folder import read_info
from harness.data.run_json import Cut
from harness.errors import UsageError
from harness.experiments import answers, imports
from harness.experiments.compare import pairing
from harness.experiments.rescore import reading
from harness.experiments.rescore.reading import Source
from reports import _data, _format, _sending
from reports._system import Facts

SEARCH = "capacity.json"


def same_requests(info: Mapping[str, Any]) -> bool:
    """Whether both sides of every pair sent the same requests; else --allow-different let others pass."""
    return all(each["field"] != "schedule" for each in (*info["refused"], *info["allowed_differences"]))


def folder_of(info: Mapping[str, Any], pair: Mapping[str, Any], side: str, beside: Path) -> Path | None:
    """The run or search of a side of a pair, if it is still there: a folder or a file; None else.

    A run folder of another schedule than was compared is another run.
    """
    schedule = pair.get("schedule_hash") if side == "base" or same_requests(info) else None
    for path in _places(Path(str(pair.get(f"{side}_run") or "")), beside):
        if path.is_file() or (path / SEARCH).is_file():
            return path
        if (path / "run.json").exists() and _is_it(path, schedule):
            return path
    return None


def source(info: Mapping[str, Any], pair: Mapping[str, Any], side: str, beside: Path) -> Source | None:
    """The requests of a side of a pair, all that were sent; None where they cannot be found, or not be told apart."""
    path = folder_of(info, pair, side, beside)
    if path is None or (path / SEARCH).is_file():
        return None
    found = [run for run in _read(path, float(pair.get("cut_s") or 0.0)) if run.table.num_rows]
    wanted = [run for run in found if run.info.schedule.sha256 == pair.get("schedule_hash")]
    kept = wanted if len(found) > 1 else found
    return kept[0] if len(kept) == 1 else None


def searches(info: Mapping[str, Any], beside: Path) -> dict[str, Mapping[str, Any]]:
    """The answers of both searches of the first valid pair, by side; empty where these were no searches."""
    pair: Mapping[str, Any] = next((pair for pair in info["pairs"] if pair["valid"]), {})
    found: dict[str, Mapping[str, Any]] = {}
    for side in ("base", "head"):
        places = _places(Path(str(pair.get(f"{side}_run") or "")), beside)
        kept = (answers.of(place) for place in places if (place / SEARCH).is_file())
        search = next((one for one in kept if one is not None and answers.kind_of(one) == "capacity"), None)
        if search is None:
            return {}
        found[side] = answers.encode(search)
    return found


def only_numbers(info: Mapping[str, Any], beside: Path) -> bool:
    """Whether the first pair left numbers that a command printed, and nothing else."""
    run = next((str(pair.get("base_run") or "") for pair in info["pairs"]), "")
    return any((place / pairing.FILE).is_file() for place in _places(Path(run), beside))


def floors(info: Mapping[str, Any], beside: Path) -> Facts:
    """The client's own error on each side, from the first of its runs that is there and that measured it."""
    return tuple(
        (f"Client floor, {side}", text)
        for side in ("base", "head")
        for text in [next(filter(None, (_floor(info, pair, side, beside) for pair in info["pairs"][:LOOKED])), "")]
        if text
    )


LOOKED = 3
"""Pairs that are looked through for a client floor."""


def _floor(info: Mapping[str, Any], pair: Mapping[str, Any], side: str, beside: Path) -> str:
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
        told = read_info(path).schedule.sha256
    except UsageError:
        return False
    return schedule is None or told == schedule
