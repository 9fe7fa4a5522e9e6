"""The folder of a placement: place.json says what is searched and, once it is over, what came of it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from harness import untrusted
from harness.data.codec import Facts, encode, inner
from harness.data.storage import locked, write_json
from harness.errors import UsageError
from harness.experiments.capacity.at_rate import Attained
from harness.experiments.place.answer import stored_options
from harness.experiments.place.place_json import PlaceAnswer
from harness.experiments.place.questions import Capacity, Fewest, Timed
from harness.experiments.place.settings import PlaceOptions

ANSWER = "place.json"
KINDS: Mapping[str, type] = {"judged": Attained, "fewest": Fewest, "rough": Capacity, "capacity": Capacity,
                              "timed": Timed}  # fmt: skip
"""What the first word of a key says of the answer."""


class Store:
    """Stores answers about candidates in a folder, or in memory only. Rerun the command to resume."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.known: dict[str, Any] = {}
        self._options: Facts = {}

    def __repr__(self) -> str:
        return f"<Store {self.path or 'in memory'} {len(self.known)} answers>"

    @contextmanager
    def opened(self, options: PlaceOptions) -> Iterator[None]:
        """Read stored results and lock the folder while the body runs. Raises UsageError for another search."""
        self._options = stored_options(options)
        if self.path is None:
            yield
            return
        self.path.mkdir(parents=True, exist_ok=True)
        with locked(self.path, "search"):
            self.known = _known(self.path, self._options)
            yield

    def add(self, key: str, found: object) -> None:
        """Add an answer; it is on disk when this returns."""
        self.known[key] = found
        if self.path is not None:
            write_json(self.path / ANSWER, {**self._options, "state": "running", "searched": self._searched()})

    def finish(self, info: PlaceAnswer) -> None:
        """Write the answer, with the results behind it."""
        if self.path is not None:
            write_json(self.path / ANSWER, encode(info.change(searched=self._searched())))

    def _searched(self) -> Facts:
        return {key: asdict(found) for key, found in self.known.items()}


def _known(path: Path, options: Facts) -> dict[str, Any]:
    file = path / ANSWER
    if not file.exists():
        others = sorted({p.name for p in path.iterdir()} - {f"{ANSWER}.part"})
        if others:
            raise UsageError(f"'{path}' holds '{others[0]}', which is no part of a placement; name an empty folder.")
        return {}
    try:
        info = untrusted.read_json(file)
    except (OSError, ValueError) as error:
        raise UsageError(f"'{file}' cannot be read ({error}); name an empty folder.") from None
    if not isinstance(info, dict) or info.get("kind") != "place":
        raise UsageError(f"'{file}' was not written by 'bench place'; name an empty folder.")
    stored, now = info.get("asked"), inner(options, "asked")
    if isinstance(stored, dict) and "max_requests" in now and "requests" not in now and "max_requests" not in stored:
        stored["max_requests"] = stored.pop("requests", None)  # as earlier versions stored it
    for name in ("asked", "versions"):
        if info.get(name) != options[name]:
            raise UsageError(
                f"'{path}' holds a placement with other {'versions' if name == 'versions' else 'options'}"
                f"{_difference(info.get(name), inner(options, name))}; "
                "name another --out, or rerun that command to resume."
            )
    searched = info.get("searched", {})
    try:
        return {
            key: msgspec.convert(value, KINDS[key.partition(" ")[0]], str_keys=True) for key, value in searched.items()
        }
    except (KeyError, msgspec.ValidationError):
        raise UsageError(f"'{path}' holds a placement that was made by an earlier bench; name another --out.") from None


def _difference(old: object, new: Mapping[str, object]) -> str:
    if not isinstance(old, Mapping):
        return ""
    name = next((name for name in sorted({*old, *new}) if old.get(name) != new.get(name)), None)
    return "" if name is None else f" ({name} {old.get(name)!r}, not {new.get(name)!r})"
