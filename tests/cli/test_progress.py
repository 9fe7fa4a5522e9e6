"""What a running benchmark shows."""

from __future__ import annotations

import io
import time
from typing import TYPE_CHECKING

from harness.api import Bound, RequestRecord, Slo
from harness.runner.live import Live
from harness.runner.progress import cells, line, shown

if TYPE_CHECKING:
    import pytest


def record(request_id: int, first_s: float, status: str = "ok") -> RequestRecord:
    stamps = [first_s, first_s + 0.1, first_s + 0.2]
    return RequestRecord(request_id, 0.0, 0.0, stamps, None, 5, 3, 3, status)  # type: ignore[arg-type]  # a status


def live() -> Live:
    found = Live(total=8, span_s=100.0, slo=Slo((Bound("ttft", 0.25),)), sent=5, finished=4)
    found.seen([record(0, 0.1), record(1, 0.2), record(2, 0.3), record(3, 0.1, "error")])
    found.departed(0.004)
    return found


def test_line_tells_where_the_run_stands() -> None:
    """A log of CI would not show whether a run is slow or dead."""
    counts = "0 s, sending for 100 s more, sent 5/8, in flight 1, finished 4, failed 1, within the SLO 50.0% (goal 90%)"
    recent = "last 10 s TTFT p50 0.150, p99 0.297 s; TPOT p50 0.100, p99 0.100 s"

    assert f"{counts}; rate - of 0.08 req/s; {recent}; lateness p99 4.0 ms" == line(live())


def test_line_tells_that_answers_are_awaited() -> None:
    """A run whose requests are all sent would seem to hang until the slowest answer."""
    found = live()
    found.span_s = 0.0

    assert line(found).startswith("0 s, waiting for the last answers, sent 5/8, in flight 1")


def test_a_goal_of_nearly_all_is_not_rounded_to_all() -> None:
    """A goal of 99.9% would be shown as 100%."""
    found = live()
    found.slo = Slo(found.slo.bounds, 0.999)

    assert "(goal 99.9%)" in line(found)
    assert "50.0% (goal 99.9%)" == dict(cells(found))["within SLO"]


def test_panel_shows_recent_latencies_and_lateness() -> None:
    """A user would wait for the end of a run that is already lost."""
    shown_cells = dict(cells(live()))

    assert shown_cells["requests"] == "5 of 8 sent, 1 in flight, 4 finished, 1 failed"
    assert shown_cells["within SLO"] == "50.0% (goal 90%)"
    assert shown_cells["last 10 s"].startswith("TTFT p50 0.150, p99 0.297 s; TPOT p50 0.100")
    assert shown_cells["lateness"] == "p99 4.0 ms"


def test_notes_are_printed_even_at_the_very_end() -> None:
    """The answer to Ctrl-C would be lost when the run ends right after it."""
    found, out = live(), io.StringIO()

    with shown(found, quiet=False, stream=out):
        found.say("stopping")

    assert out.getvalue() == "stopping\n"


def test_quiet_prints_nothing() -> None:
    """A script with --quiet would get notes."""
    found, out = live(), io.StringIO()

    with shown(found, quiet=True, stream=out):
        found.say("stopping")

    assert out.getvalue() == ""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_panel_on_a_terminal_shows_the_run_and_keeps_notes() -> None:
    """A user at a terminal would see nothing until the end, or a model called [red] would colour it."""
    found, out = live(), Terminal()

    with shown(found, quiet=False, stream=out):
        found.say("[red]stopping[/red]")  # and the run ends at once

    assert "[red]stopping[/red]" in out.getvalue()
    assert "5 of 8 sent, 1 in flight" in out.getvalue()
    assert "50.0% (goal 90%)" in out.getvalue()


def test_a_log_gets_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CI job without output for ten minutes is killed as hanging."""
    monkeypatch.setattr("harness.runner.progress.PLAIN_S", 0.0)
    found, out = live(), io.StringIO()

    with shown(found, quiet=False, stream=out):
        deadline_s = time.monotonic() + 10
        while not out.getvalue() and time.monotonic() < deadline_s:
            time.sleep(0.02)

    assert "sent 5/8, in flight 1, finished 4, failed 1" in out.getvalue()


def test_before_anything_has_happened_the_panel_is_empty_and_whole() -> None:
    """The first picture would end in a division by zero."""
    empty = dict(cells(Live(slo=Slo((Bound("ttft", 0.25),)))))

    assert {"-"} == {empty[name] for name in ("within SLO", "lateness")}
    assert "- of - req/s" == empty["rate"]


def test_without_an_slo_nothing_is_within_it() -> None:
    """'within the SLO 100%' of a run that has none would be read as a success."""
    found = Live(total=1, span_s=1.0, sent=1, finished=1)
    found.seen([record(0, 0.1)])

    assert "SLO" not in line(found)
    assert "within SLO" not in dict(cells(found))


def test_a_total_that_answers_decide_is_marked() -> None:
    """A closed loop that is on time would look as if it lagged behind."""
    found = Live(total=44, at_most=True, span_s=12.0, sent=27)

    assert "sent 27 of up to 44" in line(found)
    assert "27 of up to 44 sent" in dict(cells(found))["requests"]
    assert dict(cells(found))["rate"].endswith("of - req/s")


def test_what_no_display_shows_does_not_grow() -> None:
    """A quiet run of a million requests would hold a hundred megabytes of latencies for a display that is not there."""
    found = Live()
    for i in range(30):
        found.seen([record(i, 0.1)] * 1000)

    assert 10_000 == len(found.recent()[0])
