"""The page of a comparison: its figures, where its links lead, and that foreign text stays text."""

import copy
import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from harness.cli import main
from harness.data import codec
from harness.experiments import answers
from harness.experiments.compare.compare_json import CompareAnswer, Refusal
from reports import answers as pages
from reports import comparison, figures
from reports.answers import compare
from reports.comparison import TIMES_S
from reports.document import Table
from reports.figures.compare import cdf_difference, forest

Comparison = comparison.Comparison
SYSTEM = ["--workload", "chatbot", "--backend", "sim", "--latency", "abc:distserve", "--slo", "ttft=0.25,tpot=0.1",
          "--quiet", "--no-html"]  # fmt: skip
HOSTILE = (
    "</script><script>document.title='owned'</script><a href='https://evil.example/'>x</a><img src=x>\u202e\x1b[31m"
)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two sweeps, `old` and `new`, three pairs of runs on a wall clock, and their comparisons."""
    folder = tmp_path_factory.mktemp("compared")
    for name, policy in {"old": "vllm-v0", "new": "sarathi"}.items():
        rates = ["--rate", "1,2,4", "--seeds", "2", "--requests", "60", "--policy", policy, "--workers", "1"]
        assert main(["sweep", *SYSTEM, *rates, "--out", str(folder / name)]) == 0
        for seed in range(3):
            run = folder / "walls" / name / f"seed-{seed}"
            options = ["--rate", "2", "--requests", "60", "--policy", policy, "--seed", str(seed)]
            assert main(["run", *SYSTEM, *options, "--out", str(run)]) == 0
            info = json.loads((run / "run.json").read_text())
            turn = (seed + (name == "new")) % 2  # A B, B A, ...
            started = f"2026-01-05T{seed:02d}:{30 * turn:02d}:00+00:00"
            (run / "run.json").write_text(json.dumps({**info, "clock": "wall", "started": started}))
    for sides, file in ((("old", "new"), "sweeps"), (("walls/old", "walls/new"), "paired"), (("old", "old"), "same")):
        main(["compare", *(str(folder / side) for side in sides), "--export", f"json={folder / file}.json"])
    return folder


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A drawing library that takes no time to pack, for pages that are not opened."""
    monkeypatch.setattr("reports.document.html.plotly_js", lambda: b"0;")


def stored(home: Path, name: str) -> CompareAnswer:
    """The answer of that name."""
    found = answers.of(home / f"{name}.json")
    assert isinstance(found, CompareAnswer)
    return found


@pytest.fixture
def sweeps(home: Path) -> Comparison:
    """Two sweeps of a simulator beside one another."""
    return comparison.of(stored(home, "sweeps"), home / "sweeps.json")


@pytest.fixture
def paired(home: Path) -> Comparison:
    """Three pairs of runs at one rate, on a wall clock."""
    return comparison.of(stored(home, "paired"), home / "paired.json")


def trace(figure: Any, name: str) -> Any:
    """The one trace of that name."""
    [found] = [t for t in figure.data if t.name == name]
    return found


def drawn(draw: Callable[[Comparison], Any], subject: Comparison) -> Any:
    figure = draw(subject)

    assert not isinstance(figure, str), figure
    return figure.plotly()


@pytest.mark.nightly
def test_a_loss_is_to_the_right_whatever_should_be_high(sweeps: Comparison) -> None:
    """Less goodput and a longer TTFT would point into opposite directions, and the figure could not be read."""
    figure = drawn(forest, sweeps)
    means = [trace for trace in figure.data if trace.error_x.array is not None]
    loss = {name: x for trace in means for name, x in zip(trace.y, trace.x, strict=True)}
    rows = {f"{row.metric} {row.point['rate']}": row.change_pct or 0.0 for row in sweeps.info.gates}

    assert rows["goodput_rps 2.0"] < 0 < rows["ttft 2.0"]
    assert pytest.approx(-rows["goodput_rps 2.0"]) == loss["goodput_rps<br>rate 2.0"]
    assert pytest.approx(rows["ttft 2.0"]) == loss["ttft mean<br>rate 2.0"]
    assert len(rows) == len(loss)


@pytest.mark.nightly
def test_losses_stand_beside_their_limits(paired: Comparison) -> None:
    """A reader could not tell a loss that is ignored from one that must be found."""
    figure = drawn(forest, paired)
    zones = [(zone.x0, zone.x1, round(zone.y0 + 0.42)) for zone in figure.layout.shapes if zone.type == "rect"]
    dots = trace(figure, "pairs")
    edge = figure.layout.xaxis.range[1]
    [tpot] = [place for place, row in enumerate(paired.info.gates) if row.metric == "tpot"]

    assert (-2, 2, tpot) in zones and (5, edge, tpot) in zones
    assert 3 * len(paired.info.gates) == len(dots.x)
    assert {"1", "2", "3"} == {str(pair) for pair in dots.customdata}


def test_what_could_be_chance_is_no_small_percentage(paired: Comparison) -> None:
    """'+0.4 %' of a metric that did not change would be believed."""
    chance = [row.low_pct is None or row.low_pct <= 0 <= (row.high_pct or 0) for row in paired.info.gates]
    texts = [note.text for note in drawn(forest, paired).layout.annotations if note.xref == "paper" and note.x == 1]

    assert chance == [text == "~" for text in texts]
    assert any(chance)


def test_a_loss_beyond_the_axis_has_an_arrow(sweeps: Comparison) -> None:
    """A tenfold TTFT would stand outside of the picture, as if it were not there."""
    row = structs.replace(sweeps.info.gates[1], change_pct=900.0, changes_pct=[900.0, 900.0])
    figure = drawn(forest, dataclasses.replace(sweeps, info=sweeps.info.change(gates=[row])))
    arrow = trace(figure, "beyond the axis")

    assert 900.0 > figure.layout.xaxis.range[1] > arrow.x[0] > 0
    assert ("triangle-right",) == tuple(arrow.marker.symbol)


def test_requests_that_changed_sides_are_the_difference_of_the_answer(sweeps: Comparison) -> None:
    """Requests of one side would be compared with others of the other side, or with others than the verdict's."""
    point = sweeps.info.pairs[sweeps.contrasts[0].pair - 1].point
    [row] = [row for row in sweeps.info.rows if (row.metric, row.point) == ("attainment", point)]
    shares = [np.mean([(c.met["both"] + c.met[side]) / c.requests for c in sweeps.contrasts])
              for side in ("base", "head")]  # fmt: skip

    assert pytest.approx([row.base, row.head]) == shares
    assert all(c.requests == sum(c.met.values()) for c in sweeps.contrasts)
    assert "where the attainment of the two sides differs most" in sweeps.point


def test_shares_of_both_sides_are_exact(sweeps: Comparison) -> None:
    """Two smoothed curves would hide, or make up, a loss at the bound."""
    figure = drawn(cdf_difference, sweeps)
    for side, name in enumerate(("base", "head")):
        curve = trace(figure, f"TTFT, {name}")
        at = int(np.argmin(np.abs(TIMES_S - curve.x[len(curve.x) // 2])))

        share = np.mean([c.within[side]["ttft"][at] for c in sweeps.contrasts])
        assert pytest.approx(100 * share) == curve.y[len(curve.x) // 2]


@pytest.mark.parametrize(
    ("name", "mark"),
    [("sweeps", ("REGRESSED", False)), ("same", ("EQUIVALENT", True)), ("paired", ("REGRESSED", False))],
)
def test_the_page_begins_with_the_verdict(name: str, mark: tuple[str, bool], home: Path) -> None:
    """A manager would have to find out what the figures mean."""
    page = compare.document(stored(home, name), home / "page.html")
    used = dict(page.used)

    assert mark == (page.mark, page.good)
    assert "ttft=0.25,tpot=0.1, goal 90%" == dict(page.key_facts)["SLO"]
    assert used["workload: provenance preparation"].startswith("distserve:")
    assert "GPT-2" in used["workload: provenance tokenizer"]
    assert "valid: " in page.subtitle
    gates = stored(home, name).gates
    assert min(4, len(gates)) == len(page.numbers)
    assert page.good or any(page.numbers[0][0].startswith(row.label) for row in gates if row.verdict == "regressed")
    assert [f"bench compare {home / 'old'} {home / 'new'}"] == list(page.commands) or name != "sweeps"


@pytest.mark.parametrize("verdict", ["improved", "inconclusive", "invalid", "refused"])
@pytest.mark.usefixtures("small")
def test_every_verdict_has_a_page(verdict: str, home: Path) -> None:
    """The run that decides nothing is the one whose page is read."""
    info = stored(home, "paired")
    if verdict == "refused":
        stop = Refusal("model", "a", "b", "the model differs: a in the base, b in the head")
        info = info.change(refused=[stop], gates=[], shown=[])
    info = info.change(verdict=verdict, text=f"{verdict}: because.")
    html = pages.page(info, home / "page.html")

    assert {"refused": "NOT COMPARABLE", "invalid": "NOT VALID"}.get(verdict, verdict.upper()) in html
    assert (verdict == "refused") == ("Why the runs cannot be compared" in html)
    assert (verdict != "refused") == ('data-figure="forest"' in html)


def test_a_comparison_that_was_moved_finds_its_runs(home: Path, tmp_path: Path) -> None:
    """The artifact of a job would have no curves, and links into nothing."""
    moved = tmp_path / "elsewhere"
    shutil.copytree(home / "walls", moved / "walls")
    info = stored(home, "paired")
    gone = "/gone/walls"
    pairs = [
        structs.replace(pair, base_run=f"{gone}/old/seed-{pair.seed}", head_run=f"{gone}/new/seed-{pair.seed}")
        for pair in info.pairs
    ]
    info = info.change(pairs=pairs)
    (moved / "walls" / "old" / "seed-0" / "report.html").write_text("a report")
    [table] = compare.document(info, moved).sections[-1].blocks
    assert isinstance(table, Table)
    links = [cell.link for cell in table.rows[0] if not isinstance(cell, str) and cell.link]

    assert ["./walls/old/seed-0/report.html", "./walls/new/seed-0/"] == links
    assert 3 == len(comparison.of(info, moved).contrasts)


def test_another_run_in_the_place_is_not_taken_for_it(home: Path, tmp_path: Path) -> None:
    """The curves would be of whatever was run last into that folder."""
    shutil.copytree(home / "walls", tmp_path / "walls")
    info = stored(home, "paired")
    other = {"base_run": "walls/old/seed-0", "head_run": "walls/new/seed-0", "schedule_hash": "f" * 64}
    found = comparison.of(info.change(pairs=[structs.replace(pair, **other) for pair in info.pairs]), tmp_path)

    assert () == found.contrasts
    assert "put their folders where the comparison found them" in str(cdf_difference(found))


@pytest.fixture
def hostile(home: Path) -> CompareAnswer:
    """An answer in which everything that others wrote is markup, or very long."""
    info = copy.deepcopy(codec.encode(stored(home, "sweeps")))
    for side in ("base", "head"):
        info[side]["label"] = HOSTILE + side
        info[side]["system"].update(model=HOSTILE, policy=HOSTILE * 90)
    for row in (*info["gates"], *info["shown"]):
        row["point"] = {HOSTILE: row["point"]["rate"]}
        row["label"] = HOSTILE if row["metric"] == "ttft" else row["label"]
    for pair in info["pairs"]:
        pair["point"] = {HOSTILE: pair["point"]["rate"]}
        pair.update(order=HOSTILE, seed=HOSTILE, reasons=[HOSTILE])
    info.update(text=HOSTILE * 50, notes=[HOSTILE], slo=None)
    info["workload"]["provenance"].update(preparation=HOSTILE, tokenizer=HOSTILE)
    info["differences"] = [{"field": HOSTILE, "base": HOSTILE * 90, "head": HOSTILE}]
    info["warnings"] = [{"code": "x", "message": HOSTILE, "remedy": HOSTILE}]
    info["exact"]["first_request"].update(column=HOSTILE, base=HOSTILE)
    info["versions"][HOSTILE] = HOSTILE
    return codec.decode(CompareAnswer, info)


def test_the_page_draws_and_foreign_text_does_nothing(
    hostile: CompareAnswer, home: Path, opened: Callable[..., Any]
) -> None:
    """A label of a run could run its script in the reader's browser; a dark, narrow page could stay empty."""
    html = pages.page(hostile, home / "sweeps.json")
    seen = opened(html, dark=True, width=390)

    assert list(figures.of("compare")) == seen.drawn()
    assert seen.page.title().startswith("</script><script>document.title='owned'")
    assert [0, 0, 0] == [html.count(text) for text in ("<script>document", "\u202e", "\x1b")]
    seen.untroubled()


@pytest.mark.usefixtures("small")
def test_the_same_comparison_gives_the_same_bytes(home: Path) -> None:
    """A page that changes without cause cannot be kept in a repository."""
    info = stored(home, "paired")

    assert pages.page(info, home) == pages.page(info, home)


@pytest.mark.nightly
def test_pairs_leave_a_page_unless_it_is_turned_off(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A night of runs would end without anything to look at."""
    options = ["--base", "sim", "--head", "sim", "--rate", "2", "--requests", "30", "--quiet", "--out", str(tmp_path)]
    made, page = main(["compare", *options]), tmp_path / "report.html"
    linked = "./pairs/01-seed0/base/" in page.read_text()
    page.unlink()
    again = main(["compare", *options, "--no-html"])
    wrong = main(["compare", str(tmp_path), str(tmp_path), "--no-html"])

    assert (0, 0, 2) == (made, again, wrong)
    assert linked and not page.exists()
    assert "--no-html is for runs that are made" in capsys.readouterr().err
