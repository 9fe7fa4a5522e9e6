"""The page of `bench theory`: a closed form, its tables, and the picture of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reports import figures
from reports._clean import clean
from reports._page import part
from reports._sheet import Section, Sheet, Table
from reports.answers.theory import cell

Info = Mapping[str, Any]


def sheet(info: Info, path: Path) -> Sheet:  # noqa: ARG001  # nothing is looked for beside the answer
    """What stands on the page of the answer of `bench theory`."""
    (module,) = figures.modules("theory").values()
    parts = tuple(
        part(f"picture-{place}", clean(picture["title"], 100), module.figure(picture))
        for place, picture in enumerate(info["pictures"], start=1)
    )
    return Sheet(
        title=f"bench theory {clean(info['form'], 40)}",
        subtitle="What follows from arithmetic alone",
        mark="BY FORMULA",
        good=None,
        answer=" ".join(clean(sentence, None) for sentence in info["sentences"]),
        state="",
        heads=tuple((clean(name, 40), clean(value, 200)) for name, value in info["given"].items() if value is not None),
        warnings=(),
        sections=(
            Section("tables", "Numbers", tuple(clean(note, None) for note in info["notes"]),
                    tuple(_table(one) for one in info["tables"]), parts),
        ),
        facts=tuple((f"version of {clean(k, 40)}", clean(v, 80)) for k, v in (info.get("versions") or {}).items()),
        definitions=(),
    )  # fmt: skip


def _table(one: Info) -> Table:
    units = [column["unit"] for column in one["columns"]]
    rows = tuple(
        tuple(clean(cell(value, unit), 200) for value, unit in zip(row, units, strict=True)) for row in one["rows"]
    )
    left = next((number for number, unit in enumerate(units) if unit != "text"), len(units))
    return Table(clean(one["title"], 100), tuple(clean(column["head"], 60) for column in one["columns"]), rows, left)
