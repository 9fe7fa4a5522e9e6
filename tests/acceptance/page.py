"""Renders the acceptance table as text and as docs/systems-rest.md."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from reports._format import clean, in_markdown
from reports.document import Cell, Document, Finding, Notice, Section, Table
from reports.document import text as renderer

_HEADS = ("id", "badge", "published", "obtained", "band", "verdict")
_SECTIONS = (
    ("Batching and memory", (*range(1, 19), *range(65, 69))),
    ("Goodput and disaggregation", (*range(19, 35), 69, 70)),
    ("Experts, attention and FFN", range(35, 40)),
    ("Caches", range(40, 46)),
    ("Shared replicas, classes of objectives, other workloads", range(46, 58)),
    ("Latency models and the whole", range(58, 65)),
)  # fmt: skip


def text(info: Mapping[str, Any]) -> str:
    """The rows by topic of the specification, what failed, and the count."""
    return renderer.render(document(info))


def document(info: Mapping[str, Any]) -> Document:
    """The table of acceptance without commands, with the notes of its rows."""
    found = []
    for title, rows in sections(info["rows"]):
        cells = tuple(
            (*(row[key] for key in _HEADS[:-1]), Cell(verdict(row), good=None if row["holds"] is not False else False))
            for row in rows
        )
        notes = (f"{row['id']}: {clean(row['note'], None)}" for row in rows if row["note"])
        found.append(Section(title, title, (Table(title, _HEADS, cells, left=len(_HEADS)), *notes)))
    missing = tuple((one["id"], one["title"], one["why"]) for one in info.get("without_row", ()))
    if missing:
        found.append(Section("missing", "", (Table("ids without a row", ("id", "system", "why"), missing, 3),)))
    return Document(
        title="Serving systems: published and obtained",
        subtitle="",
        mark="",
        good=not info["exit_code"],
        findings=(Finding(counted(info), not info["exit_code"]),),
        warnings=tuple(Notice(text) for text in _failed(info)),
        sections=tuple(found),
    )


def _failed(info: Mapping[str, Any]) -> list[str]:
    return [f"Topic {one['topic']} failed: {clean(one['error'], None)}." for one in info["failed"]]


def outcome(info: Mapping[str, Any]) -> str:
    """How many rows hold, which do not, and why a topic failed."""
    return "\n".join([*_failed(info), counted(info)])


def markdown(info: Mapping[str, Any]) -> str:
    """The page: how to read it, the table with commands and notes, and conflicts between sources."""
    return "\n".join(_page(info))


def _page(info: Mapping[str, Any]) -> Iterator[str]:
    preface, conflicts = _prose()
    yield f"{preface}\n\n**{counted(info)}**\n"
    for title, rows in sections(info["rows"]):
        yield f"## {title}\n"
        yield _in_table(rows)
        notes = [row for row in rows if row["note"]]
        yield "".join(f"- **{row['id']}** {in_markdown(row['note'], None)}\n" for row in notes)
    if missing := info.get("without_row", ()):
        yield "## Ids without a row\n"
        heads = ("id", "system", "why")
        lines = [heads, ("---",) * len(heads), *((one["id"], one["title"], one["why"]) for one in missing)]
        yield "".join(f"| {' | '.join(line)} |\n" for line in lines)
    if info["failed"]:
        yield "## Topics that failed\n"
        yield "".join(f"- {one['topic']}: {in_markdown(one['error'], None)}\n" for one in info["failed"])
    yield conflicts


def _in_table(rows: Sequence[Mapping[str, Any]]) -> str:
    heads = ("id", "system", "badge", "published", "obtained", "band", "verdict", "command")
    lines = [heads, ("---",) * len(heads)]
    for row in rows:
        cells = row["id"], row["system"], row["badge"], row["published"], row["obtained"], row["band"]
        judged = "**misses**" if row["holds"] is False else verdict(row)
        command = clean(row["command"], None).replace("|", "\\|").replace("`", "'")
        lines.append((*(in_markdown(cell, None) for cell in cells), judged, f"`{command}`"))
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def verdict(row: Mapping[str, Any]) -> str:
    """The verdict of a row in one word."""
    return {True: "holds", False: "misses", None: "no gate"}[row["holds"]]


def sections(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    """The rows under the titles of the specification: systems by number, then equations, then invariants."""
    for title, numbers in _SECTIONS:
        ids = {f"S{number:02d}" for number in numbers}
        if found := [row for row in rows if row["id"].partition(".")[0] in ids]:
            yield title, found
    for title, letter in (("Equations", "E"), ("Invariants", "I")):
        if found := [row for row in rows if row["id"].startswith(letter)]:
            yield title, found


def counted(info: Mapping[str, Any]) -> str:
    """How many rows hold, and which miss, in one sentence."""
    held = [row["holds"] for row in info["rows"]]
    gated = sum(one is not None for one in held)
    parts = [f"{sum(one is True for one in held)} of {gated} gated rows hold"]
    if missed := [row["id"] for row in info["rows"] if row["holds"] is False]:
        parts.append(f"missed: {', '.join(missed)}")
    if others := len(held) - gated:
        parts.append(f"{others} printed without a gate or not run")
    if missing := info.get("without_row", ()):
        parts.append(f"{len(missing)} ids have no row")
    if info["failed"]:
        parts.append(f"failed topics: {', '.join(one['topic'] for one in info['failed'])}")
    return "; ".join(parts) + "."


@cache
def _prose() -> tuple[str, str]:
    """The text above and below the table."""
    above, _, below = Path(__file__).with_suffix(".md").read_text(encoding="utf-8").partition("<!-- table -->")
    return above.strip(), below.strip() + "\n"
