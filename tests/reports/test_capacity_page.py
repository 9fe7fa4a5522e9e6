"""The page of a capacity search: found, open, out of reach, killed, moved without its trials, and of foreign text."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.cli import main
from harness.data.codec import of
from harness.experiments.capacity.capacity_json import CapacityAnswer, HorizonRuns, RunsNear
from harness.experiments.capacity.trials import Ledger, folder_name
from reports import answers as pages
from reports.answers.capacity import of_runs
from reports.document import Table, html
from reports.study import Study, of_capacity

SEARCH = [
    "capacity", "--backend", "sim", "--latency", "abc:distserve", "--policy", "vllm-v0", "--workers", "1", "--quiet",
    "--tolerance", "10%", "--horizon", "60s", "--goal", "85%,90%", "--lengths", "fixed:prompt=300,output=30",
]  # fmt: skip


def study_of(info: dict[str, Any], folder: Path) -> Study:
    """The study of a search with this capacity.json."""
    return of_capacity(of(CapacityAnswer, info), folder)


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a quick search for two goals, with the page that it wrote at its end."""
    folder = tmp_path_factory.mktemp("searched") / "cap"
    assert main([*SEARCH, "--out", str(folder)]) in (0, 5)
    return folder


@pytest.fixture
def info(searched: Path) -> dict[str, Any]:
    """Its answer."""
    found: dict[str, Any] = json.loads((searched / "capacity.json").read_text())
    return found


@pytest.fixture
def changed(searched: Path, tmp_path: Path) -> Callable[..., tuple[dict[str, Any], Path]]:
    """A copy of the search with other values in capacity.json (None: without the key)."""

    def make(*, alone: bool = False, **values: Any) -> tuple[dict[str, Any], Path]:
        folder = tmp_path / "changed"
        shutil.copytree(searched, folder)
        stored = {**json.loads((folder / "capacity.json").read_text()), **values}
        stored = {key: value for key, value in stored.items() if value is not None}
        (folder / "capacity.json").write_text(json.dumps(stored), encoding="utf-8")
        if alone:
            (folder / "trials.parquet").unlink()
        return stored, folder

    return make


def test_a_search_leaves_its_page_which_says_the_capacity_with_its_interval(searched: Path, info: Any) -> None:
    """A manager who opens the folder would find numbers without a verdict."""
    html = (searched / "report.html").read_text(encoding="utf-8")
    sheet = pages.document(info, searched)

    assert "RESOLVED" == sheet.mark
    assert all("95% interval" in found.text for found in sheet.findings)
    assert ["Capacity over 60 s at 85%", "Capacity over 60 s at 90%"] == [
        found.text.partition(":")[0] for found in sheet.findings
    ]
    assert sheet.findings[0].text.split(" (")[0] in html
    large = dict(sheet.numbers)
    assert ["capacity at 85%", "95% interval"] == [*large][:2]
    assert len(large) <= 4
    assert large["capacity at 85%"].split()[0] in sheet.findings[0].text.replace(",", "")
    assert all(f">{text}<" in html for text in large.values())
    assert {"SLO", "System", "Step times", "Workload", "Client floor", "Cost"} == {name for name, _ in sheet.key_facts}
    assert html == pages.page(info, searched)


def test_a_rerun_answers_what_the_search_has_answered_and_no_other_question(
    changed: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """A search that was killed would begin anew, or trials of two systems be mixed into one capacity."""
    info, folder = changed()
    code = main([*SEARCH, "--out", str(folder)])
    printed = capsys.readouterr().out
    again = json.loads((folder / "capacity.json").read_text(encoding="utf-8"))
    refused = main([*SEARCH, "--slo", "ttft=1", "--out", str(folder)])

    assert 0 == code == info["exit_code"]
    assert "Capacity over 60 s at 85%:" in printed
    assert "95% interval" in printed
    assert "tpot=0.1 binds" in printed
    assert max(map(len, printed.splitlines())) <= 100
    assert info["answers"][0]["capacity_rps"] > info["answers"][1]["capacity_rps"]
    assert (info["answers"], info["cost"]["requests"]) == (again["answers"], again["cost"]["requests"])
    assert len(again["answers"][0]["knees"]) == info["answers"][0]["seeds"]
    assert 2 == refused
    assert "holds a search with --slo" in capsys.readouterr().err


def test_searched_rates_are_not_called_interpolated(info: Any, searched: Path) -> None:
    """A page of two searches called its rates interpolated, and claimed that fewer than two systems cross a goal."""
    search = of(CapacityAnswer, info)
    section = pages.together([(search, searched), (search, searched)], [], searched).sections[0]
    captions = [block.caption for block in section.blocks if isinstance(block, Table)]

    assert ["where attainment crosses the goals, searched"] == captions


def test_points_of_a_search_know_each_bound(info: Any, searched: Path) -> None:
    """The curve would have no dotted and no dashed line."""
    [system] = study_of(info, searched).systems
    stored = {point["rate_rps"]: point["seeds"] for point in info["curve"]}

    assert stored == {point.rate_rps: point.valid for point in system.points}
    assert ["ttft", "tpot"] == [bound.metric for bound in system.points[0].bounds]
    assert ["searched", "searched"] == [found.how for found in system.capacities]


def test_a_search_that_was_killed_shows_the_trials_it_made(changed: Any) -> None:
    """An hour of trials on a real server would seem lost."""
    gone = dict.fromkeys(("answers", "curve", "cost", "gpus", "confidence", "exit_code", "curve_of"))
    info, folder = changed(state="running", **gone)
    sheet = pages.document(info, folder)
    html = pages.page(info, folder)

    assert "NOT FINISHED" == sheet.mark
    assert "bench capacity" in sheet.warnings[0].remedy
    assert "trials in the order in which they were made" in html
    assert "The search" in html


def test_an_older_search_without_its_trials_keeps_its_curve(changed: Any) -> None:
    """A capacity.json that was sent by mail could not be shown."""
    info, folder = changed(alone=True, traffic=None, goals=None)
    html = pages.page(info, folder)

    assert "trials in the order" not in html
    assert "attainment by rate, as found" in html
    assert len(info["curve"]) == len(study_of(info, folder).systems[0].points)


@pytest.mark.parametrize(
    ("state", "at", "mark", "good"),
    [
        ("unreachable", None, "UNREACHABLE", False),
        ("unresolved", None, "UNRESOLVED", None),
        ("resolved", "carried", "SUSTAINED", True),
        ("resolved", "not carried", "NOT SUSTAINED", False),
        ("unresolved", "unresolved", "NOT DECIDED", None),
    ],
)
def test_the_mark_is_what_became_of_the_question(
    state: str, at: str | None, mark: str, good: bool | None, changed: Any, info: Any
) -> None:
    """A search that found nothing would look like one that did."""
    rate = {"rate_rps": 2.0, "verdict": at} if at else None
    one = {**info["answers"][0], "state": state, "at": rate, "why": "20 seeds were not enough."}
    if state == "unreachable":
        one |= {"capacity_rps": 0.0, "per_gpu_rps": 0.0, "knees": {}, "bounds": [], "low_rps": None, "high_rps": None}
    stored, folder = changed(answers=[one], exit_code=5)
    sheet = pages.document(stored, folder)

    assert (mark, good) == (sheet.mark, sheet.good)
    assert "20 seeds were not enough." in sheet.warnings[0].message
    assert mark in pages.page(stored, folder)


def test_runs_that_a_search_kept_bring_latencies_and_links(changed: Any) -> None:
    """Hours on a real server would leave a page without a single latency."""
    info, folder = changed(clock="wall")
    tried = next(t for t in Ledger(folder / "trials.parquet") if t.key.goal is None and t.key.rate_rps > 1)
    run = folder / "trials" / folder_name(tried.key)
    options = [
        *SEARCH[1:7],
        *SEARCH[-2:],
        "--requests",
        "300",
        "--rate",
        str(tried.key.rate_rps),
        "--seed",
        str(tried.key.seed),
    ]
    assert main(["run", *options, "--quiet", "--no-html", "--out", str(run)]) == 0
    [point] = [p for p in study_of(info, folder).systems[0].points if p.rate_rps == tried.key.rate_rps]
    html = pages.page(info, folder)

    assert (run,) == point.folders
    assert {"ttft", "tpot"} <= set(point.metrics)
    assert f'href="trials/{run.name}/"' in html
    assert "TTFT and TPOT against rate" in html


def test_no_html_writes_none(tmp_path: Path) -> None:
    """A nightly job that keeps numbers alone would keep megabytes of plotly.js."""
    main([*SEARCH, "--at", "0.5", "--no-html", "--out", str(tmp_path / "cap")])

    assert ["capacity.json", "trials.parquet"] == sorted(path.name for path in (tmp_path / "cap").iterdir())


def test_searches_that_stored_no_run_share_a_page(searched: Path, tmp_path: Path) -> None:
    """Their trials know no latencies, and the page would be a crash."""
    other = shutil.copytree(searched, tmp_path / "other")

    assert 0 == main(["report", str(searched), str(other), "--out", str(tmp_path / "both.html")])


def test_the_least_that_a_kill_leaves_has_a_page(tmp_path: Path) -> None:
    """A search that was killed in its first second would end `bench report` in a traceback."""
    (tmp_path / "capacity.json").write_text('{"schema": 1, "kind": "capacity", "state": "running"}', encoding="utf-8")

    assert main(["report", str(tmp_path)]) == 0
    assert "NOT FINISHED" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_search_with_an_open_goal_is_not_called_resolved(info: Any, searched: Path) -> None:
    """A manager would read RESOLVED in green above a rate that is not."""
    first, second = info["answers"]
    stored = {**info, "answers": [first, {**second, "state": "unresolved"}]}

    assert ("PARTLY RESOLVED", None) == (pages.document(stored, searched).mark, pages.document(stored, searched).good)


def test_a_search_of_each_bound_by_itself_does_not_speak_of_their_curve(info: Any, searched: Path) -> None:
    """The curve of all bounds crosses the goal below the rate that is reported as sustained."""
    stored = {**info, "definition": "separate"}

    part = html.figure(pages.document(stored, searched), "attainment_rate")

    assert part.caption.startswith("With definition separate, ")


def test_the_curve_is_of_trials_as_long_as_those_that_the_answer_rests_on(info: dict[str, Any], searched: Path) -> None:
    """Long trials that contradict short ones would lie on one curve with them."""
    (system,) = study_of(info, searched).systems
    longer = info | {
        "answers": [one | {"requests": 99_999} for one in info["answers"]],
        "curve": [],
        "over_horizon": False,
    }
    (of_longer,) = study_of(longer, searched).systems

    assert len(system.points) > 2
    assert not of_longer.points


@pytest.mark.parametrize(
    ("quarters", "change"),
    [
        ([0.66, 0.96, 0.98, 0.99], "it starts cold, longer runs have more (--warmup 15s leaves that out)"),
        ([0.99, 0.96, 0.9, 0.8], "still falling, longer runs have less"),
        ([0.9, 0.89, 0.91, 0.9], None),
    ],
    ids=["caches fill", "a queue fills", "steady"],
)
def test_what_longer_runs_would_give_follows_the_quarters(quarters: list[float], change: str | None) -> None:
    """A capacity with empty caches would be read as an upper bound for longer runs."""
    near = RunsNear(runs=20, quarters=quarters, worst=0.7, met=0.4, collapsed=0.0)
    text = " ".join(of_runs(HorizonRuns(horizon_s=60.0, lasting_s=600.0, runs=20), near, 0.9))

    assert (": " in text) == (change is not None)
    assert change is None or f"near it: {change};" in text
