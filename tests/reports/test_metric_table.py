"""The table of numbers, as CSV and as Parquet: complete, with units, the same in both, harmless in a spreadsheet."""

import csv
import io
import re
from collections.abc import Callable

import pyarrow.parquet as pq
import pytest

from harness import registry
from harness.data.folder import Run
from reports import _tables

MakeRun = Callable[..., Run]


def lines(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


@pytest.mark.parametrize("case", ["good", "classes"])
def test_table_golden(case: str, make_run: MakeRun, golden: Callable[[str, str], None]) -> None:
    """What spreadsheets and scripts read would change its names or its units without anybody noticing."""
    within = {"attainment": {"low": 0.91, "high": 0.97}, "metrics": {"ttft": {"mean": [0.11, 0.13]}}}
    run = make_run(60, within=within, tags=(None,) if case == "good" else ("chat", "code", None))
    text = registry.make("reports", "csv").render(run)
    actual = re.sub(r"\d+\.\d+", lambda n: f"{float(n[0]):.6g}", text)  # the last digits are those of a numpy

    golden(f"{case}.csv.txt", actual)


def test_parquet_holds_what_csv_holds(make_run: MakeRun) -> None:
    """Two programs that read the same run would find other numbers."""
    runs = [make_run(60, tags=("a", "b")), make_run(40, seed=1, slo="p99:ttft=0.3")]
    table = pq.read_table(io.BytesIO(registry.make("reports", "parquet").render_all(runs)))
    read = lines(registry.make("reports", "csv").render_all(runs))

    assert list(_tables.HEADS) == table.column_names
    assert [(row["metric"], row["statistic"]) for row in read] == list(
        zip(table["metric"].to_pylist(), table["statistic"].to_pylist(), strict=True)
    )
    assert [float(row["value"]) if row["value"] else None for row in read] == table["value"].to_pylist()
    assert {"metrics"} == {table.schema.metadata[b"bench.table"].decode()}


def test_every_number_has_a_unit_or_is_a_flag(make_run: MakeRun) -> None:
    """Seconds would be taken for milliseconds."""
    rows = _tables.rows([make_run(60, slo="p99:ttft=0.3,tpot=0.1", tags=("a", "b"))])

    assert {"flag"} == {row.statistic for row in rows if not row.unit}
    assert ("value of p99:ttft=0.3", "s", "p99") in {row[2:5] for row in rows}
    assert len({row[:5] for row in rows}) == len(rows)


def test_a_killed_run_has_its_numbers_too(make_run: MakeRun, put) -> None:
    """The table of a run that was killed would be empty, or look like that of a run that ended, although it did not."""
    run = make_run(60, complete=False)
    for key in ("summary", "verdict", "fidelity", "warnings"):
        put(run, **{key: None})
    found = {row[2:5]: row.value for row in _tables.rows([run])}

    assert found["requests", "requests", "count"] == 60.0
    assert found["ttft", "s", "mean"] is not None
    assert found["finished", "", "flag"] == 0.0


def test_the_floor_of_the_client_stands_beside_what_it_measured(remote_run: MakeRun) -> None:
    """Who computes with the table would take differences below the client's own error for news."""
    floor = {"ttft": {"p50_s": 0.0001, "p99_s": 0.002}, "streams": 4, "rate_rps": 5.0, "seconds": 2.0}
    rows = _tables.rows([remote_run(floor=floor)])

    assert [0.0001, 0.002] == [row.value for row in rows if row.metric == "client floor of ttft"]


@pytest.mark.parametrize("name", ['=HYPERLINK("https://evil.example/")', "+1", "-1", "@x"])
def test_no_class_of_traffic_is_a_formula(name: str, make_run: MakeRun) -> None:
    """A spreadsheet would run what a server or a trace put into the name of a class."""
    read = lines(registry.make("reports", "csv").render(make_run(40, tags=(name, "a\nb\x1b[31m"))))

    assert {"", f"'{name}", "a b"} == {row["class"] for row in read}
