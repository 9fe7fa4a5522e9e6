"""The page of a sweep, of runs made one by one, and of several sweeps: what they say is what was measured."""

import copy
import dataclasses
import functools
import itertools
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.cli import main
from harness.data.codec import of
from harness.data.folder import load
from harness.errors import UsageError
from harness.experiments.rescore.answer import RescoreOptions, answer
from harness.experiments.rescore.objectives import read
from harness.experiments.rescore.reading import sources
from harness.experiments.sweep.crossings import compared
from harness.experiments.sweep.sweep_json import SweepAnswer
from reports import answers as pages
from reports import figures, study
from reports.answers.sweep import crossed
from reports.document import Document, Figure, Section
from reports.document import html as document_html
from reports.figures import systems
from reports.figures.curves import attainment_rate, finding, interactivity
from reports.figures.stages_rate import misses_rate, stages_rate
from reports.study import Study

SIM = ("--backend", "sim", "--latency", "abc:distserve", "--workers", "1", "--quiet", "--no-html")
HOSTILE = "</script><script>document.title='owned'</script><a href='https://evil.example/'>x</a><img src=x>%{x}"
Content = Callable[[str], dict[str, Any]]


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep of two policies over three rates, two seeds of 120 requests each, in simulated time."""
    out = tmp_path_factory.mktemp("sweeps") / "curve"
    options = ("--rate", "1,2,3", "--over", "policy=vllm-v0,sarathi", "--seeds", "2", "--requests", "120")
    assert 0 == main(["sweep", *SIM, *options, "--slo", "ttft=0.25,tpot=0.1", "--warmup", "none", "--out", str(out)])
    return out


@pytest.fixture
def info(swept: Path) -> dict[str, Any]:
    """Its answer, to be changed at will."""
    found: dict[str, Any] = json.loads((swept / "sweep.json").read_text())
    return found


def studied(info: dict[str, Any], folder: Path) -> Study:
    """The study of a sweep with this sweep.json."""
    return study.of_sweep(of(SweepAnswer, info), folder)


def alone(info: dict[str, Any]) -> dict[str, Any]:
    """The part of the answer that is one policy's."""
    kept = [point for point in info["points"] if point["values"]["policy"] == "vllm-v0"]
    crossings = [crossing for crossing in info["crossings"] if crossing["where"] == {"policy": "vllm-v0"}]
    values = {"points": [{**p, "values": {"rate": p["values"]["rate"]}} for p in kept], "axes": info["axes"][:1]}
    return {**info, **values, "crossings": [{**crossing, "where": {}} for crossing in crossings]}


def traces(found: Any) -> dict[str, Any]:
    """The traces of a figure by name."""
    assert not isinstance(found, str), found
    return {trace.name: trace for trace in found.plotly().data}


def test_curve_is_that_of_the_answer(info: dict[str, Any], swept: Path) -> None:
    """The figure would show another attainment than the table and the text of the same sweep."""
    drawn = traces(attainment_rate(studied(alone(info), swept)))
    points = alone(info)["points"]

    assert [1.0, 2.0, 3.0] == list(drawn["all bounds"].x)
    assert np.allclose([100 * point["attainment"]["mean"] for point in points], drawn["all bounds"].y)
    assert np.allclose([100 * point["bounds"][1]["attainment"]["mean"] for point in points], drawn["TPOT only"].y)
    assert np.allclose([100 * point["attainment"]["least"] for point in points], drawn["lower end of the band"].y)
    assert ["solid", "dash"] == [drawn[f"{name}"].line.dash for name in ("all bounds", "TPOT only")]


def capacity(rps: float, *interval: float) -> tuple[study.Capacity, ...]:
    """At a goal of 90%: with an interval as a search finds it, without one between the rates tried."""
    return (study.Capacity(0.9, rps, *(interval or (None, None)), "searched" if interval else "interpolated"),)


def changed(info: dict[str, Any], change: Callable[[int, dict[str, Any]], object]) -> dict[str, Any]:
    """An answer with each of its points changed in place."""
    stored = copy.deepcopy(info)
    for number, point in enumerate(stored["points"]):
        change(number, point)
    return stored


def test_drawings_of_a_sweep_golden(
    info: dict[str, Any], swept: Path, monkeypatch: pytest.MonkeyPatch, sketched: Callable[..., None]
) -> None:
    """A reader would take another system, rate or share from a figure than the runs have."""
    one = studied(alone(info), swept)
    points, latency = one.systems[0].points, figures.of("study")["latency_rate"]

    def of_systems(**systems: tuple[study.Capacity, ...]) -> Study:
        made = [study.System(name, 1, points, found, "s") for name, found in systems.items()]
        return Study(one.slo, (0.9,), tuple(made), ())

    def gpus(number: int | None) -> Study:
        return studied(changed(alone(info), lambda _, p: [run.update(gpus=number) for run in p["runs"]]), swept)

    def rate(policy: str, old: int, new: float) -> Study:
        renamed = copy.deepcopy(info)
        for values in (point["values"] for point in renamed["points"]):
            values["rate"] = new if (values["policy"], values["rate"]) == (policy, old) else values["rate"]
        return studied(renamed, swept)

    def high(number: int, point: dict[str, Any]) -> None:
        share = (0.96, 0.9, 0.88)[number]
        point["values"]["rate"] = 3 + number / 2
        for spread in (point["attainment"], *(bound["attainment"] for bound in point["bounds"])):
            spread |= {"mean": share, "least": share, "most": share, "low": None, "high": None}

    def broken(number: int, point: dict[str, Any]) -> None:
        point["attainment"]["mean"] = 1.0
        point["bounds"][0] |= {"percentile": 99.0, "attainment": None, "passed": number > 0}

    overloaded = studied(changed(alone(info), lambda n, p: n == 2 and p.update(overloaded=2, metrics={})), swept)
    third = changed(
        alone(info), lambda _, p: p["bounds"].append({**p["bounds"][0], "text": "ttft@api=0.2", "tag": "api"})
    )
    shares = changed(third, lambda _, p: [bound.update(attainment=p["attainment"]) for bound in p["bounds"]])
    p90 = {"text": "p90:ttft=0.25", "percentile": 90.0, "passed": False}
    both = studied(info, swept)
    more = [dataclasses.replace(both.systems[0], name=name) for name in ("orca", "static", "fcfs")]
    five = dataclasses.replace(both, systems=(*both.systems, *more))
    monkeypatch.setattr("reports.figures.curves.ratio", lambda *_: None)
    plain = finding(of_systems(slow=capacity(1.5), fast=capacity(3.0)))
    monkeypatch.setattr("reports.figures.curves.ratio", lambda *_: (1.02, 0.97, 1.08))
    sketched("sweep-drawings.txt", {
        "the curve is that of the answer": attainment_rate(one),
        "per GPU where GPUs are known": attainment_rate(gpus(4)),
        "an endpoint has no GPU": attainment_rate(gpus(None)),
        "overloaded points are hollow": attainment_rate(overloaded),
        "and have no latency": latency.draw(overloaded),
        "a searched capacity has its interval": attainment_rate(of_systems(a=capacity(1.5, 1.25, 1.75))),
        "the system that sustains most is named": plain,
        "no winner where the ratio may be 1": finding(of_systems(slow=capacity(1.5), fast=capacity(1.53))),
        "rates in their order, though one system has another": stages_rate(rate("sarathi", 2, 1.5)),
        "a rate of a thousand": stages_rate(rate("vllm-v0", 3, 3000)),
        "a broken percentile meets no SLO": interactivity(studied(changed(alone(info), broken), swept)),
        "a bound on a percentile is no part of the curve":
            attainment_rate(studied(changed(alone(info), lambda _, p: p["bounds"][0].update(p90)), swept)),
        "from 0 to 100, though all are high": attainment_rate(studied(changed(alone(info), high), swept)),
        "stages, and systems without a panel": stages_rate(five),
        "misses": misses_rate(five),
        "a system has two lines, that of all bounds on top": attainment_rate(studied(third, swept)),
        "or one, where all bounds are alike": attainment_rate(studied(shares, swept)),
    })  # fmt: skip


def test_ratios_of_the_page_are_those_of_the_answer_per_gpu(info: dict[str, Any], swept: Path) -> None:
    """A ratio per GPU passed for that in sweep.json, rates stood there that were not tried, and ratios were missing.

    They were where the first system crosses no goal, and where no run of a point was valid.
    """
    systems = {"idle": (8, (1.0, 1.0, 1.0)), "small": (1, (1.0, 0.95, 0.5)), "large": (2, (1.0, 0.95, 0.7))}
    measured, info["points"] = info["points"][::2], []
    for name, (gpus, shares) in systems.items():
        points = copy.deepcopy(measured)
        for point, share in zip(points, shares, strict=True):
            for run in point["runs"]:
                run |= {"gpus": gpus, "attainment": share}
        empty = {**points[0], "values": {"rate": 4}, "bounds": [], "runs": [], "valid": 0, "attainment": None}
        info["points"] += [{**p, "values": {**p["values"], "policy": name}} for p in (*points, empty)]
    answer = compared(of(SweepAnswer, info))
    found = study.of_sweep(answer, swept)
    [ratio], table = answer.ratios, crossed(found)
    rows = [dict(zip(table.heads[:-1], row, strict=False)) for row in table.rows]
    per_gpu = f"{ratio.ratio / 2:#.3g}"

    assert {"policy": "small"} == ratio.base
    assert ["all above", "2 to 3", "2 to 3"] == [row["between (req/s)"] for row in rows]
    assert ["-", "-", per_gpu] == [row["times policy small per GPU"] for row in rows]


def test_a_system_has_one_colour_on_its_page(info: dict[str, Any], swept: Path) -> None:
    """A reader would take the curve of one system for that of the other in the next figure."""
    found = studied(info, swept)
    styles = {line.name: line.look.color for line in systems.lines(found)}
    drawn = figures.of("study")["latency_rate"].draw(found)

    assert not isinstance(drawn, str)
    assert styles == {t["name"].partition(":")[0]: t["line"]["color"] for t in drawn.data if "lines" in t["mode"]}


def test_phases_and_misses_come_from_the_stored_requests(info: dict[str, Any], swept: Path) -> None:
    """Bars would not add up to all the time, or to another share of misses than the attainment leaves."""
    stored = alone(info)
    found = studied(stored, swept)
    spent, missed = (
        np.sum([trace["y"] for trace in figure.data], axis=0)  # type: ignore[union-attr]
        for figure in (stages_rate(found), misses_rate(found))
    )

    assert np.allclose(100.0, spent)
    assert np.allclose([100 * (1 - point["attainment"]["mean"]) for point in stored["points"]], missed)


def test_page_says_what_the_answer_says(info: dict[str, Any], swept: Path, content_of: Content) -> None:
    """The page would lack the system, the preparation of its traffic, a figure, or the way to a run."""
    html = pages.page(info, swept)
    keys = {figure["key"] for figure in content_of(html)["figures"]}
    links = re.findall(r'href="\./([^"]+)"', html)

    assert html == pages.page(info, swept)
    assert {"attainment_rate", "latency_rate", "interactivity", "stages_rate", "misses_rate"} <= keys
    assert 12 == len(links)
    assert all((swept / link).is_dir() for link in links)
    for text in ("opt-13b on a100-80g", "preparation", "tokenizer", "none: times are those of a simulator"):
        assert text in html
    assert "--rate 1,2,3 --seeds 2" in html


def test_page_stands_without_the_runs(info: dict[str, Any], swept: Path, tmp_path: Path) -> None:
    """A sweep.json that is stored alone, to save space, would have no page any more."""
    shutil.copy(swept / "sweep.json", tmp_path)
    html = pages.page(info, tmp_path)

    assert 'href="./' not in html
    assert "nothing is known of single requests" in html
    assert "opt-13b on a100-80g" in html


def test_damaged_answer_is_one_sentence(info: dict[str, Any], tmp_path: Path) -> None:
    """A traceback would be the report of a file that was cut off."""
    del info["goals"]

    with pytest.raises(UsageError, match="is damaged"):
        pages.document(info, tmp_path)


def test_hostile_text_stays_text(info: dict[str, Any], swept: Path, content_of: Content) -> None:
    """The name of a policy could run its script in the reader's browser."""
    for point in info["points"]:
        point["values"]["policy"] += HOSTILE
        point["slo"] = HOSTILE
        for run in point["runs"]:
            run["folder"] = f"javascript:{HOSTILE}"
    info |= {"warnings": [HOSTILE * 100], "error": HOSTILE, "spec": {**info["spec"], "backend": HOSTILE}}
    html = pages.page(info, swept)
    text = json.dumps(content_of(html))

    assert "<script>document" not in html
    assert "<a href='https" not in html
    assert 'href="javascript' not in html
    assert "<script" not in text
    assert "<a href" not in text


def test_runs_made_one_by_one_are_a_curve(swept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Runs that were not planned as a sweep could only be reported one by one."""
    folders = sorted(swept.glob("points/*vllm*/seed-*"))
    sheet = pages.together([], (load(folder) for folder in folders), swept)
    own = pages.document(alone(json.loads((swept / "sweep.json").read_text())), swept)
    rows = {section.key: section for section in sheet.sections}["points"].blocks[0].rows

    assert "6 runs of 1 system" == sheet.title
    assert own.findings[0].text == sheet.findings[0].text
    assert [row[:2] for row in {s.key: s for s in own.sections}["points"].blocks[0].rows] == [row[:2] for row in rows]


def test_run_without_an_slo_does_not_reach_the_goal(make_run: Callable[..., Any], tmp_path: Path) -> None:
    """A run without an SLO would seem to meet 99% of it, better than any that has one."""
    valid = {"valid": True, "overloaded": False, "reasons": [], "text": "valid"}
    runs = [make_run(slo="", verdict=valid), make_run(seed=1, slo="ttft=0.01", verdict=valid)]
    sheet = pages.together([], runs, tmp_path)

    assert "GOAL MISSED" == sheet.mark
    assert "SLO requested ttft=0.01" in sheet.findings[0].text
    assert any("1 of 2 runs had no SLO" in message for message in (warning.message for warning in sheet.warnings))


def test_sweeps_side_by_side_are_named_by_what_differs(info: dict[str, Any], swept: Path, tmp_path: Path) -> None:
    """The lines of the figure could not be assigned to systems."""
    found = []
    for policy in ("vllm-v0", "sarathi"):
        home = tmp_path / policy
        home.mkdir()
        stored = alone(info) | {"spec": {**info["spec"], "policy": policy}}
        found.append((stored, home))
    sheet = pages.together(found, [], tmp_path)

    assert "2 systems side by side" == sheet.title
    assert ["policy vllm-v0", "policy sarathi"] == [row[0] for row in sheet.sections[0].blocks[1].rows]  # type: ignore[union-attr]
    assert ["vllm-v0", "sarathi"] == [name for name, _ in sheet.key_facts if name != "SLO"]
    assert len(document_html.render(sheet)) > 1_000_000


def test_sweep_killed_before_its_first_run_has_an_slo(info: dict[str, Any], swept: Path) -> None:
    """Its page would say that none was given."""
    stored = {**info, "state": "running", "points": [], "crossings": [], "runs": {**info["runs"], "done": 0}}
    sheet = pages.document(stored, swept)

    assert "NOT FINISHED" == sheet.mark
    assert "No run has ended that could be scored." == sheet.findings[0].text
    assert "valid" not in sheet.findings[-1].text


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("systems", [1, 2, 8])
def test_names_at_the_ends_of_curves_stand_apart(
    systems: int, width: int, info: dict[str, Any], swept: Path, opened: Callable[..., Any]
) -> None:
    """Curves that all end at 0% would have one heap of names, or names that the edge cuts."""
    found = studied(alone(info), swept)
    named = tuple(
        dataclasses.replace(found.systems[0], name=f"policy sarathi:budget={2**i},max_seqs={i}") for i in range(systems)
    )
    known = study.Capacity(0.9, 2.2, 2.05, 2.38, "interpolated")
    named = (dataclasses.replace(named[0], capacities=(known,)), *named[1:])
    draw = functools.partial(attainment_rate, dataclasses.replace(found, systems=named, goals=(0.9, 0.99)))
    sections = (Section("figures", "Goodput", (Figure("attainment_rate", "Attainment against rate", draw),)),)
    page = Document(title="Curves", subtitle="", mark="GALLERY", good=None, findings=(), sections=sections)
    seen = opened(document_html.render(page), width=width)
    boxes = seen.page.evaluate(
        """() => [...document.querySelectorAll(".annotation-text")].map((text) => {
          const {left, right, top, bottom} = text.getBoundingClientRect();
          return [left, right, top, bottom];
        })"""
    )

    assert len(boxes) == systems + (systems < 3) * systems + 2 + (systems == 1)
    assert all(0 <= left and right <= width for left, right, _, _ in boxes)
    assert not [
        pair
        for pair in itertools.combinations(boxes, 2)
        if min(pair[0][1], pair[1][1]) - max(pair[0][0], pair[1][0]) > 2
        and min(pair[0][3], pair[1][3]) - max(pair[0][2], pair[1][2]) > 2
    ]
    assert (systems if systems < 3 else 0) == seen.page.locator(".js-fill").count()
    if systems > 2:  # bands over bands would hide the curves
        seen.page.locator(".updatemenu-button").click()
        seen.until(f"document.querySelectorAll('.js-fill').length === {systems}")
        seen.page.locator(".updatemenu-button").click()
        seen.until("document.querySelectorAll('.js-fill').length === 0")


def test_page_of_slo_names_the_systems_of_its_curves(swept: Path) -> None:
    """A system that meets the goal at every rate would stand behind one that does not, and SLOs against one another."""
    first, second = "ttft=0.3,tpot=0.1", "ttft=0.15,tpot=0.1"

    def sentences(*slos: str) -> list[str]:
        scored = answer(sources(swept), RescoreOptions(objectives=tuple(map(read, slos))))
        return [found.text for found in pages.document(scored, swept / "slo.json").findings]

    (alone,) = sentences(first)
    both = sentences(first, second)

    assert alone.startswith("policy vllm-v0: all rates tried are above 90%; policy sarathi sustains: ")
    assert [f"{first}: {alone}", second] == [both[0], both[1].partition(": ")[0]]
    assert 2 == len(both)


def test_runs_without_a_rate_do_not_hide_those_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The mean of 40 % at 2 req/s and 23 % at 4 stood there as one system, because a closed loop has no rate."""
    monkeypatch.chdir(tmp_path)
    for name, *traffic in (("r2", "--rate", "2"), ("r4", "--rate", "4"), ("loop", "--arrivals", "closed:users=2")):
        main(
            ["run", *SIM[:4], "--quiet", "--no-html", *traffic, "--requests", "40", "--slo", "ttft=0.1", "--out", name]
        )
    capsys.readouterr()
    main(["slo", "r2", "r4", "loop", "--slo", "ttft=0.1", "--format", "json"])
    curve = json.loads(capsys.readouterr().out)["curve"]

    assert [2.0, 4.0] == [point["values"]["rate"] for point in curve["points"]]
    assert "loop has no rate, which the others have, so it is no point." in curve["warnings"]
    main(["slo", "r2", "r4", "loop", "--slo", "ttft=0.1"])
    assert "loop has no rate, which the others have" in " ".join(capsys.readouterr().out.split())
