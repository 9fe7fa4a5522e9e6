"""The Python API gives what the commands give, and refuses with the same sentences."""

import dataclasses
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import harness
from harness.errors import UsageError
from harness.keywords import Number, Options, RunOptions, Text
from harness.options import RunSpec

TRAFFIC = {"workload": "chatbot", "backend": "sim", "latency": "abc:distserve", "slo": "ttft=0.25,tpot=0.1"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> harness.RunResult:
    """A stored run of 80 requests."""
    return harness.run(**TRAFFIC, rate=2, requests=80, out=tmp_path_factory.mktemp("made") / "run")


def test_a_frame_has_the_numbers_of_the_summary(made: harness.RunResult) -> None:
    """A notebook would plot other latencies than the report prints."""
    frame = made.frame()
    summary = json.loads((made.data.path / "run.json").read_text())["summary"]

    assert summary["requests"] == len(frame)
    assert np.isclose(summary["metrics"]["ttft"]["mean"], frame.ttft.mean())
    assert np.isclose(summary["attainment"], ((frame.ttft <= 0.25) & ~(frame.tpot > 0.1)).mean())
    assert "all bounds" in str(made)
    assert "| all bounds" in made._repr_markdown_()


def test_options_of_the_command_are_completed_and_typed() -> None:
    """An editor would know none of 40 options, or one that went."""
    kinds: dict[str, object] = {
        field.name: Number if {"int", "float"} & set(re.findall(r"\w+", str(field.type))) else Text
        for field in dataclasses.fields(RunSpec)
    }

    assert kinds | {"trace": Options.__annotations__["trace"]} == {
        **Options.__annotations__,
        **RunOptions.__annotations__,
    }
    assert {*kinds} < set(inspect.signature(harness.run).parameters)
    assert {"rate", "goal"} < set(inspect.signature(harness.sweep).parameters) > {*Options.__annotations__}
    assert {"at", "policy"} < set(inspect.signature(harness.capacity).parameters)


def test_a_trace_may_be_a_frame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that was filtered in a notebook would have to be written to a file, and named."""
    monkeypatch.chdir(tmp_path)
    frame = pd.DataFrame({"timestamp": [0, 1.5, 2], "input_length": [10, 20, 30], "output_length": [5, 6, 7]})
    made = harness.run(trace=frame, backend="sim", latency="abc:distserve")
    again = harness.run(trace=str(made.data.info.spec["trace"]), backend="sim", latency="abc:distserve")

    assert [5, 6, 7] == made.frame().output_tokens.to_list() == again.frame().output_tokens.to_list()
    assert [0, 1.5, 2] == made.frame().scheduled_s.to_list()
    assert made.data.info.schedule.sha256 == again.data.info.schedule.sha256


def test_two_backends_are_compared_by_pairs_that_are_made_now(tmp_path: Path) -> None:
    """Runs would have to be made one by one from Python, and in an order that favours one side."""
    traffic = {"workload": "chatbot", "rate": 2, "requests": 60, "slo": "ttft=0.25,tpot=0.1"}
    sides = ("sim:latency=abc:distserve,policy=vllm-v0", "sim:latency=abc:distserve,policy=sarathi")
    compared = harness.compare(*sides, pairs=2, out=tmp_path / "pairs", **traffic)
    again = harness.compare(*sides, pairs=2, out=tmp_path / "pairs", **traffic)

    assert ["ttft", "regressed"] == compared.frame()[["metric", "verdict"]].values.tolist()[1]
    assert compared.info["gates"] == again.info["gates"] == harness.load(tmp_path / "pairs").info["gates"]
    with pytest.raises(UsageError, match="No backend named 'wrong'"):
        harness.compare("wrong", "sim", pairs=2, **traffic)


@pytest.mark.parametrize(
    ("call", "wrong", "meant"),
    [
        (harness.sweep, "wrkers", "workers"),
        (harness.capacity, "horizn", "horizon"),
        (harness.run, "progres", "progress"),
    ],
)
def test_a_misspelled_argument_gets_the_nearest_of_its_function(
    call: Callable[..., object], wrong: str, meant: str
) -> None:
    """'Did you mean seed' would lead away from what was meant."""
    with pytest.raises(UsageError, match=f"No option named '{wrong}'. Did you mean '{meant}'"):
        call(rate=1, **{wrong: 1})


def test_stored_runs_are_made_by_no_option(made: harness.RunResult) -> None:
    """'No backend named' the folder of a run."""
    with pytest.raises(UsageError, match="seed is for runs that are made now"):
        harness.compare(made, made.data.path, seed=1)


@pytest.mark.parametrize(
    ("frame", "message"),
    [(pd.DataFrame({"timestamp": []}), "has no row"), (pd.DataFrame([[1, 2]], columns=["a", "a"]), "cannot be stored")],
)
def test_a_frame_that_is_no_trace_is_one_sentence(
    frame: pd.DataFrame, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of pyarrow would tell nothing about a trace."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=message):
        harness.run(trace=frame, backend="sim")


def test_results_are_short_in_a_notebook(made: harness.RunResult) -> None:
    """Each cell would store 27,000 characters beside the table that it shows."""
    assert f"<RunResult {made.data.path}, 80 requests, exit code 0>" == repr(made)
    assert "<CompareAnswer of stored results>" == repr(harness.compare(made, made))


def test_progress_is_shown_where_it_is_wanted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A search of ten minutes in a notebook would look like one that hangs."""
    for wanted in (False, True):
        harness.capacity(**TRAFFIC, max_requests=3000, out=tmp_path / str(wanted), progress=wanted)
        assert wanted == bool(capsys.readouterr().err)


def test_a_stored_run_is_loaded_and_compared(made: harness.RunResult, tmp_path: Path) -> None:
    """Yesterday's run could only be looked at from the command line."""
    loaded = harness.load(made.data.path)
    compared = harness.compare(made, loaded)

    assert isinstance(loaded, harness.RunResult)
    assert loaded.frame().equals(made.frame())
    assert 0 == compared.exit_code
    assert "<html" in loaded.report(tmp_path / "run.html").read_text()


def test_wrong_names_are_refused_in_a_sentence(made: harness.RunResult, tmp_path: Path) -> None:
    """A typing error would end in a KeyError somewhere inside."""
    with pytest.raises(UsageError, match="Did you mean 'policy'"):
        harness.run(**TRAFFIC, polcy="sarathi")
    with pytest.raises(UsageError, match="Did you mean 'latency_cdf'"):
        made.figure("latency_cfd")
    with pytest.raises(UsageError, match="No run in"):
        harness.load(tmp_path)


def test_an_answer_that_is_not_stored_cannot_be_compared() -> None:
    """The sentence would be about a path that the user did not name."""
    with pytest.raises(UsageError, match="give out=FOLDER"):
        harness.compare(harness.AnswerResult({"kind": "capacity"}), "elsewhere")


def test_a_script_without_a_guard_can_sweep(tmp_path: Path) -> None:
    """Worker processes would run the script again, each with workers of its own."""
    script = tmp_path / "script.py"
    script.write_text(
        "import harness\n"
        f"options = {TRAFFIC!r}\n"
        "few = dict(seeds=1, requests=40, warmup='none', workers=2)\n"
        "curve = harness.sweep(**options, **few, rate=[1, 2], out='curve')\n"
        "print(len(curve.frame()))\n"
    )
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=240)

    assert ("2\n", "") == (done.stdout, done.stderr)
