"""`bench doctor` tells what is wrong with a machine, and what to do."""

import importlib.metadata as metadata
import os
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.cli import _installed, doctor, main
from harness.errors import BackendError


@pytest.mark.parametrize("check", doctor.ALL, ids=lambda check: check.__name__)
def test_every_check_answers_here(check: Any) -> None:
    """A check would end in a traceback on the machine that runs the tests."""
    found = check()

    assert found.name
    assert found.value
    assert bool(found.remedy) == (found.state != "ok")


def test_a_package_of_another_project_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another `backends` overwrote that of bench, commands broke in odd places, and the doctor printed ok."""
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "reports", raising=False)
    shadowed, elsewhere = main(["list"]), capsys.readouterr().err
    monkeypatch.undo()
    for name in _installed.FIRST_LINES:
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "__init__.py").write_bytes((_installed.HOME / name / "__init__.py").read_bytes())
    (tmp_path / "backends" / "__init__.py").write_text("# of another project")
    folder = tmp_path / "intruder-1.2.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Name: intruder\nVersion: 1.2\n")
    (folder / "RECORD").write_text("backends/__init__.py,,\n")
    monkeypatch.setattr(_installed, "HOME", tmp_path)
    monkeypatch.setattr(_installed, "find_spec", lambda name: SimpleNamespace(origin=tmp_path / name / "__init__.py"))
    monkeypatch.syspath_prepend(tmp_path)
    overwritten, over = main(["list"]), capsys.readouterr().err

    assert (2, 2) == (shadowed, overwritten)
    assert f"'reports' of bench comes from '{tmp_path / 'reports' / '__init__.py'}'; install bench in an" in elsewhere
    assert f"'backends' of bench in '{tmp_path}' was overwritten by intruder 1.2; install bench in an" in over
    assert ("FAIL", "intruder 1.2 has files in 'backends'") == (doctor.packages().state, doctor.packages().value)


def _raise(error: Exception) -> Any:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


def _one_core(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)


def _busy(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(os, "getloadavg", lambda: (99.0, 9.0, 9.0), raising=False)


def _late_timer(patch: pytest.MonkeyPatch) -> None:
    at_s = iter(range(1000))
    patch.setattr(doctor, "time", SimpleNamespace(monotonic=lambda: float(next(at_s)), sleep=lambda _: None))


def _full_disk(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=2**20))


def _read_only(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(os, "access", lambda *_: False)


def _no_blas(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("threadpoolctl.threadpool_info", list)


def _no_package(patch: pytest.MonkeyPatch) -> None:
    known = metadata.version
    patch.setattr(
        metadata, "version", lambda n: known(n) if n != "rich" else _raise(metadata.PackageNotFoundError(n))()
    )


def _not_installed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(metadata, "requires", _raise(metadata.PackageNotFoundError("goodput-bench")))
    patch.setattr(metadata, "version", _raise(metadata.PackageNotFoundError("goodput-bench")))


def _no_engine(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("harness.runner.run.execute", _raise(BackendError("The engine did not start.")))


@pytest.mark.parametrize(
    ("spoil", "check", "state", "words"),
    [
        (_one_core, doctor.cores, "warn", "lower --rate"),
        (_busy, doctor.load, "warn", "stop other programs"),
        (_late_timer, doctor.timer, "warn", "not shared"),
        (_full_disk, doctor.disk, "warn", "--out"),
        (_read_only, doctor.disk, "warn", "not writable"),
        (_no_blas, doctor.blas, "warn", "slow"),
        (_no_package, doctor.packages, "FAIL", "missing: rich"),
        (_not_installed, doctor.packages, "FAIL", "missing: goodput-bench"),
        (_no_engine, doctor.engine, "FAIL", "--backend sim"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_what_is_wrong_has_a_remedy(
    spoil: Any, check: Any, state: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user would measure on a machine that cannot, and not know what to do about it."""
    spoil(monkeypatch)
    found = check()

    assert state == found.state
    assert words in f"{found.value} {found.remedy}"


def test_an_engine_that_answers_wrongly_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine whose requests all fail would be called fit, because the run ended."""
    import pyarrow as pa

    table = pa.table({"status": ["error"] * 4})
    ran = SimpleNamespace(outcome=SimpleNamespace(error=None), run=SimpleNamespace(requests=table))
    monkeypatch.setattr("harness.runner.run.execute", lambda *_, **__: ran)
    found = doctor.engine()

    assert ("FAIL", "0 of 4 requests ended well") == (found.state, found.value)


def test_exit_code_says_whether_a_run_can_begin(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A script that sets up a machine would go on although the engine is broken."""
    assert 0 == main(["doctor"])
    assert "Next: bench run" in capsys.readouterr().out

    _no_package(monkeypatch)
    assert 3 == main(["doctor"])
    assert "pip install ." in capsys.readouterr().out
