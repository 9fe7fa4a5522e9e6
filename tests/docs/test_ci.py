"""The workflows of docs/ci: what they run works as written, and they are safe to copy."""

import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

TOP = Path(__file__).resolve().parents[2]
FOLDER = TOP / "docs" / "ci"
FILES = sorted(FOLDER.glob("*.yml"))
ACTION = TOP / "action.yml"
PINNED = re.compile(r"^\s*- uses: [\w./-]+@[0-9a-f]{40} # v\d+(\.\d+)*$")
EXPRESSION = re.compile(r"\$\{\{ (\w+)\.([\w-]+) \}\}")
SMALL = {"WORKLOAD": "chatbot", "SLO": "ttft=0.25,tpot=0.1", "RATE": "2", "REQUESTS": "40", "SERIES": "sim"}
NEUTRAL = {"GIT_CONFIG_GLOBAL": os.devnull}  # not the signing key or hooks of the user who runs the tests
SYSTEM = "sim:latency=abc:distserve,policy=vllm-v0"

NOTHING: Mapping[str, str] = defaultdict(str)

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A checkout with the project's baselines and a remote that it can push to."""
    remote, checkout = tmp_path / "remote.git", tmp_path / "checkout"
    git(tmp_path, "init", "--quiet", "--bare", str(remote))
    git(tmp_path, "init", "--quiet", str(checkout))
    shutil.copytree(TOP / "baselines", checkout / "baselines", ignore=shutil.ignore_patterns("*.html"))
    git(checkout, "add", ".")
    git(checkout, "-c", "user.name=a", "-c", "user.email=a@localhost", "commit", "--quiet", "-m", "Begin")
    git(checkout, "remote", "add", "origin", str(remote))
    return checkout


@pytest.fixture
def job(repository: Path, tmp_path: Path) -> Run:
    """Runs the scripts of a job as a runner would, the first failure ends it; the last one's process is the answer."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "bench").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m harness "$@"\n', encoding="utf-8")
    (programs / "bench").chmod(0o755)
    summary = tmp_path / "step-summary.md"

    def run(file: str, name: str, **values: str) -> subprocess.CompletedProcess[str]:
        environment = {
            **os.environ, **NEUTRAL, "PATH": f"{programs}:{os.environ['PATH']}", "GITHUB_STEP_SUMMARY": str(summary),
            "GITHUB_OUTPUT": str(tmp_path / "outputs.txt"), **SMALL, **values,
        }  # fmt: skip
        for script, given in steps(FOLDER / file, name, environment):
            done = subprocess.run(
                ["/bin/bash", "-e", "-c", script], cwd=repository, env={**environment, **given}, capture_output=True,
                text=True, timeout=400,
            )  # fmt: skip
            if done.returncode:
                break
        return done

    return run


def git(folder: Path, *arguments: str) -> str:
    environment = {**os.environ, **NEUTRAL}
    done = subprocess.run(
        ["git", *arguments],  # noqa: S607
        cwd=folder,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout


def jobs(file: Path) -> Mapping[str, Any]:
    found: Mapping[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))["jobs"]
    return found


def steps(file: Path, name: str, environment: Mapping[str, str]) -> Iterator[tuple[str, dict[str, str]]]:
    """The scripts of a job, all but the installation; those of the action with variables of their own."""
    for step in jobs(file)[name]["steps"]:
        if step.get("uses") == "./":
            yield from of_action({key: filled(text, env=environment) for key, text in step.get("with", {}).items()})
        elif "run" in step and step["name"] != "Install bench":
            yield step["run"], {}


def of_action(values: Mapping[str, str]) -> Iterator[tuple[str, dict[str, str]]]:
    """The scripts of the action, but for its installation, with the variables that they get from its inputs."""
    action = yaml.safe_load(ACTION.read_text(encoding="utf-8"))
    inputs = {name: values.get(name, about["default"]) for name, about in action["inputs"].items()}
    for step in action["runs"]["steps"]:
        if "run" in step and step["name"] not in ("Install bench", "Name the cache"):
            yield step["run"], {key: filled(text, inputs=inputs) for key, text in step.get("env", {}).items()}


def filled(text: str, **contexts: Mapping[str, str]) -> str:
    """The text with the values of its `${{ CONTEXT.NAME }}`."""
    return EXPRESSION.sub(lambda found: contexts[found[1]][found[2]], text)


@pytest.mark.parametrize("file", [*FILES, ACTION], ids=lambda file: file.name)
def test_actions_are_pinned_to_a_commit(file: Path) -> None:
    """A tag can be moved to other code, which would then see the secrets of every user of the workflow."""
    used = [
        line
        for line in file.read_text(encoding="utf-8").splitlines()
        if "uses:" in line and "- uses: ./ #" not in line and not line.startswith("#")
    ]

    assert used
    assert [] == [line for line in used if not PINNED.match(line)]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_job_may_read_and_only_the_series_may_be_written(file: Path) -> None:
    """A pull request from a stranger would run with a token that can push."""
    workflow = yaml.safe_load(file.read_text(encoding="utf-8"))
    writing = [name for name, job in jobs(file).items() if "write" in job.get("permissions", {}).values()]

    assert {"contents": "read"} == workflow["permissions"]
    assert {"nightly.yml": ["trend"], "servers.yml": ["comment"]}.get(file.name, []) == writing
    for name in writing:  # the job that may write never runs what was built from a pull request
        assert "trend" == name or not [step for step in jobs(file)[name]["steps"] if "checkout" in step.get("uses", "")]
    assert "pull_request_target" not in file.read_text(encoding="utf-8")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_nothing_that_others_write_is_pasted_into_a_script(file: Path) -> None:
    """The title of a pull request could be a command."""
    given = [(file, name, script) for name in jobs(file) for script, _ in steps(file, name, NOTHING) if "${{" in script]

    assert [] == given


@pytest.mark.nightly
def test_a_pull_request_that_changes_nothing_passes(job: Run, repository: Path) -> None:
    """If this failed, every pull request would be red, or the result would not be seen."""
    done = job("pull-request.yml", "simulator")
    suite = next(ET.parse(repository / "bench-results" / "bench.xml").iter("testsuite"))  # noqa: S314  our own file

    assert (0, "") == (done.returncode, done.stderr)
    assert "equivalent" in (repository / "bench-results" / "summary.md").read_text(encoding="utf-8")
    assert ("0", "0") == (suite.get("failures"), suite.get("errors"))


@pytest.mark.nightly
def test_a_pull_request_that_slows_the_simulator_fails(job: Run, repository: Path) -> None:
    """If this failed, the gate would be open."""
    config = repository / "baselines" / "chatbot.toml"
    config.write_text(config.read_text(encoding="utf-8").replace("vllm-v0", "orca"), encoding="utf-8")

    done = job("pull-request.yml", "simulator")

    assert done.returncode in (1, 4), done.stderr
    assert "policy" in (repository / "bench-results" / "summary.md").read_text(encoding="utf-8")


def test_a_folder_without_baselines_is_an_error_of_one_sentence(job: Run, repository: Path) -> None:
    """A file '*.toml', which no one wrote, was to be a configuration."""
    shutil.rmtree(repository / "baselines")
    done = job("pull-request.yml", "simulator")

    assert (2, "") == (done.returncode, done.stderr)
    assert "::error::there is no .toml in 'baselines'; add a baseline" in done.stdout


@pytest.mark.nightly
def test_an_invalid_baseline_does_not_keep_the_others_from_being_compared(job: Run, repository: Path) -> None:
    """The job ended at the first of them, and showed nothing of the others."""
    (repository / "baselines" / "bursts.toml").write_text('backend = "sim"\nhardware = "h1000"\n', encoding="utf-8")
    done = job("pull-request.yml", "simulator")
    summary = (repository / "bench-results" / "summary.md").read_text(encoding="utf-8")

    assert 2 == done.returncode, done.stderr
    assert "::error::the run of 'baselines/bursts.toml' ended with exit code 2 and is not compared" in done.stdout
    assert "| tpot mean |" in summary
    assert "quivalent" in summary


def test_the_action_takes_workload_slo_and_rate(tmp_path: Path) -> None:
    """They had to be written into `options`, where a space ends a value."""
    (tmp_path / "bench").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "bench").chmod(0o755)
    inputs = {"base": "null", "head": "null", "slo": "ttft=1, tpot=1", "rate": "4"}
    (script, variables), *_ = [each for each in of_action(inputs) if "bench compare" in each[0]]
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "GITHUB_OUTPUT": str(tmp_path / "outputs"), **variables}
    done = subprocess.run(
        ["/bin/bash", "-e", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )

    assert done.stdout.startswith(
        "compare --base null --head null --out bench-results/pairs --slo ttft=1, tpot=1 --rate 4 --html"
    )


@pytest.mark.nightly
def test_pairs_of_two_servers_are_compared_at_night(job: Run, repository: Path) -> None:
    """If this failed, the nightly workflow would not do what it says."""
    done = job("nightly.yml", "paired", BASE=SYSTEM, HEAD=SYSTEM, PAIRS="1")

    assert (0, "") == (done.returncode, done.stderr)
    assert (repository / "bench-results" / "compare.json").exists()


@pytest.mark.nightly
def test_a_night_is_added_to_the_series_of_a_branch(job: Run, repository: Path) -> None:
    """If this failed, the first night could not begin a series, or the second would lose it."""
    for night in (1, 2):
        done = job("nightly.yml", "trend", BACKEND=SYSTEM)
        assert 0 == done.returncode, done.stderr

        git(repository, "fetch", "origin", "bench-results")
        kept = git(repository, "ls-tree", "-r", "--name-only", "FETCH_HEAD").splitlines()

        assert night == sum(path.endswith("run.json") for path in kept)
        assert {"chatbot/sim"} == {"/".join(path.split("/")[:2]) for path in kept}
        assert not any(path.endswith(".html") for path in kept)
        page = (repository / "trend.html").read_text(encoding="utf-8")
        assert night == len(set(re.findall(r'href="(results/chatbot/sim/[^"]+/report\.html)"', page)))
        git(repository, "clean", "-ffdx", "--quiet")  # what the next checkout on this machine does


@pytest.mark.nightly
def test_a_slower_revision_of_a_server_is_found_after_the_gate_has_found_a_loss_of_its_own(
    job: Run, repository: Path
) -> None:
    """A gate that cannot find anything would be green for every pull request."""
    (repository / "serve.sh").write_text(
        '[ "$SIDE" = head ] && fault="--fault slow=20%"\n'
        "exec bench serve --backend null:ttft=50ms,itl=10ms --port $PORT $fault\n"
    )
    done = job("servers.yml", "measure", BUILD="mkdir $SIDE", START="sh serve.sh", PAIRS="3", RATE="10")

    assert 1 == done.returncode, done.stdout + done.stderr
    assert (repository / "self-test").is_dir()
    assert "tpot" in (repository / "summary.md").read_text(encoding="utf-8")


def test_a_server_that_is_slower_turns_the_night_red(job: Run) -> None:
    """If this failed, a regression would be reported and not seen."""
    done = job("nightly.yml", "paired", BASE=SYSTEM, HEAD=f"{SYSTEM},tp=1,latency=linear:base=60ms", PAIRS="1")

    assert done.returncode != 0
