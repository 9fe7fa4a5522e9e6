"""What Prometheus scrapes from a running benchmark, parsed back by its own library."""

import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from harness.api import Bound, RequestRecord, Slo
from harness.cli import main
from harness.data.run_json import Floor, FloorError
from harness.runner.exporter import EDGES_S, exported
from harness.runner.live import Live
from harness.runner.progress import Display

Sample = tuple[str, tuple[tuple[str, str], ...]]


def scraped(port: int) -> dict[Sample, float]:
    """Name and labels of each sample, with its value."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=120) as answer:
        text = answer.read().decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    found = {(s.name, tuple(sorted(s.labels.items()))): s.value for s in samples}
    assert len(found) == len(samples)
    return found


def value(found: dict[Sample, float], name: str, **labels: str) -> float:
    return found[f"bench_{name}", tuple(sorted(labels.items()))]


def record(request_id: int, first_s: float, status: str = "ok") -> RequestRecord:
    stamps = [first_s, first_s + 0.1, first_s + 0.2]
    return RequestRecord(request_id, 0.0, 0.0, stamps, None, 5, 3, 3, status)  # type: ignore[arg-type]  # a status


def live() -> Live:
    found = Live(total=8, span_s=4.0, slo=Slo((Bound("ttft", 0.25),)), sent=5, finished=4)
    found.departed(0.004)
    return found


ROWS = [record(0, 0.1), record(1, 0.2), record(2, 0.3), record(3, 0.1, "error")]


def test_a_scrape_has_the_state_of_the_run() -> None:
    """A dashboard would show another attainment or latency than the report."""
    run = live()
    run.floor = Floor(ttft=FloorError(p50_s=0.0001, p99_s=0.00031))
    with exported("127.0.0.1", 0) as (exporter, port), Display(exporter=exporter).showing(run):
        run.seen(ROWS)
        found = scraped(port)

    assert (5, 1) == (value(found, "requests_sent_total"), value(found, "requests_in_flight"))
    assert (3, 1, 0) == tuple(value(found, "requests_finished_total", status=s) for s in ("ok", "error", "timeout"))
    assert (4, 2) == (value(found, "slo_requests_total"), value(found, "slo_requests_met_total"))
    assert (0.5, 0.9, 2.0) == tuple(value(found, name) for name in ("slo_attainment", "slo_goal", "scheduled_rate"))
    assert (20, 12) == tuple(value(found, "tokens_total", part=part) for part in ("prompt", "output"))
    assert (0.004, 0.00031) == (
        value(found, "lateness_p99_seconds"),
        value(found, "client_floor_p99_seconds", metric="ttft"),
    )
    assert [0, 1, 2, 3] == [value(found, "ttft_seconds_bucket", le=le) for le in ("0.05", "0.1", "0.2", "0.5")]
    assert (3, pytest.approx(0.6)) == (value(found, "ttft_seconds_count"), value(found, "ttft_seconds_sum"))
    assert (3, pytest.approx(0.3)) == (value(found, "tpot_seconds_count"), value(found, "tpot_seconds_sum"))
    assert pytest.approx(1.2) == value(found, "e2e_seconds_sum")
    assert len(EDGES_S) + 1 == sum(name == "bench_e2e_seconds_bucket" for name, _ in found)


def test_counters_go_on_from_trial_to_trial_and_gauges_are_of_the_last() -> None:
    """A rate over a search would lose what was sent just before a counter falls back to 0."""
    first, second = live(), live()
    with exported("127.0.0.1", 0) as (exporter, port):
        display, seen = Display(exporter=exporter), []
        with display.showing(first):
            first.seen(ROWS)
        seen.append(scraped(port))
        with display.showing(second):
            seen.append(scraped(port))
            second.seen(ROWS[:2])
            seen.append(scraped(port))

    assert [1, 2, 2] == [value(each, "runs_total") for each in seen]
    assert [5, 10, 10] == [value(each, "requests_sent_total") for each in seen]
    assert [4, 4, 6] == [value(each, "slo_requests_total") for each in seen]
    assert [3, 3, 5] == [value(each, "ttft_seconds_count") for each in seen]
    assert [0, 1, 1] == [value(each, "run_active") for each in seen]
    assert [0, 1, 1] == [value(each, "requests_in_flight") for each in seen]
    assert (0.5, 1.0) == (value(seen[0], "slo_attainment"), value(seen[2], "slo_attainment"))
    assert ("bench_slo_attainment", ()) not in seen[1]


def test_a_run_is_scraped_from_its_first_second_on(tmp_path: Path) -> None:
    """The option would be taken and no metrics served, or only once all is over."""
    command = [sys.executable, "-m", "harness", "run", "--backend", "null", "--rate", "50", "--duration", "1h", "--slo"]
    more = ["ttft=1", "--no-html", "--metrics-port", "0", "--out", str(tmp_path / "run")]
    with subprocess.Popen([*command, *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        address = running.stderr.readline()
        assert address.startswith("metrics at http://127.0.0.1:"), address
        port = int(address.rpartition(":")[2].removesuffix("/metrics\n"))
        while value(scraped(port), "requests_sent_total") < 5:
            assert running.poll() is None
        running.send_signal(signal.SIGINT)
        running.communicate()

    assert running.returncode in (0, 4)  # 4: a busy machine sent late


def test_a_port_that_is_taken_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    """The run would begin, and its dashboard stay empty."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code = main(["run", "--backend", "null", "--requests", "3", "--metrics-port", f"localhost:{port}"])

    assert 2 == code
    assert f"--metrics-port: localhost:{port} cannot be listened on: Address already in use." in capsys.readouterr().err


def test_an_address_that_is_nowhere_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    """A user would wait for metrics that never come."""
    assert 2 == main(["run", "--backend", "null", "--metrics-port", "nowhere.invalid:0"])
    assert "cannot be listened on" in capsys.readouterr().err
