"""--percentiles: the table of a terminal, the CSV, the page and run.json have the requested ones alone."""

import csv
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest

from harness.cli import main
from harness.experiments import imports
from harness.metrics.summary import percentiles_of
from reports import _data
from reports.builtin import Csv, Html, Text

RUN = ("run", "--workload", "chatbot", "--backend", "sim", "--latency", "abc:distserve", "--policy", "vllm-v0",
       "--rate", "2", "--requests", "60", "--quiet", "--no-html")  # fmt: skip


@pytest.mark.parametrize(
    ("options", "shown"), [((), ["p50", "p90", "p99"]), (("--percentiles", "95,p50,99.9"), ["p50", "p95", "p99.9"])]
)
def test_every_form_has_the_requested_percentiles(
    options: tuple[str, ...], shown: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A requested p95 would be in one form of a run and missing in another."""
    assert main([*RUN, *options, "--out", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    (run,) = imports.open(tmp_path / "run")
    stored = json.loads((tmp_path / "run" / "run.json").read_text())["summary"]["metrics"]["ttft"]
    table = csv.DictReader(io.StringIO(Csv().render(run)))
    rows = [row for row in table if row["metric"] == "ttft" and not row["class"]]
    heads = [line.split() for line in Text(width=100).render(run).splitlines() if line.split()[:1] == ["metric"]]
    page = re.findall(r"<th[^>]*><bdi>(p[\d.]+)</bdi></th>", Html().render(run))
    seconds = _data.sample(run, "ttft")

    assert shown == [head for head in heads[0] if re.fullmatch(r"p[\d.]+", head)]
    assert shown == page[: len(shown)]
    assert ["n", "mean", "std", *shown, "max"] == [row["statistic"] for row in rows]
    assert (shown if options else None) == (list(stored["percentiles"]) if "percentiles" in stored else None)
    for row in rows[3:-1]:
        assert float(row["value"]) == pytest.approx(np.percentile(seconds, float(row["statistic"][1:])))


@pytest.mark.parametrize("value", ["0", "100", "50,99.99999", "50,nine", ""])
def test_what_is_no_percentile_is_refused(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A run would end without the percentile that it was made for."""
    assert main([*RUN, "--percentiles", value]) == 2
    assert f"above 0 and below 100, such as 50,90,95,99, got '{value}'" in capsys.readouterr().err


def test_a_list_of_percentiles_is_one_too() -> None:
    """Python's users write numbers, and a stored run may hold them."""
    assert (50.0, 95.0) == percentiles_of({"percentiles": [95, 50]})
