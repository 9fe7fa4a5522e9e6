"""Answers and runs on a terminal: colour where it is wanted, letters that the terminal has."""

import re
import sys
from collections.abc import Callable
from typing import Any

import pytest

from backends.sim import Sim
from harness.cli import _terminal
from reports import answers as pages
from reports.builtin import Text
from reports.document import Cell, Document, Section, Table, markdown
from reports.document.text import Look, render

FALLING = [(1.0, 1.0), (2.0, 0.95), (3.0, 0.8), (4.0, 0.2)]
STYLES = re.compile("\x1b\\[[0-9;]*m")
ONE = {
    "goal": 0.9, "state": "resolved", "capacity_rps": 2.25, "low_rps": 2.19, "high_rps": 2.32, "half_width": 0.028,
    "seeds": 18, "per_gpu_rps": 2.25, "binding": "ttft=0.25", "bounds": [], "why": None, "needs": None, "at": None,
}  # fmt: skip
SEARCH: dict[str, Any] = {
    "kind": "capacity", "state": "finished", "definition": "joint", "gpus": 1, "confidence": 0.95,
    "one_traffic": False, "clock": "virtual", "run": {"requests": 2200, "warmup": "mser5"}, "answers": [ONE],
    "spec": {"workload": "chatbot", "backend": "sim", "policy": "vllm-v0"},
    "curve": [
        {"rate_rps": rate, "seeds": 4, "attainment": share, "least": share, "most": share, "overloaded": 0,
         "falling": share} for rate, share in FALLING
    ],
    "cost": {"requests": 98_000, "trials": 43, "probes": 11, "system_s": 1.0, "wall_s": 6.7},
}  # fmt: skip


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What `tell` prints of a search, on a terminal or not, with or without NO_COLOR."""

    def tell(*, terminal: bool, no_color: bool = False, columns: int = 100, kind: str = "xterm") -> str:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setenv("TERM", kind)
        monkeypatch.setenv("NO_COLOR", "1" if no_color else "")
        _terminal.show("text", SEARCH)
        return capsys.readouterr().out

    return tell


def test_a_terminal_gets_colour_and_a_pipe_does_not(shown: Callable[..., str]) -> None:
    """A log would be full of escape sequences, or a terminal would stay grey."""
    pipe, terminal, plain = shown(terminal=False), shown(terminal=True), shown(terminal=True, no_color=True)

    assert not STYLES.search(pipe)
    assert "\x1b[1;32mCapacity at 90%" in terminal
    assert STYLES.sub("", terminal) == plain
    assert 100 >= max(map(len, plain.splitlines()))


def test_a_dumb_terminal_gets_no_colour(shown: Callable[..., str]) -> None:
    """An editor's shell would show escape sequences."""
    assert not STYLES.search(shown(terminal=True, kind="dumb"))


def test_the_verdict_and_the_next_step_stand_last(shown: Callable[..., str]) -> None:
    """They would have scrolled out of the window."""
    lines = shown(terminal=True, no_color=True).splitlines()
    [verdict] = [number for number, line in enumerate(lines) if line.startswith("Capacity at 90%")]

    assert len(lines) - 8 <= verdict
    assert "next  see latencies and stages around it:" in lines[-3:]
    assert lines[-1].endswith("--rate 1.1,1.3,1.5,1.8,2.1,2.5,2.9")


def test_a_terminal_without_boxes_gets_ascii() -> None:
    """On such a terminal the rules of tables would be question marks, or end in a traceback."""
    assert render(pages.document(SEARCH), Look(color=True, blocks=False)).isascii()
    assert _terminal.blocks("utf-8")
    assert [False] * 3 == [_terminal.blocks(name) for name in ("latin-1", None, "no-such-encoding")]


def test_a_letter_that_an_encoding_lacks_does_not_cost_the_answer() -> None:
    """A name in another script would end the command in a traceback."""
    assert "? -" == _terminal._encodable("\u6a21 \u2500", "latin-1")
    assert "\u6a21" == _terminal._encodable("\u6a21", "utf-8")


def test_a_search_from_elsewhere_has_no_effect_in_markdown() -> None:
    """A comment on a pull request would hold the link of the author of the answer."""
    shown = markdown.render(
        pages.document({**SEARCH, "answers": [{**ONE, "binding": "[x](https://evil.example) <b>\x1b[31m"}]})
    )

    assert r"\[x\](https\://" in shown and "&lt;b&gt;" in shown
    assert "\x1b" not in shown and "s://" not in shown


def test_rows_have_the_tone_of_their_news() -> None:
    """A regression would be as green as what stands beside it."""
    news = (("ttft", "regressed", False), ("tpot", "improved", True), ("itl", "inconclusive", None))
    rows = tuple((name, Cell(verdict, good=good)) for name, verdict, good in news)
    page = Document("t", "", "", None, (), sections=(Section("a", "A", (Table("", ("metric", "verdict"), rows, 2),)),))
    colored = render(page, Look(color=True))

    assert "\x1b[1;31mttft" in colored
    assert "\x1b[1;32mtpot" in colored
    assert render(page).split() == STYLES.sub("", colored).split()


def test_facts_are_not_bold(make_run: Any) -> None:
    """Where everything is bold nothing stands out."""
    lines = Text(color=True, width=100).render(make_run()).splitlines()
    styled = {line.split()[0]: "\x1b" in line for line in lines if line}

    assert [False] * 3 == [styled[name] for name in ("System", "Throughput", "Requests")]
    assert styled["\x1b[1mchatbot"]


def test_there_is_no_rate_per_gpu_where_replicas_come_and_go(capsys: pytest.CaptureFixture[str]) -> None:
    """The rate of eight GPUs would be printed as that of the one at the start."""
    backend = Sim(router="autoscale").describe()
    _terminal.show("text", {**SEARCH, "gpus": None, "backend": backend, "answers": [{**ONE, "per_gpu_rps": None}]})

    assert 1 == backend["gpus_at_start"]
    assert "gpus" not in backend
    assert "No rate per GPU: the router adds and gives up replicas" in " ".join(capsys.readouterr().out.split())
