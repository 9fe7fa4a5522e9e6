"""Figures and pages of stored requests under other SLOs are what `bench slo` prints."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.cli import main
from harness.data.codec import encode
from harness.experiments.rescore.answer import RescoreOptions, answer
from harness.experiments.rescore.objectives import read
from harness.experiments.rescore.reading import sources
from reports import answers as pages

SIM = ("--workload", "chatbot", "--backend", "sim", "--latency", "abc:distserve", "--policy", "vllm-v0", "--quiet",
       "--no-html")  # fmt: skip
SLO = "ttft=0.25,tpot=0.1"


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A simulated sweep of three rates with two seeds each, near what the system can carry."""
    out = tmp_path_factory.mktemp("stored") / "curve"
    options = ("--rate", "1.5,2.5,3.5", "--seeds", "2", "--requests", "200", "--slo", SLO, "--goal", "90%")
    assert main(["sweep", *SIM, *options, "--workers", "1", "--out", str(out)]) == 0
    return out


def test_answers_of_slo_have_a_page(stored: Path, tmp_path: Path, content_of: Callable[[str], Any]) -> None:
    """What bench slo answered could not be handed on as a page."""
    path = stored / "points" / "rate=2.5" / "seed-0"
    options = RescoreOptions(
        objectives=(read("ttft=0.3,tpot=0.08"), read("ttft=1")), goals=(0.9, 0.99), factors=(0.5, 1.0, 2.0),
        by=("prompt",),
    )  # fmt: skip
    one = pages.page(answer(sources(path), options), tmp_path / "slo.json")
    many = pages.page(answer(sources(stored), RescoreOptions(objectives=(read("ttft=0.3"),))), tmp_path / "slo.json")

    assert "every bound times the scale" in one
    assert ["attainment_rate"] == [figure["key"] for figure in content_of(many)["figures"]]
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
    few = {**info, "runs": info["runs"][:2], "curve": None}
    made = [pages.page(one, tmp_path / bad[:90]) for one in (info, few)]

    for page in made:
        assert "<script>alert" not in page
        assert "\x1b" not in page
        assert "\u202e" not in page
        assert "&lt;script&gt;alert(1)" in page
