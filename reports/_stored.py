"""What stored runs say of themselves in run.json, read without their tables."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from harness.data.folder import read_info
from harness.data.run_json import RunInfo
from harness.errors import UsageError
from reports._sending import floors
from reports.study.runs import Study


def infos(folders: Iterable[Path]) -> Iterator[RunInfo]:
    """run.json of the folders that have one which can be read."""
    for folder in folders:
        try:
            yield read_info(folder)
        except UsageError:
            continue


def floor_s(study: Study) -> Mapping[str, float]:
    """The client's floor by metric: 99% of all times are nearer to the truth, in the worst of the runs."""
    found: dict[str, float] = {}
    folders = dict.fromkeys(f for system in study.systems for point in system.points for f in point.folders)
    for info in infos(folders):
        for metric, floor in floors(info).items():
            found[metric] = max(found.get(metric, 0.0), floor.p99_s)
    return found
