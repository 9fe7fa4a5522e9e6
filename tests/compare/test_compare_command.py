"""`bench compare` from its command line: stored runs, what it writes, what it refuses, its exit codes."""

import json
import os
import shutil

import pytest

from harness.cli import main

SYSTEM = ["--workload", "chatbot", "--backend", "sim", "--latency", "abc:distserve", "--requests", "40", "--quiet"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Folders of simulated runs: `base` and `same` are equal, `slow` and `orca` have another policy."""
    folder = tmp_path_factory.mktemp("runs")
    for name, options in {
        "base": [],
        "slow": ["--policy", "static"],
        "orca": ["--policy", "orca"],
        "seed": ["--seed", "1"],
    }.items():
        assert main(["run", *SYSTEM, "--no-html", *options, "--out", str(folder / name)]) == 0
    shutil.copytree(folder / "base", folder / "same")
    return folder


@pytest.fixture
def compare(capsys):
    """What a command printed, and complained."""

    def call(*words):
        capsys.readouterr()
        code = main(["compare", *map(str, words)])
        out, err = capsys.readouterr()
        return code, out, err

    return call


def test_the_same_run_is_equivalent_to_the_last_bit(runs, compare):
    """Who compares a run with itself must get exit code 0."""
    code, out, _ = compare(runs / "base", runs / "same")

    assert code == 0
    assert "all 40 requests and" in out and "equal to the last bit" in out


def test_another_policy_is_a_difference_with_its_cause(runs, compare):
    """A gate on the simulator tells what was changed, not only that something was."""
    code, out, _ = compare(runs / "base", runs / "slow")

    assert code == 1
    assert ["policy", "sarathi", "static", "-"] in [line.split() for line in out.splitlines()]
    assert "first step" in out


def test_every_form_is_written(runs, compare, tmp_path):
    """A CI job reads files."""
    forms = ("markdown", "junit", "json", "github-smaller", "github-bigger")
    files = {form: tmp_path / form for form in forms}
    options = [word for form, file in files.items() for word in ("--export", f"{form}={file}")]
    code, out, _ = compare(runs / "base", runs / "slow", *options)

    assert code == 1 and "\nRegressed: " in out
    assert "\n**Regressed: " in files["markdown"].read_text()
    assert "<testsuite" in files["junit"].read_text()
    assert json.loads(files["json"].read_text())["exit_code"] == 1
    assert all(json.loads(files[form].read_text()) for form in forms[2:])


def test_a_pipe_is_written_to_and_a_folder_is_left_alone(runs, compare, tmp_path):
    """Who throws an answer away with /dev/null finds that device replaced by a file."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    code, _, _ = compare(runs / "base", runs / "same", "--export", f"markdown={pipe}")
    read = os.read(reader, 1 << 16)
    os.close(reader)
    (tmp_path / "folder").mkdir()
    wrong, _, err = compare(runs / "base", runs / "same", "--export", f"markdown={tmp_path / 'folder'}")

    assert (0, True) == (code, pipe.is_fifo())
    assert b"**Equivalent: " in read
    assert (2, ["folder", "pipe"]) == (wrong, sorted(path.name for path in tmp_path.iterdir()))
    assert "is a folder; name a file in it" in err


def test_several_runs_of_a_side_are_a_folder_or_a_list(runs, compare):
    """Five seeds are five pairs."""
    listed = f"{runs / 'base'},{runs / 'seed'}"
    code, out, _ = compare(listed, listed)

    assert code == 0
    assert "pairs: 2, valid: 2, exact" in out


def test_wrong_usage_is_one_sentence(runs, tmp_path, refusals):
    """A newcomer reads what to do next, not a traceback."""
    shutil.copytree(runs / "base", tmp_path / "base")
    refusals("wrong-compare.txt")
