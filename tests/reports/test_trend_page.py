"""The page of series of runs: what it marks, where its links lead, and that foreign names stay text."""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from harness.cli import main
from harness.experiments.compare.compare_json import TrendAnswer
from harness.experiments.compare.history import accept
from harness.experiments.compare.trend import trend
from reports import answers as pages
from reports import figures
from reports.answers import trend as trend_report
from reports.document import Document, Figure, Table, html

Nightly = Callable[..., Path]
Change = Callable[[int, dict[str, Any]], None]
HOSTILE = "</script><script>document.title='owned'</script><a href='https:"
FLAT = [100.0, 101.0, 99.0, 100.5, 99.5, 100.0, 101.0, 99.0, 100.0, 100.5]


@pytest.fixture
def nightly(tmp_path: Path) -> Nightly:
    """Writes one run a day whose mean TPOT in ms is the value; `change` alters run.json, `report` leaves reports."""

    def make(
        values: Sequence[float], *, series: str = "chatbot/vllm", clock: str = "wall", report: bool = False,
        change: Change = lambda *_: None,
    ) -> Path:  # fmt: skip
        for day, value in enumerate(values):
            mean_s = value / 1000
            info: dict[str, Any] = {
                "schema": 2, "state": "finished", "clock": clock, "versions": {"bench": "1.0"},
                "summary": {"metrics": {"tpot": {"mean": mean_s, "p99": 2 * mean_s}, "ttft": {"mean": 0.2}},
                            "failed": 0.0, "goodput_rps": 2.0},
                "within": {"metrics": {"tpot": {"mean": [0.98 * mean_s, 1.03 * mean_s]}}},
                "verdict": {"valid": True, "overloaded": False}, "schedule": {"sha256": "a" * 64},
                "backend": {"hardware": "a100", "policy": "sarathi"},
            }  # fmt: skip
            change(day, info)
            folder = tmp_path / "results" / series / f"2026{day // 28 + 1:02d}{day % 28 + 1:02d}-c{day:06d}"
            folder.mkdir(parents=True)
            (folder / "run.json").write_text(json.dumps(info))
            if report:
                (folder / "report.html").write_text("a report")
        return tmp_path / "results"

    return make


def drawn(info: TrendAnswer) -> Any:
    """The panels of judged metrics."""
    figure = figures.of("trend")["trend"].draw(info)

    assert not isinstance(figure, str)
    return figure


def tables(document: Document, *keys: str) -> list[Table]:
    """The tables of sections of these keys."""
    sections = [section for section in document.sections if section.key in keys]
    return [block for section in sections for block in section.blocks if isinstance(block, Table)]


def index(root: Path) -> list[dict[str, str]]:
    """The rows of the index, by their heads; of a cell its text."""
    [table] = tables(trend_report.document(trend(root), root), "index")
    texts = [[cell if isinstance(cell, str) else cell.text for cell in row] for row in table.rows]
    return [dict(zip(table.heads, row, strict=True)) for row in texts]


def moved(day: int, info: dict[str, Any]) -> None:
    """Other hardware from the sixth night on, another version of the server from the third."""
    info["backend"]["hardware"] = "a100" if day < 5 else "h100"
    info["server"] = {"version": "1" if day < 2 else "2"}


def spoilt(day: int, info: dict[str, Any]) -> None:
    """A run that is not valid, and an overloaded one."""
    if day == 3:
        info["verdict"] = {"valid": False, "text": "not valid: <b>late</b>"}
    info["verdict"]["overloaded"] = day == 5


def test_drawings_of_series_golden(nightly: Nightly, sketched: Callable[..., None]) -> None:
    """The reader would not see since which commit the server is slower, or see a step that is none."""
    noise = 1 + 0.01 * np.random.default_rng(4).standard_normal(60)
    series: dict[str, tuple[Sequence[float], dict[str, Any]]] = {
        "a step is flagged with its first run and its commit": ([*FLAT, 110.0, 111.0, 109.0, 110.0], {}),
        "a change is named": ([*FLAT, *[120.0] * 18], {}),
        "until it is accepted": ([*FLAT, *[120.0] * 18], {}),
        "a drift has its whole size": ((100 * (1 + 0.19 * np.arange(60) / 59) * noise).tolist(), {}),
        "the reference follows a gain that lasts": ([*FLAT, *[90.0] * 25, *[96.0] * 5], {}),
        "values stand with their interval beside the level": (FLAT, {}),
        "a virtual clock has no intervals": ([100.0] * 4, {"clock": "virtual"}),
        "nothing is connected across other hardware": (FLAT, {"change": moved}),
        "runs without a value have their reason": (FLAT, {"change": spoilt}),
    }
    drawings = {}
    for number, (reason, (values, options)) in enumerate(series.items()):
        root = nightly(values, series=f"{number}/vllm", **options) / str(number)
        if reason == "until it is accepted":
            accept(root, "2026-01-11", "new tokenizer")
        drawings[reason] = drawn(trend(root))
    sketched("trend-drawings.txt", drawings)


def test_an_answer_of_an_older_bench_opens(capsys: pytest.CaptureFixture[str]) -> None:
    """The artifact of last year's night could not be read; its changes have a kind, which is left out."""
    assert main(["report", str(Path(__file__).with_name("trend-older.json")), "--format", "text"]) == 0

    out = capsys.readouterr().out
    assert "Regressed (chatbot/sim tpot mean since 2026-01-06: +30.0%)." in out
    assert "24% worse" in out


def test_a_series_of_an_older_bench_opens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The runs of last year would be lost with an update."""
    root = Path(shutil.copytree(Path(__file__).with_name("nightly-older"), tmp_path / "nightly"))

    assert main(["compare", "--trend", str(root)]) == 1
    assert "Regressed (chatbot/sim ttft mean since 2026-01-05: +" in capsys.readouterr().out
    assert main(["compare", "--trend", str(root), "--accept", "5e6f7a8"]) == 0
    assert main(["report", str(root / "chatbot" / "sim"), "--format", "text"]) == 0


def test_the_index_has_a_row_for_each_series(nightly: Nightly) -> None:
    """Who follows many workloads would have to read them all."""
    root = nightly([100.0] * 24 + [120.0] * 12 + [130.0] * 4)
    nightly([100.0] * 40, series="code/vllm")
    nightly([100.0] * 3, series="new/vllm")
    heads = ("series", "state", "last value", "change (95 % interval)")

    assert [
        ("chatbot/vllm", "REGRESSED since 2026-01-25", "130 ms", "+30.0%"),
        ("code/vllm", "steady", "100 ms", "~"),
        ("new/vllm", "too few runs, 5 more needed", "100 ms", "-"),
    ] == [tuple(row[head] for head in heads) for row in index(root)]


def test_runs_lead_to_their_reports_by_relative_path(nightly: Nightly, tmp_path: Path) -> None:
    """A link would lead nowhere when the folder is moved, or to a report that was never written."""
    root = nightly(FLAT[:3], series="chat #1/a?b", report=True)
    nightly(FLAT[:3], series="without/any")
    (tmp_path / "pages").mkdir()
    html = pages.page(trend(root), tmp_path / "pages" / "trend.html")

    assert 'href="../results/chat%20%231/a%3Fb/20260103-c000002/report.html"' in html
    assert "without/any/" not in html


def test_a_night_of_several_runs_leads_to_the_first_report(nightly: Nightly) -> None:
    """A night of five seeds would have no report, although each of its runs has one."""
    root = nightly(FLAT[:2], series="seeds")
    for night in (root / "seeds").iterdir():
        for seed in ("seed0", "seed1"):
            (night / seed).mkdir()
            (night / seed / "run.json").write_text((night / "run.json").read_text())
            (night / seed / "report.html").write_text("a report")
        (night / "run.json").unlink()
    html = pages.page(trend(root), root)

    assert 'href="seeds/20260102-c000001/seed0/report.html"' in html
    assert "seed1" not in html


def test_an_answer_that_moved_with_its_runs_still_leads_to_them(nightly: Nightly, tmp_path: Path) -> None:
    """The artifact of a job, unpacked elsewhere and reported again, would have no links."""
    info = trend(nightly(FLAT[:2], report=True))
    (tmp_path / "results").rename(tmp_path / "elsewhere")
    (tmp_path / "unpacked").mkdir()
    (tmp_path / "elsewhere").rename(tmp_path / "unpacked" / "results")

    assert 'href="results/chatbot/vllm/20260101-c000000/report.html"' in pages.page(
        info, tmp_path / "unpacked" / "trend.json"
    )


def test_a_metric_of_an_answer_from_elsewhere_is_no_link(nightly: Nightly) -> None:
    """An artifact that was altered could lead the reader away: plotly draws links in the titles of axes."""
    info = trend(nightly(FLAT))
    [series] = info.series
    renamed = [replace(metric, name="<a href='https://x'>x</a>") for metric in series.metrics]
    info = info.change(series=[replace(series, metrics=renamed)])
    titles = [axis.title.text for axis in drawn(info).plotly().select_yaxes()]

    assert titles[0].startswith("&lt;a href") and not any("<a " in title for title in titles)
    assert "<a href='https" not in pages.page(info, Path())


def last_figure(document: Document) -> html.Part:
    keys = [block.key for section in document.sections for block in section.blocks if isinstance(block, Figure)]
    return html.figure(document, keys[-1])


@pytest.mark.nightly
def test_a_page_of_many_series_draws_less_of_each_and_says_so(nightly: Nightly) -> None:
    """A year of thirty series would be a file too large to send."""

    root = nightly([100.0] * 84)
    info = trend(root)
    few = last_figure(trend_report.document(info, root))
    many = trend_report.document(info.change(series=40 * info.series), root)
    [runs] = tables(many, "runs-40")
    last = last_figure(many)

    assert "runs are drawn" not in few.caption
    assert "The latest 41 of 84 runs are drawn." in last.caption
    assert 7 == len(runs.rows)
    assert last.table is not None and len(last.table.rows) <= 14


@pytest.mark.nightly
def test_every_state_has_its_mark_and_equal_bytes(nightly: Nightly) -> None:
    """A job that keeps the page would see a change where there is none, or a state without a word."""
    root = nightly(FLAT)
    info = trend(root)
    marks = {state: trend_report.document(info.change(state=state), root) for state in trend_report.MARKS}

    assert pages.page(info, root) == pages.page(info, root)
    assert [True, False] == [marks["steady"].good, marks["regressed"].good]
    assert all(page.mark and page.findings[0].text.endswith(".") for page in marks.values())


def test_the_command_writes_the_page_beside_its_other_forms(
    nightly: Nightly, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The nightly job would have no page to keep, or the answer would not be printed any more."""
    root = nightly([*FLAT, 110.0, 111.0, 110.0, 111.0])
    page, kept = tmp_path / "trend.html", tmp_path / "trend.json"
    code = main(["compare", "--trend", str(root), "--html", str(page), "--export", f"json={kept}"])

    assert code == 1
    assert "\nRegressed (chatbot/vllm tpot mean since 2026-01-11: +10." in capsys.readouterr().out
    assert pages.page(json.loads(kept.read_text()), page) == page.read_text(encoding="utf-8")
    assert main(["compare", "--trend", str(root), "--format", "html"]) == 2
    assert "Pages are written by --html" in capsys.readouterr().err


def test_the_command_accepts_a_level(nightly: Nightly, capsys: pytest.CaptureFixture[str]) -> None:
    """A regression that is wanted would keep the job red for ever, or need an edit by hand."""
    root = nightly([*FLAT, *[110.0] * 10])
    assert main(["compare", "--trend", str(root)]) == 1

    code = main(["compare", "--trend", str(root), "--accept", "c000010", "--reason", "new tokenizer"])
    out = capsys.readouterr().out
    file = root / "chatbot/vllm/accepted.json"
    [level] = json.loads(file.read_text(encoding="utf-8"))["levels"]

    assert code == 0
    assert out.endswith("\nSteady.\n  No level is worse than its reference.\n")
    assert ("20260111-c000010", "new tokenizer") == (level["run"], level["reason"])

    file.write_text("{}]")
    assert main(["compare", "--trend", str(root)]) == 2
    assert "holds no accepted levels (it is no JSON)" in capsys.readouterr().err


def test_a_night_that_is_not_valid_is_a_gap(nightly: Nightly) -> None:
    """One such night ended the page of all series with an error of JSON."""

    def invalid(day: int, info: dict[str, Any]) -> None:
        if day == 8:
            info["verdict"] = {"valid": False, "text": "not valid"}

    root = nightly([*FLAT, 130.0, 131.0], change=invalid)

    assert "</html>" in pages.page(trend(root), root)


@pytest.mark.nightly
def test_series_draw_in_a_browser_whatever_they_are_called(nightly: Nightly, opened: Callable[..., Any]) -> None:
    """A folder, a version or a reason could run its script in the reader's browser, or the page would not fit it."""

    def hostile(day: int, info: dict[str, Any]) -> None:
        info["server"] = {"version": "1" if day < 4 else f"{HOSTILE}//x'>"}
        info["backend"]["hardware"] = "a100" if day < 6 else f"{HOSTILE}//x'>"
        if day == 8:
            info["verdict"] = {"valid": False, "text": f"{HOSTILE}//x'>"}

    root = nightly([*FLAT, 130.0, 131.0], series=f"{HOSTILE}/\u202evllm", change=hostile, report=True)
    nightly([*FLAT, 110.0, 111.0])
    html = pages.page(trend(root), root)
    seen = opened(html, dark=True, width=500)
    seen.untroubled()
    plain = opened(html, js=False)

    assert ["trend-1", "trend-2"] == seen.drawn()
    assert seen.page.title() == "Trend of results"
    assert 500 == seen.page.evaluate("document.documentElement.scrollWidth")
    assert plain.page.locator("td a[href$='report.html']").count() > 0
