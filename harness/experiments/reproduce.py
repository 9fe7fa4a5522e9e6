"""Published systems and the results that are published of them: what `backends/systems/NAME.toml` holds.

A row says what is published, where, and how bench obtains the same number: by commands that a user types, or by a test.
"""

import inspect
import tomllib
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from harness import registry


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A published result. `value` is an expression over the JSON of its runs, each named by its `--out`.

    `band` holds the least and the largest value that agree with `published`. `check` is a test instead of `run`, for
    what needs a clone: another program's numbers, exact replays.
    """

    id: str
    published: str
    source: str
    badge: Literal["exact", "real", "simulated", "formula"]
    run: tuple[str, ...] = ()
    value: str | None = None
    seeds: int = 1
    band: tuple[float, float] | None = None
    check: str | None = None
    note: str = ""

    def __post_init__(self) -> None:
        if self.check is not None and (self.run or self.value or self.band):
            raise ValueError(f"{self.id}: a row with a check has no run, value and band")
        if self.check is None and not (self.run and self.value and self.band):
            raise ValueError(f"{self.id}: a row needs run, value and band, or a check")
        if self.band is not None and self.band[0] > self.band[1]:
            raise ValueError(f"{self.id}: the band {self.band} ends before it begins")


@dataclass(frozen=True, slots=True)
class System:
    """A published system: its text, the (kind, name) of its plug-ins, and its rows."""

    name: str
    about: str
    plugins: tuple[tuple[str, str], ...]
    rows: tuple[Row, ...]


def system(name: str) -> System:
    """Read a published system. Raises UsageError for an unknown name, ValueError for rows that are not valid."""
    module = registry.find("systems", name)
    file = registry.folder(registry.SYSTEMS) / f"{name.replace('-', '_')}.toml"
    stored: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8")) if file.exists() else {"row": []}
    try:
        rows = msgspec.convert(stored["row"], tuple[Row, ...])
    except msgspec.ValidationError as error:
        raise ValueError(f"{file.name}: {error}") from None
    return System(name, inspect.getdoc(module) or "", tuple(registry.plugins_of(name)), rows)
