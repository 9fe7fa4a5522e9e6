"""The folder of a sweep: its plan is there before the first run, so that the same command can go on after a kill."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.errors import UsageError
from harness.storage import locked, write_json

FILE = "sweep.json"
OURS = {FILE, f"{FILE}.part", "sweep.csv", "sweep.md", "points"}
REPORTS = "report"
"""How the names of reports begin, which bench report may have left in the folder."""

RUNNING: Mapping[str, Any] = {
    "state": "running",
    "exit_code": None,
    "points": [],
    "crossings": [],
    "warnings": [],
    "error": None,
}


@contextmanager
def opened(out: Path, stored: Mapping[str, Any], planned: int) -> Iterator[None]:
    """The folder, made or found with the same plan in it, and locked against a second sweep while the body runs.

    More values and more seeds may have been added since. Raises UsageError, having changed nothing, for a folder that
    holds anything else, another sweep, or one that goes on.
    """
    _check_ours(out)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"'{out}' cannot be made: {error.strerror}.") from None
    with locked(out, "sweep"):
        if (out / FILE).exists():
            _check_same(out, _read(out / FILE), stored)
        write_json(out / FILE, {**stored, **RUNNING, "runs": {"planned": planned, "done": 0}})
        yield


def _check_ours(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise UsageError(f"'{out}' is a file; --out names a folder.")
    there = {p.name for p in out.iterdir() if not p.name.startswith(REPORTS)} if out.is_dir() else set()
    foreign = sorted(there - OURS)
    if foreign:
        raise UsageError(f"'{out}' holds '{foreign[0]}', which is no part of a sweep; name an empty folder.")


def _read(file: Path) -> dict[str, Any]:
    try:
        info = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"'{file}' cannot be read ({error}); name another --out.") from None
    if not isinstance(info, dict) or info.get("kind") != "sweep":
        raise UsageError(f"'{file}' was not written by 'bench sweep'; name another --out.")
    return info


def _check_same(out: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Runs of two sweeps in one curve would be no curve."""
    for what in ("schema", "clock"):
        if before.get(what) != now[what]:
            raise _other(out, what, before.get(what), now[what])
    for group, prefix in (("spec", "--"), ("versions", "the version of ")):
        old, new = before.get(group) or {}, now[group]
        for name in sorted({*old, *new}):
            if old.get(name) != new.get(name):
                raise _other(out, f"{prefix}{name}", old.get(name), new.get(name))
    _check_grown(out, before, now)


def _check_grown(out: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    old = {axis["name"]: axis["values"] for axis in before.get("axes") or []} | {"seeds": before.get("seeds") or []}
    new = {axis["name"]: axis["values"] for axis in now["axes"]} | {"seeds": now["seeds"]}
    if list(old) != list(new):
        raise _other(out, "what is swept over", ", ".join([*old][:-1]) or "seeds", ", ".join([*new][:-1]) or "seeds")
    for name, values in old.items():
        gone = [value for value in values if value not in new[name]]
        if gone:
            raise UsageError(
                f"'{out}' holds a sweep with {name} {gone[0]} too, which is not asked for now; values may be added to "
                "those that are there, not taken away. Name another --out."
            )


def _other(out: Path, what: str, before: object, now: object) -> UsageError:
    said = ["nothing" if value is None else f"'{value}'" for value in (before, now)]
    return UsageError(
        f"'{out}' holds another sweep: {what} was {said[0]} there and is {said[1]} now; "
        "repeat that command to go on with it, or name another --out."
    )
