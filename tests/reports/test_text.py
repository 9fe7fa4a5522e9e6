"""The summaries for a terminal, a pull request and a program."""

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from harness import registry
from harness.data.codec import encode
from harness.data.folder import Run
from harness.data.run_json import RunInfo
from reports import _data, _rows
from reports.builtin import Json, Markdown, Text

MakeRun = Callable[..., Run]


def changed(run: Run, **parts: Any) -> Run:
    """The run with other parts of run.json, or without those that are None."""
    return dataclasses.replace(run, info=RunInfo.of({**encode(run.info), **parts}))


def killed(run: Run) -> Run:
    return changed(run, summary=None, verdict=None, fidelity=None, warnings=None)


def overloaded(run: Run) -> Run:
    """The queue grew, although the requests of the run met the SLO."""
    message = "overloaded: the queue grew by 297 requests in 22.3 s, so latencies tell nothing"
    return changed(
        run,
        warnings=[{"code": "overload", "message": message, "remedy": "lower --rate"}],
        verdict={"valid": True, "overloaded": True, "reasons": [], "text": message},
        request_throughput=3.8,
        output_throughput=616.0,
    )


@pytest.mark.parametrize("case", ["good", "missed", "invalid", "killed", "empty", "no-slo", "classes", "overloaded"])
@pytest.mark.parametrize("form", ["text", "markdown"])
def test_summary_golden(form: str, case: str, make_run: MakeRun, golden: Callable[[str, str], None]) -> None:
    """The summary that people read and paste would change without anybody noticing."""
    runs: dict[str, Callable[[], Run]] = {
        "good": make_run,
        "missed": lambda: make_run(slo="ttft=0.1,tpot=0.1", failed=20, warnings=[]),
        "invalid": lambda: make_run(verdict={"valid": False, "reasons": ["a token came before its request left"]}),
        "killed": lambda: killed(make_run(complete=False)),
        "empty": lambda: make_run(0, failed=0, steps=False),
        "no-slo": lambda: make_run(slo=""),
        "overloaded": lambda: overloaded(make_run(tags=("chat", "code"))),
        "classes": lambda: make_run(slo="ttft=0.25,ttft@code=0.1,p99:tpot=0.1,e2e=1", tags=("chat", "code")),
    }
    given = registry.make("reports", form, **({"width": 100} if form == "text" else {}))

    golden(f"{case}.{form}.txt", given.render(runs[case]()))


def test_text_fits_and_is_plain(make_run: MakeRun) -> None:
    """A log file or a narrow terminal would get broken lines or colour codes, one of ASCII a rule that it lacks."""
    hostile = "\x1b[31m" + "very long error text " * 40 + "\u202e"
    run = make_run(warnings=[{"code": "x", "message": hostile, "remedy": hostile}])
    text, plain = (Text(width=100, ascii=ascii_).render(run) for ascii_ in (False, True))

    assert max(len(line) for line in text.splitlines()) <= 100
    assert not re.search(r"[^\n\x20-\x7e]", plain)
    assert text.replace("\u2500", "-") == plain


def test_what_is_copied_is_never_broken(make_run: MakeRun) -> None:
    """A command or a path that the window breaks cannot be copied; it would run half, or not at all."""
    run = make_run()
    far = Run(Path("a long folder" * 12), run.info, run.requests, run.steps, run.schedule, True)
    text = Text(width=60).render(far)

    assert f"bench capacity --config '{far.path}/run.json'" in text.replace(" \\\n    ", " ")
    assert f"report:\n  bench report '{far.path}'\n" in text
    assert "next  find the capacity with its interval:\n" in text


@pytest.mark.parametrize("width", [100, 80, 60, 40])
@pytest.mark.parametrize("slo", ["ttft=0.25,tpot=0.1", "ttft=0.25,ttft@code=0.1,p99:tpot=0.1,e2e=1"])
def test_text_fits_a_narrow_window(width: int, slo: str, make_run: MakeRun) -> None:
    """The table would be broken by the terminal, or its numbers cut."""
    text = Text(width=width).render(make_run(slo=slo, tags=("chat", "code")))
    rows = text.partition("unit")[2].partition("\n\n")[0]

    assert all(len(line) <= width for line in text.splitlines() if "bench " not in line)
    assert {"295", "4.84", "250 ms"} <= {*rows.split(), "250 ms" if "250 ms" in rows else ""}
    assert "\u2026" not in text


def test_text_takes_the_width_of_the_window(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """A window of 60 columns would get lines of 100, which it breaks anywhere."""
    monkeypatch.setenv("COLUMNS", "60")
    narrow = Text().render(make_run())
    monkeypatch.setenv("COLUMNS", "300")

    assert Text(width=60).render(make_run()) == narrow
    assert Text(width=100).render(make_run()) == Text().render(make_run())


def errors_of(run: Run, texts: list[str]) -> str:
    """The table of errors of a run that failed with these texts, one request each, with single spaces."""
    given = pa.array([*texts, *[None] * (run.requests.num_rows - len(texts))], pa.string())
    at = run.requests.schema.get_field_index("error")
    table = run.requests.set_column(at, run.requests.schema.field(at), given)
    text = Text(width=100).render(Run(run.path, run.info, table, run.steps, run.schedule, True))
    rows = text.partition("\nstatus ")[2].partition("\n\n")[0].splitlines()[2:]
    return "\n".join(" ".join(row.split()) for row in rows)


def test_errors_that_differ_in_numbers_are_one(make_run: MakeRun) -> None:
    """Each of 288 rejected requests would be an error of its own, and hide the others."""
    texts = [f"needs KV memory for {22_000 + i:,} tokens, the replica has 21,312" for i in range(18)]

    expected = (
        "timeout needs KV memory for N tokens, the replica has 21,312 12\n"
        "error needs KV memory for N tokens, the replica has 21,312 6"
    )
    assert expected == errors_of(make_run(failed=18), texts)


def test_many_errors_are_cut_and_counted(make_run: MakeRun) -> None:
    """A run of many kinds of error would fill the screen, or hide that there were more."""
    lines = errors_of(make_run(failed=7, n=20), [f"kind {c}" for c in "abcdefg"]).splitlines()

    assert len(lines) == 4
    assert lines[-1] == "and 4 more (see the column error of requests.parquet) 4"


@pytest.mark.parametrize("form", ["text", "markdown", "html"])
def test_requests_of_one_instant_have_no_rate(form: str, make_run: MakeRun) -> None:
    """A burst that leaves in a blink would be reported as '15,224 req/s', as if it were a rate."""
    run = make_run(schedule={"requests": 240, "span_s": 0.0})
    text = re.sub(r"<[^>]*>|\\(?=:)", "", registry.make("reports", form).render(run))

    assert "all at one instant" in text
    assert "achieved" not in text


def test_no_number_has_an_exponent(make_run: MakeRun, put) -> None:
    """Rates and times would be printed as a machine writes them: '2e+03', '3.54e+03 s'."""
    run = make_run()
    put(run, workload={"rate_rps": 2e9})
    put(run, fidelity={"achieved_rps": 3.54e3, "drawn_rps": 2e9, "lateness_p50_s": 7.82e-9})
    text = Text(width=100).render(run)

    assert "at 2,000,000,000 requests per second" in text
    assert "achieved 3,540 req/s" in text
    assert "lateness p50 <0.001 ms" in text
    assert not re.search(r"\de[+-]\d", text)


FOLLOW_UPS = {"planned": 400, "sent": 310, "dropped": 20, "not_sent": 70}
SENDING: dict[str, dict[str, Any]] = {
    "a client that smooths the bursts": {"fidelity": {"drawn": {"dispersion": {"1": 3.9, "10": 4.1, "60": None}}}},
    "sessions": {
        "workload": {"rate_rps": 48.0, "provenance": {"sessions": "fixed:turns=3", "prefixes": "shared:count=2"}},
        "fidelity": {"follow_ups": {**FOLLOW_UPS, "closed": False}, "all": {"rps": 44.0, "sent": 550}},
    },
    "users": {
        "workload": {"rate_rps": None},
        "fidelity": {"follow_ups": {**FOLLOW_UPS, "closed": True}, "all": {"rps": 44.0}, "ks": None, "law": "none"},
    },
    "a rate that chance decides": {"workload": {"rate_rps": 48.0}, "fidelity": {"law": "none", "drawn_rps": 11.5}},
    "few requests far from the requested rate": {"workload": {"rate_rps": 10.0}},
    "few requests near the requested rate": {"workload": {"rate_rps": 10.0}, "fidelity": {"drawn_rps": 10.9}},
    "a trace on a grid": {"fidelity": {"ks": None, "ks_p": None, "law": "none", "tick_s": 2.9997, "expected_rps": 6.0}},
    "requested arrivals and lengths": {
        "spec": {"arrivals": "gamma:cv=2", "lengths": "fixed:prompt=512,output=16"},
        "workload": {"arrivals": "gamma:cv=2.0,rate_rps=12.0", "lengths": "fixed:output_tokens=16"},
    },
}


def test_what_was_requested_drawn_and_sent_golden(make_run: MakeRun, put, golden: Callable[[str, str], None]) -> None:
    """Sessions would be printed as requests, a trace with gaps that it lacks, or a rate that never came be praised."""
    parts = []
    for case, changes in SENDING.items():
        run = make_run()
        put(run, **changes)
        text = Text(width=100).render(run)
        verdict = text[text.index("95.4% of 240 requests met") :].partition(":")[0]
        parts.append(f"# {case}\n{text.partition('Latencies of')[0]}{verdict}\n")

    golden("sending.text.txt", "\n".join(parts))


@pytest.mark.parametrize("form", ["text", "markdown"])
def test_verdict_of_the_harness_is_shown_as_it_comes(form: str, make_run: MakeRun) -> None:
    """A run with warnings would be called valid without a word about them."""
    run = make_run(verdict={"valid": True, "text": "valid, with 2 warnings (late-client, few)"})
    text = " ".join(registry.make("reports", form).render(run).split())

    assert "VALID, with 2 warnings (late-client, few)" in text


def test_valid_is_never_green(make_run: MakeRun) -> None:
    """A green VALID would be read as 'passed' for a run that missed its goal."""
    lines = [line for slo in ("ttft=9", "ttft=0.1") for line in Text(color=True).render(make_run(slo=slo)).splitlines()]

    assert ["  VALID: All checks of the run passed."] * 2 == [line for line in lines if "VALID" in line]


@pytest.mark.parametrize(
    ("slo", "last", "says"),
    [
        ("ttft=9,p99:itl=0.001", "goal 90% missed (100.0%)", "so the SLO is missed"),
        ("p99:itl=0.001", "missed", "misses the SLO, as it breaks ITL p99 (run)"),
        ("p99:itl=9", "met", "ended well at 12 requests per second: meets the SLO"),
    ],
)
def test_a_broken_percentile_is_a_missed_slo(make_run: MakeRun, slo: str, last: str, says: str) -> None:
    """'all bounds 100.0%, goodput 8.12 (within the SLO)' was printed of a run that broke one of its bounds."""
    text = Text(width=100).render(make_run(slo=slo, failed=0))
    words = " ".join(text.split())

    assert f"all bounds {last}" in words
    assert says in words
    assert "within the SLO" not in words
    assert "met the SLO" not in words


def test_bounds_on_gaps_are_distinct(make_run: MakeRun) -> None:
    """A bound on the largest gap of each request would stand beside percentiles of all gaps, as if it spoke of them."""
    text = Text(width=100).render(make_run(slo="itl=0.04,itl_p99=0.05,p99:itl=0.1", failed=0))
    table = text.partition("\nmetric ")[2].partition("\n\n")[0]
    rows = {line[:19].strip(): line[19:].split() for line in table.splitlines()}

    objective = "ITL max (request) <= 40 ms, ITL p99 (request) <= 50 ms, ITL p99 (run) <= 100 ms"
    assert objective in " ".join(text.split())
    assert ["ms", "30.1", "30.0", "35.1", "39.3"] == rows["ITL"][:5]
    assert ["40", "ms"] == rows["ITL max (request)"][6:8]
    assert float(rows["ITL max (request)"][2]) > float(rows["ITL"][3])
    assert ["100", "ms", "met"] == rows["ITL p99 (run)"][:3]


def test_text_in_color_says_the_same(make_run: MakeRun) -> None:
    """A terminal would show other words than the log."""
    colored = Text(color=True).render(make_run())
    plain = re.sub(r"\x1b\[[0-9;]*m", "", colored)

    assert "\x1b[" in colored
    assert Text().render(make_run()).split() == plain.split()


def test_text_names_the_written_report(make_run: MakeRun, tmp_path: Path) -> None:
    """The user would not know where the page is."""
    run = make_run()
    (tmp_path / "report.html").write_text("")

    written = Text().render(Run(tmp_path, run.info, run.requests, run.steps, run.schedule, True))
    assert f"report:\n  {tmp_path / 'report.html'}\n" in written


def test_text_keeps_text_that_resembles_markup(make_run: MakeRun) -> None:
    """A model called '[red]x' would colour the terminal, ':smile:' would become a picture."""
    text = Text().render(make_run(warnings=[{"message": "[red]model[/red] :smile:", "remedy": "[link=x]y[/link]"}]))

    assert "[red]model[/red] :smile: [link=x]y[/link]." in " ".join(text.split()).replace(":smile:.", ":smile:")


def test_json_is_run_json(make_run: MakeRun) -> None:
    """A program would get other numbers than run.json holds."""
    run = make_run()

    assert {**encode(run.info), "complete": True} == json.loads(Json().render(run))


def test_json_of_a_killed_run_has_a_summary(make_run: MakeRun) -> None:
    """A program could not tell how far a killed run came."""
    found = json.loads(Json().render(killed(make_run(complete=False))))

    assert found["complete"] is False
    assert found["summary"]["requests"] == 240


def test_markdown_keeps_its_table(make_run: MakeRun) -> None:
    """A class called 'a|b' would shift the columns of the table."""
    run = make_run(slo="ttft@a|b\n=0.1", tags=("a|b\n", "c"))
    rows = [line for line in Markdown().render(run).splitlines() if line.startswith("|")]

    assert {10, 4} == {len(re.findall(r"(?<!\\)\|", row)) for row in rows}


def test_rows_without_values_have_one_unit_and_no_floor(remote_run: Callable[..., Run]) -> None:
    """A table without a number would be in milliseconds in one row, in seconds in the next, with a floor of each."""
    ask = {"status": "error", "error": "Connection refused", "token_s": [], "output_tokens": 0}
    rows = _rows.result(_data.summarized(remote_run(ask=ask))).rows

    assert {("", "-", "")} == {(row.unit, row.values["p99"], row.floor) for row in rows}


@pytest.mark.parametrize("form", ["text", "markdown", "html"])
def test_a_backend_that_failed_proves_nothing(form: str, make_run: MakeRun) -> None:
    """'GOAL REACHED' would stand over a run that ends with exit code 3."""
    failure = "20 of 240 requests (8.3%) failed for another reason than load (20 error); --max-failed allows 1%."
    text = registry.make("reports", form).render(make_run(failures={"exceeded": True, "said": failure}))
    flat = " ".join(text.split())

    assert "BACKEND FAILED" in flat
    assert "this proves nothing about the goal of 90%" in flat
    assert failure[:60] in flat
    assert "GOAL REACHED" not in flat
