"""Comparisons that make their runs, as a user starts them: clean answers, Ctrl-C, and a kill in the middle."""

import json
import signal
import sys
import time

import pytest

from harness.cli import main

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")

SLOW = """
import json, pathlib, signal, sys, time
seed, out = int(sys.argv[1]), pathlib.Path(sys.argv[2])
if seed == 1 and pathlib.Path("slow").exists():
    pathlib.Path("waiting").write_text("")
    signal.signal(signal.SIGINT, lambda *_: sys.exit(130))
    time.sleep(60)
gap_s = 0.01 + 1e-5 * len(sys.argv)
out.with_suffix(".json").write_text(json.dumps({
    "backend": "vllm", "model_id": "m", "tokenizer_id": "t", "date": "20260101-000000", "num_prompts": 2,
    "request_rate": 1.0, "burstiness": 1.0, "max_concurrency": None, "duration": 2.0, "completed": 2, "failed": 0,
    "request_throughput": 1.0, "mean_ttft_ms": 50.0, "input_lens": [10 + seed, 12],
    "output_lens": [3, 3], "ttfts": [0.05, 0.05], "itls": [[gap_s] * 2] * 2, "start_times": [0.0, 1.0],
    "errors": ["", ""], "generated_texts": ["", ""],
}))
"""


@pytest.fixture
def started(bench, tmp_path):
    """Starts a comparison whose second pair waits until it is interrupted; returns when it does."""
    (tmp_path / "slow.py").write_text(SLOW)
    run = f"{sys.executable} slow.py {{seed}} {{out}}"
    arguments = (
        "compare",
        "--run",
        run,
        "--run",
        f"{run} x",
        "--pairs",
        "3",
        "--gate",
        "tpot=2%:5%",
        "--out",
        "o",
    )

    def start(*, slow):
        (tmp_path / "slow").write_text("") if slow else (tmp_path / "slow").unlink(missing_ok=True)
        process = bench(*arguments)
        while slow and not (tmp_path / "waiting").exists() and process.poll() is None:
            time.sleep(0.05)
        return process

    return start


def finished(process):
    """Exit code, output and complaints."""
    out, err = process.communicate(timeout=240)
    return process.returncode, out, err


def pairs(folder):
    return json.loads((folder / "o" / "pairs.json").read_text())["pairs"]


def without_times(rows):
    return [{k: v for k, v in row.items() if k not in ("base_s", "head_s")} for row in rows]


def test_ctrl_c_ends_the_run_that_is_going_on(started, tmp_path):
    """Ctrl-C leaves a load generator behind, or loses the pairs that were complete."""
    process = started(slow=True)
    process.send_signal(signal.SIGINT)
    code, _, err = finished(process)

    assert 130 == code
    assert "interrupted after 1 pair; rerun the command with --out o to resume" in err
    assert [1] == [row["pair"] for row in pairs(tmp_path)]


@pytest.mark.nightly
def test_a_killed_comparison_ends_as_an_undisturbed_one(started, tmp_path):
    """A power cut costs the night, or changes the answer."""
    process = started(slow=True)
    process.kill()
    process.communicate()
    code, resumed, _ = finished(started(slow=False))
    rows = pairs(tmp_path)
    (tmp_path / "o").rename(tmp_path / "first")
    again, undisturbed, _ = finished(started(slow=False))

    assert 0 == code == again
    assert undisturbed == resumed
    assert without_times(pairs(tmp_path)) == without_times(rows)


@pytest.mark.nightly
def test_a_simulator_beside_itself_is_equal_to_the_last_bit(bench):
    """A comparison of a system with itself finds a difference."""
    code, out, err = finished(
        bench("compare", "--base", "sim", "--head", "sim", "--requests", "50", "--rate", "2", "--out", "aa")
    )

    assert (0, "pair 1, seed 0: base\npair 1, seed 0: head\nreport: aa/report.html\n") == (code, err)
    assert "equal to the last bit" in out


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["--base", "sim"], 2, "--head is missing"),
        (["--base", "sim", "--head", "null"], 4, "virtual clock"),
        (["--base", "sim", "--head", "sim:policy=sarathy"], 2, "Did you mean 'sarathi'"),
        (["--base", "sim", "--head", "sim", "--pairs", "many"], 2, "--pairs must be 'auto' or a whole number"),
        (["--base", "null", "--head", "null", "--pairs", "2"], 4, "--pairs 2 proves nothing"),
        (["--base", "sim", "--head", "sim", "--seed", "-1"], 2, "--seed must be a whole number"),
        (["--run", "true"], 2, "--run is given twice"),
        (["--run", "true", "--run", "true", "--rate", "2"], 2, "--rate belongs into the commands"),
        (["--run", "true", "--run", "true", "--base", "sim"], 2, "--run and --base/--head exclude each other"),
    ],
)
def test_what_cannot_work_is_reported_before_anything_runs(monkeypatch, tmp_path, capsys, arguments, code, sentence):
    """A mistake in a command is found out after the first hour, or as a traceback."""
    monkeypatch.chdir(tmp_path)
    ended = main(["compare", *arguments])
    out, err = capsys.readouterr()

    assert (code, "") == (ended, out)
    assert sentence in err
    assert 1 == len(err.splitlines())
    assert not (tmp_path / "bench-runs").exists()
