"""What other people's clients write today is read as what they wrote when the golden files were made."""

import runpy
from pathlib import Path

import pytest

from harness.experiments import imports
from harness.metrics.measure import metrics, sample, succeeded

TOP = Path(__file__).resolve().parents[3]
MAKE = runpy.run_path(str(TOP / "tests" / "golden" / "results" / "make.py"))
SENT = {"ttft": "ttft_sent", "tpot": "tpot"}


@pytest.mark.parametrize(
    "name", [name for name, (environment, _) in MAKE["TOOLS"].items() if environment and name != "llm-d"]
)
def test_a_fresh_file_gives_the_tools_own_aggregates(clients, environment, tiny, tmp_path, name):
    """A new version of a tool would write something else, and users would notice first."""
    folder, run = MAKE["TOOLS"][name]
    programs = environment(folder)
    (tmp_path / "tiny").symlink_to(tiny("ascii"))
    backend = "null:ttft=0.03,itl=0.004,tokens=8"
    with clients["serving"](backend, "m", tmp_path) as (url, _):
        written = run(programs / "python", url, tmp_path)
    imported = imports.open(next(iter(written.values())))[0]

    assert imported.info.aggregates["completed"] == imported.info.summary.status["ok"] == MAKE["REQUESTS"]
    assert imported.info.verdict.valid, imported.info.verdict.text
    for word, ours in SENT.items():
        values = sample(metrics()[ours], imported.requests, succeeded(imported.requests))
        assert imported.info.aggregates[word]["mean"] == pytest.approx(values.mean(), rel=1e-6), word
