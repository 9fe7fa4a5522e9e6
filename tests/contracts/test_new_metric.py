"""A metric that is added, as a class or as a row, is shown wherever built-in ones are, and nothing else is touched."""

import base64
import gzip
import json
import re
from pathlib import Path

import numpy as np
import pytest

from harness import registry
from harness.cli import main
from harness.data.folder import load
from harness.metrics import measure

FILE = '''"""First gap, from the first to the second token (seconds per request).

Source: this test.
"""

from dataclasses import dataclass

from harness.api import Metric
from harness.data.lists import first, gap_lists, lists


@dataclass(frozen=True)
class FirstGap:
    """NaN for fewer than two token events."""

    name = "first_gap"
    title = "First gap"
    unit = "s"
    better = "lower"
    headline = True

    def of(self, table):
        return first(gap_lists(lists(table, "token_s")))


ROW = Metric(name="first_gap", title="First gap", of=FirstGap().of, headline=True, about=__doc__)
'''


@pytest.fixture(params=["FirstGap", "ROW"])
def run(request, monkeypatch, tmp_path, capsys):
    """Runs a command where another package is installed that registers the metric; what it prints."""
    (tmp_path / "first_gap.py").write_text(FILE)
    package = tmp_path / "first_gap-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: first-gap\nVersion: 1\n")
    (package / "entry_points.txt").write_text(f"[bench.metrics]\nfirst-gap = first_gap:{request.param}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    forget()

    def run(command):
        assert main(command.split()) in (0, 1), command
        return capsys.readouterr().out

    yield run
    forget()


def forget():
    """What is known of installed packages is read once in a process."""
    registry._all_entry_points.cache_clear()
    measure.metrics.cache_clear()


def test_a_new_metric_is_shown_everywhere(run):
    """A contributor would have to find fifteen tuples of names, and look for what is missing in each report."""
    common = "run --backend sim --workload code --slo first_gap=0.05 --requests 120 --rate 2 --no-html"
    printed = run(f"{common} --out a")
    run(f"{common} --seed 1 --policy vllm-v0 --out b")
    run(f"{common} --seed 1 --out c")
    run("sweep --workload code --backend sim --rate 1:2:x2 --requests 60 --seeds 1 --workers 1 --out curve")
    run("report a --format html --out page.html")
    page = Path("page.html").read_text()
    values = measure.per_request(measure.metrics()["first_gap"], load(Path("a")).requests)
    stored = json.loads(Path("a/run.json").read_text())["summary"]["metrics"]["first_gap"]
    scored = json.loads(run("slo a --slo first_gap=0.05 --format json"))["runs"][0]

    assert pytest.approx(np.nanmean(values)) == stored["mean"]
    assert "First gap" in printed
    assert "First gap" in run("report a --format text")
    assert "| First gap |" in run("report a --format markdown")
    assert "first_gap" in run("report a --format csv")
    assert "<bdi>First gap</bdi>" in page
    assert "First gap, from the first to the second token" in page  # among the definitions
    assert "First gap p50, p90, p99" in figures(page)  # the distribution of latencies
    assert "first-gap" in run("list metrics")
    assert "Source: this test." in run("explain first-gap")
    assert {"p50", "p99"} <= scored["latencies"]["first_gap"].keys()
    assert "First gap p50" in run("slo a --slo first_gap=0.05 --format markdown")
    assert "first_gap mean" in run("compare c b")
    assert "first_gap" in json.loads(run("report curve --format json"))["points"][0]["metrics"]
    assert "First gap p50 (ms)" in run("report curve --format markdown")


def figures(page):
    """The data of the figures of a page."""
    packed = re.findall(r'<script type="text/plain" id="data">\s*\'?(.*?)\'?\s*</script>', page, re.DOTALL)
    return "".join(gzip.decompress(base64.b64decode(one)).decode() for one in packed)
