"""Public traces by name: where their owners keep them, under which licence, and their hash where it is known."""

import re
import tomllib
import urllib.parse
from dataclasses import dataclass
from pathlib import Path

from harness.errors import UsageError, no_such
from workloads.readers import _known


@dataclass(frozen=True, slots=True)
class Source:
    """A file that can be fetched; `sha256` None where nobody has stated it."""

    name: str
    url: str
    about: str = ""
    sha256: str | None = None
    hash_from: str | None = None
    rows: int | None = None
    size: str | None = None
    source: str | None = None
    licence: str | None = None

    @property
    def file(self) -> str:
        """Its name on disk: the last part of the path of the address."""
        return _file_name(self.url)


def sources() -> dict[str, Source]:
    """All known traces, in the order of the table."""
    values = tomllib.loads(Path(__file__).with_name("sources.toml").read_text(encoding="utf-8"))
    return {name: Source(name, **entry) for name, entry in values.items()}


def find(name_or_url: str) -> Source:
    """The source of that name, or of that http(s) address. Raises UsageError for anything else."""
    known = sources()
    if name_or_url in known:
        return known[name_or_url]
    if "://" not in name_or_url:
        raise no_such("trace to download", name_or_url, known, "An address (https://...) can be given too.")
    same = [source for source in known.values() if source.url == name_or_url]
    if same:
        return same[0]
    parts = urllib.parse.urlsplit(name_or_url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"'{name_or_url}' is no address to download from; it must begin with https:// or http://.")
    if not _file_name(name_or_url):
        raise UsageError(f"'{name_or_url}' names no file; give the address of the trace file itself.")
    return Source(name=_file_name(name_or_url), url=name_or_url)


def _file_name(url: str) -> str:
    """The last part of the path, without what no file name should hold."""
    name = urllib.parse.unquote(urllib.parse.urlsplit(url).path).rstrip("/").rsplit("/", 1)[-1]
    return re.sub(r"[^\w.+=@ -]", "_", name).strip(". ")


def known_as(sha256: str) -> str | None:
    """Which official file has this hash; None for an unknown one."""
    entry = _known.known(sha256)
    if entry is not None:
        return str(entry["name"])
    return next((source.about for source in sources().values() if source.sha256 == sha256), None)
