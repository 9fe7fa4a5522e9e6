"""What a running benchmark shows."""

import io
import math
import re
import time

import pytest
from rich.console import Console

from harness.api import Bound, Exchange, RequestRecord, Slo
from harness.data.run_json import Floor, FloorError
from harness.runner.live import Live
from harness.runner.progress import Display, line, screen


def record(request_id: int, first_s: float, status: str = "ok") -> RequestRecord:
    stamps = [first_s, first_s + 0.1, first_s + 0.2]
    return RequestRecord(request_id, 0.0, 0.0, stamps, None, 5, 3, 3, status)  # type: ignore[arg-type]  # a status


def live() -> Live:
    found = Live(total=8, span_s=100.0, slo=Slo((Bound("ttft", 0.25),)), sent=5, finished=4)
    found.start(math.inf)  # at once
    found.seen([record(0, 0.1), record(1, 0.2), record(2, 0.3), record(3, 0.1, "error")])
    found.departed(0.004)
    found.floor = Floor(ttft=FloorError(p50_s=0.0001, p99_s=0.00031))
    return found


def test_line_tells_where_the_run_stands() -> None:
    """A log of CI would not show whether a run is slow or dead, or whether the client can be trusted."""
    counts = "0 s, sending for 100 s more, sent 5/8, 1 in flight, 1 failed, - of 0.08 req/s"
    recent = "TTFT 150 ms (p99 297 ms), TPOT 100 ms (p99 100 ms), SLO 50.0% (goal 90%), floor 0.31 ms, late p99 4 ms"

    assert f"{counts}, {recent}" == line(live())


def test_of_a_simulated_run_the_line_has_no_time() -> None:
    """'0 s, sending for 2499407 s more, - of 4 req/s' stood there until the end."""
    found = live()
    found.epoch_s = None

    assert line(found).startswith("sent 5/8, 1 in flight, 1 failed, TTFT 150 ms")


def test_times_of_a_buffered_stream_were_shown_as_measured() -> None:
    """'TTFT 1.2 s, SLO 0.0%' while the run went on, of what the report then called unknown."""
    known, hidden = Live(slo=Slo((Bound("ttft", 0.25),))), Live(slo=Slo((Bound("ttft", 0.25),)))
    stamps = [1.2, 1.2, 1.2, 1.2]
    for live, wire in ((known, Exchange()), (hidden, Exchange(held_events=3, held_s=1.1))):
        live.seen([RequestRecord(i, 0.0, 0.0, stamps, None, 5, 4, 4, "ok", exchange=wire) for i in range(3)])

    assert "TTFT 1.2 s (p99 1.2 s), TPOT 0 ms (p99 0 ms), SLO 0.0% (goal 90%)" in line(known)
    assert line(hidden).endswith("TTFT -, TPOT -")


def test_a_run_that_sends_nothing_yet_says_what_it_waits_for() -> None:
    """It sat for minutes at 'sent 0/23' on a busy machine."""
    live = Live(23, waits_for="1 sender to build requests and connect")

    assert line(live).endswith(" s, nothing sent yet: waiting for 1 sender to build requests and connect")


def test_line_tells_that_answers_are_awaited() -> None:
    """A run whose requests are all sent would seem to hang until the slowest answer."""
    found = live()
    found.span_s = 0.0

    assert line(found).startswith("0 s, waiting for the last answers, sent 5/8, 1 in flight, 1 failed, - req/s")


def test_a_goal_of_nearly_all_is_not_rounded_to_all() -> None:
    """A goal of 99.9% would be shown as 100%."""
    found = live()
    found.slo = Slo(found.slo.bounds, 0.999)

    assert "(goal 99.9%)" in line(found)


def test_notes_are_printed_even_at_the_very_end() -> None:
    """The answer to Ctrl-C would be lost when the run ends right after it."""
    found, out = live(), io.StringIO()

    with Display(quiet=False).showing(found, out):
        found.say("stopping")

    assert out.getvalue() == "stopping\n"


def test_quiet_prints_nothing() -> None:
    """A script with --quiet would get notes."""
    found, out = live(), io.StringIO()

    with Display().showing(found, out):
        found.say("stopping")

    assert out.getvalue() == ""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_the_run_and_keeps_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user at a terminal would see nothing until the end, or a model called [red] would colour it."""
    monkeypatch.setattr(Live, "elapsed_s", lambda _: 40.0)
    found, out = live(), Terminal()
    found.start(0.0)

    with Display(quiet=False).showing(found, out):
        found.say("[red]stopping[/red]")  # and the run ends at once

    rows = dict(re.findall(r"(\w+) {2,}(\S.*?) *\n", re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", out.getvalue())))
    assert "[red]stopping[/red]" in out.getvalue()
    assert "40 s, sending for 60 s more" == rows.pop("time")
    assert {
        "requests": "sent 5/8, 1 in flight, 1 failed", "rate": "0.125 of 0.08 req/s", "TTFT": "150 ms (p99 297 ms)",
        "TPOT": "100 ms (p99 100 ms)", "SLO": "50.0% (goal 90%)", "client": "floor 0.31 ms, late p99 4 ms",
    } == rows  # fmt: skip


@pytest.mark.parametrize("columns", [30, 60, 200])
def test_a_narrow_terminal_wraps_no_row(columns: int) -> None:
    """A row that wraps would be drawn anew below itself twice a second."""
    console = Console(file=io.StringIO(), width=columns, force_terminal=False)
    console.print(screen(live()))

    rows = console.file.getvalue().splitlines()  # type: ignore[attr-defined]  # the file given above
    assert 8 == len(rows)
    assert columns >= max(map(len, rows))


def test_a_log_gets_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CI job without output for ten minutes is killed as hanging."""
    monkeypatch.setattr("harness.runner.progress.PLAIN_S", 0.0)
    found, out = live(), io.StringIO()

    with Display(quiet=False).showing(found, out):
        deadline_s = time.monotonic() + 120
        while not out.getvalue() and time.monotonic() < deadline_s:
            time.sleep(0.02)

    assert "sent 5/8, 1 in flight, 1 failed, - of 0.08 req/s" in out.getvalue()


def test_the_trials_of_a_search_are_shown_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log of a search would have a line every 10 s between the lines of its trials."""
    monkeypatch.setattr("harness.runner.progress.PLAIN_S", 0.0)
    found, out = live(), io.StringIO()

    with Display(quiet=False, terminal_only=True).showing(found, out):
        time.sleep(0.6)

    assert not out.getvalue()


def test_before_anything_has_happened_the_line_is_whole() -> None:
    """The first picture would end in a division by zero."""
    found = line(Live(slo=Slo((Bound("ttft", 0.25),))))

    assert "0 s, sent 0/0, 0 in flight, - req/s, TTFT -, TPOT -" == found


def test_without_an_slo_nothing_is_within_it() -> None:
    """'within the SLO 100%' of a run that has none would be read as a success."""
    found = Live(total=1, span_s=1.0, sent=1, finished=1)
    found.start(math.inf)
    found.seen([record(0, 0.1)])

    assert "SLO" not in line(found)


def test_a_total_that_answers_decide_is_marked() -> None:
    """A closed loop that is on time would look as if it lagged behind."""
    found = Live(total=44, at_most=True, span_s=12.0, sent=27)

    assert "sent 27 of up to 44" in line(found)
    assert "- req/s" in line(found)


def test_what_no_display_shows_does_not_grow() -> None:
    """A quiet run of a million requests would hold a hundred megabytes of latencies for a display that is not there."""
    found = Live()
    for i in range(30):
        found.seen([record(i, 0.1)] * 1000)

    assert 10_000 == len(found.recent()[0])
