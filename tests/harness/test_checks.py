"""Every check of a run can fail, and then says so, ends with exit code 4 and names a remedy."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from harness.api import Outcome
from harness.data.folder import Run
from harness.data.records import to_table
from harness.data.run_json import Floor, FloorError, RunInfo
from harness.data.schedule import Schedule
from harness.metrics.objective import parse_slo
from harness.runner.run import exit_code
from harness.stats.arrivals import Law
from harness.validity.conclude import conclude

N = 200
NAMES = [
    "records", "answers", "tokens", "output-lengths", "causality", "littles-law", "rate", "gap-law",
    "lateness", "client-floor",
]  # fmt: skip


@pytest.fixture(scope="module")
def conclusion(traffic, record):
    """`conclusion(change, law, clock)`: that of a sound run, each of whose records went through `change`."""

    def make(change=lambda records: records, law=None, clock="wall"):
        schedule = Schedule.draw(traffic(), seed=0, requests=N)
        records = [
            record(i, scheduled_s=at, sent_s=at + 1e-4, tokens=[at + 0.1 + 0.05 * k for k in range(4)])
            for i, at in enumerate(schedule.table["scheduled_s"].to_pylist())
        ]
        info = {"clock": clock, "spec": {}, "workload": {"rate_rps": 2.0}, "slo": {}}
        run = Run(Path("run"), RunInfo.of(info), to_table(change(records)), None, schedule.table, True)
        return conclude(run, parse_slo("ttft=1"), law or exponential(2.0), Outcome("finished", N, 0, 0))

    return make


def exponential(rate_rps):
    return Law(rate_rps, gap_cdf=lambda gaps: 1 - np.exp(-rate_rps * gaps))


def each(**changes):
    """Changes every record; functions are called with the record."""

    def change(records):
        return [dataclasses.replace(r, **{k: v(r) if callable(v) else v for k, v in changes.items()}) for r in records]

    return change


def test_a_sound_run_passes_every_check(conclusion):
    """The list would say what was not looked at."""
    found = conclusion()
    states = {check.check: check.state for check in found.checks}

    assert NAMES == list(states)
    assert {"ok", "unknown"} == set(states.values())
    assert ["client-floor"] == [name for name, state in states.items() if state == "unknown"]
    assert 0 == exit_code(found, Outcome("finished", N, 0, 0), None)


@pytest.mark.parametrize(
    ("check", "change"),
    [
        ("records", lambda records: records[:-1]),
        ("records", lambda records: [*records, records[0]]),
        ("answers", each(status="error", token_s=(), output_tokens=0)),
        ("tokens", each(output_tokens=5, output_tokens_asked=5)),
        ("output-lengths", each(output_tokens_asked=5)),
        ("causality", each(sent_s=lambda r: r.scheduled_s - 0.5)),
        ("causality", each(token_s=lambda r: [*r.token_s[:-1], r.token_s[0]])),
        ("lateness", each(sent_s=lambda r: r.scheduled_s + 0.09)),
    ],
)
def test_each_check_can_fail(conclusion, check, change):
    """A run that breaks a law would be reported with its p99."""
    found = conclusion(change)
    failed = {c.check: c for c in found.checks if c.state == "failed"}

    assert check in failed
    assert failed[check].remedy
    assert failed[check].text in " ".join(found.verdict.reasons)
    assert f"Remedy: {failed[check].remedy}." in " ".join(found.verdict.reasons)
    assert (3 if check == "answers" else 4) == exit_code(found, Outcome("finished", N, 0, 0), None)
    assert not found.verdict.valid


def test_gaps_of_another_law_prove_nothing(conclusion):
    """Constant arrivals would pass for Poisson, whose bursts make the queue."""
    found = conclusion(law=Law(2.0, gap_cdf=lambda gaps: (gaps >= 0.5).astype(float)))

    assert ["gap-law"] == [c.check for c in found.checks if c.state == "failed"]
    assert "do not follow the law that the arrivals declare (Kolmogorov-Smirnov" in found.verdict.text
    assert 4 == exit_code(found, Outcome("finished", N, 0, 0), None)


def test_littles_law_is_checked(conclusion, monkeypatch):
    """Its two sides are one and the same on our stamps; only a slip in our own sums can part them."""
    monkeypatch.setattr("harness.validity.physics.little", lambda _: (3.0, 3.1))
    found = conclusion()

    assert ["littles-law"] == [c.check for c in found.checks if c.state == "failed"]
    assert "3 requests in the system on average, but arrival rate times mean time" in found.verdict.text


def test_a_simulator_is_never_late(conclusion):
    """Stamps of a virtual clock would be held against a client that there is not."""
    found = conclusion(each(sent_s=lambda r: r.scheduled_s + 0.09), clock="virtual")
    states = {check.check: check.state for check in found.checks}

    assert ("ok", "ok") == (states["lateness"], states["client-floor"])


def test_the_floor_of_the_client_is_among_the_checks(remote_run):
    """A bound nearer than the client's own error would look as sure as any other."""
    run = remote_run(slo="ttft=0.1491,tpot=0.1")
    far = conclude(run, parse_slo("ttft=0.1491,tpot=0.1"), None, Outcome("finished", 60, 0, 0))
    near = conclude(
        dataclasses.replace(run, info=run.info.change(floor=Floor(ttft=FloorError(0.01, 0.05)))),
        parse_slo("ttft=0.1491,tpot=0.1"), None, Outcome("finished", 60, 0, 0),
    )  # fmt: skip
    floors = [next(c for c in found.checks if c.check == "client-floor") for found in (far, near)]

    assert ["ok", "warning"] == [floor.state for floor in floors]
    assert "p99 ttft 0.09 ms" in floors[0].text
    assert floors[1].remedy
