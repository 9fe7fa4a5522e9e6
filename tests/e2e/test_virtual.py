"""The driver of the virtual clock, and runs of the simulator from the command line."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from harness.api import FollowUps, Outcome, Request, RequestRecord, Step
from harness.cli import main
from harness.data.records import TABLE_ROWS, steps_table
from harness.errors import BackendError
from harness.runner.live import Live
from harness.runner.virtual import Stop, drive_virtual


class Rows:
    """Counts rows."""

    def __init__(self) -> None:
        self.ids: list[int] = []

    def add_requests(self, table: pa.Table) -> None:
        self.ids += table["request_id"].to_pylist()

    def add_steps(self, steps: pa.Table | list[Step]) -> None:
        pass

    def flush(self) -> None:
        pass


class Instant:
    """Answers every request at once; asks for a stop, or fails, at the third."""

    def __init__(self, stop: Stop | None = None, error: Exception | None = None) -> None:
        self.stop = stop
        self.error = error

    def simulate(
        self,
        requests: Iterable[Request],
        follow_ups: FollowUps | None = None,  # noqa: ARG002  # the contract
    ) -> Iterator[RequestRecord]:
        for r in requests:
            if r.id == 2 and self.error is not None:
                raise self.error
            if r.id == 2 and self.stop is not None:
                self.stop.requested = True
            yield RequestRecord(r.id, r.scheduled_s, r.scheduled_s, [r.scheduled_s], None, 1, 1, 1, "ok")

    def steps_table(self) -> pa.Table:
        return steps_table([])

    def describe(self) -> dict[str, object]:
        return {}


def requests(n: int) -> list[Request]:
    return [Request(i, float(i), 1, 1) for i in range(n)]


@pytest.mark.parametrize(("at_once", "ended"), [(False, "interrupted"), (True, "stopped")])
def test_a_simulation_that_is_terminated_is_distinguished_from_one_that_is_interrupted(
    at_once: bool, ended: str
) -> None:
    """A job that was killed at its time limit would end with the exit code of a good run."""
    stop = Stop(at_once=at_once)

    assert ended == drive_virtual(Instant(stop), requests(10), None, Rows(), Live(), stop).ended


def test_every_record_is_kept() -> None:
    """Requests of the last, unfilled batch would be lost."""
    rows = Rows()

    outcome = drive_virtual(Instant(), requests(5000), None, rows, Live(), Stop())

    assert outcome == Outcome("finished", sent=5000, not_sent=0, cut=0)
    assert rows.ids == list(range(5000))


def test_stop_keeps_what_was_simulated() -> None:
    """Ctrl-C would throw a long simulation away."""
    rows, stop = Rows(), Stop()

    outcome = drive_virtual(Instant(stop), requests(3 * TABLE_ROWS), None, rows, Live(), stop)

    assert outcome == Outcome(
        "interrupted", sent=TABLE_ROWS, not_sent=2 * TABLE_ROWS, cut=0
    )  # after the table under way
    assert len(rows.ids) == TABLE_ROWS


def test_failing_simulator_keeps_what_was_simulated() -> None:
    """A latency model that fails late would take everything along."""
    rows = Rows()

    outcome = drive_virtual(Instant(error=BackendError("no")), requests(10), None, rows, Live(), Stop())

    assert (outcome.ended, outcome.error) == ("failed", "no")
    assert len(rows.ids) == 2


@pytest.mark.parametrize("parts", [["--backend", "sim:model=opt-13b,tp=2"], ["--backend", "sim", "--tp", "2"]])
def test_equal_runs_of_the_simulator_give_equal_tables(
    parts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A simulated result could not be reproduced, or would depend on how its parts are written."""
    tables = []
    for name in "ab":
        out = tmp_path / name
        assert (
            main(["run", *parts, "--requests", "50", "--quiet", "--format", "json", "--no-html", "--out", str(out)])
            == 0
        )
        tables.append((out / "requests.parquet").read_bytes())
    found = json.loads(capsys.readouterr().out.split("\n{")[0])

    assert tables[0] == tables[1]
    assert (found["clock"], found["backend"]["gpus"]) == ("virtual", 2)
