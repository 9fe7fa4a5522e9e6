"""The result of a command: whether it counts as a run, and why not."""

import json
import signal
import subprocess
import sys
import time

import pytest

from harness.errors import UsageError
from harness.experiments.compare.pair_log import Command, PairLog
from harness.experiments.compare.runner import Watched, outcome_of

RUN = {"schema": 2, "clock": "wall", "verdict": {"valid": True}, "outcome": {"ended": "finished"}}
VLLM = {
    "backend": "vllm", "model_id": "m", "tokenizer_id": "t", "date": "20260101-000000", "num_prompts": 2,
    "request_rate": 1.0, "burstiness": 1.0, "max_concurrency": None, "duration": 2.0, "completed": 2, "failed": 0,
    "request_throughput": 1.0, "mean_ttft_ms": 50.0, "input_lens": [10, 12], "output_lens": [3, 3],
    "ttfts": [0.05, 0.05], "itls": [[0.01, 0.01], [0.01, 0.01]], "start_times": [0.0, 1.0], "errors": ["", ""],
    "generated_texts": ["", ""],
}  # fmt: skip


@pytest.fixture
def found(tmp_path):
    """The outcome of `files` (name -> JSON)."""

    def look(files, code=0, *, err="", ours=False):
        for name, value in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(value))
        (tmp_path / "err").write_text(err)
        return outcome_of(tmp_path / "base", code, tmp_path / "err", ours=ours)

    return look


@pytest.mark.parametrize(
    ("run", "code", "ours", "state"),
    [
        (RUN, 0, True, "good"),
        (RUN, 1, True, "good"),
        (RUN, 5, True, "good"),
        (RUN, 7, False, "failed"),
        (RUN, 4, False, "failed"),
        ({**RUN, "outcome": {"ended": "failed", "error": "gone."}}, 3, True, "failed"),
        ({**RUN, "outcome": {"ended": "stopped"}}, 4, True, "interrupted"),
        ({**RUN, "outcome": {"ended": "interrupted"}}, 0, True, "interrupted"),
        ({**RUN, "verdict": {"valid": False, "text": "not valid: late"}}, 4, True, "invalid"),
        ({"schema": 2, "clock": "wall"}, 0, True, "invalid"),
    ],
)
def test_a_run_counts_by_its_verdict_and_how_it_ended(found, run, code, ours, state):
    """A run that missed its SLO is made again, or one that was cut short is compared."""
    assert state == found({"base/run.json": run}, code, ours=ours).state


def test_why_a_run_failed_is_its_own_last_sentence(found):
    """A pair would be made again without a reason."""
    assert "gone" == found({"base/run.json": {**RUN, "outcome": {"ended": "failed", "error": "gone."}}}, 3).why


def test_why_a_command_failed_is_its_last_line(found):
    """A traceback of fifty lines, or control characters, stand in a table."""
    assert "it ended with exit code 9: no memory" == found({}, 9, err="Traceback\nno\x07memory.\n\n").why


@pytest.mark.parametrize(
    ("answer", "code", "state"),
    [({"clock": "virtual"}, 5, "good"), ({"exit_code": 4}, 0, "invalid"), ({}, 4, "invalid"), ({}, 3, "failed")],
)
def test_an_unresolved_search_is_an_answer(found, answer, code, state):
    """A search that could not be resolved would be repeated until it is stopped."""
    assert state == found({"base/capacity.json": {"schema": 1, "kind": "capacity", **answer}}, code, ours=True).state


def test_a_file_of_another_tool_is_a_run(found, tmp_path):
    """Pairs of other load generators need a program of one's own."""
    result = found({"base.json": VLLM})

    assert ("good", tmp_path / "base.json") == (result.state, result.path)
    assert result.schedule_sha256 is not None


def test_several_runs_are_not_one(found):
    """The first of many runs stands for all of them."""
    with_two = found({"base/a.json": VLLM, "base/b.json": VLLM})

    assert ("failed", "it left 2 runs where one was expected") == (with_two.state, with_two.why)


def test_an_interrupted_command_is_no_failed_one(found):
    """Ctrl-C counts as a failure of the server."""
    assert "interrupted" == found({}, 130).state


def test_a_broken_log_is_not_resumed(tmp_path):
    """Half a file of a full disk ends in a traceback."""
    side = Command("x", ("true",))
    (tmp_path / "pairs.json").write_text('{"about": ')

    with pytest.raises(UsageError, match=r"pairs.json' cannot be read"):
        PairLog.opened(tmp_path, (side, side), 0)
    with pytest.raises(UsageError, match="is a file"):
        PairLog.opened(tmp_path / "pairs.json", (side, side), 0)


def test_the_book_holds_no_keys(tmp_path):
    """The key of a paid server is uploaded with the pairs of every night."""
    words = ("bench", "run", "--header", "X-Mine: s3cret", "--header=X-Other: s3cret", "-H", "a: s3cret", "{seed}")
    side = Command("x", words, {"HF_TOKEN": "s3cret"}, ours=True)
    PairLog.opened(tmp_path, (side, side), 0)

    assert "s3cret" not in (tmp_path / "pairs.json").read_text()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with the one that started it")
def test_no_run_outlives_the_comparison(tmp_path):
    """A killed comparison keeps loading the server, under the runs that come next."""
    waits = f"import os, pathlib, time; pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(os.getpid()) + '!')"
    call = (
        "import sys; from pathlib import Path; from harness.experiments.compare.runner import Watched\n"
        f"Watched().call([sys.executable, '-c', {waits + '; time.sleep(60)'!r}], {{}}, "
        f"Path({str(tmp_path / 'o')!r}), Path({str(tmp_path / 'e')!r}))"
    )
    with subprocess.Popen([sys.executable, "-c", call]) as parent:
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text().endswith("!"):
            assert parent.poll() is None
            time.sleep(0.02)
        parent.kill()
    child = tmp_path.__class__(f"/proc/{(tmp_path / 'pid').read_text()[:-1]}/stat")
    ended_s = time.monotonic() + 120
    while child.exists() and child.read_text().split()[2] != "Z" and time.monotonic() < ended_s:
        time.sleep(0.02)

    assert not child.exists() or child.read_text().split()[2] == "Z"


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_ctrl_c_reaches_a_run_that_is_just_starting(tmp_path, monkeypatch):
    """An interruption in the wrong millisecond would wait for a run of an hour."""
    popen = subprocess.Popen

    def interrupted(*args, **options):
        signal.raise_signal(signal.SIGINT)
        return popen(*args, **options)

    with Watched() as watched:
        monkeypatch.setattr(subprocess, "Popen", interrupted)
        words = [sys.executable, "-c", "import time; time.sleep(60)"]
        code = watched.call(words, {}, tmp_path / "out", tmp_path / "err")

    assert (1, True) == (watched.interruptions, code != 0)


def test_an_error_in_bench_leaves_no_process(tmp_path):
    """A bug in the comparison leaves a load generator running."""
    with Watched() as watched:
        watched._process = subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True
        )
        process = watched._process

    assert process.returncode is not None
    assert 0 == watched.interruptions
