"""`bench report`: which file is written where, what is printed, and what is refused."""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from harness.cli import _report, main
from harness.errors import UsageError
from reports.document import rendered

SIM = ["--workload", "chatbot", "--backend", "sim", "--requests", "60", "--quiet"]


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs, a sweep over two rates, a comparison and a scoring, in one folder."""
    top = tmp_path_factory.mktemp("stored")
    for name, rate in (("a", "1"), ("b", "2")):
        assert 0 == main(["run", *SIM, "--no-html", "--rate", rate, "--out", str(top / "runs" / name)])
    assert 0 == main(
        ["sweep", *SIM, "--rate", "1,2", "--seeds", "2", "--workers", "1", "--no-html", "--out", str(top / "curve")]
    )
    assert 0 == main(["slo", str(top / "runs" / "a"), "--slo", "ttft=0.5", "--out", str(top / "slo.json")])
    a = str(top / "runs" / "a")
    assert 0 == main(["compare", a, a, "--export", f"json={top / 'compare.json'}"])
    return top


@pytest.fixture
def place(stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of what is stored, which is the working directory."""
    shutil.copytree(stored, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def report(place: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """`bench report` with these arguments: exit code, standard output, standard error."""

    def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(["report", *arguments])
        return (code, *capsys.readouterr())

    return run


Report = Callable[..., tuple[int, str, str]]


def test_the_page_of_a_sweep_stands_in_its_folder_and_its_answer_is_printed(report: Report, place: Path) -> None:
    """Who reads in a terminal would have to open a browser for one number, or find no page."""
    code, out, err = report("curve")

    assert (0, "") == (code, err)
    assert out.startswith(report("curve", "--format", "text")[1].rstrip("\n"))
    assert out.endswith("\ncurve/report.html\n")
    assert "<h1>" in (place / "curve" / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", ["slo", "compare"])
def test_the_page_of_an_answer_in_a_file_stands_beside_it(kind: str, report: Report, place: Path) -> None:
    """The pages of two answers in one folder would overwrite each other."""
    code, out, err = report(f"{kind}.json", "--format", "html")

    assert (0, f"{kind}.json.report.html\n", "") == (code, out, err)
    assert "<h1>" in (place / f"{kind}.json.report.html").read_text(encoding="utf-8")


@pytest.mark.nightly
def test_several_runs_stand_on_one_page(report: Report, place: Path) -> None:
    """Curves over the rate would need a sweep, though the runs are there."""
    assert (0, "bench-report.html\n", "") == report("runs/a", "runs/b")
    assert (0, "runs/report.html\n", "") == report("runs")
    assert (0, "all.html\n", "") == report("runs", "curve", "--out", "all.html")
    assert (0, "runs/a/report.html\n", "") == report("runs/a", "./runs/a")

    drawn = {path: (place / path).read_text(encoding="utf-8") for path in ("bench-report.html", "runs/report.html")}

    assert {"<title>2 runs of 1 system</title>"} == {
        re.findall("<title>.*</title>", html)[0] for html in drawn.values()
    }
    assert all('data-figure="attainment_rate"' in html for html in drawn.values())


def test_a_page_in_another_folder_still_leads_to_the_runs(report: Report, place: Path) -> None:
    """Links of a page that was written elsewhere would lead nowhere."""
    assert 0 == report("curve", "--format", "html", "--out", "elsewhere/")[0]
    led = re.findall(r'href="([^"#]*seed-0[^"]*)"', (place / "elsewhere" / "report.html").read_text(encoding="utf-8"))

    assert led
    assert [] == [link for link in led if not (place / "elsewhere" / unquote(link)).exists()]


def test_every_form_is_the_file_of_its_ending(report: Report, place: Path) -> None:
    """A job that keeps its reports would find some of them printed, or one over another."""
    forms = {"html": "html", "md": "md", "text": "txt", "json": "json", "csv": "csv", "junit": "xml",
             "parquet": "parquet", "perfetto": "perfetto.json"}  # fmt: skip
    code, out, err = report("runs/a", "--format", ",".join(forms), "--out", "made")
    paths = [f"made/report.{ending}" for ending in forms.values()]

    assert (0, paths, "") == (code, out.splitlines(), err)
    assert all((place / path).stat().st_size > 200 for path in paths)
    for form in ("md", "csv", "json"):
        assert report("runs/a", "--format", form)[1] == (place / f"made/report.{forms[form]}").read_text("utf-8"), form


def test_reports_of_a_run_stand_in_its_folder_and_are_removed_by_the_next_run(report: Report, place: Path) -> None:
    """A run could not be repeated into its folder once it had been reported."""
    code, out, _ = report("runs/a", "--format", "csv,perfetto")
    (place / "runs" / "a" / "report-slo_scale.png").write_bytes(b"a picture")

    assert 0 == code
    assert ["runs/a/report.csv", "runs/a/report.perfetto.json"] == out.splitlines()
    assert 0 == main(["run", *SIM, "--no-html", "--out", "runs/a", "--force"])
    assert not list((place / "runs" / "a").glob("report*"))


def test_a_pipe_or_a_device_is_written_to_and_stays(report: Report, place: Path) -> None:
    """`--out /dev/null` would put a file into the place of the machine's null device."""
    os.mkfifo(place / "pipe")
    reader = os.open(place / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    code, _, err = report("runs/a", "--format", "md", "--out", "pipe")
    text = os.read(reader, 100)
    os.close(reader)

    assert (0, "") == (code, err)
    assert text.startswith(report("runs/a", "--format", "md")[1][:50].encode())
    assert (place / "pipe").is_fifo()


def test_what_has_no_common_file_is_made_of_each_run(report: Report) -> None:
    """The timelines of two runs would be laid over each other."""
    code, out, _ = report("runs", "--format", "perfetto")

    assert (0, ["runs/a/report.perfetto.json", "runs/b/report.perfetto.json"]) == (code, out.splitlines())
    assert "leave --out away" in report("runs", "--format", "perfetto", "--out", "one.json")[2]


def test_a_folder_of_nightly_runs_is_reported_as_their_trend(report: Report, place: Path) -> None:
    """The nightly job's folder would show curves of unrelated days, and no step."""
    for day in (1, 2):
        shutil.copytree(place / "runs" / "a", place / "nightly" / "chatbot" / "sim" / f"2026010{day}T021700Z-c{day}")
    code, out, err = report("nightly")
    shutil.copytree(place / "runs" / "b", place / "nightly" / "chatbot-sim-20260103T021700Z")

    assert (0, "") == (code, err)
    assert out.startswith("Trend of nightly\n") and out.endswith("\nnightly/report.html\n")
    assert "<title>Trend of nightly</title>" in (place / "nightly" / "report.html").read_text(encoding="utf-8")
    assert (0, "nightly/report.html\n", "") == report("nightly")
    assert "<title>3 runs of" in (place / "nightly" / "report.html").read_text(encoding="utf-8")


def test_the_table_of_several_runs_has_its_heads_once(report: Report) -> None:
    """A spreadsheet would read the heads of the second run as numbers."""
    one, other = (report(f"runs/{name}", "--format", "csv")[1].splitlines() for name in "ab")
    both = report("runs/a", "runs/b", "--format", "csv")[1].splitlines()

    assert [*one, *other[1:]] == both
    assert one[0] == other[0]


def test_what_cannot_be_made_is_one_sentence(place: Path, refusals: Callable[..., None]) -> None:
    """The user would get a traceback, or something else than the option names."""
    (place / "bad.json").write_text('{"kind": "sweep", "schema": 1, "state": "finished", "points": [{}]}')
    (place / "going").mkdir()
    (place / "going" / "sweep.json").write_text('{"kind": "sweep", "schema": 1, "state": "running"}')

    refusals("wrong-report.txt")


def test_a_page_that_cannot_be_drawn_is_an_error(report: Report, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug in a page would end in a traceback, and take what was printed along."""

    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no such colour")

    monkeypatch.setattr("reports.document.html.render", fail)
    monkeypatch.setattr("tempfile.tempdir", str(place))
    code, out, err = report("curve")

    assert 70 == code
    assert out.startswith("Sweep over rate")
    assert err.startswith("bench: this is a bug in bench (RuntimeError in ")
    assert "no such colour" in err
    assert not (place / "curve" / "report.html").exists()


def test_without_a_browser_pictures_are_refused(
    report: Report, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The user would not learn what is missing."""
    monkeypatch.setenv("PATH", str(tmp_path))
    code, out, err = report("runs/a", "--figure", "slo_scale")

    assert (3, "") == (code, out)
    assert err.startswith("bench: Chromium or Chrome draws the figures, and neither is on the PATH")
    assert "--format html" in err


@pytest.mark.parametrize(
    ("line", "paths"),
    [
        ("runs/a --figure slo_scale", ["slo_scale.svg"]),
        ("curve --figure attainment_rate --format pdf,png", ["attainment_rate.pdf", "attainment_rate.png"]),
        ("curve runs/a --figure attainment_rate --out one.pdf", ["one.pdf"]),
        ("runs --figure attainment_rate --format png --out made/", ["made/attainment_rate.png"]),
    ],
)
def test_one_figure_is_a_file(
    line: str, paths: list[str], report: Report, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A paper would need a screenshot."""
    found = {"svg": b"<svg/>", "pdf": b"%PDF", "png": b"a picture"}
    monkeypatch.setattr("reports._pictures.find", lambda: "chromium")
    monkeypatch.setattr("reports._pictures.drawn", lambda _, form: found[form])
    code, out, err = report(*line.split())

    assert (0, paths, "") == (code, out.splitlines(), err)
    assert [found[path[-3:]] for path in paths] == [(place / path).read_bytes() for path in paths]


def test_a_report_of_a_command_never_costs_its_answer(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug in a picture would end a sweep of an hour with a traceback."""

    def fail(*_: Any, **__: Any) -> str:
        raise RuntimeError("no such colour")

    messages: list[str] = []
    monkeypatch.setattr("reports.answers.page", fail)
    path = rendered.write_page(
        json.loads((place / "curve" / "sweep.json").read_text()), messages.append, place / "curve"
    )

    assert path is None
    assert [f"report.html could not be written (RuntimeError: no such colour); see '{place / 'curve'}'."] == messages


def test_options_of_a_form_stay_with_it() -> None:
    """`perfetto:requests=5,start=1s` would be cut at the comma."""
    given = _report.report_options(("html,perfetto:requests=5,start_s=1", "md"), None, show=False)

    assert ("html", "perfetto:requests=5,start_s=1", "markdown") == given.forms
    with pytest.raises(UsageError, match="--open"):
        _report.report_options(("md",), None, show=True)
