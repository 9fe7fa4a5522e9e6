"""`bench report` of another tool's file."""

import shutil
from pathlib import Path

import pytest

from harness.experiments import imports
from reports.document.rendered import render_run as render
from reports.document.rendered import run_path

FILES = Path(__file__).resolve().parents[1] / "golden" / "results"


@pytest.fixture
def file(tmp_path, monkeypatch):
    """Copies a file of results into an empty folder, which becomes the working directory."""
    monkeypatch.chdir(tmp_path)

    def copy(name):
        return Path(shutil.copy(FILES / name, tmp_path))

    return copy


def test_runs_of_one_file_get_a_page_each(file):
    """Of a guidellm sweep only the last rate would be reported."""
    path = file("vllm-aggregate.json")
    path.write_text(2 * path.read_text())

    assert ["vllm-aggregate.json-1-of-2.report.html", "vllm-aggregate.json-2-of-2.report.html"] == [
        run_path(run).name for run in imports.open(path)
    ]


@pytest.mark.parametrize("form", ["text", "markdown"])
def test_the_report_of_an_imported_run_is_true(file, form):
    """The report would advise to repeat with `bench run` what bench has not run."""
    (run,) = imports.open(file("sglang-detailed.jsonl"))
    shown = render(form, run)

    assert "bench run --config" not in shown
    assert "sglang-detailed.jsonl by sglang" in shown
    assert "bench slo" in shown
    assert "how faithfully it sent what was due is not in its file" in shown


def test_words_of_a_file_cannot_steer_the_terminal(file):
    """An error text in an imported file would clear the screen."""
    path = file("vllm-detailed.json")
    path.write_text(path.read_text().replace('"model_id": "m"', '"model_id": "m\\u001b[2J<script>alert(1)</script>"'))
    (run,) = imports.open(path)

    assert "\x1b" not in render("text", run)
    assert "<script>alert(1)" not in render("html", run)


def test_aggregates_are_those_of_the_requests_that_the_tool_counted(file):
    """A report of 12 requests would begin with the words '0 requests'."""
    (run,) = imports.open(file("vllm-aggregate.json"))

    assert "aggregates of 12 requests" in render("text", run)
