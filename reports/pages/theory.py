"""The page of `bench theory`: a closed form, its tables, and the picture of it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reports import _format
from reports._format import clean
from reports._page import part
from reports._sheet import Section, Sheet, Table
from reports.answers.theory import cell
from reports.figures.validate import formula

Info = Mapping[str, Any]

_UNITS = {"_s": "s", "_rps": "req/s", "_tokens": "tokens", "_bytes": "bytes"}
_NAMES = {"tp_pp": "(tp,pp)"}


def sheet(info: Info, path: Path) -> Sheet:  # noqa: ARG001  # nothing is looked for beside the answer
    """What stands on the page of the answer of `bench theory`."""
    # beside the formula: as a column, or as the memory modes of `bench theory kv`
    columns = [column["head"] for table in info["tables"] for column in table["columns"]]
    simulated = bool(info["given"].get("kv")) or any(head.startswith("simulated") for head in columns)
    parts = tuple(
        part(f"picture-{place}", clean(picture["title"], 100), formula(picture))
        for place, picture in enumerate(info["pictures"], start=1)
    )
    return Sheet(
        title=f"bench theory {clean(info['form'], 40)}",
        subtitle=f"What follows from arithmetic{', with a simulation beside it' if simulated else ' alone'}",
        mark="BY FORMULA AND SIMULATION" if simulated else "BY FORMULA",
        good=None,
        answer=" ".join(clean(sentence, None) for sentence in info["sentences"]),
        state="",
        heads=tuple((_name(k), clean(_value(v), 200)) for k, v in info["given"].items() if v is not None),
        warnings=(),
        sections=(
            Section("tables", "Numbers", tuple(clean(note, None) for note in info["notes"]),
                    tuple(_table(one) for one in info["tables"]), parts),
        ),
        facts=tuple((f"version of {clean(k, 40)}", clean(v, 80)) for k, v in (info.get("versions") or {}).items()),
        definitions=(),
    )  # fmt: skip


def _name(key: str) -> str:
    """What was given by the name of its field, with the unit behind it: 'rates (req/s)' of 'rates_rps'."""
    for end, unit in _UNITS.items():
        if key.endswith(end):
            return clean(f"{key.removesuffix(end).replace('_', ' ')} ({unit})", 40)
    return _NAMES.get(key) or clean(key.replace("_", " "), 40)


def _value(value: Any) -> str:
    """A value as people write it: '5, 10', '(1,1), (2,1)', 'yes'."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        return _format.option(value, 12)
    if isinstance(value, list):
        return ", ".join(f"({','.join(map(_value, one))})" if isinstance(one, list) else _value(one) for one in value)
    return str(value)


def _table(one: Info) -> Table:
    units = [column["unit"] for column in one["columns"]]
    rows = tuple(
        tuple(clean(cell(value, unit), 200) for value, unit in zip(row, units, strict=True)) for row in one["rows"]
    )
    left = next((number for number, unit in enumerate(units) if unit != "text"), len(units))
    return Table(clean(one["title"], 100), tuple(clean(column["head"], 60) for column in one["columns"]), rows, left)
