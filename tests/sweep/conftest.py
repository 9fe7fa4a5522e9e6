"""Sweeps small enough for a test."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.cli import main

Sweep = Callable[..., dict[str, Any]]

QUICK = ("--backend", "sim", "--latency", "abc:distserve", "--policy", "vllm-v0", "--workers", "1", "--quiet",
         "--no-html")  # fmt: skip


@pytest.fixture
def sweep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Sweep:
    """`sweep("--rate", "1,2", out="name", code=0)`: sweep.json of a simulated sweep in this process."""

    def run(*arguments: str, out: str = "sweep", code: int = 0) -> dict[str, Any]:
        found = main(["sweep", *QUICK, *arguments, "--out", str(tmp_path / out)])
        captured = capsys.readouterr()
        assert found == code, captured.err
        file = tmp_path / out / "sweep.json"
        return {**json.loads(file.read_text()), "printed": captured.out, "message": captured.err}

    return run


@pytest.fixture
def refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """`refused("--rate", "1:4")`: the one sentence with which a sweep is refused, exit code 2."""

    def run(*arguments: str, out: str = "sweep") -> str:
        code = main(["sweep", "--backend", "sim", "--quiet", *arguments, "--out", str(tmp_path / out)])
        message = capsys.readouterr().err
        assert code == 2, message
        assert message.count("\n") == 1
        return message.removeprefix("bench: ").strip()

    return run
