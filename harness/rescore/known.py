"""Capacities that a search has found for the very SLO that a run is scored under: they stand in the same folder."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.api import Slo
from harness.rescore.objectives import Objective
from harness.slo import restored

if TYPE_CHECKING:
    from harness.rescore.reading import Source

UP = 4
"""Folders above a run in which a search that made it may have left its answer."""


def capacities(source: Source, objective: Objective, goals: Sequence[float]) -> list[dict[str, Any]]:
    """Per goal that a search decided: the rate and its interval, in requests per second."""
    if not isinstance(objective, Slo):
        return []
    free = {"rate", "seed", "scale", "slo", "goal", "requests", "warmup", "fail-under", "duration", "max-failed"}
    for info in _searches(source.path):
        if set(restored(info).bounds) != set(objective.bounds):
            continue
        # the same system and traffic, at whatever rate and seed
        one, other = ({k: v for k, v in (i.get("spec") or {}).items() if k not in free} for i in (info, source.info))
        if one == other:
            found = [answer for answer in info.get("answers") or [] if answer.get("goal") in goals]
            keys = ("goal", "state", "capacity_rps", "low_rps", "high_rps", "per_gpu_rps", "bracket")
            return [{key: answer.get(key) for key in keys} for answer in found]
    return []


def _searches(path: Path) -> Iterator[Mapping[str, Any]]:
    """The answers of searches in the folder of a run and above it, the nearest first."""
    for folder in [path, *path.absolute().parents][: UP + 1]:
        try:
            info = json.loads((folder / "capacity.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(info, dict) and info.get("kind") == "capacity":
            yield info
