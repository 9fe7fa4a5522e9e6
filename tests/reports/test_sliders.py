"""Sliders of a page: what they show, moved by keyboard, is what `bench slo` prints."""

import gzip
import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import plotly.graph_objects as go
import pytest

from harness.cli import main
from harness.data import folder
from harness.data.codec import encode, of
from harness.data.folder import Run
from harness.data.run_json import RunInfo
from harness.experiments import answers, imports
from harness.experiments.rescore.answer import answer
from harness.experiments.rescore.objectives import read
from harness.experiments.rescore.options import RescoreOptions
from harness.experiments.rescore.reading import sources
from harness.experiments.rescore.slo_json import SloAnswer
from harness.experiments.sweep.sweep_json import SweepAnswer
from reports import _data, _format, _page, _replay, _sliders, figures
from reports import answers as pages
from reports.answers import run, slo
from reports.document import Document, Finding, Section, Table
from reports.document import html as document_html
from reports.figures.planes import capacity_plane, slo_plane, sustained
from reports.figures.scale import slo_scale_rates
from reports.study import Study, of_sweep

MakeRun = Callable[..., Run]
Open = Callable[..., Any]
SIM = ("--workload", "chatbot", "--backend", "sim", "--latency", "abc:distserve", "--policy", "vllm-v0", "--quiet",
       "--no-html")  # fmt: skip
SLO = "ttft=0.25,tpot=0.1"
MOVES = (
    ("ttft", "ArrowRight"), ("ttft", "End"), ("tpot", "Home"), ("ttft", "PageDown"), ("scale", "ArrowLeft ArrowLeft"),
    ("tpot", "ArrowRight ArrowRight"), ("scale", "PageUp"), ("tpot", "End"),
)  # fmt: skip


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A simulated sweep of three rates with two seeds each, near what the system can carry."""
    out = tmp_path_factory.mktemp("stored") / "curve"
    options = ("--rate", "1.5,2.5,3.5", "--seeds", "2", "--requests", "200", "--slo", SLO, "--goal", "90%")
    assert main(["sweep", *SIM, *options, "--workers", "1", "--out", str(out)]) == 0
    return out


@pytest.fixture
def study(stored: Path) -> Study:
    """The systems of the sweep."""
    info = answers.of(stored)
    assert info is not None
    return of_sweep(of(SweepAnswer, info), stored)


def sheet(study: Study, path: Path) -> str:
    """A page with nothing but the sliders and what follows them."""
    return document_html.render(_bare(Section("sliders", "Other SLOs", tuple(_sliders.of_study(study, str(path))))))


def printed(command: str) -> SloAnswer:
    """What the command of a page answers."""
    words = command.split(" ")
    assert ["bench", "slo"] == words[:2]
    path, options = words[2], dict(zip(words[3::2], words[4::2], strict=True))
    slo = "" if options["--slo"] == "''" else options["--slo"]
    factors = (float(options["--scale"]),) if "--scale" in options else ()
    return answer(sources(path), RescoreOptions(objectives=(read(slo),), factors=factors))


def part(page: Any, name: str) -> Any:
    return page.locator(f'[data-part="{name}"]')


def rows(page: Any) -> list[list[str]]:
    """The table below the sliders."""
    found: list[list[str]] = part(page, "rows").locator("tr").evaluate_all(
        "(all) => all.map((row) => Array.from(row.children).map((cell) => cell.textContent))"
    )  # fmt: skip
    return found


def moved(seen: Any, moves: Sequence[tuple[str, str]]) -> Iterator[str]:
    """The command of the page after each of several moves by keyboard, every one of which changes it."""
    page = seen.page
    for slider, keys in moves:
        part(page, slider).focus()
        for key in keys.split(" "):
            before = part(page, "command").inner_text()
            page.keyboard.press(key)
            seen.until(f"document.querySelector('[data-part=command]').textContent !== {before!r}")
        yield str(part(page, "command").inner_text())


def test_sliders_of_a_run_show_what_slo_prints(stored: Path, opened: Open) -> None:
    """The page would claim other goodput under other bounds than the command that it names."""
    path = stored / "points" / "rate=2.5" / "seed-0"
    run = _data.measured(folder.load(path))
    plane, sliders = _page.part("slo_plane", "Plane", slo_plane(run)), _sliders.of_run(run)
    assert sliders is not None
    seen = opened(document_html.render(_bare(Section("s", "S", (sliders, plane)))))
    commands = [str(part(seen.page, "command").inner_text())]

    assert f"bench slo {path} --slo {SLO}" == commands[0]
    for command in moved(seen, MOVES):
        commands.append(command)
        info = printed(command)
        shown = rows(seen.page)
        tables = [block for block in slo.document(info).sections[0].blocks if isinstance(block, Table)]
        if "--scale" in command:
            [line] = next(table for table in tables if table.heads[0] == "SLO scale").rows
            assert [shown[0][1], shown[0][2], *(row[1] for row in shown[1:])] == list(line[1:])
        else:
            scored = next(table for table in tables if table.heads[0] == "SLO").rows
            bounds = [[row[0], *row[2:]] for row in scored]  # without the column of the binding bound
            assert bounds[0][:3] == shown[0]
            assert [row[1] for row in bounds[1:]] == [row[1] for row in shown[1:]][: len(bounds[1:])]
            met = {"met": "reached", "missed": "missed"}[str(bounds[0][3])]
            assert f"goal 90% {met}" in part(seen.page, "result").inner_text()
    assert len(set(commands)) == len(commands)
    assert "no bound" in part(seen.page, "tpot-value").inner_text()
    assert "no bound" in part(seen.page, "tpot").get_attribute("aria-valuetext")
    part(seen.page, "back").focus()
    seen.page.keyboard.press("Enter")
    seen.until(f"document.querySelector('[data-part=command]').textContent === '{commands[0]}'")
    seen.untroubled()


@pytest.mark.nightly
def test_sliders_of_a_sweep_show_what_slo_prints(stored: Path, study: Study, opened: Open) -> None:
    """The curve of a page would cross the goal elsewhere than the command that it names says."""
    seen = opened(sheet(study, stored))
    drawn = "document.querySelector('[data-figure=sliders_rate]').data[1].y.join()"
    curves = {seen.page.evaluate(drawn)}
    for command in moved(seen, MOVES[2:6]):
        [curve] = printed(command).curves
        shown, result = rows(seen.page), part(seen.page, "result").inner_text()
        curves.add(seen.page.evaluate(drawn))
        if "--scale" in command:
            assert [_format.share(point.scale[0]) for point in curve.points] == [row[2] for row in shown]
            continue
        for point, row in zip(curve.points, shown, strict=True):
            assert point.attainment is not None
            assert point.goodput_rps is not None
            means = [point.attainment.mean, point.goodput_rps.mean]
            assert [_format.number(point.rate_rps), slo._runs_at(point)] == row[:2]
            assert [_format.share(means[0]), _format.number(means[1])] == row[2:4]
            bounds = [_format.share(one.mean) for one in point.bounds.values() if one is not None]
            assert bounds == [cell for cell in row[4:] if cell != "-"]
        [cross] = curve.crossings
        where = f"near {_format.number(cross.at_rps)} req/s" if cross.at_rps else f"lie {cross.side} 90%"
        assert where in result

    assert len(curves) > 3  # the figure follows
    seen.untroubled()


def test_without_script_a_few_slos_stand_in_a_table(study: Study, opened: Open) -> None:
    """A reader whose browser runs no script would see sliders that do nothing."""
    parts = _sliders.of_study(study, "curve")[:1]
    seen = opened(document_html.render(_bare(Section("s", "S", tuple(parts)))), js=False)

    assert seen.page.locator("input").first.is_hidden()
    assert seen.page.locator("details", has_text="A few of them as a table").locator("table td").count() >= 15


def test_figures_of_stored_runs_say_what_they_show(study: Study) -> None:
    """The pictures over scales and bounds would be empty, or their sentences would tell nothing."""
    scale, plane = slo_scale_rates(study), capacity_plane(study)

    assert isinstance(scale, go.Figure)
    assert isinstance(plane, go.Figure)
    assert "req/s per GPU" in figures.finding(plane)
    assert re.search(r"At \d.*: 90% within the SLO from scale", figures.finding(scale))
    assert all(part.table is not None for part in _sliders.of_study(study, "x")[1:])


def test_the_plane_of_rates_is_the_crossing(study: Study, stored: Path) -> None:
    """The plane would tell another rate than bench slo finds for the same bounds."""
    replay = _replay.of_study(study)
    assert not isinstance(replay, str)
    [system] = replay.systems
    ttft, tpot = replay.grid.axes
    i, j = ttft.start + 3, tpot.start - 2
    text = f"ttft={ttft.limits_s[i]},tpot={tpot.limits_s[j]}"
    [curve] = answer(sources(stored), RescoreOptions(objectives=(read(text),))).curves
    found, _ = sustained(system, 0.9, [[i], [j]])

    assert curve.crossings[0].at_rps == pytest.approx(found[0, 0] * system.share, rel=1e-12)


def test_a_sweep_without_its_runs_says_so(stored: Path) -> None:
    """A page made of sweep.json alone would break, or show sliders of nothing."""
    info = answers.of(stored)
    assert info is not None
    study = of_sweep(of(SweepAnswer, info), stored / "elsewhere")

    assert _replay.NONE == capacity_plane(study)
    assert [_replay.NONE] == [part.caption for part in _sliders.of_study(study, "x")]


def test_bounds_of_classes_and_percentiles_are_held(make_run: MakeRun) -> None:
    """A command of the page would leave out what else the SLO asks."""
    run = make_run(slo="ttft=0.25,ttft@chat=0.4,p99:itl=0.2,e2e=3", tags=("chat", None))
    found = _sliders.of_run(_data.measured(run))
    assert found is not None
    assert found.data is not None
    content: Any = found.data["sliders"]

    assert content["rest"] == "ttft@chat=0.4,p99:itl=0.2,e2e=3"
    assert content["open"] is True
    assert "percentile" in found.caption


def test_hostile_paths_and_classes_stay_text(make_run: MakeRun, opened: Open, put) -> None:
    """A folder or a class of traffic could run its script in the reader's browser."""
    bad = "</script><script>document.title='owned'</script>' \"<img src=x>"
    run = make_run(tags=(bad, None))
    bound = {"metric": "ttft", "limit": 0.2, "tag": None, "percentile": None}
    put(run, slo={"goal": 0.9, "bounds": [bound, {**bound, "metric": "tpot", "tag": bad}]})
    found = _sliders.of_run(_data.measured(Run(Path(bad), run.info, run.requests, None, None, True)))
    assert found is not None
    seen = opened(document_html.render(_bare(Section("s", "S", (found,)))))

    seen.until("document.querySelector('[data-part=command]').textContent")
    assert bad.split("'")[0] in part(seen.page, "command").inner_text()
    assert seen.page.title() == "t"
    seen.untroubled()


def test_counts_of_many_requests_stay_small(make_run: MakeRun) -> None:
    """A page of a long run would grow with it."""
    found = _sliders.of_run(_data.measured(make_run(8000, 5)))
    assert found is not None

    assert len(gzip.compress(json.dumps(found.data).encode())) < 5_000


def _bare(section: Section) -> Document:
    """A page of one section."""
    return Document("t", "", "MARK", None, (Finding("An answer."),), sections=(section,))


def test_answers_of_slo_have_a_page(stored: Path, tmp_path: Path, content_of: Callable[[str], Any]) -> None:
    """What bench slo answered could not be handed on as a page."""
    path = stored / "points" / "rate=2.5" / "seed-0"
    options = RescoreOptions(
        objectives=(read("ttft=0.3,tpot=0.08"), read("ttft=1")), goals=(0.9, 0.99), factors=(0.5, 1.0, 2.0),
        limits_s=(("ttft", (0.1, 0.3, 1.0)), ("tpot", (0.05, 0.1))), by=("prompt",),
    )  # fmt: skip
    one = pages.page(answer(sources(path), options), tmp_path / "slo.json")
    many = pages.page(answer(sources(stored), RescoreOptions(objectives=(read("ttft=0.3"),))), tmp_path / "slo.json")

    assert ["scale-0-0", "scale-0-1", "plane-0"] == [figure["key"] for figure in content_of(one)["figures"]]
    assert ["curve-0"] == [figure["key"] for figure in content_of(many)["figures"]]
    assert "by prompt" in one
    assert "rate=3.5/seed-1" in many
    assert "requests met ttft=0.3,tpot=0.08: goodput" in one


def test_hostile_names_in_an_answer_stay_text(stored: Path, tmp_path: Path) -> None:
    """A folder or a workload could run its script in the reader's browser."""
    bad = "<script>alert(1)</script>\x1b[31m\u202e" + "x" * 10_000
    options = RescoreOptions(objectives=(read("ttft=0.3,tpot=0.08"),), factors=(0.5, 1.0), by=("prompt",))
    info = encode(answer(sources(stored), options))
    for one in info["runs"]:
        one.update(path=bad, name=bad, workload=bad, reasons=[bad], valid=False, spec={"backend": bad}, seed=bad)
        one["slos"][0].update(text=bad, binding=bad)
    few = {**info, "runs": info["runs"][:2], "curves": []}
    made = [pages.page(one, tmp_path / bad[:90]) for one in (info, few)]

    for page in made:
        assert "<script>alert" not in page
        assert "\x1b" not in page
        assert "\u202e" not in page
        assert "&lt;script&gt;alert(1)" in page


def test_a_run_is_drawn_over_its_bounds(make_run: MakeRun) -> None:
    """The plane would tell another goodput at the SLO than the summary, or an empty axis without any bound."""
    figure = slo_plane(_data.measured(make_run()))
    bare = slo_plane(_data.measured(make_run(slo="")))

    assert isinstance(figure, go.Figure)
    assert isinstance(bare, go.Figure)
    goodput = make_run().info.summary.goodput_rps
    assert f"TTFT 250 ms, TPOT 100 ms: goodput {_format.number(goodput)} req/s" in figures.finding(figure)
    assert "Without a bound on all requests" in figures.finding(bare)


def test_the_page_of_a_run_has_its_sliders_before_the_plane(make_run: MakeRun) -> None:
    """The mark in the plane would move far from the hand that moves it, or there would be no sliders."""
    report = run.document(make_run(60))
    keys = [part.key for part in document_html.figures(report, ("more",))]

    assert keys.index("slo_plane") == keys.index("sliders") + 1
    assert "sliders" not in [part.key for part in document_html.figures(report, ("fidelity",))]


def test_a_file_without_times_of_sending_has_shares_and_no_rates() -> None:
    """Another tool's results would break the page, or have a goodput of nothing."""
    file = Path(__file__).resolve().parents[1] / "golden" / "results" / "sglang-detailed.jsonl"
    [run] = [_data.measured(run) for run in imports.open(file)]
    figure, sliders = slo_plane(run), _sliders.of_run(run)

    assert isinstance(figure, go.Figure)
    assert "50.0% of the requests within the bounds" in figures.finding(figure)
    assert sliders is not None
    assert "- (50.0%)" in sliders.markup


def test_a_queue_that_grew_where_the_slo_was_met_is_noted_beside_other_bounds() -> None:
    """Other bounds are looked at there, under which the same queue may be overload."""
    found = [SimpleNamespace(info=RunInfo.of({"verdict": verdict})) for verdict in (
        {"overloaded": False, "queue_grew": True}, {"overloaded": True}, {"overloaded": False}, {})]  # fmt: skip

    assert 2 == _replay._grown(found)  # type: ignore[arg-type]
