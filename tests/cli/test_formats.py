"""Every command with a result prints it as text, markdown, json and csv, by the same option."""

import csv
import io
import json
import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from harness.cli import _terminal, main
from harness.cli._commands import bench
from harness.cli._options import FORMATS
from harness.experiments import answers

SIM = "--workload chatbot --backend sim --slo ttft=0.25,tpot=0.1 --quiet --no-html"
LINES = [
    f"run {SIM} --requests 40 --out made",
    f"sweep {SIM} --rate 1,2 --seeds 1 --requests 20 --workers 1 --out made",
    f"capacity {SIM} --max-requests 100 --tolerance 50% --workers 1",
    "agents --trace chats.parquet --backend sim --slo p90:tpot=0.0001 --horizon 60s --workers 1 --quiet",
    "place --gpus 2 --algorithm low --slo ttft=0.2,tpot=0.1 --max-requests 500 --workers 1 --quiet",
    "slo run --scale 0.5:2:x2",
    "compare run run",
    "compare --trend series",
    "report run",
    "report curve.json",
    "reproduce S22.a --quiet --out made",
    "trace info trace.csv",
    "trace check trace.csv",
    "trace convert trace.csv -o made.parquet",
    "trace convert trace.csv --limit 10 --scale thin:0.5 -o made.csv",
    "trace fit trace.csv -o made.json",
    "trace generate chatbot --requests 10 -o made.csv",
    "trace download",
    "theory",
    "theory slo",
    "theory prefill --over rate=0.2,0.4",
    "fit --steps run",
    "validate --backend sim --against run",
    "list policies",
    "explain tpot",
    "doctor",
]
SILENT = {"serve", "sender", "init", "quick"}
"""Commands without a result of their own: a server, one that sends for a run, one that writes a file, and one that
prints that of capacity."""


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, the answer of a sweep, a series of two nightly runs and a trace."""
    top = tmp_path_factory.mktemp("stored")
    assert 0 == main(["run", *SIM.split(), "--requests", "100", "--out", str(top / "run")])
    for day in (1, 2):
        shutil.copytree(top / "run", top / "series" / "chatbot" / "sim" / f"2026010{day}T021700Z-c{day}")
    sweep = ["sweep", *SIM.split(), "--rate", "1", "--requests", "20", "--workers", "1", "--out", str(top / "curve")]
    assert 0 == main(sweep)
    shutil.copy(top / "curve" / "sweep.json", top / "curve.json")
    assert 0 == main(["trace", "generate", "chatbot", "--requests", "600", "-o", str(top / "trace.csv")])
    chats = ["chatbot", "--sessions", "fixed:turns=3,think=1s", "--requests", "60", "-o", str(top / "chats.parquet")]
    assert 0 == main(["trace", "generate", *chats])
    return top


@pytest.fixture
def here(stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of what is stored, which is the working directory."""
    shutil.copytree(stored, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def commands(group: click.Group, path: str = "") -> Iterator[str]:
    """The names of all commands that are not groups: 'run', 'trace info', ..."""
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        if isinstance(found, click.Group):
            yield from commands(found, f"{path}{name} ")
        else:
            yield f"{path}{name}"


def test_every_command_with_a_result_is_tried() -> None:
    """A new command would print text alone."""
    assert set(commands(bench)) - SILENT == {
        name for name in commands(bench) for line in LINES if f"{line} ".startswith(f"{name} ")
    }


def constant(name: str) -> None:
    """JSON has no NaN and no Infinity."""
    raise AssertionError(f"{name} in JSON")


@pytest.mark.parametrize("line", LINES, ids=lambda line: " ".join(line.split()[:2]))
def test_a_result_is_printed_in_all_formats(
    line: str,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    advised: Callable[[str], list[str]],
) -> None:
    """A script would have to parse text, and a spreadsheet would get rows of different length; or the command that a
    result advises would be refused."""
    show, results = _terminal.show, list[tuple[str, Any]]()
    monkeypatch.setattr(_terminal, "show", lambda form, result: results.append((form, result)))
    main([*line.split(), "--format", "csv"])
    ((form, result),) = results
    printed = {}
    for name in FORMATS:
        capsys.readouterr()
        show(name, result)
        printed[name] = capsys.readouterr().out

    assert "csv" == form
    assert printed["text"].strip() and printed["text"] != printed["markdown"]
    assert "**" in printed["markdown"] or "| --- |" in printed["markdown"]
    assert json.loads(printed["json"], parse_constant=constant)
    heads, *rows = csv.reader(io.StringIO(printed["csv"]))
    for words in map(shlex.split, advised(printed["text"])):
        command, arguments = bench, words[1:]
        while isinstance(command, click.Group):
            command = command.get_command(click.Context(command), arguments.pop(0))
        command.make_context(words[1], arguments)
    assert rows and all(heads) and len(heads) == len(set(heads))
    assert {len(heads)} == {len(row) for row in rows}


def test_the_exported_json_of_a_comparison_is_the_printed_one(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A script would find other keys in the file than on standard output."""
    assert 0 == main(["compare", "run", "run", "--format", "json"])
    printed = capsys.readouterr().out
    assert 0 == main(["compare", "run", "run", "--export", "json=made.json", "--format", "csv"])

    assert json.loads(printed) == json.loads((here / "made.json").read_text(encoding="utf-8"))
    assert capsys.readouterr().out.startswith("metric,unit,base,head")


@pytest.mark.parametrize(
    "line",
    [
        "theory slo",
        "fit --steps run",
        "theory moe",
    ],
)
def test_a_printed_answer_is_reported(line: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An answer that was kept as JSON could not be read any more."""
    main([*line.split(), "--format", "json"])
    (here / "kept.json").write_text(capsys.readouterr().out, encoding="utf-8")
    code = main(["report", "kept.json"])
    found = answers.of(here / "kept.json")

    assert 0 == code
    assert found is not None
    assert capsys.readouterr().out.endswith("kept.json.report.html\n")
    assert "<h1>" in (here / "kept.json.report.html").read_text(encoding="utf-8")
