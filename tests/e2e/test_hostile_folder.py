"""`bench` in a folder whose files have the names of modules, as those of a downloaded archive may."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from backends.client.null_server import Timing, running
from harness.ipc import python

ROOT = Path(__file__).resolve().parents[2]
OTHERS = (
    "aiohttp click jinja2 msgspec numpy pandas plotly prometheus_client pyarrow ray rich safetensors scipy "
    "sitecustomize threadpoolctl tokenizers torch usercustomize uvloop vllm yaml"
)
BENCH = (sys.executable, "-P", "-m", "harness")
SHORT = ("--requests", "4", "--rate", "20", "--lengths", "fixed:prompt=8,output=2", "--no-html", "--quiet")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Its files leave their name in `ran` when they are imported."""
    for name in {*sys.stdlib_module_names, *OTHERS.split()} - {"__future__", "__main__"}:
        source = f"open({str(tmp_path / 'ran')!r}, 'a').write('{name} ')\nraise ImportError('{name} of the folder')\n"
        (tmp_path / f"{name}.py").write_text(source, encoding="utf-8")
    return tmp_path


def done(folder: Path, *words: str, **variables: str) -> None:
    ended = subprocess.run(
        words, cwd=folder, capture_output=True, text=True, check=False, timeout=600, env={**os.environ, **variables}
    )
    ran = folder / "ran"

    assert (0, "") == (ended.returncode, ran.read_text(encoding="utf-8") if ran.exists() else ""), ended.stderr


def test_files_in_the_current_folder_are_not_run(folder: Path) -> None:
    """A report that is made in a downloaded folder would run code of its author."""
    done(folder, *python("harness.cli", "list", "metrics"))
    done(
        folder,
        sys.executable,
        "-P",
        "-c",
        "from harness.experiments.pool import Processes; Processes(1).__exit__(None, None, None)",
    )


@pytest.mark.nightly
def test_files_in_the_current_folder_are_not_run_by_any_child(folder: Path) -> None:
    """Workers of a search, the engine, its executors, senders, the null server and the runs of a comparison."""
    run = ("--run", "bench run --backend sim --requests 20")
    done(
        folder, *BENCH, "sweep", "--backend", "sim", "--rate", "1|2", "--requests", "20", "--workers", "2", "--no-html"
    )
    done(folder, *BENCH, "run", "--backend", "engine:replicas=2", *SHORT)
    done(folder, *BENCH, "compare", *run, *run, "--pairs", "2", "--out", "out", PATH="/usr/bin:/bin")
    with running(Timing(0.01, 0.01, 2)) as url:
        done(folder, *BENCH, "run", "--backend", f"openai:url={url}/v1,model=null", *SHORT, "--calibrate", "1s")


def test_a_checkout_runs_without_being_installed(tmp_path: Path) -> None:
    """The path that is safe would hold no `harness` either."""
    packages = {"PYTHONPATH": sysconfig.get_paths()["purelib"]}  # with -S without the .pth file of this installation

    program, *words = python("harness.cli", "list", "metrics")
    done(tmp_path, program, "-S", *words, **packages)
    done(ROOT, sys.executable, "-S", "-m", "harness", "list", "metrics", **packages)
