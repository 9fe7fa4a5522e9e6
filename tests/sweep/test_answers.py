"""Answers that commands left behind, read back by `bench report`."""

import io
import json
from pathlib import Path

import pytest

from harness.errors import UsageError
from harness.experiments import answers
from harness.experiments.sweep.execute import Progress, shown
from reports.document import rendered


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_folder_without_an_answer_has_none(tmp_path: Path) -> None:
    """`bench report` would not go on to look for a run."""
    (tmp_path / "notes.json").write_text("[]")
    (tmp_path / "broken.json").write_text("{")

    assert answers.of(tmp_path) is None
    assert answers.of(tmp_path / "notes.json") is None
    assert answers.of(tmp_path / "broken.json") is None
    assert answers.of(tmp_path / "nowhere") is None


@pytest.mark.parametrize(
    ("text", "message"), [("{", "cannot be read"), ('{"schema": 99, "kind": "sweep"}', "use a newer bench")]
)
def test_unreadable_answer_is_an_error(tmp_path: Path, text: str, message: str) -> None:
    """The user would learn that there is no run, instead of what is wrong."""
    (tmp_path / "sweep.json").write_text(text)

    with pytest.raises(UsageError, match=message):
        answers.of(tmp_path)


def test_unknown_form_names_the_known_ones(tmp_path: Path) -> None:
    """Who asks for a form that is not there would have to guess."""
    with pytest.raises(UsageError, match="take text, markdown, csv, json"):
        rendered.render({"kind": "sweep"}, "xml")


def test_json_form_is_what_is_stored() -> None:
    """A script that reads standard output would see other keys than one that reads the file."""
    info = {"schema": 1, "kind": "sweep", "points": []}

    assert info == json.loads(rendered.render(info, "json"))


def test_bar_on_a_terminal_shows_how_far_it_is() -> None:
    """A sweep of an hour would look as if it hung."""
    out, progress = Terminal(), Progress(total=4, work=4.0)

    with shown(progress, quiet=False, stream=out):
        progress.add(1.0)

    assert "1 of 4 runs" in out.getvalue()


def test_quiet_shows_nothing() -> None:
    """The log of a nightly job would fill with progress."""
    out = Terminal()

    with shown(Progress(total=4), quiet=True, stream=out):
        pass

    assert "" == out.getvalue()
