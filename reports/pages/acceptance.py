"""The page of `bench validate --acceptance`: published facts beside what is obtained here."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reports._clean import clean
from reports._sheet import Cell, Section, Sheet, Table
from reports.answers import acceptance as words

Info = Mapping[str, Any]

_DEFINITIONS = (
    ("exact", "arithmetic, logic, or a golden number of another program"),
    ("real", "public measurements of real systems, or real traces"),
    ("simulated", "shapes, orders and ratios that a simulation must show; never 'reproduced'"),
    ("no gate", "printed for information, or not run; the note says why"),
)


def sheet(info: Info, path: Path) -> Sheet:  # noqa: ARG001  # nothing is looked for beside the answer
    """What stands on the page of the table of acceptance."""
    missed = [row["id"] for row in info["rows"] if row["holds"] is False]
    return Sheet(
        title="Serving systems: published and obtained",
        subtitle="What papers, repositories and measurements say, beside this simulator and this engine",
        mark=f"{len(missed)} MISSED" if missed else "INCOMPLETE" if info["failed"] else "ALL HOLD",
        good=not missed and not info["failed"],
        answer=words.counted(info),
        state="",
        heads=(),
        warnings=tuple((f"Topic {one['topic']} failed: {clean(one['error'], 300)}", "") for one in info["failed"]),
        sections=(
            *(_section(place, *one) for place, one in enumerate(words.sections(info["rows"]), start=1)),
            *_without_row(info),
        ),
        commands=(clean(info.get("command") or "bench validate --acceptance", None),),
        facts=tuple((f"version of {clean(k, 40)}", clean(v, 80)) for k, v in (info.get("versions") or {}).items()),
        definitions=_DEFINITIONS,
    )


def _section(place: int, title: str, rows: list[Info]) -> Section:
    heads = ("id", "system", "badge", "published", "obtained", "band", "verdict", "command")
    shown: tuple[tuple[str | Cell, ...], ...] = tuple(
        (*(clean(row[name], None) for name in heads[:-2]), Cell(words.verdict(row), good=row["holds"]),
         clean(row["command"], None))
        for row in rows
    )  # fmt: skip
    notes = tuple(f"{row['id']}: {clean(row['note'], None)}" for row in rows if row["note"])
    return Section(f"part-{place}", title, notes, (Table(title, heads, shown, left=len(heads)),), tables_first=True)


def _without_row(info: Info) -> tuple[Section, ...]:
    rows = tuple(
        (clean(one["id"], 10), clean(one["title"], None), clean(one["why"], None)) for one in words.without_row(info)
    )
    title = "Ids without a row"
    return (Section("without-row", title, (), (Table(title, ("id", "system", "why"), rows, left=3),)),) if rows else ()
