"""Runs from the command line to the folder, with the null backend: the harness alone."""

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from harness.cli import main
from harness.data.folder import load

Bench = Callable[..., "subprocess.Popen[str]"]
Call = Callable[..., tuple[int, str, str]]
WaitFor = Callable[[Callable[[], bool]], None]
QUICK = ("run", "--backend", "null", "--rate", "200", "--requests", "20", "--no-html")
ENDLESS = ("run", "--backend", "null:tpot=1ms", "--rate", "50", "--duration", "10min", "--out", "out")
DONE = (0, 4)
"""Exit codes of a run that did what it should: 4 where a busy machine sent late, so that it is not valid."""


def finished(process: subprocess.Popen[str], *codes: int) -> tuple[str, str]:
    """Standard output and error of a process that must end with one of these codes."""
    out, err = process.communicate(timeout=240)
    assert process.returncode in codes, err
    assert "Traceback" not in err, err
    return out, err


@pytest.fixture
def call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], late_is_valid: None
) -> Call:
    """Calls `bench` in this process, in an empty folder: its exit code, standard output and error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")

    def call(*arguments: str) -> tuple[int, str, str]:
        return (main(arguments), *capsys.readouterr())

    return call


def rows(path: Path) -> int:
    """Bytes of rows that a running benchmark has flushed."""
    stream = path / "out" / "requests.arrows"
    return stream.stat().st_size if stream.exists() else 0


def info(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((path / "run.json").read_text(encoding="utf-8"))
    return found


def test_run_leaves_a_folder_that_explains_itself(call: Call, tmp_path: Path) -> None:
    """A result without its options, its schedule or its verdict could not be trusted or repeated."""
    code, out, err = call(*QUICK[:-1], "--out", "out")

    assert code == 0
    found = info(tmp_path / "out")
    names = {p.name for p in (tmp_path / "out").iterdir()}
    assert {"run.json", "schedule.parquet", "requests.parquet", "report.html"} <= names
    assert not {n for n in names if n.endswith((".arrows", ".part"))}
    assert ("finished", "wall", 20) == (found["state"], found["clock"], found["schedule"]["requests"])
    assert found["verdict"]["valid"] is True
    assert found["summary"]["requests"] == 20
    assert "report.html" in out
    assert "20 requests" in err


def test_default_folder_is_new_each_time(call: Call, tmp_path: Path) -> None:
    """A second run would overwrite the first."""
    assert call(*QUICK)[0] == 0
    assert call(*QUICK)[0] == 0

    folders = sorted((tmp_path / "bench-runs").iterdir())
    assert len(folders) == 2
    assert all(f.name.startswith("chatbot-null-") for f in folders)
    assert not (folders[0] / "report.html").exists()


def test_a_finished_run_is_not_overwritten_by_out(call: Call, tmp_path: Path) -> None:
    """An hour of measuring would be gone after a second look at the history of the shell."""
    assert call(*QUICK, "--seed", "1", "--out", "my-run")[0] == 0
    before = info(tmp_path / "my-run")
    code, _, err = call(*QUICK, "--seed", "2", "--out", "my-run")

    assert code == 2

    assert err == "bench: 'my-run' holds a run; give another --out, or --force to replace it.\n"
    assert before == info(tmp_path / "my-run")

    assert call(*QUICK, "--seed", "2", "--out", "my-run", "--force")[0] == 0
    assert info(tmp_path / "my-run")["spec"]["seed"] == 2


def test_json_is_the_whole_result_and_nothing_else(call: Call, tmp_path: Path) -> None:
    """A script that reads the output would stumble over a note for people."""
    code, out, err = call(*QUICK, "--format", "json", "--quiet", "--out", "out")

    assert code == 0
    assert json.loads(out) == {**info(tmp_path / "out"), "complete": True}
    assert err == ""


def test_run_json_repeats_the_run(call: Call, tmp_path: Path) -> None:
    """A result of last month could not be checked."""
    assert call(*QUICK, "--seed", "5", "--arrivals", "gamma:cv=3", "--out", "a")[0] == 0
    assert call("run", "--config", "a/run.json", "--out", "b", "--no-html")[0] == 0
    assert call("run", "--config", "b", "--seed", "6", "--out", "c", "--no-html")[0] == 0

    a, b, c = (info(tmp_path / name) for name in "abc")
    assert a["schedule"]["sha256"] == b["schedule"]["sha256"] != c["schedule"]["sha256"]
    assert a["spec"] == b["spec"]
    assert pq.read_table(tmp_path / "a/schedule.parquet") == pq.read_table(tmp_path / "b/schedule.parquet")


def test_repeating_with_another_schedule_is_refused(call: Call, tmp_path: Path) -> None:
    """Two runs would be compared as equal although something changed what is sent."""
    assert call(*QUICK, "--out", "a")[0] == 0
    path = tmp_path / "a" / "run.json"
    path.write_text(path.read_text(encoding="utf-8").replace('"sha256": "', '"sha256": "0000'), encoding="utf-8")

    code, _, err = call("run", "--config", "a", "--out", "b")

    assert code == 4

    assert err.startswith("bench: The schedule drawn now")
    assert not (tmp_path / "b").exists()


def test_init_writes_what_config_takes(call: Call, tmp_path: Path) -> None:
    """The first configuration of a newcomer would be refused."""
    assert call("init")[0] == 0
    assert (
        call("run", "--config", "bench.toml", "--backend", "null", "--rate", "200", "--out", "out", "--no-html")[0] == 0
    )

    assert info(tmp_path / "out")["spec"]["requests"] == 60


def test_init_names_the_file_that_it_writes(call: Call, tmp_path: Path) -> None:
    """The header of my.toml would tell to start a run with bench.toml."""
    assert call("init", "my.toml")[0] == 0

    head = (tmp_path / "my.toml").read_text(encoding="utf-8").splitlines()[0]
    assert head.endswith("bench run --config my.toml")


def test_folder_of_a_trace_has_no_extension(call: Call, tmp_path: Path) -> None:
    """Folders called azure.csv-sim-... look like files."""
    head = "TIMESTAMP,ContextTokens,GeneratedTokens"
    (tmp_path / "azure.csv").write_text(f"{head}\n2023-11-16 18:15:46.68,374,44\n", encoding="utf-8")
    assert call("run", "--trace", "azure.csv", "--backend", "sim", "--no-html")[0] == 0

    assert next((tmp_path / "bench-runs").iterdir()).name.startswith("azure-sim-")


@pytest.mark.parametrize(("limit", "code"), [("1%", 0), ("100%", 1)])
def test_fail_under_decides_the_exit_code(limit: str, code: int, call: Call) -> None:
    """A nightly job would stay green while half of all requests fail."""
    backend = ("--backend", "null:fail_share=0.5")
    assert code == call(*QUICK, *backend, "--max-failed", "100%", "--fail-under", limit, "--out", "out")[0]


def test_a_server_that_fails_has_an_exit_code_of_its_own(call: Call, tmp_path: Path) -> None:
    """A night in which the server broke would be green, or read as a regression of its speed."""
    code, _, err = call(*QUICK, "--backend", "null:fail_share=0.5", "--fail-under", "90%", "--out", "out")

    assert code == 3

    assert "exit code 3: " in err
    assert "failed for another reason than load" in err
    assert "--max-failed allows 1%" in err
    assert load(tmp_path / "out").info.failures.exceeded


def test_crash_of_the_backend_keeps_what_was_measured(bench: Bench, tmp_path: Path) -> None:
    """Half an hour of measurements would be lost with the server."""
    _, err = finished(bench(*QUICK[:-1], "--backend", "null:crash_after=10", "--out", "out"), 3)

    run = load(tmp_path / "out")
    assert "bench: The null backend stopped at request 9" in err
    assert run.info.outcome.sent == run.requests.num_rows >= 10  # more where several left at once
    assert ["ok"] * 9 == run.requests["status"].to_pylist()[:9]
    assert "ok" not in run.requests["status"].to_pylist()[9:]
    assert run.info.verdict.valid is False
    assert (tmp_path / "out" / "report.html").exists()


def test_killed_run_can_be_reported(
    bench: Bench, wait_for: WaitFor, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A machine that dies in the night would take everything along."""
    process = bench(*ENDLESS)
    wait_for(lambda: rows(tmp_path) > 50_000)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()

    codes, shown = [], []
    for form in ([], ["--format", "text"], ["--format", "json"]):
        codes.append(main(["report", str(tmp_path / "out"), *form]))
        shown.append(capsys.readouterr().out)

    assert [0, 0, 0] == codes
    assert "report.html" in shown[0]
    assert (tmp_path / "out" / "report.html").stat().st_size > 1000
    assert shown[1].strip()
    assert json.loads(shown[2])
    assert load(tmp_path / "out").requests.num_rows > 0
    assert info(tmp_path / "out")["state"] == "running"


@pytest.mark.parametrize(("number", "codes"), [(signal.SIGINT, DONE), (signal.SIGTERM, (4,))])
def test_signal_stops_drains_and_reports(
    number: signal.Signals, codes: tuple[int, ...], bench: Bench, wait_for: WaitFor, tmp_path: Path
) -> None:
    """Ctrl-C would throw the measurements away, or a CI job that was ended early would be green."""
    process = bench(*ENDLESS, "--format", "json")
    wait_for(lambda: rows(tmp_path) > 20_000)
    process.send_signal(number)
    out, _ = finished(process, *codes)

    found = info(tmp_path / "out")
    assert (found["state"], json.loads(out)["state"]) == ("interrupted", "interrupted")
    assert found["verdict"]["text"].startswith(("interrupted: ", "not valid: The client sent "))  # on a busy machine
    assert found["outcome"]["not_sent"] > 0
    assert found["outcome"]["sent"] == load(tmp_path / "out").requests.num_rows
    assert (tmp_path / "out" / "report.html").exists()


def test_run_that_was_ended_early_passes_no_gate(bench: Bench, wait_for: WaitFor, tmp_path: Path) -> None:
    """A CI job that was cut off after a few good answers would be green."""
    process = bench(*ENDLESS, "--slo", "ttft=60,tpot=60", "--fail-under", "0.5", "--no-html")
    wait_for(lambda: rows(tmp_path) > 20_000)
    process.send_signal(signal.SIGTERM)
    finished(process, 4)

    assert info(tmp_path / "out")["summary"]["attainment"] > 0.5


def test_second_interrupt_ends_at_once(bench: Bench, wait_for: WaitFor, tmp_path: Path) -> None:
    """A server that never answers would hold the terminal for the whole drain."""
    some_never_end = ("--lengths", "uniform:output_min=1,output_max=2", "--drain", "1h")
    process = bench(*ENDLESS[:2], "null:tpot=1h", *ENDLESS[3:], *some_never_end, "--no-html")
    wait_for(lambda: rows(tmp_path) > 10_000)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    finished(process, 4)

    found = load(tmp_path / "out")
    assert found.info.state == "interrupted"
    assert found.requests.num_rows == found.info.outcome.sent
    assert set(found.requests["status"].to_pylist()) == {"ok", "cancelled"}


def test_an_interrupt_before_the_report_tells_what_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A third Ctrl-C would be answered by 'there was nothing to report', beside an hour of records."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("harness.runner.run.conclude", interrupted)
    code = main([*QUICK, "--quiet", "--out", str(tmp_path / "out")])

    assert 130 == code
    hint = f"'bench report {tmp_path / 'out'}' shows the 20 stored records."
    expected = f"bench: interrupted before the report; {hint}\n"
    assert expected == capsys.readouterr().err.lstrip("\n")
    assert 0 == main(["report", str(tmp_path / "out")])


@pytest.mark.parametrize("backend", ["null", "sim"])
def test_an_interrupt_before_the_first_record_says_so(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A user would look for a report that is not there."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("harness.runner.run.opening", interrupted)
    code = main(["run", "--backend", backend, "--requests", "3", "--quiet", "--out", str(tmp_path / "out")])

    assert 130 == code
    assert "interrupted before there was anything to report." in capsys.readouterr().err


@pytest.mark.parametrize("line", [(*QUICK, "--out", "out"), ("list",), ("--help",), ("explain", "null")])
def test_reader_that_leaves_does_not_matter(line: tuple[str, ...], bench: Bench) -> None:
    """`bench list | head -1` would end with a traceback, or with the exit code of a broken bound."""
    process = bench(*line)
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None

    _, err = process.communicate(timeout=240)

    assert process.returncode in (DONE if line[0] == "run" else (0,)), err
    assert "Traceback" not in err
    assert "BrokenPipe" not in err
