"""Identifies official trace files by their hash, and files that only bear such a name."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

UNKNOWN = "not a file of our list of official traces"


def facts(file: Path, sha256: str, rows: int, *, whole: bool) -> tuple[dict[str, object], list[str]]:
    """What is known of the file, and sentences of doubt. `rows` counts only if the `whole` file was read."""
    entry = known(sha256)
    if entry is None:
        return {"known": UNKNOWN}, _look_alike(file, sha256, rows, whole=whole)
    origin: dict[str, object] = {"known": entry["name"], "source": entry["source"], "licence": entry["licence"]}
    doubts = [f"{entry['warning']}"] if "warning" in entry else []
    expected = entry.get("rows")
    if whole and expected is not None and expected != rows:
        doubts.append(f"{expected:,} rows are expected in this file, {rows:,} were read.")
    return origin, doubts


def known(sha256: str) -> Mapping[str, Any] | None:
    """The entry of a hash; some entries know only how it begins."""
    return next((e for start, e in _entries("_known.toml").items() if sha256.startswith(start)), None)


def _look_alike(file: Path, sha256: str, rows: int, *, whole: bool) -> list[str]:
    name = file.name.removesuffix(".gz").removesuffix(".zst")
    packed = name != file.name
    official = [(start, e) for start, e in _entries("_known.toml").items() if e["file"] == name and "warning" not in e]
    if official:
        start, entry = official[0]
        if packed:
            return [f"'{file.name}' is packed, so its hash cannot be held against that of {entry['name']}; unpack it."]
        differ = f"SHA-256 {sha256[:16]}... is not {start[:16]}..."
        note = f"'{name}' has the name of {entry['name']} but not its content: {differ}"
        return [f"{note}; rows have been invented under such names, so fetch the file from its source."]
    for entry in _entries("_unhashed.toml").values():
        if entry["file"] == name:
            expected = entry.get("rows")
            unequal = whole and expected is not None and rows != expected
            note = f"; it should have {expected:,} rows, {rows:,} were read" if unequal else ""
            return [f"'{name}' has the name of {entry['name']}, whose hash is not on our list{note}; check its source."]
    return []


def _entries(name: str) -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name(name).read_text(encoding="utf-8"))
