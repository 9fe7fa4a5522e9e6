"""Renders the acceptance table as text and as docs/systems.md."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from reports._format import clean, in_markdown
from reports.answers import _curve
from reports.answers._curve import PLAIN, Look

_HEADS = ("id", "badge", "published", "obtained", "band", "verdict")
_SECTIONS = (
    ("Batching and memory", 1, 18), ("Goodput and disaggregation", 19, 34), ("Experts, attention and FFN", 35, 39),
    ("Caches", 40, 45), ("Shared replicas, classes of objectives, other workloads", 46, 57),
    ("Latency models and the whole", 58, 64),
)  # fmt: skip


def text(info: Mapping[str, Any], look: Look = PLAIN) -> str:
    """The rows by topic of the specification, what failed, and the count."""
    return "\n".join(_text_parts(info, look))


def _text_parts(info: Mapping[str, Any], look: Look) -> Iterator[str]:
    for title, rows in sections(info["rows"]):
        yield f"{look.bold(title)}\n"
        cells = [
            (*(row[key] for key in ("id", "badge", "published", "obtained", "band")), verdict(row)) for row in rows
        ]
        yield _curve.text(_HEADS, cells, left=len(_HEADS), look=look,
                          tones=[row["holds"] if row["holds"] is False else None for row in rows])  # fmt: skip
        yield from (_wrapped(f"{row['id']}: {row['note']}") for row in rows if row["note"])
    yield from (_wrapped(f"{one['id']} has no row: {one['title']}; {one['why']}") for one in without_row(info))
    yield from (_wrapped(f"Topic {one['topic']} failed: {one['error']}.") for one in info["failed"])
    yield _wrapped(counted(info))


def without_row(info: Mapping[str, Any]) -> Sequence[Mapping[str, str]]:
    """Ids of the specification that have no row, each with a title and why."""
    found: Sequence[Mapping[str, str]] = info.get("without_row", ())
    return found


def _wrapped(sentence: str) -> str:
    return _curve.wrapped(sentence) + "\n"


def outcome(info: Mapping[str, Any]) -> str:
    """How many rows hold, which do not, and why a topic failed."""
    failed = [_wrapped(f"Topic {one['topic']} failed: {one['error']}.") for one in info["failed"]]
    return "".join([*failed, _wrapped(counted(info))]).rstrip("\n")


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
    if missing := without_row(info):
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
    for title, first, last in _SECTIONS:
        numbers = {f"S{number:02d}" for number in range(first, last + 1)}
        if found := [row for row in rows if row["id"].partition(".")[0] in numbers]:
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
    if missing := without_row(info):
        parts.append(f"{len(missing)} ids have no row")
    if info["failed"]:
        parts.append(f"failed topics: {', '.join(one['topic'] for one in info['failed'])}")
    return "; ".join(parts) + "."


@cache
def _prose() -> tuple[str, str]:
    """The text above and below the table."""
    above, _, below = Path(__file__).with_suffix(".md").read_text(encoding="utf-8").partition("<!-- table -->")
    return above.strip(), below.strip() + "\n"
