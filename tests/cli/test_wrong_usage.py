"""Whatever is typed wrongly is answered by one sentence, the right exit code, and nothing on disk."""

from collections.abc import Callable
from pathlib import Path

import pytest

from harness.cli import main
from harness.removed import REMOVED

RUN_JSON = '{"schema": 1, "state": "finished", "spec": {"workload": "chatbot", "colour": "red"}}'


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a trace, broken configurations and a folder that is no run."""
    monkeypatch.chdir(tmp_path)
    files = {
        "trace.csv": "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,374,44\n",
        "broken.toml": "rate = = 3",
        "strange.json": "{}",
        "run.json": RUN_JSON,
        "full/notes.txt": "mine",
        "strange/run.json": "[1, 2",
        "newer/run.json": '{"schema": 99, "spec": {}}',
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (tmp_path / "image.toml").write_bytes(b"\x89PNG\xff")
    return tmp_path


def test_a_wrong_line_gets_one_sentence(place: Path, refusals: Callable[..., None]) -> None:
    """A typing error would be answered by a traceback, a wrong exit code, or half a run on disk."""
    refusals("wrong-usage.txt")


@pytest.mark.parametrize(("what", "name"), REMOVED)
def test_what_was_removed_is_refused_with_what_takes_its_place(
    what: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A script of an earlier version would end with a guess at a name."""
    run, table = str(tmp_path / "run"), tmp_path / "table.csv"
    table.write_text("a,b\n1,2\n", encoding="utf-8")
    arguments = {
        "command": [name],
        "content": ["run", "--content", name],
        "condition": ["capacity", "--backend", "sim", "--conditions", name],
        "option": ["run", name],
        "option of bench compare": ["compare", run, run, name, "file"],
        "option of bench slo": ["slo", run, name],
        "option to sweep over": ["sweep", "--backend", "sim", "--over", f"{name}=1"],
        "option of bench doctor": ["doctor", name],
        "option of bench serve": ["serve", name, "5s"],
        "option of bench fit": ["fit", "--steps", str(table), name, "0.5"],
        "option of bench report": ["report", run, name],
        "option of bench validate": ["validate", "--against", run, name, "curve"],
        "option of bench explain": ["explain", "chatbot", name, "page.html"],
        "trace command": ["trace", name],
        "option of bench trace generate": ["trace", "generate", "chatbot", "-o", "b.csv", name, "2"],
        "option of bench trace convert": ["trace", "convert", "a.csv", "-o", "b.csv", name],
        "argument": ["run", "--backend", f"sim:{name}=x"],
        "probe": ["run", "--backend", f"openai:url=http://127.0.0.1:1,probe={name}"],
        "route": ["run", "--backend", f"openai:url=http://127.0.0.1:1,route={name}"],
        "trace reader": ["run", "--backend", "sim", "--trace", str(table), "--reader", name],
        "policy": ["run", "--backend", "sim", "--policy", name],
        "closed form": ["theory", name],
        "argument of experts": ["theory", f"experts:{name}=2"],
        "argument of longbench": ["run", "--backend", "sim", "--lengths", f"longbench:{name}=x"],
        "argument of fitted": ["run", "--backend", "sim", "--lengths", f"fitted:model.json,{name}=x"],
        "lengths": ["run", "--backend", "sim", "--lengths", name],
        "sessions": ["run", "--backend", "sim", "--sessions", name],
        "placement algorithm": ["place", "--algorithm", name],
        "arrivals": ["run", "--backend", "sim", "--arrivals", name],
        "fault": ["serve", "--backend", "null", "--fault", f"{name}:every=2"],
        "format": ["report", run, "--format", name],
        "export format": ["compare", run, run, "--export", f"{name}=x"],
        "figure": ["report", run, "--figure", name],
        "definition profile": ["slo", run, "--profile", name],
        "term or plug-in": ["explain", name],
    }[what]
    if run in arguments:
        assert 0 == main(["run", "--backend", "sim", "--requests", "20", "--no-html", "--quiet", "--out", run])

    assert 2 == main(arguments)
    assert REMOVED[what, name] in capsys.readouterr().err


@pytest.mark.parametrize("line", ["sweep --rate 1,2", "capacity --slo ttft=1", "agents --slo ttft=1"])
def test_a_wrong_pool_is_refused_before_there_is_a_folder(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each try would leave an empty folder, and the note that every trial is stored there."""
    monkeypatch.chdir(tmp_path)

    assert 2 == main([*line.split(), "--backend", "null", "--pool", "ray"])
    assert "--pool ray is for simulated trials" in capsys.readouterr().err
    assert [] == [*tmp_path.iterdir()]
