"""Facts of `run.json` as name and printed value: what was used, and how to repeat it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from reports import _numbers
from reports._clean import clean

if TYPE_CHECKING:
    from harness.folder import Run

Facts = tuple[tuple[str, str], ...]


def part(info: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A nested object of `run.json`; empty where it is missing or is no object."""
    value = info.get(name)
    return value if isinstance(value, Mapping) else {}


def caution(info: Mapping[str, Any], code: str) -> Mapping[str, Any] | None:
    """The warning of that code, where the run carries one."""
    found = (w for w in info.get("warnings") or [] if isinstance(w, Mapping))
    return next((w for w in found if w.get("code") == code), None)


def first(source: Mapping[str, Any], *names: str) -> str | None:
    """The first of these keys that holds something, cleaned."""
    found = (source.get(name) for name in names)
    return next((clean(v, 600) for v in found if v not in (None, "", {}, [])), None)


def pairs(source: Mapping[str, Any], leave_out: tuple[str, ...] = ()) -> str:
    """'policy sarathi, kv blocks 512': the plain values of an object."""
    plain = {k: v for k, v in source.items() if k not in leave_out and isinstance(v, str | int | float) and v != ""}
    return ", ".join(f"{clean(str(k).replace('_', ' '), 40)} {clean(_plain(v), 80)}" for k, v in plain.items())


def flat(source: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """Every value of a nested object with its path as the name."""
    for key, value in source.items():
        name = f"{above} {clean(str(key).replace('_', ' '), 60)}".strip()
        if isinstance(value, Mapping):
            yield from flat(value, name)
        elif isinstance(value, list | tuple):
            yield name, clean(", ".join(_plain(v) for v in value), 600)
        elif value not in (None, ""):
            yield name, clean(_plain(value), 600)


def used(run: Run) -> Facts:
    """The rows of the table 'What was used'."""
    info = run.info
    rows = [(name, clean(info[name])) for name in ("started", "clock") if info.get(name) not in (None, "")]
    seed = part(info, "spec").get("seed")
    if seed is not None:
        rows.append(("seed", clean(seed)))
    for title in ("schedule", "workload", "backend", "versions", "host"):
        rows += [(f"{title}: {name}", value) for name, value in flat(part(info, title))]
    return tuple(rows)


def commands(run: Run) -> tuple[str, ...]:
    """Commands that repeat the run: as it was typed, and from the run folder; of another tool's file none of ours."""
    if part(run.info, "source"):
        return (f"bench report {shlex.quote(clean(run.path, None))}",)
    typed = clean(run.info.get("command") or "", None)
    again = f"bench run --config {shlex.quote(clean(run.path / 'run.json', None))}"
    return (typed, again) if typed else (again,)


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return _numbers.option(value)
    return str(value)
