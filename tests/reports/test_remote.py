"""Runs against a remote server: the client that measured, its floor, and the server's own view in every form."""

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from harness.api import Outcome, RequestRecord
from harness.data.codec import encode
from harness.data.folder import Run
from harness.data.records import server_metrics_table
from harness.metrics.objective import restored_slo
from harness.stats.arrivals import Law
from harness.validity import conclude
from reports import _data, _format, _sending
from reports.builtin import Html, Markdown, Text
from reports.figures.timeline import timeline

RemoteRun = Callable[..., Run]
HOSTILE = '<script>alert(1)</script> <a href="https://evil.example/">x</a> \x1b[31m| `b`'


def concluded(run: Run) -> Run:
    outcome = Outcome("finished", run.requests.num_rows, 0, 0)
    return dataclasses.replace(run, info=conclude.conclude(run, restored_slo(run.info), Law(5.0, known=False), outcome))


def floor_of(error_s: float) -> dict[str, Any]:
    return {name: {"p50_s": error_s / 4, "p99_s": error_s} for name in ("ttft", "itl", "tpot", "e2e")}


CASES: dict[str, dict[str, Any]] = {
    "remote": {},
    "remote-unresolved": {"slo": "ttft=0.144,p99:tpot=0.0201", "floor": floor_of(0.004), "server_ttft": 1.1},
    "remote-bare": {"floor": None, "floor_why": "--calibrate off", "server": {"kind": None, "why": "HTTP 404"}},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("form", ["text", "markdown"])
def test_summary_of_a_remote_run(
    form: str, case: str, remote_run: RemoteRun, golden: Callable[[str, str], None]
) -> None:
    """What people read of a remote endpoint would change unnoticed."""
    given = Text(width=100) if form == "text" else Markdown()

    golden(f"{case}.{form}.txt", given.render(concluded(remote_run(**CASES[case]))))


def test_the_page_shows_client_and_server(remote_run: RemoteRun) -> None:
    """A reader of the page could not tell how accurate the client is."""
    html = Html().render(concluded(remote_run()))

    assert "client floor p50 / p99" in html
    assert '<details class="section" id="client">' in html
    assert '<details class="section" id="server">' in html
    assert "when the kernel received the bytes" in html
    assert "vllm reports of itself (http://127.0.0.1:8000/metrics, read 17 times)" in html
    assert '<a href="#server">' in html


def test_other_runs_have_no_such_parts(remote_run: RemoteRun) -> None:
    """A simulation would have a client that reads late."""
    run = dataclasses.replace(remote_run(client=None, server=None, floor=None), http=None)
    html = Html().render(concluded(run))

    assert 'id="client"' not in html
    assert 'id="server"' not in html
    assert "client floor" not in html
    assert "" == _sending.server_note(run)
    assert "server's own" not in Markdown().render(concluded(run))


def test_no_row_is_missed_by_less_than_the_error(remote_run: RemoteRun) -> None:
    """The page would call a goal missed which a better client finds reached."""
    html = Html().render(concluded(remote_run(slo="ttft=0.1425", floor=floor_of(0.002))))

    assert '<p class="mark">UNRESOLVED</p>' in html
    assert 'class="missed"' not in html
    assert "the client&#39;s own error leaves open whether that misses the goal of 90%" in html


def test_what_a_server_says_stays_text(remote_run: RemoteRun, put) -> None:
    """A server could put a link or a script into the report."""
    wire = {"finish_reason": HOSTILE, "address": lambda e: HOSTILE + str(e.written_s > 1)}
    run = remote_run(wire=wire, floor=None, floor_why=HOSTILE)
    put(run, server={"kind": HOSTILE, "metrics_url": [HOSTILE]})
    run = concluded(run)
    compared = [{**row, "name": HOSTILE, "unit": HOSTILE} for row in encode(run.info.server)["compared"]]
    put(run, server={"compared": compared})
    html, text, markdown = Html().render(run), Text(width=100).render(run), Markdown().render(run)

    assert "<script>alert" not in html
    assert 'href="https://evil' not in html
    assert "\x1b" not in html + text + markdown
    assert "<script>" not in markdown
    assert not re.search(r"(?<!\\)`b`", markdown)


def test_gauges_of_the_server_are_drawn(remote_run: RemoteRun) -> None:
    """What a real server did over time would stay in its table."""
    run = concluded(remote_run())
    figure = timeline(run)
    bare = timeline(dataclasses.replace(run, server_metrics=None))

    assert not isinstance(figure, str)
    assert {"running", "sent and not ended (client)", "waiting", "KV memory"} == {t["name"] for t in figure.data}
    assert figure.finding.startswith(
        "Requests running: 2.25 in the mean of the readings, 3 at most; requests waiting: at 0.0%"
    )
    assert isinstance(bare, str)


def test_a_killed_run_tells_what_it_has(remote_run: RemoteRun) -> None:
    """A run without its end (no facts of senders, no last reading) would not be reported."""
    run = remote_run(state="running", client={"senders": 2}, floor=None, server_requests=3)
    run = dataclasses.replace(run, complete=False)
    run = dataclasses.replace(run, info=conclude.conclude(run, restored_slo(run.info), None, None))
    text = " ".join(Text(width=100).render(run).split())

    assert "2 senders" in Markdown().render(run)
    assert "Client floor not measured" in text
    assert "requests 60 180" in text
    assert "used it too" not in text
    assert Html().render(run)


def test_hosts_are_named_with_what_is_known_of_their_clocks(remote_run: RemoteRun) -> None:
    """A reader could not tell where the load came from, nor whether the hosts agree on the time."""
    host = {"host": "far", "clock_offset_s": 5000.25, "clock_drift_s": -2e-5, "clock_error_s": 1.5e-3}
    near = {"host": "near", "clock_offset_s": 0.0, "clock_drift_s": None, "clock_error_s": 8e-5}
    run = remote_run(client={"senders": 2, "per_sender": [host, near]})
    run = dataclasses.replace(run, info=conclude.conclude(run, restored_slo(run.info), None, None))
    text, page = " ".join(Text(width=100).render(run).split()), Html().render(run)

    assert "2 senders on far, near (clocks known to 1.50 ms)" in page
    assert "the clocks of the hosts that sent are known to 1.5 ms only" in text.replace("The clocks", "the clocks")


@pytest.mark.parametrize("facts", [{}, {"per_sender": []}, {"per_sender": [{}]}, {"senders": 2}])
def test_missing_facts_are_left_out(facts: dict[str, Any], remote_run: RemoteRun) -> None:
    """A folder of another version would end in a traceback."""
    run = concluded(remote_run(client=facts, floor={}, server={}, backend={"name": "openai"}))

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
    assert expected == _format.in_unit(value_s, unit, error_s)


def interrupted(run: Run) -> Run:
    """The run as Ctrl-C leaves it, judged as such."""
    run = dataclasses.replace(run, info=run.info.change(state="interrupted"), complete=False)
    ended = Outcome("stopped", 2, 98, 0)
    return dataclasses.replace(run, info=conclude.conclude(run, restored_slo(run.info), Law(5.0, known=False), ended))


@pytest.mark.parametrize("floor", [floor_of(0.00001), floor_of(0.02)])
@pytest.mark.parametrize("bounds", ["ttft=0.25", "ttft=0.144", "ttft=0.01"])
def test_a_run_that_was_ended_early_says_nothing_about_the_goal(
    bounds: str, floor: dict[str, Any], remote_run: RemoteRun
) -> None:
    """Two of a hundred requests would reach the goal in a sentence that begins with NOTHING PROVEN."""
    run = interrupted(remote_run(slo=bounds, floor=floor))
    text, markdown = (" ".join(form.render(run).split()) for form in (Text(width=100), Markdown()))

    for facts in (text, markdown):
        assert "no answer about the goal of 90%, as the run was ended early" in facts
        assert not re.search("(reaches|misses) the goal", facts)
    assert "NOTHING PROVEN" in markdown


def test_reasons_of_a_run_that_was_ended_early_are_sentences(remote_run: RemoteRun, put) -> None:
    """Two reasons would run into each other: 'Connection refused No request ended well'."""
    run = interrupted(remote_run())
    put(run, verdict={"valid": False, "reasons": ["Connection refused", "no request ended well"]})

    assert "Connection refused. No request ended well." in " ".join(Text(width=100).render(run).split())


def test_the_server_drawn_over_time_begins_with_the_run(remote_run: RemoteRun) -> None:
    """A straight line would be drawn through the calibration, in which the server got no request."""
    figure = timeline(concluded(remote_run()))

    assert not isinstance(figure, str)
    assert min(float(trace["x"][0]) for trace in figure.data) >= 0.0
    assert figure.axis("x")["range"][0] == 0.0


FAILED = {
    "status": lambda r: "error" if r.request_id < 9 else "ok",
    "error": lambda r: "x" if r.request_id < 9 else None,
}


def test_rows_of_failed_requests_say_why_they_are_not_compared(remote_run: RemoteRun) -> None:
    """'requests 60 (client 51)' would look like a difference without a mark."""
    run = concluded(remote_run(ask=FAILED))
    text = " ".join(Text(width=100).render(run).split())
    rows = {side[0]: side[5] for side in map(_sending.side, run.info.server.compared or ())}

    assert rows["mean E2E"] == "not compared: 9 failed"
    assert rows["output tokens"] == "not compared: 9 failed"
    assert "not compared: 9 failed" in text
    assert "not compared: 9 failed" in Html().render(run)


def test_what_a_server_counts_of_failed_requests_is_explained(remote_run: RemoteRun) -> None:
    """A range that allows for failed requests would be read as an oversight."""
    sound = remote_run()
    run = concluded(dataclasses.replace(remote_run(ask=FAILED), server_metrics=sound.server_metrics))
    side = next(side for side in map(_sending.side, run.info.server.compared or ()) if side[0] == "requests")

    assert ("51", "60", "agree (9 failed)") == (*side[2:4], side[5])
    assert "agree (9 failed)" in " ".join(Text(width=100).render(run).split())


SLOW = {"token_s": lambda r: [at_s + 0.1 for at_s in r.token_s] if r.request_id % 10 == 5 else r.token_s}
"""Requests 5, 15, ... 55 have TTFTs above 0.2 s; they end in the seconds 1.7, 3.7, ... 11.7."""


def with_metrics(run: Run, **names: str) -> Run:
    """Of a server whose queue takes nine tenths of TTFT up to 6 s, and whose prefill does from then on."""
    rows: list[tuple[float, str, str, float]] = []
    for second in range(14):
        early, late = min(second, 6), max(second - 6, 0)
        sums = {"q_sum": 0.09 * early + 0.01 * late, "p_sum": 0.01 * early + 0.09 * late, "t_sum": 0.1 * second}
        rows.append((float(second), "up", 'instance="127.0.0.1:8000"', 1.0))
        for name, total in {**sums, "q_count": second, "p_count": second, "t_count": second}.items():
            rows.append((float(second), name, 'engine="0"', float(total)))
    server = replace(run.info.server, names=names)
    return dataclasses.replace(run, info=replace(run.info, server=server), server_metrics=server_metrics_table(rows))


@pytest.mark.parametrize(
    ("names", "line"),
    [
        ({"queue": "q", "prefill": "p"}, "client lateness 0, queue 3, prefill 3, decode 0"),
        ({"queue": "q", "ttft": "t"}, "client lateness 0, queue 3, prefill 3, decode 0"),
        ({"ttft": "t"}, "client lateness 0, queue -, prefill -, decode 0, queue and prefill 6"),
        ({}, "client lateness 0, queue -, prefill -, decode 0, queue and prefill 6"),
    ],
)
def test_misses_are_those_of_the_phase_that_the_server_names(
    names: dict[str, str], line: str, remote_run: RemoteRun
) -> None:
    """A full queue would be read as slow prefill, or a guess as the answer of the server."""
    run = with_metrics(remote_run(slo="ttft=0.16,tpot=0.1", ask=SLOW), **names)

    assert f"6 of 60 requests: {line}" == _data.missed(run)
    assert f"Misses        6 of 60 requests: {line}"[:60] in Text(width=100).render(concluded(run))


def test_misses_follow_the_times_in_the_answers(remote_run: RemoteRun) -> None:
    """The mean of a second would stand for a request that the server has a time for."""
    queue_s = {"server_queue_s": 0.01, "server_ttft_s": 0.2}  # of vLLM
    prefill_s = {"server_prefill_s": 0.02}  # of llama.cpp: the rest is the queue
    vllm, llama = (remote_run(slo="ttft=0.16,tpot=0.1", ask=SLOW, wire=wire) for wire in (queue_s, prefill_s))

    assert _data.missed(with_metrics(vllm, queue="q", prefill="p")).endswith("queue 0, prefill 6, decode 0")
    assert _data.missed(with_metrics(llama)).endswith("queue 6, prefill 0, decode 0")


def test_a_late_client_and_slow_decodes_are_causes_of_their_own(remote_run: RemoteRun) -> None:
    def late(record: RequestRecord) -> float:
        return 0.2 if record.request_id < 3 else 0.0

    def tokens(record: RequestRecord) -> list[float]:
        slow_s = 0.2 if record.request_id == 7 else 0.0
        return [at_s + late(record) + slow_s * k for k, at_s in enumerate(record.token_s)]

    ask = {"sent_s": lambda r: r.sent_s + late(r), "token_s": tokens}
    run = with_metrics(remote_run(slo="ttft=0.16,tpot=0.1", ask=ask), queue="q", prefill="p")

    assert "4 of 60 requests: client lateness 3, queue 0, prefill 0, decode 1" == _data.missed(run)
