"""The rows of the table of acceptance: what the literature printed of serving systems beside what is obtained here."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Badge = Literal["formula", "exact", "real", "simulated"]
"""formula: arithmetic, or a table of measurements read back; exact: decisions of the core, or golden numbers of another
program; real: measurements of real systems; simulated: shape and range."""


@dataclass(frozen=True, slots=True)
class Row:
    """One published fact and what was obtained.

    `id` is that of the specification of systems (`S05`), with a letter where a row has several facts (`S05.b`).
    `published` and `obtained` are texts with units, `band` says how near they must be, `holds` whether they are (None:
    printed for information, or not run; `note` says why). `command` is what a user types to see it.
    """

    id: str
    system: str
    badge: Badge
    published: str
    obtained: str
    band: str
    holds: bool | None
    command: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """Where rows find what they need: `data` is the folder of public measurements and traces, None where it is absent.

    `work` is a folder for runs that need one.
    """

    data: Path | None
    work: Path


Rows = Callable[[Place], Iterator[Row]]
