"""The worked example of a policy: found, checked and measured as docs/guide/simulator.md says."""

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
        "harness", "sweep", "--over", "backend=engine,sim", "--over", f"policy={NAME},sarathi", "--rate", "20",
        "--workload", "uniform:prompt_max_tokens=64,output_max_tokens=8", "--requests", "12", "--slo", "ttft=5,tpot=1",
        "--calibrate", "off", "--out", "both",
    )  # fmt: skip

    assert done.returncode in (0, 4), done.stderr
    assert 4 == len(list((tmp_path / "both").rglob("requests.parquet")))
