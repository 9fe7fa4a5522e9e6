"""The folder of a search: capacity.json holds the options and the result, trials.parquet holds every trial."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.data.codec import Facts, encode
from harness.data.folder import cleaned
from harness.data.host import versions
from harness.experiments.capacity.capacity_json import CapacityAnswer
from harness.experiments.capacity.trials import Ledger
from harness.experiments.folder import SCHEMA, ExperimentFolder
from harness.metrics.objective import stored_slo

if TYPE_CHECKING:
    from harness.experiments.capacity.execute import Setup

KIND = "capacity"
TABLE = "trials.parquet"


class Store:
    """Stores a search in a folder, or in memory only. Rerun the command to resume an interrupted search."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._folder = None if path is None else ExperimentFolder(path, KIND, "search")
        if self._folder is not None:
            self._folder.read()
        self.ledger = Ledger()

    def __repr__(self) -> str:
        return f"<Store {self.path or 'in memory'} {self.ledger!r}>"

    @contextmanager
    def opened(self, setup: Setup) -> Iterator[None]:
        """Write down what is searched, and keep other processes out of the folder while the body runs.

        Raises UsageError for a folder that holds another search, or one that is running.
        """
        if self._folder is None:
            yield
            return
        options = search_options(setup)
        with self._folder.opened() as before:
            if before is not None:
                _check_same(self._folder, before, options)
            self.ledger = Ledger(self._folder.path / TABLE)
            self._folder.write({**options, "state": "running"})
            yield

    def finish(self, info: CapacityAnswer) -> None:
        """Write the answer down."""
        if self._folder is not None:
            self._folder.write(encode(info))


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
            "requests": None if setup.over_horizon else setup.requests,
            "max_requests": setup.settings.max_requests,
            "fixed": setup.fixed,
            "warmup": setup.spec.warmup,
        },
        "over_horizon": setup.over_horizon,
        "horizon_s": setup.settings.horizon_s,
        "windows": setup.settings.windows,
        **({} if setup.planned.virtual else {"host": setup.host}),
    }
    return {name: cleaned(value, setup.planned.redact) for name, value in info.items()}


def _check_same(folder: ExperimentFolder, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Trials are only those of one system under one traffic; goals, tolerance and limits may change."""
    folder.check_same(before, now, free={"goal", "requests"} if now["over_horizon"] else {"goal"})
    folder.check_same(before, now, "definition", "horizon_s", "windows", groups={})
