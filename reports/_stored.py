"""What stored runs say of themselves in run.json, read without their tables."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reports._sending import floors

if TYPE_CHECKING:
    from reports.study.runs import Study


def facts(folder: Path) -> dict[str, Any]:
    """run.json of a folder; empty where there is none that can be read."""
    try:
        info = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return info if isinstance(info, dict) else {}


def first(folders: Iterable[Path]) -> dict[str, Any]:
    """run.json of the first folder that has one."""
    return next((found for folder in folders if (found := facts(folder))), {})


def floor_s(study: Study) -> Mapping[str, float]:
    """The client's floor by metric: 99% of all times are nearer to the truth, in the worst of the runs."""
    found: dict[str, float] = {}
    for folder in dict.fromkeys(f for system in study.systems for point in system.points for f in point.folders):
        for metric, floor in floors(facts(folder)).items():
            found[metric] = max(found.get(metric, 0.0), floor.p99_s)
    return found
