"""Whatever goes wrong ends in one sentence and the right exit code."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.cli import main
from harness.errors import BackendError, NotValid, UsageError


def failing(error: BaseException) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> Any:
        raise error

    return fail


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (UsageError("wrong option."), 2, "wrong option."),
        (BackendError("the server is gone."), 3, "the server is gone."),
        (NotValid("two schedules differ."), 4, "two schedules differ."),
        (KeyboardInterrupt(), 130, "interrupted before there was anything to report."),
        (PermissionError(13, "Permission denied", "/locked/x"), 3, "refused: '/locked/x': Permission denied."),
        (OSError("no more processes"), 3, "refused: no more processes."),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_every_end_has_its_exit_code(
    error: BaseException,
    code: int,
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A script could not tell a wrong option from a dead server, and a user would read a traceback."""
    monkeypatch.setattr("harness.runner.run.execute", failing(error))
    found = main(["run", "--backend", "null"])
    err = capsys.readouterr().err.lstrip("\n")  # click ends the line of the ^C

    assert code == found
    assert err.startswith("bench: ")
    assert err.endswith(f"{sentence}\n")
    assert 1 == err.count("\n")


def test_a_report_that_cannot_be_written_costs_no_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bug in a figure would take an hour of measurement along."""
    out = tmp_path / "out"
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("reports.document.rendered.render_run", failing(RuntimeError("no such colour")))
    monkeypatch.setattr("harness.cli._terminal.show", lambda *_: None)
    code = main(["run", "--backend", "sim", "--requests", "5", "--out", str(out)])

    assert 0 == code
    assert "report.html could not be written (RuntimeError: no such colour)" in capsys.readouterr().err
    assert (out / "requests.parquet").exists()
    assert not list(out.glob("report.html*"))
    assert 70 == main(["report", str(out)])
    assert "this is a bug in bench (RuntimeError in test_main.py" in capsys.readouterr().err


def test_open_shows_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`bench report --open` would write the page and show nothing."""
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    main(["run", "--backend", "sim", "--requests", "5", "--quiet", "--no-html", "--out", str(tmp_path / "a")])

    assert 0 == main(["report", str(tmp_path / "a"), "--open"])
    assert [(tmp_path / "a" / "report.html").resolve().as_uri()] == opened


def test_version_is_the_installed_one(capsys: pytest.CaptureFixture[str]) -> None:
    """A bug report could not say which version it is about."""
    from importlib.metadata import version

    main(["--version"])

    assert f"bench {version('goodput-bench')}\n" == capsys.readouterr().out
