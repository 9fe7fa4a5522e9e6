"""Runs against a remote server: the client that measured, its floor, and the server's own view in every form."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness import conclude, slo
from harness.drive import Outcome
from harness.folder import Run
from harness.gap_law import Law
from reports import _numbers, _remote
from reports.figures import finding, timeline
from reports.html import Html
from reports.markdown import Markdown
from reports.text import Text

RemoteRun = Callable[..., Run]
GOLDEN = Path(__file__).parent / "golden"
HOSTILE = '<script>alert(1)</script> <a href="https://evil.example/">x</a> \x1b[31m| `b`'


def concluded(run: Run) -> Run:
    outcome = Outcome("finished", run.requests.num_rows, 0, 0)
    told = conclude.conclude(run, slo.restored(run.info), Law(5.0, known=False), outcome)
    return dataclasses.replace(run, info={**run.info, **told})


def floor_of(error_s: float) -> dict[str, Any]:
    return {name: {"p50_s": error_s / 4, "p99_s": error_s} for name in ("ttft", "itl", "tpot", "e2e")}


def check_golden(name: str, actual: str) -> None:
    """Compare with golden/<name>; a difference is printed and kept as <name>.got."""
    path = GOLDEN / name
    expected = path.read_text(encoding="utf-8") if path.exists() else ""
    if expected != actual:
        path.with_name(f"{name}.got").write_text(actual, encoding="utf-8")
        difference = difflib.unified_diff(expected.splitlines(), actual.splitlines(), name, f"{name}.got", lineterm="")
        pytest.fail("\n".join(difference))


CASES: dict[str, dict[str, Any]] = {
    "remote": {},
    "remote-unresolved": {"slo": "ttft=0.144,p99:tpot=0.0201", "floor": floor_of(0.004), "server_ttft": 1.1},
    "remote-bare": {"floor": None, "floor_why": "--calibrate off", "server": {"kind": None, "why": "HTTP 404"}},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("form", ["text", "markdown"])
def test_summary_of_a_remote_run(form: str, case: str, remote_run: RemoteRun) -> None:
    """What people read of a server elsewhere would change without anybody noticing."""
    given = Text(width=100) if form == "text" else Markdown()

    check_golden(f"{case}.{form}.txt", given.render(concluded(remote_run(**CASES[case]))))


def test_the_page_shows_client_and_server(remote_run: RemoteRun) -> None:
    """Whoever reads the page could not tell how far the client is to be trusted."""
    html = Html().render(concluded(remote_run()))

    assert "client floor p50 / p99" in html
    assert '<h2 id="client">' in html
    assert '<h2 id="server">' in html
    assert "when the kernel received the bytes" in html
    assert "vllm says of itself (http://127.0.0.1:8000/metrics, read 17 times)" in html
    assert '<a href="#server">' in html
    assert html.index("<dt>read lag</dt>") > html.index('id="definitions"')


def test_other_runs_have_no_such_parts(remote_run: RemoteRun) -> None:
    """A simulation would have a client that reads late."""
    run = dataclasses.replace(remote_run(client=None, server=None, floor=None), http=None)
    html = Html().render(concluded(run))

    assert 'id="client"' not in html
    assert 'id="server"' not in html
    assert "client floor" not in html
    assert _remote.line(run) == _remote.server_note(run) == ""
    assert "server's own" not in Markdown().render(concluded(run))


def test_no_row_is_missed_by_less_than_the_error(remote_run: RemoteRun) -> None:
    """The page would call a goal missed which a better client finds reached."""
    html = Html().render(concluded(remote_run(slo="ttft=0.1425", floor=floor_of(0.002))))

    assert '<p class="mark">UNRESOLVED</p>' in html
    assert 'class="missed"' not in html
    assert "the client&#39;s own error leaves open whether that misses the goal of 90%" in html


def test_what_a_server_says_stays_text(remote_run: RemoteRun) -> None:
    """A server could put a link or a script into the report."""
    wire = {"finish_reason": HOSTILE, "address": lambda e: HOSTILE + str(e.written_s > 1)}
    run = remote_run(wire=wire, floor=None, floor_why=HOSTILE)
    run.info["server"] |= {"kind": HOSTILE, "metrics_url": [HOSTILE]}
    run = concluded(run)
    for row in run.info["server"]["compared"]:
        row["name"] = row["unit"] = HOSTILE
    html, text, markdown = Html().render(run), Text(width=100).render(run), Markdown().render(run)

    assert "<script>alert" not in html
    assert 'href="https://evil' not in html
    assert "\x1b" not in html + text + markdown
    assert "<script>" not in markdown
    assert not re.search(r"(?<!\\)`b`", markdown)


def test_gauges_of_the_server_are_drawn(remote_run: RemoteRun) -> None:
    """What a real server did over time would stay in its table."""
    run = concluded(remote_run())
    figure = timeline.figure(run)
    bare = timeline.figure(dataclasses.replace(run, server_metrics=None))

    assert not isinstance(figure, str)
    assert {"running", "sent and not ended (client)", "waiting", "KV memory"} == {t.name for t in figure.data}
    assert finding(figure).startswith(
        "2.12 requests were running in the mean of the readings, 3 at most; requests waited at 0.0%"
    )
    assert isinstance(bare, str)


def test_a_killed_run_tells_what_it_has(remote_run: RemoteRun) -> None:
    """A run without its end (no facts of senders, no last reading) would not be reported."""
    run = remote_run(state="running", client={"senders": 2}, floor=None, server_requests=3)
    run = dataclasses.replace(run, complete=False)
    run = dataclasses.replace(run, info={**run.info, **conclude.conclude(run, slo.restored(run.info), None, None)})
    text = " ".join(Text(width=100).render(run).split())

    assert "2 senders" in text
    assert "client floor not measured" in text
    assert "requests 180 (client 60)" in text
    assert "somebody else" not in text
    assert Html().render(run)


@pytest.mark.parametrize("told", [{}, {"per_sender": None}, {"per_sender": [None, {}]}, {"senders": "x"}])
def test_missing_facts_are_left_out(told: dict[str, Any], remote_run: RemoteRun) -> None:
    """A folder of another version would end in a traceback."""
    run = concluded(remote_run(client=told, floor={}, server={}, backend={"name": "openai"}))

    assert Text(width=100).render(run)
    assert Markdown().render(run)


@pytest.mark.parametrize(
    ("expected", "value_s", "unit", "error_s"),
    [
        ("123", 0.1234, "ms", 9e-5),
        ("20", 0.0201, "ms", 0.004),
        ("20.1", 0.0201, "ms", 0.0004),
        ("12.3", 12.345, "s", 0.0),
        ("1.2", 1.234, "s", 0.3),
        ("<4", 0.0003, "ms", 0.004),
        ("0", 0.0, "ms", 0.004),
        ("0.0123", 1.23e-5, "ms", 0.0),
    ],
)
def test_no_digit_stands_below_the_error(expected: str, value_s: float, unit: str, error_s: float) -> None:
    """A report would tell microseconds that the client cannot see."""
    assert expected == _numbers.in_unit(value_s, unit, error_s)
