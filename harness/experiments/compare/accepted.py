"""Accepted levels of nightly series: `accepted.json` in the folder of a series, made to be committed.

A series is judged against the level of its first runs until a later run is accepted, from which on a new level counts.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, field

from harness import untrusted
from harness.data.codec import Damaged, Document, Part, Text, decode, encode
from harness.data.storage import write_json
from harness.errors import UsageError
from harness.experiments.compare.history import NightlyRun, date_of, read

FILE = "accepted.json"
LATEST = "latest"


class Level(Part, frozen=True, kw_only=True):
    """From the folder `run` on the level of the series is another one, accepted at `date`."""

    run: Annotated[str, Meta(pattern=r"20\d\d-?\d\d-?\d\d")]
    date: Annotated[str, Meta(pattern=r"^20\d\d-\d\d-\d\d$")]
    reason: Text = None


class Accepted(Document, frozen=True, kw_only=True):
    """The file: every level that was accepted, in the order of time."""

    schema: int = 1
    kind: Literal["accepted"] = "accepted"
    levels: list[Level] = field(default_factory=list)


def levels(folder: Path) -> Accepted:
    """What is accepted in the folder of a series; nothing without a file. Raises UsageError for a damaged one."""
    path = folder / FILE
    if not path.exists():
        return Accepted()
    try:
        return decode(Accepted, untrusted.read_json(path))
    except (Damaged, ValueError, OSError) as error:
        where = f"at '{error}'" if isinstance(error, Damaged) else "it is no JSON"
        raise UsageError(
            f"'{path}' holds no accepted levels ({where}): each needs the 'run' and the 'date' YYYY-MM-DD; correct it, "
            "or delete it and accept a run again with --accept."
        ) from None


def places(runs: Sequence[NightlyRun]) -> dict[int, Level]:
    """Place of the first run at each accepted level -> that level; also where the run itself is gone."""
    found = {}
    for level in levels(runs[0].path.parent).levels:
        later = [i for i, run in enumerate(runs) if date_of(run.name) >= date_of(level.run)]
        if later:
            found[later[0]] = level
    return found


def accept(root: Path, name: str, reason: str | None) -> None:
    """Accept a run, by its folder, date or commit, or the latest one, in each series below the folder that has it.

    Raises UsageError where none has it, or where the last run has no values.
    """
    series = read(root)
    found = {key: run for key, runs in series.items() if (run := _run(runs, name)) is not None}
    if not found:
        last = max(runs[-1].name for runs in series.values())
        raise UsageError(
            f"No run in '{root}' is named '{name}'; give its folder, date or commit, such as '{last}', or latest."
        )
    for key, run in found.items():
        if run.why is not None:
            raise UsageError(f"'{run.name}' of {key} has no values to accept: {run.why}. Name another run.")
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    for run in found.values():
        folder = run.path.parent
        before = levels(folder)
        others = [level for level in before.levels if date_of(level.run) != date_of(run.name)]
        new = sorted([*others, Level(run=run.name, date=today, reason=reason)], key=lambda level: date_of(level.run))
        write_json(folder / FILE, encode(before.change(levels=new)))


def _run(runs: Sequence[NightlyRun], name: str) -> NightlyRun | None:
    """The run of that name; of several with one commit or on one day the first."""
    if name == LATEST:
        return runs[-1]
    named: Mapping[str, NightlyRun] = {
        key: run for run in reversed(runs) for key in (run.commit, run.at, run.at[:10], run.name) if key
    }
    return named.get(name)
