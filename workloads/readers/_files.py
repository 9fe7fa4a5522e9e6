"""The JSON files of a folder, or of a ZIP or tar archive, as one trace: file after file."""

import hashlib
import io
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import IO, NamedTuple, NoReturn, cast

from harness import untrusted
from harness.errors import UsageError
from workloads.readers import _lines

ENDINGS = tuple(f".{form}{packed}" for form in ("json", "jsonl") for packed in ("", ".gz", ".zst"))
_TAR = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2", ".tar.zst")


class Member(NamedTuple):
    """One file: its name under the folder or archive, and what opens it."""

    name: str
    open: Callable[[], IO[bytes] | None]


class Files:
    """The members of `path` with names that a JSON trace has, hidden ones left out: a folder's in order of their names,
    an archive's in its own order.

    Raises UsageError where there is none, and for an archive that is damaged or unpacks to far more than traces do.
    """

    def __init__(self, path: str, limits: _lines.Limits = _lines.USUAL) -> None:
        self.path = Path(path)
        self._limits = limits
        self._unpacked_bytes = 0
        self._stack = ExitStack()
        try:
            self._members = [member for member in self._found() if _is_one(member.name)]
        except (OSError, tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error) as error:
            self._damaged(error)
        if not self._members:
            self.close()
            raise UsageError(f"Trace '{path}' holds no file that ends in {', '.join(ENDINGS)}.")
        self._sha256: dict[str, str] = {}

    def _found(self) -> Iterator[Member]:
        if self.path.is_dir():
            for file in sorted(self.path.rglob("*")):
                if file.is_file():
                    yield Member(str(file.relative_to(self.path)), partial(io.FileIO, file))
        elif zipfile.is_zipfile(self.path):
            archive = self._stack.enter_context(zipfile.ZipFile(self.path))
            for info in archive.infolist():
                self._check(info.file_size)
                if not info.is_dir():
                    yield Member(info.filename, partial(archive.open, info))
        else:
            packed = self._stack.enter_context(tarfile.open(self.path))  # noqa: SIM115  # the stack closes it
            for entry in packed:
                self._check(entry.size)
                if entry.isfile():
                    yield Member(entry.name, partial(packed.extractfile, entry))

    def _check(self, size_bytes: int) -> None:
        self._unpacked_bytes += size_bytes
        most, hint = self._limits.max_expansion, _lines.more("max_expansion")
        untrusted.check_expansion(self.path, self._unpacked_bytes, self.path.stat().st_size, most, hint)

    def __iter__(self) -> Iterator[tuple[Path, _lines.Hashed, IO[bytes]]]:
        """Every member with a path to name it by, open, and what unpacks it; one at a time."""
        for name, opened in self._members:
            try:
                with _lines.Hashed(cast("IO[bytes]", opened())) as hashed:
                    stream = _lines.unpacked(hashed)
                    yield self.path / name, hashed, stream
                    self._sha256[name] = hashed.digest()
            except (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error) as error:
                self._damaged(error)

    @property
    def plain(self) -> tuple[Path, ...]:
        """The members of a folder where none is packed, in the order in which they are read; none of an archive."""
        names = [name for name, _ in self._members]
        packed = not self.path.is_dir() or any(name.lower().endswith((".gz", ".zst")) for name in names)
        return () if packed else tuple(self.path / name for name in names)

    @property
    def size_bytes(self) -> int:
        """Of the archive, or of all members of the folder."""
        if self.path.is_dir():
            return sum((self.path / name).stat().st_size for name, _ in self._members)
        return self.path.stat().st_size

    def sha256(self) -> str:
        """Of the archive; of a folder that of the lines 'SHA-256  name' of its members, as `sha256sum` prints them."""
        if not self.path.is_dir():
            return _lines.sha256(self.path)
        known = self._sha256
        lines = (f"{known.get(name) or _lines.sha256(self.path / name)}  {name}\n" for name, _ in self._members)
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    def close(self) -> None:
        self._stack.close()

    def _damaged(self, error: Exception) -> NoReturn:
        self.close()
        raise UsageError(f"Trace '{self.path}' cannot be read: {_lines.reason(error)}.") from None


def holds_files(path: str) -> bool:
    """Whether it is a folder with JSON files, or an archive."""
    file = Path(path)
    try:
        if file.is_dir():
            return any(_is_one(found.name) for found in file.rglob("*.json*"))
        return file.name.lower().endswith(_TAR) or (file.is_file() and zipfile.is_zipfile(file))
    except (OSError, ValueError):  # the one who opens it says why
        return False


def _is_one(name: str) -> bool:
    parts = Path(name).parts
    return name.lower().endswith(ENDINGS) and not any(part.startswith((".", "__MACOSX")) for part in parts)
