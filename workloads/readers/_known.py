"""Public traces: where their owners keep them, and their hashes, which files that only bear such a name do not have."""

import re
import tomllib
import urllib.parse
from dataclasses import dataclass
from pathlib import Path

UNKNOWN = "not a file of our list of official traces"


@dataclass(frozen=True, slots=True)
class KnownTrace:
    """An official file as `_known.toml` has it; reports on a file of its hash have the `warning`."""

    name: str
    url: str
    title: str = ""
    about: str = ""
    sha256: str | None = None
    hash_from: str | None = None
    rows: int | None = None
    size: str | None = None
    source: str | None = None
    licence: str | None = None
    warning: str | None = None

    @property
    def file(self) -> str:
        """Its name on disk: the last part of the path of the address, without what no file name should hold."""
        name = urllib.parse.unquote(urllib.parse.urlsplit(self.url).path).rstrip("/").rsplit("/", 1)[-1]
        return re.sub(r"[^\w.+=@ -]", "_", name).strip(". ")


def table() -> dict[str, KnownTrace]:
    """All known traces, by name."""
    values = tomllib.loads(Path(__file__).with_name("_known.toml").read_text(encoding="utf-8"))
    return {name: KnownTrace(name, **entry) for name, entry in values.items()}


def known(sha256: str) -> KnownTrace | None:
    """The trace with this hash."""
    return next((entry for entry in table().values() if entry.sha256 == sha256), None)


def facts(file: Path, sha256: str, rows: int, *, whole: bool) -> tuple[dict[str, object], list[str]]:
    """What is known of the file, and sentences of doubt. `rows` counts only if the `whole` file was read."""
    entry = known(sha256)
    if entry is None:
        return {"known": UNKNOWN}, _look_alike(file, sha256, rows, whole=whole)
    doubts = [] if entry.warning is None else [entry.warning]
    if whole and entry.rows not in (None, rows):
        doubts.append(f"{entry.rows:,} rows are expected in this file, {rows:,} were read.")
    return {"known": entry.title, "source": entry.source, "licence": entry.licence}, doubts


def _look_alike(file: Path, sha256: str, rows: int, *, whole: bool) -> list[str]:
    """A doubt about a file with an official name, but not with its hash."""
    name = file.name.removesuffix(".gz").removesuffix(".zst")
    entry = next((entry for entry in table().values() if entry.title and entry.file == name), None)
    if entry is None:
        return []
    if entry.sha256 is None:
        unequal = whole and entry.rows not in (None, rows)
        note = f"; it should have {entry.rows:,} rows, {rows:,} were read" if unequal else ""
        return [f"'{name}' has the name of {entry.title}, whose hash is not on our list{note}; check its source."]
    if name != file.name:
        return [f"'{file.name}' is packed, so its hash cannot be held against that of {entry.title}; unpack it."]
    differ = f"SHA-256 {sha256[:16]}... is not {entry.sha256[:16]}..."
    note = f"'{name}' has the name of {entry.title} but not its content: {differ}"
    return [f"{note}; rows have been invented under such names, so fetch the file from its source."]
