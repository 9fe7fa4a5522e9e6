"""The folder of an experiment, which a rerun of its command resumes: what stands there, and who may write to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import untrusted
from harness.data.folder import make_folder
from harness.data.storage import locked, write_json
from harness.errors import UsageError

SCHEMA = 1
"""Of all these folders; a newer one is refused."""
GROUPS: Mapping[str, str] = {"spec": "--", "versions": "the version of "}
"""Objects that two experiments must have in common, with how messages call what is in them."""


@dataclass(frozen=True, slots=True)
class ExperimentFolder:
    """A folder with `KIND.json` and whatever else `bench KIND` writes; `noun` is what messages call the experiment."""

    path: Path
    kind: str
    noun: str
    command: str | None = None

    @property
    def file(self) -> Path:
        return self.path / f"{self.kind}.json"

    def read(self) -> dict[str, Any] | None:
        """Return what KIND.json holds, None for a new folder. Raises UsageError for a folder of anything else."""
        if self.path.exists() and not self.path.is_dir():
            raise UsageError(f"'{self.path}' is a file; --out names a folder.")
        if not self.file.exists():
            names = {file.name for file in self.path.iterdir()} if self.path.is_dir() else set()
            # a kill in the first write leaves a part, and `bench report` may have been there
            foreign = sorted(name for name in names - {f"{self.file.name}.part"} if not name.startswith("report"))
            if foreign:
                raise UsageError(
                    f"'{self.path}' holds '{foreign[0]}', which is no part of a {self.noun}; name an empty folder."
                )
            return None
        with untrusted.readable(f"'{self.file}'", "; name another --out"):
            stored = untrusted.read_json(self.file)
        if not isinstance(stored, dict) or stored.get("kind") != self.kind:
            raise UsageError(
                f"'{self.file}' was not written by 'bench {self.command or self.kind}'; name another --out."
            )
        if not isinstance(schema := stored.get("schema"), int) or schema > SCHEMA:
            raise UsageError(f"'{self.file}' has schema {schema}, this bench reads up to {SCHEMA}; use a newer one.")
        return stored

    @contextmanager
    def opened(self) -> Iterator[dict[str, Any] | None]:
        """Give what KIND.json holds, and keep other processes out of the folder while the body runs.

        Raises UsageError, having changed nothing, for a folder of anything else, and where another process writes.
        """
        self.read()
        make_folder(self.path)
        with locked(self.path, self.noun):
            yield self.read()

    def write(self, info: Mapping[str, Any]) -> None:
        """Replace KIND.json; it is on disk when this returns."""
        write_json(self.file, info)

    def check_same(
        self, before: Mapping[str, Any], now: Mapping[str, Any], *names: str,
        groups: Mapping[str, str] = GROUPS, free: Set[str] = frozenset(),
    ) -> None:  # fmt: skip
        """Raises UsageError where `before` differs from `now` in one of `names` or in a member of `groups`.

        Members that are `free` may differ.
        """
        for name in names:
            if before.get(name) != now[name]:
                raise self.other(name, before.get(name), now[name])
        for group, prefix in groups.items():
            stored = before.get(group)
            old, new = stored if isinstance(stored, Mapping) else {}, now[group]
            for name in sorted({*old, *new} - free):
                if old.get(name) != new.get(name):
                    raise self.other(f"{prefix}{name}", old.get(name), new.get(name))

    def other(self, what: str, before: object, now: object) -> UsageError:
        """The error for a folder whose experiment differs from the present one in `what`."""
        old, new = ("not given" if value is None else f"'{value}'" for value in (before, now))
        return UsageError(
            f"'{self.path}' holds a {self.noun} with {what} {old}, not {new}; rerun that command to resume it, or name "
            "another --out."
        )
