"""What a GPU costs: itself, money per hour, or watts; by kind of GPU, and by what it does where that matters."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from harness.errors import UsageError
from harness.place.systems import System

Objective = Literal["gpu", "cost", "power"]
OBJECTIVES: tuple[Objective, ...] = ("gpu", "cost", "power")
UNITS: Mapping[Objective, str] = {
    "gpu": "req/s per GPU",
    "cost": "requests per unit of money",
    "power": "requests per kJ",
}
ROLES = ("mixed", "prefill", "decode")


@dataclass(frozen=True, slots=True)
class Worth:
    """What is to be saved. `table` tells the price per hour, or the watts, of a kind of GPU in each role."""

    objective: Objective = "gpu"
    table: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def of(self, system: System, rate_rps: float) -> float:
        """How much a unit does for what it takes, at a rate of the whole unit; `UNITS` has the unit."""
        taken = sum(
            gpus * (1.0 if self.objective == "gpu" else self.table[system.hardware][role])
            for role, gpus in sides(system)
        )
        return rate_rps / taken * {"gpu": 1.0, "cost": 3600.0, "power": 1000.0}[self.objective]


def sides(system: System) -> list[tuple[str, int]]:
    """Roles of a unit and the GPUs that each has."""
    if system.kind == "pair":
        assert system.decode is not None
        return [("prefill", system.cross * system.prefill.gpus), ("decode", system.cross * system.decode.gpus)]
    return [("mixed" if system.kind == "colocated" else system.kind, system.gpus)]


def worth(objective: Objective, file: str | None, hardware: tuple[str, ...]) -> Worth:
    """The objective with its table read from a TOML file: `h100 = 700`, or `[h100]` with prefill, decode and mixed.

    Raises UsageError for a file that is missing or tells nothing of a kind of GPU that is searched.
    """
    option, what = {"gpu": ("", ""), "cost": ("--prices", "prices per GPU and hour"),
                    "power": ("--power", "watts per GPU")}[objective]  # fmt: skip
    if objective == "gpu":
        return Worth()
    if file is None:
        raise UsageError(f"--objective {objective} needs {option} FILE, a TOML file of {what}: {hardware[0]} = 2.5")
    rows = _read(file)
    return Worth(objective, {name: _row(rows, name, file, what) for name in hardware})


def _read(file: str) -> Mapping[str, object]:
    try:
        return tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"'{file}' cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"'{file}' is not TOML: {error}.") from None


def _row(rows: Mapping[str, object], name: str, file: str, what: str) -> Mapping[str, float]:
    row = rows.get(name)
    if row is None:
        known = ", ".join(sorted(rows)) or "nothing"
        raise UsageError(f"'{file}' tells nothing of '{name}' ({what}); it has {known}. Add a line: {name} = 2.5")
    if not isinstance(row, Mapping):
        return dict.fromkeys(ROLES, _number(row, name, file))
    missing = [role for role in ROLES if role not in row]
    if missing:
        raise UsageError(f"'{file}' tells of '{name}' no '{missing[0]}'; a table needs {', '.join(ROLES)}.")
    return {role: _number(row[role], f"{name}.{role}", file) for role in ROLES}


def _number(value: object, name: str, file: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise UsageError(f"{name} in '{file}' must be a number above 0, got {value!r}.")
    return float(value)
