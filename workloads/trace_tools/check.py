"""Reads a trace from end to end and reports its anomalies, except those that its format is known for."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.errors import UsageError
from workloads import traces
from workloads.readers import _known
from workloads.trace_tools import download

COARSE_S = 0.01
"""Stamps this coarse are shared by chance, so that equal rows are not odd."""


def of(path: str, *, reader: str | None = None, columns: str | None = None) -> dict[str, Any]:
    """`odd` and `notes` (sentences) about the trace, and how many rows and requests it has; in bounded memory.

    Odd is an official name without the official hash, rows that are no requests, stamps that fall, and equal rows
    under fine stamps; a note is what the format is known for: coarse stamps, rows equal under them, an idle head, long
    gaps, rows in the order in which calls end. Raises UsageError for a file that cannot be read as a trace.
    """
    facts, disorder = _read(path, reader, columns)
    digest = str(facts["sha256"])
    official = download.known_as(digest)
    doubts = []
    if official is None or _known.known(digest) is not None:
        # what name, hash and number of rows say against the file: invented rows go round under official names
        doubts = _known.facts(Path(path), digest, int(str(facts["rows"])), whole=True)[1]
    oddities = [str(text) for text in facts["oddities"]]
    dropped = [text for text in oddities if " left out: " in text]
    units = [str(text) for text in facts.get("doubts", [])]
    duplicates = _duplicates(facts)
    usual = disorder if "order" in facts else []
    odd = [*([] if usual else disorder), *doubts, *units, *dropped, *duplicates]
    hash_note = [f"SHA-256 {digest} is that of {'no known official file' if official is None else official}."]
    rest = [text for text in oddities if text not in odd and not (duplicates and text.startswith("equal to "))]
    return {
        "file": path,
        "sha256": digest,
        "reader": facts["reader"],
        "rows": facts["rows"],
        "requests": facts["requests"],
        "odd": odd,
        "notes": [*hash_note, *usual, *rest],
    }


def _read(path: str, reader: str | None, columns: str | None) -> tuple[dict[str, Any], list[str]]:
    """Facts of the whole file, and what keeps it from being read in its own order."""
    try:
        return _facts(traces.blocks(path, reader, columns=columns)), []
    except UsageError as error:
        try:
            facts = _facts(traces.blocks(path, reader, columns=columns, sort=True))
        except UsageError:
            raise error from None  # order is not what is wrong with it
        return facts, [f"{str(error).rstrip('.')}."]


def _facts(blocks: traces.Blocks) -> dict[str, Any]:
    for _ in blocks:
        pass
    return dict(blocks.facts)


def _duplicates(facts: Mapping[str, object]) -> list[str]:
    grain_s, count = facts["grain_s"], int(str(facts["duplicates"]))
    if not count or (isinstance(grain_s, float) and grain_s >= COARSE_S):
        return []
    return [f"{count:,} rows are equal to another in every column, although stamps are fine; they are kept."]
