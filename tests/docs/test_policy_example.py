"""The worked example of a policy: found, checked and measured as docs/guide/policy.md says."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
NAME = "shortest-prompt"
OTHER = "least-slack"


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, str]:
    """The environment of a user who has installed a package with the example in it."""
    site = tmp_path / "site"
    facts = site / "shortest_prompt-1.0.dist-info"
    facts.mkdir(parents=True)
    for name in ("shortest_prompt", "least_slack"):
        shutil.copy(TOP / "docs" / "examples" / f"{name}.py", site)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: shortest-prompt\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(
        f"[bench.policies]\n{NAME} = shortest_prompt:ShortestPrompt\n{OTHER} = least_slack:LeastSlack\n"
    )
    paths = [str(site), str(TOP), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def call(environment: dict[str, str], folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=240
    )


@pytest.mark.nightly
@pytest.mark.parametrize("name", [NAME, OTHER])
def test_the_examples_are_listed_and_keep_the_contract(name, installed, tmp_path):
    """A policy that is installed and not found, or found and never checked, is no plug-in."""
    listed = call(installed, tmp_path, "harness", "list", "policies")
    checked = call(installed, TOP, "pytest", "-v", "-p", "no:cacheprovider", "tests/contracts", "-k", name)

    assert f"  {name} " in listed.stdout
    assert 0 == checked.returncode, checked.stdout
    assert " passed, " in checked.stdout


@pytest.mark.nightly
def test_one_command_measures_the_example_on_engine_and_simulator(installed, tmp_path):
    """What cannot be measured on both with one command will be measured on neither."""
    done = call(
        installed, tmp_path,
        "harness", "policy", NAME, "--requests", "12", "--seeds", "1", "--slo", "ttft=5,tpot=1", "--out", "runs",
        "--format", "json",
    )  # fmt: skip

    assert 0 == done.returncode, done.stderr
    info = json.loads(done.stdout)
    rows, rates = info["tables"][0]["rows"], info["given"]["rates_rps"]

    assert [[rate, NAME, on] for rate in rates for on in ("engine", "simulator")] == [row[:3] for row in rows]
    assert [pytest.approx(share, rel=0.02) for share in (0.5, 0.9, 1.2)] == [rate / rates[1] * 0.9 for rate in rates]
    assert all(0 <= row[3] <= 1 for row in rows)


def test_the_example_is_short():
    """Adding a policy is one small file."""
    lines = (TOP / "docs" / "examples" / "shortest_prompt.py").read_text(encoding="utf-8").splitlines()

    assert len(lines) <= 45


def test_a_wrong_policy_is_reported_before_anything_runs(tmp_path):
    """A user would wait for a calibration to learn of a typo."""
    done = call(dict(os.environ), tmp_path, "harness", "policy", "sarathy")

    assert (2, "") == (done.returncode, done.stdout)
    assert "No policy named 'sarathy'. Did you mean 'sarathi'?" in done.stderr
    assert not (tmp_path / "bench-runs").exists()
