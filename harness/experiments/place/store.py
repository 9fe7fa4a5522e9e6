"""The folder of a placement: place.json says what is searched and, once it is over, what came of it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from harness.data.codec import Facts, encode
from harness.errors import UsageError
from harness.experiments.folder import ExperimentFolder
from harness.experiments.place.answer import stored_options
from harness.experiments.place.place_json import PlaceAnswer
from harness.experiments.place.questions import Capacity, Judged
from harness.experiments.place.settings import PlaceOptions

KINDS: Mapping[str, type] = {"judged": Judged, "again": Judged, "rough": Capacity, "capacity": Capacity}
"""What the first word of a key says of the answer."""


class Store:
    """Stores answers about candidates in a folder, or in memory only. Rerun the command to resume."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._folder = None if path is None else ExperimentFolder(path, "place", "placement")
        self.known: dict[str, Any] = {}
        self._options: Facts = {}

    def __repr__(self) -> str:
        return f"<Store {self.path or 'in memory'} {len(self.known)} answers>"

    @contextmanager
    def opened(self, options: PlaceOptions) -> Iterator[None]:
        """Read stored results and lock the folder while the body runs. Raises UsageError for another search."""
        self._options = stored_options(options)
        if self._folder is None:
            yield
            return
        with self._folder.opened() as before:
            self.known = {} if before is None else _known(self._folder, before, self._options)
            yield

    def add(self, key: str, found: object) -> None:
        """Add an answer; it is on disk when this returns."""
        self.known[key] = found
        if self._folder is not None:
            self._folder.write({**self._options, "state": "running", "searched": self._searched()})

    def finish(self, info: PlaceAnswer) -> None:
        """Write the answer, with the results behind it."""
        if self._folder is not None:
            self._folder.write(encode(info.change(searched=self._searched())))

    def _searched(self) -> Facts:
        return {key: asdict(answer) for key, answer in self.known.items()}


def _known(folder: ExperimentFolder, before: dict[str, Any], options: Facts) -> dict[str, Any]:
    """The stored answers by key. Raises UsageError where they are those of another placement."""
    folder.check_same(before, options, groups={"asked": "", "versions": "the version of "})
    searched = before.get("searched", {})
    try:
        return {
            key: msgspec.convert(value, KINDS[key.partition(" ")[0]], str_keys=True) for key, value in searched.items()
        }
    except (KeyError, msgspec.ValidationError):
        raise UsageError(
            f"'{folder.path}' holds a placement that was made by an earlier bench; name another --out."
        ) from None
