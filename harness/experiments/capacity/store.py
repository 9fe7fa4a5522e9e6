"""The folder of a search: capacity.json holds the options and the result, trials.parquet holds every trial."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import untrusted
from harness.data.codec import Facts, encode
from harness.data.folder import cleaned
from harness.data.host import versions
from harness.data.storage import locked, write_json
from harness.errors import UsageError
from harness.experiments.capacity.capacity_json import CapacityAnswer
from harness.experiments.capacity.trials import Ledger
from harness.metrics.objective import stored_slo
from harness.options import respelled

if TYPE_CHECKING:
    from harness.experiments.capacity.execute import Setup

SCHEMA = 1
KIND = "capacity"
ANSWER, TABLE = f"{KIND}.json", "trials.parquet"


class Store:
    """Stores a search in a folder, or in memory only. Rerun the command to resume an interrupted search."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        if path is not None:
            read_folder(path, KIND)
        self.ledger = Ledger()

    def __repr__(self) -> str:
        return f"<Store {self.path or 'in memory'} {self.ledger!r}>"

    @contextmanager
    def opened(self, setup: Setup) -> Iterator[None]:
        """Write down what is searched, and keep other processes out of the folder while the body runs.

        Raises UsageError for a folder that holds another search, or one that is running.
        """
        if self.path is None:
            yield
            return
        options = search_options(setup)
        make_folder(self.path)
        with locked(self.path, "search"):
            if (before := read_folder(self.path, KIND)) is not None:
                _check_same(before, options, self.path)
            self.ledger = Ledger(self.path / TABLE)
            write_json(self.path / ANSWER, {**options, "state": "running"})
            yield

    def finish(self, info: CapacityAnswer) -> None:
        """Write the answer down."""
        if self.path is not None:
            write_json(self.path / ANSWER, encode(info))


def search_options(setup: Setup) -> Facts:
    """The part of capacity.json that is known before the first trial, without secrets of a server."""
    info = {
        "schema": SCHEMA,
        "kind": "capacity",
        "versions": versions(),
        "spec": setup.spec.options(),
        "workload": setup.planned.loaded.name,
        "traffic": {**encode(setup.planned.traffic), "rate_rps": None, "arrivals_rps": None},
        "backend": dict(setup.planned.backend.describe()),
        "slo": encode(stored_slo(setup.slo)),
        "goals": list(setup.settings.goals),
        "clock": setup.clock,
        "definition": setup.settings.definition,
        "run": {
            "requests": None if setup.chained else setup.requests,
            "max_requests": setup.settings.max_requests,
            "fixed": setup.fixed,
            "warmup": setup.spec.warmup,
        },
        "chains": setup.chained,
        **({} if setup.planned.virtual else {"host": setup.host}),
    }
    return {name: cleaned(value, setup.planned.redact) for name, value in info.items()}


def _check_same(before: Mapping[str, Any], now: Mapping[str, Any], path: Path) -> None:
    """Trials are only those of one system under one traffic; goals, tolerance and limits may change; of chains
    earlier versions stored the limit as `requests`."""
    check_options(before, now, path, {"goal", "requests"} if now["chains"] else {"goal"})
    if before.get("definition") != now["definition"]:
        raise UsageError(
            f"'{path}' holds a search by the definition '{before.get('definition')}', not '{now['definition']}'; "
            "name another --out."
        )


def check_options(before: Mapping[str, Any], now: Mapping[str, Any], path: Path, free: Set[str] = frozenset()) -> None:
    """Raises UsageError where a folder holds a search with other options than now, or by other versions."""
    for group, prefix in (("spec", "--"), ("versions", "the version of ")):
        old, new = respelled(before.get(group) or {}), dict(now[group])
        for name in sorted({*old, *new} - free):
            if old.get(name) != new.get(name):
                stored, given = _quoted(old.get(name)), _quoted(new.get(name))
                raise UsageError(
                    f"'{path}' holds a search with {prefix}{name} {stored}, not {given}; "
                    "name another --out, or rerun that command to resume."
                )


def _quoted(value: object) -> str:
    return "not given" if value is None else f"'{value}'"


def read_folder(path: Path, kind: str) -> Mapping[str, Any] | None:
    """What a folder of a search was made for; None for a new one. Raises UsageError for one with something else."""
    if not path.exists():
        return None
    if not path.is_dir():
        raise UsageError(f"'{path}' is a file; --out names a folder.")
    file = path / f"{kind}.json"
    if not file.exists():
        others = sorted({p.name for p in path.iterdir()} - {f"{file.name}.part"})  # a kill in the first write leaves it
        if others:
            raise UsageError(f"'{path}' holds '{others[0]}', which is no part of a search; name an empty folder.")
        return None
    try:
        info = untrusted.read_json(file)
    except (OSError, ValueError) as error:
        raise UsageError(f"'{file}' cannot be read ({error}).") from None
    if not isinstance(info, dict) or info.get("kind") != kind:
        raise UsageError(f"'{file}' was not written by 'bench {kind}'; name an empty folder.")
    if not isinstance(info.get("schema"), int) or info["schema"] > SCHEMA:
        raise UsageError(f"'{file}' has schema {info.get('schema')}, this bench reads up to {SCHEMA}; use a newer one.")
    return info


def make_folder(path: Path) -> None:
    """Raises UsageError where it cannot be made."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"'{path}' cannot be made: {error.strerror}.") from None
