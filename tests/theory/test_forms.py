"""`bench theory`: every form gives a table in every format, with what varies first; wrong values are one sentence."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from backends.latency.recorded import Recorded
from harness import registry
from harness.cli import main
from harness.experiments import answers
from harness.experiments.theory import evaluate
from harness.metrics.objective import parse_slo
from reports.answers import theory
from reports.document import rendered

QUICK = {"experts": "experts:dp=1,tokens=8,seeds=1", "memory": "memory:max,memory=2GiB,requests=20"}
"""Values with which a form that takes long by default is quick."""


def rows(spec: str, *over: str) -> list[dict[str, Any]]:
    (table,) = evaluate(spec, over).tables
    return [dict(zip([column.head for column in table.columns], row, strict=True)) for row in table.rows]


@pytest.mark.parametrize("name", registry.names("theory"))
def test_every_form_has_a_table_and_a_source(name: str, capsys: pytest.CaptureFixture[str]):
    """A form would end in a traceback, in lines that a terminal cannot show, or say nothing of where it comes from."""
    info = evaluate(QUICK.get(name, name))
    (table,) = info.tables
    assert 0 == main(["theory", QUICK.get(name, name)])
    printed = capsys.readouterr().out

    assert table.rows
    assert all(len(row) == len(table.columns) for row in table.rows)
    assert max(map(len, printed.splitlines())) <= 100
    assert "Source: " in printed
    assert "source" not in registry.summary("theory", name).lower()


def test_the_forms_are_listed_and_explained(capsys: pytest.CaptureFixture[str]):
    """A user would have to know the names, and the units of parameters."""
    assert 0 == main(["theory"])
    listed = capsys.readouterr().out
    assert 0 == main(["explain", "theory.ping-pong"])
    explained = capsys.readouterr().out

    assert all(f"  {name} " in listed for name in registry.names("theory"))
    assert "transfer_s   number, seconds; 250ms, 60s, 5min, default 0.0003" in explained
    assert "Source: MegaScale-Infer" in explained


def test_what_is_varied_stands_first_and_what_is_fixed_above_the_table():
    """A row would look like the next one."""
    info = evaluate("speculative:model=llama2-7b,k=2", ["alpha=0.5,0.7", "batch=1:4:x2", "cost=0.2"])

    assert ["batch", "alpha"] == sorted((c.head for c in info.tables[0].columns[:2]), reverse=True)
    assert [(0.5, 1), (0.5, 2), (0.5, 4), (0.7, 1), (0.7, 2), (0.7, 4)] == [row[:2] for row in info.tables[0].rows]
    assert ("llama2-7b", 2, 0.2) == (info.given["model"], info.given["k"], info.given["cost"])
    assert {"alpha", "batch"}.isdisjoint(info.given)


def test_a_column_has_the_unit_that_its_name_ends_in():
    """Seconds would be read as milliseconds."""
    info = evaluate("kv:memory=12GiB")

    assert [
        ("bytes_per_token", "count"), ("kv_bytes", "bytes"), ("bytes", "count"), ("gbps", "number"),
        ("transfer_s", "s"), ("in_use_share", "share"), ("prefill_s", "s"), ("hidden", "yes"), ("room", "count"),
    ] == [(column.head, column.unit) for column in info.tables[0].columns]  # fmt: skip
    assert ("memory (bytes)", "12884901888") in theory.document(info).key_facts
    assert rendered.csv_of(theory.rows(info)).startswith("bytes_per_token,kv_bytes,bytes,gbps,transfer_s,")


def test_the_badge_tells_of_a_simulation():
    """Simulated numbers would be taken for exact ones."""
    forms = ("knee", "ping-pong", "prefill:simulate=true,requests=100")
    marks = [theory.document(evaluate(spec)).mark for spec in forms]

    assert ["BY FORMULA", "BY FORMULA AND SIMULATION", "BY FORMULA AND SIMULATION"] == marks


@pytest.mark.parametrize("end", ["html", "json", "csv", "md", "txt"])
def test_an_answer_is_written(end: str, tmp_path: Path):
    """A page could not be shown to anybody."""
    file = tmp_path / f"result.{end}"
    assert 0 == main(["theory", "knee", "--over", "phase=prefill,decode", "--out", str(file)])

    assert "decode" in file.read_text(encoding="utf-8")
    assert end != "json" or answers.of(file) is not None


def test_an_answer_of_several_tables_is_still_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """An answer that an earlier version stored, with figures, could not be shown any more."""
    column = {"head": "step", "unit": "s"}
    stored = {
        "schema": 1, "kind": "theory", "versions": {}, "exit_code": 0, "form": "knee", "given": {"tp_pp": [[1, 1]]},
        "sentences": ["OPT."], "notes": ["A note."], "pictures": [],
        "tables": [{"title": "Prefill", "columns": [column, column], "rows": [[0.1, None]]}],
    }  # fmt: skip
    (tmp_path / "knee.json").write_text(json.dumps(stored), encoding="utf-8")

    assert 0 == main(["report", str(tmp_path / "knee.json"), "--format", "text"])
    assert "Prefill" in capsys.readouterr().out


def test_tensor_and_pipeline_parallelism_are_compared_with_one_gpu():
    """It would be unclear which parallelism wins."""
    one, tensor, pipeline = rows("prefill:execution=80ms,rate=5")

    assert 0.08 + 5 * 0.08**2 / (2 * (1 - 5 * 0.08)) == pytest.approx(one["mean_ttft_s"])
    assert ["one GPU", "tp 2, 1.6x", "pp 2"] == [one["replica"], tensor["replica"], pipeline["replica"]]
    assert [1.095, None] == [row["load"] and round(row["load"], 3) for row in rows("crossover", "speedup=1.6,2.1")]


def test_a_queue_without_end_has_no_mean():
    """A mean TTFT of an unstable queue would be a made-up number."""
    one, _, pipeline = rows("prefill:execution=1s,rate=1.5")

    assert (1.0, None, None) == (one["busy_share"], one["mean_ttft_s"], one["p99_ttft_s"])
    assert pipeline["mean_ttft_s"] is not None
    assert 1.0 == rows("prefill:execution=50ms,rate=20")[0]["busy_share"]  # less a rounding error


def test_strict_is_5_steps_and_relaxed_25():
    """The derived SLO would have to be typed over by hand, or be another one."""
    linear = "latency=linear:base=0.01,decode_seq=0.0002,context_token=0.0000001|"
    step_s = 0.01 + 32 * 0.0002 + 32 * 4096 * 1e-7
    strict, relaxed = rows("slo", linear)

    assert [5 * step_s, 25 * step_s] == pytest.approx([strict["itl_p99_s"], relaxed["itl_p99_s"]])
    assert (99.0, 0.1475) == (
        parse_slo(strict["bound"]).bounds[0].percentile,
        parse_slo(strict["bound"]).bounds[0].limit,
    )
    assert (None, None) == (strict["published_s"], strict["fits"])  # constants are of no model


def test_the_published_slo_stands_beside_the_derived_one():
    """A reader could not tell ours from the paper's."""
    found = rows("slo:tp=2", "model=mistral-7b,yi-34b,llama2-70b,falcon-180b")

    assert [0.1, 0.5, 0.2, 1.0, 1.0, 5.0, 1.0, 5.0] == [row["published_s"] for row in found]
    assert 0.845 == pytest.approx(found[2]["over_published_ratio"], abs=0.001)


def test_what_the_system_cannot_hold_is_reported():
    """An SLO for a batch that does not fit into memory would look measured."""
    assert [False, True, False] == [
        row["fits"] for row in rows("slo", "model=opt-13b,mistral-7b,falcon-180b") if row["slo"] == "strict"
    ]


def test_of_four_drafts_at_70_percent_44_are_accepted():
    """Alpha would be taken for the share of drafts."""
    (row,) = rows("speculative:k=4,alpha=0.7")

    assert (0.443, 2.773) == (round(row["accepted_share"], 3), round(row["tokens_per_step"], 3))


def test_balance_of_attention():
    """A script would have to read text."""
    (row,) = rows("attention:constant")

    assert [64, 32, 64, 32] == [row[name] for name in ("longest", "chunk", "unbalanced", "balanced")]


def test_the_simulator_lies_on_the_form():
    """A form and the simulator would price the same steps differently."""
    (chunks,) = rows("chunking:prompt=2047,chunk=512,simulate=true,model=llama2-7b")
    drafts = rows("speculative:context=256,simulate=true,model=llama2-7b", "batch=1,64")

    assert chunks["in_chunks_s"] == pytest.approx(chunks["simulated_s"], rel=1e-9)
    for row in drafts:
        assert row["in_batch_ratio"] == pytest.approx(row["simulated_ratio"], rel=0.08)


def test_wrong_usage_is_one_sentence(refusals: Callable[..., None]) -> None:
    """A mistyped value would end in a traceback, or be taken for another."""
    refusals("wrong-theory.txt")


def test_steps_of_a_stored_run_answer_no_form(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """A form would end in a traceback: such times belong to the place of a step, not to its load."""
    monkeypatch.setattr(Recorded, "__post_init__", lambda _: None)  # it reads no run

    assert 2 == main(["theory", "knee:latency=recorded:out/run"])
    assert "'recorded:out/run' repeats the steps of a stored run, and has no step" in capsys.readouterr().err
