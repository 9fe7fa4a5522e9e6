"""What a command has left behind: a run, an answer, another tool's file, or printed numbers; and whether it counts."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from harness.errors import CRASHED, INTERRUPTED, UsageError
from harness.experiments import imports
from harness.experiments.compare import pairing

ANSWERS = ("capacity.json", "sweep.json")
State = Literal["good", "invalid", "failed", "wrong", "crashed", "interrupted"]

_WRONG_USAGE, _NOT_VALID = 2, 4
_JUDGED = (0, 1, 5)
"""Exit codes of commands of ours that measured well, whatever they think of the result."""


@dataclass(frozen=True, slots=True)
class Left:
    """One run of a side: what it left at `path`, whether that can be used, and else why not.

    `wrong` is a command that was never fit to run, `crashed` one of ours that met a bug. `exact` results are those of
    a virtual clock. `address` and `salt` tell of a remote server which one it was, and what opened its prompts. A
    search has `many_seeds`.
    """

    path: Path
    state: State
    why: str | None = None
    schedule_sha256: str | None = None
    exact: bool = False
    address: str | None = None
    salt: str | None = None
    given_up: int = 0
    many_seeds: bool = False


def left(path: Path, code: int, out: Path, err: Path, *, ours: bool) -> Left:
    """What a command with that exit code left at `path`, or beside it with an ending; `ours` is a `bench run`."""
    if ours and code == _WRONG_USAGE:
        return Left(path, "wrong", _last(err))
    if ours and code == CRASHED:
        return Left(path, "crashed", _last(err))
    if code == INTERRUPTED:
        return Left(path, "interrupted", _last(err))
    if (path / "run.json").exists():
        return _of_run(path, code, err, ours=ours)
    if (answer := next((path / name for name in ANSWERS if (path / name).exists()), None)) is not None:
        return _of_answer(path, _json(answer), code, err)
    if code != 0:
        return Left(path, "failed", f"it ended with exit code {code}: {_last(err)}")
    return _of_file(path) or _of_numbers(path, out)


def _of_run(path: Path, code: int, err: Path, *, ours: bool) -> Left:
    info = _json(path / "run.json")
    backend, outcome = _part(info, "backend"), _part(info, "outcome")
    verdict = _part(info, "verdict")
    facts: dict[str, Any] = {
        "schedule_sha256": _part(info, "schedule").get("sha256"),
        "exact": info.get("clock") == "virtual",
        "address": backend.get("url"),
        "salt": backend.get("salt"),
        "given_up": int(outcome.get("cut") or 0),
    }
    if outcome.get("ended") in ("stopped", "interrupted"):
        return Left(path, "interrupted", "it was interrupted", **facts)
    if outcome.get("ended") == "failed" or (code not in (*_JUDGED, _NOT_VALID)):
        why = str(outcome.get("error") or f"it ended with exit code {code}: {_last(err)}")
        return Left(path, "failed", why.rstrip("."), **facts)
    if not verdict.get("valid"):
        return Left(path, "invalid", str(verdict.get("text") or "it has no verdict").rstrip("."), **facts)
    if not ours and code not in _JUDGED:
        return Left(path, "failed", f"it ended with exit code {code}: {_last(err)}", **facts)
    return Left(path, "good", **facts)


def _of_answer(path: Path, info: Mapping[str, Any], code: int, err: Path) -> Left:
    """A search or a sweep: unresolved is an answer, not valid is none."""
    if code == _NOT_VALID or info.get("exit_code") == _NOT_VALID:
        return Left(path, "invalid", _last(err))
    if code not in _JUDGED:
        return Left(path, "failed", f"it ended with exit code {code}: {_last(err)}")
    return Left(path, "good", exact=info.get("clock") == "virtual", many_seeds=True)


def _of_file(path: Path) -> Left | None:
    """A result file of another tool; None where there is none that is known."""
    logs = (".stdout.txt", ".stderr.txt")
    others = path.parent.glob(f"{path.name}.*")
    there = [path] if path.exists() else sorted(p for p in others if not p.name.endswith(logs))
    for place in there:
        try:
            found = imports.open(place)
        except UsageError:
            if place.is_file() and (values := pairing.found(place.read_text(encoding="utf-8", errors="replace"))):
                pairing.write(path, values)
                return Left(path, "good")
            continue
        if len(found) != 1:
            return Left(place, "failed", f"it left {len(found)} runs where one was expected")
        info = found[0].info
        if info.verdict.valid is False:
            return Left(place, "invalid", str(info.verdict.text))
        return Left(place, "good", schedule_sha256=info.schedule.sha256)
    return None


def _of_numbers(path: Path, out: Path) -> Left:
    values = pairing.found(out.read_text(encoding="utf-8", errors="replace"))
    if not values:
        return Left(path, "wrong", "it left no run at {out}, and printed no JSON object with numbers")
    pairing.write(path, values)
    return Left(path, "good")


def log(path: Path, kind: Literal["out", "err"]) -> Path:
    """Where what a command prints is kept, beside its result."""
    return path.with_name(f"{path.name}.std{kind}.txt")


def _last(err: Path) -> str:
    """The last line of what a command complained, without control characters."""
    lines = [line.strip() for line in err.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    text = lines[-1].removeprefix("bench: ") if lines else "it said nothing"
    return "".join(c if c.isprintable() else " " for c in text)[:600].rstrip(".")


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _part(info: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = info.get(key)
    return value if isinstance(value, Mapping) else {}
