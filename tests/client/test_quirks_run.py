"""Odd servers seen through `bench run`: the records of each request, the warnings in words, the exit code."""

from collections.abc import Callable

import numpy as np
import pytest
from bench_tests_quirks import CASES  # the table beside this file, loaded by conftest

from harness.data.folder import Run, load
from harness.metrics.measure import metrics


@pytest.fixture(autouse=True)
def streams_are_live(monkeypatch: pytest.MonkeyPatch) -> None:
    """No stream is held back because the server, a thread of this process, got no core on a busy machine."""
    monkeypatch.setattr("harness.data.held_back.FEW_PIECES", 2.0)


def _run(run_here: Callable, url: str, *more: str, rate: int = 60, requests: int = 20, timeout: str = "2min") -> Run:
    """A run of 8 tokens each, which must end without a traceback whatever the server does."""
    code, out, err = run_here(
        "run", "--backend", f"openai:url={url},model=m,timeout={timeout}", "--rate", str(rate),
        "--arrivals", "constant", "--requests", str(requests), "--lengths", "fixed:prompt=30,output=8",
        "--max-failed", "100%", "--calibrate", "off", "--out", "out", "--no-html", *more,
    )  # fmt: skip
    assert code in (0, 1, 4, 5), err
    found = load("out")
    found.memo["printed"] = out + err
    return found


def _fits_a_run(name: str, api: str) -> bool:
    """Whether a case needs no other options than all the others."""
    _, options, only, _ = CASES[name]
    return only in (None, api) and options.keys() <= {"timeout_s"}


@pytest.mark.nightly
@pytest.mark.parametrize(("api", "senders"), [("chat", 1), ("completions", 2)])
def test_every_quirk_in_one_run_leaves_a_record_each(
    api: str, senders: int, scripted: Callable, run_here: Callable
) -> None:
    """A record would be lost between the processes, or one odd answer would spoil the run of all others."""
    names = [name for name in reversed(CASES) if _fits_a_run(name, api)]
    server = scripted(it=[CASES[name][0] for name in names])
    server.arm_measured()

    run = _run(run_here, f"{server.url('it')},api={api}", "--senders", str(senders), requests=len(names), timeout="2s")

    rows = {row["request_id"]: row for row in run.requests.to_pylist()}
    http = {row["request_id"]: row for row in run.http.to_pylist()}
    assert list(range(len(names))) == sorted(rows) == sorted(http)
    wrong = {
        name: (owed, found)
        for i, name in enumerate(names)
        if (owed := _owed(CASES[name][3])) != (found := _found(rows[i], http[i], owed))
    }
    assert {} == wrong
    assert senders == len({row["sender"] for row in http.values()})
    assert {"ok", "empty", "rejected", "timeout", "error", "truncated"} == {row["status"] for row in rows.values()}


def _owed(owed: dict) -> dict:
    kept = ("status", "events", "http", "counted_by", "finish") + (("tokens",) if owed["tokens"] is not None else ())
    return {key: owed[key] for key in kept if key in owed}


def _found(row: dict, http: dict, owed: dict) -> dict:
    found = {
        "status": row["status"], "events": len(row["token_s"]), "tokens": row["output_tokens"],
        "http": http["http_status"], "counted_by": http["counted_by"], "finish": http["finish_reason"],
    }  # fmt: skip
    assert (row["status"] == "ok") == (row["error"] is None)
    return {key: found[key] for key in owed}


LENGTHS = ("ignore_eos", "min_tokens", "generation_config")
WARNINGS: dict[str, tuple[dict, str, tuple[str, ...]]] = {
    "counted-by-chunks": ({"usage": None}, "", ("counted by chunks", "20 answers")),
    "early-event": (
        {"role": "early", "ttft_s": 0.5, "itl_s": 0.005},
        "",
        ("without any text", "before the first token"),
    ),
    "dropped-field": ({"refuse": LENGTHS}, "", ("refuses ignore_eos", "answers may be shorter")),
    "server-output-lengths": ({}, "", ("output lengths by the server",)),
    "no-salt": ({}, ",salt=none", ("salt",)),
    "late-answer": ({"reasoning": 3, "itl_s": 0.05}, "", ("reasoning",)),
    "tokens-per-event": ({"per_event": 3}, "", ("ITL is per event of 3 tokens",)),
    "short-answers": ({"tokens": 6}, "", ("100.0% of the answers are shorter than requested", "ignore_eos")),
}


@pytest.mark.parametrize("codes", [tuple(WARNINGS)[:5], tuple(WARNINGS)[5:]], ids=["requests", "answers"])
def test_oddities_that_change_the_meaning_of_a_figure_are_warned_of(
    codes: tuple[str, ...], scripted: Callable, run_here: Callable
) -> None:
    """A figure would be read as what it is not."""
    quirks = {k: v for code in codes for k, v in WARNINGS[code][0].items()}
    options = "".join(WARNINGS[code][1] for code in codes)
    server = scripted(it=quirks)
    server.arm_measured()

    run = _run(run_here, server.url("it") + options)

    found: dict[str, str] = {}
    for warning in run.info.warnings:
        found[warning.code] = found.get(warning.code, "") + warning.message + "; "
    assert set(codes) <= set(found), run.memo["printed"]
    assert [] == [(code, word) for code in codes for word in WARNINGS[code][2] if word not in found[code]]


def test_a_server_that_ignores_ignore_eos_is_measured_only_where_it_may_choose(
    scripted: Callable, run_here: Callable
) -> None:
    """It takes the field and ends its answers early all the same: the claim of the server would be believed."""
    server = scripted(it={"tokens": 6})
    server.arm_measured()

    url = server.url("it")
    assert 2 == run_here("run", "--backend", f"openai:url={url},output-lengths=some", "--out", "none")[0]
    first = _run(run_here, url)
    short, chosen = first.info, _run(run_here, f"{url},output-lengths=server", "--force").info

    assert ("exact", False) == (short.backend["output_lengths"], short.verdict.valid)
    assert "write 'URL,output-lengths=server'" in first.memo["printed"].replace("\n         ", "")
    assert ("server", True) == (chosen.backend["output_lengths"], chosen.verdict.valid)
    assert (True, None) == tuple(info.capabilities["ignore_eos"] for info in (short, chosen))
    assert (6.0, 8.0) == (chosen.output_lengths.output_tokens, chosen.output_lengths.requested_tokens)


def test_a_server_that_claims_more_tokens_than_were_requested_is_not_measured(
    scripted: Callable, run_here: Callable
) -> None:
    """Ten million tokens for eight would be a throughput."""
    server = scripted(it={"usage_more": 10_000_000})
    server.arm_measured()

    run = _run(run_here, server.url("it"))

    check = next(check for check in run.info.checks if check.check == "output-lengths")
    assert ("failed", False) == (check.state, run.info.verdict.valid)
    assert "for 20 of 20 requests: 10,000,008 for request 0, of which 8 were requested" in check.text
    assert [8] * 20 == run.requests["output_tokens"].to_pylist()
    assert [10_000_008] * 20 == run.http["refused_tokens"].to_pylist()
    assert "counted-by-chunks" not in {warning.code for warning in run.info.warnings}


def test_tokens_that_are_never_streamed_are_none_of_tpot(scripted: Callable, run_here: Callable) -> None:
    """Thirty hidden tokens of forty would make TPOT a quarter of what it is, and pass a gate that it misses."""
    server = scripted(it={"tokens": 10, "hidden": 30, "itl_s": 0.002})
    server.arm_measured()

    run = _run(run_here, server.url("it"), "--lengths", "fixed:prompt=30,output=40", "--slo", "tpot=0.001")

    info, (warned,) = run.info, [w for w in run.info.warnings if w.code == "unseen-tokens"]
    span_s = np.array([stamps[-1] - stamps[0] for stamps in run.requests["token_s"].to_pylist()])
    assert ([40] * 20, [30] * 20) == tuple(run.requests[c].to_pylist() for c in ("output_tokens", "unseen_tokens"))
    assert (800, 200, 600) == (info.summary.tokens.output, info.summary.tokens.streamed, info.summary.tokens.unseen)
    tpot_s = metrics()["tpot"].of(run.requests)
    known = np.isfinite(tpot_s)  # not of answers that came all at once on a busy machine
    assert list(span_s[known] / 9) == pytest.approx(list(tpot_s[known]))
    assert known.any()
    assert info.summary.passed is False
    assert 40 == info.output_lengths.output_tokens and info.summary.output_tps > 3 * 10 * info.summary.throughput_rps
    assert warned.message.startswith("40 tokens: 10 streamed, 30 unseen (mean of an answer)")
    assert "40 tokens: 10 streamed, 30 unseen an answer" in " ".join(run.memo["printed"].split())


def test_empty_answers_miss_the_slo_and_are_no_failures(scripted: Callable, run_here: Callable) -> None:
    """A model that ends one answer of four at once would be a failed backend, and the run lost."""
    server = scripted(it=[{}, {}, {}, {"tokens": 0, "finish": "stop"}])
    server.arm_measured()

    run = _run(run_here, f"{server.url('it')},output-lengths=server", "--slo", "ttft=5", "--max-failed", "0%")

    info = run.info
    assert {"ok": 15, "empty": 5} == {status: n for status, n in info.summary.status.items() if n}
    assert (0.75, 0.0, 0) == (info.summary.attainment, info.summary.failed, info.failures.requests)
    assert info.verdict.valid and "5 of 20 answers are empty" in next(
        warned.message for warned in info.warnings if warned.code == "empty-answers"
    )
    assert "15 ok (75.0%), 5 empty (25.0%)" in " ".join(run.memo["printed"].split())


def test_a_run_of_empty_answers_says_so(scripted: Callable, run_here: Callable) -> None:
    """Nothing would be measured, and the reason looked for among errors that there are not."""
    server = scripted(it={"tokens": 0, "finish": "stop"})
    server.arm_measured()

    run = _run(run_here, f"{server.url('it')},output-lengths=server", requests=30)

    assert ["empty"] * 30 == run.requests["status"].to_pylist() and not run.info.verdict.valid
    assert "Every answer is empty: 30 of 30 ended well, without any text (finish_reason stop" in " ".join(
        run.memo["printed"].split()
    )


def test_an_answer_beyond_the_limits_fails_in_a_sentence_and_the_run_goes_on(
    scripted: Callable, run_here: Callable
) -> None:
    """One answer without end would take the memory of the client, and the run with it."""
    server = scripted(it=[{}, {"words": ("y" * 3000,)}])
    server.arm_measured()

    run = _run(run_here, server.url("it") + ",max_body=12KiB,max_head=4KiB,max_event=8KiB,salt=s")

    rows = {row["request_id"]: row for row in run.requests.to_pylist()}
    assert ["ok", "error"] * 10 == [rows[i]["status"] for i in range(20)]
    assert {None, "the answer is larger than 12,288 bytes (max_body_bytes)"} == {row["error"] for row in rows.values()}


def test_a_server_that_fails_every_request_stops_the_run_early(scripted: Callable, run_here: Callable) -> None:
    """An hour of nothing but failures would be measured."""
    server = scripted(it={"status": 500})
    server.arm_measured()
    code, _, err = run_here(
        "run", "--backend", f"openai:url={server.url('it')},model=m", "--rate", "50", "--duration", "30s", "--lengths",
        "fixed:prompt=30,output=8", "--calibrate", "off", "--out", "out", "--no-html",
    )  # fmt: skip

    assert 3 == code
    assert "regrets" in err
    assert 20 <= len(load("out").requests) < 1000


def test_turns_are_counted_after_the_run_too(scripted: Callable, run_here: Callable) -> None:
    """Answers that others wait for would be counted by chunks, and those at the end of a session by a tokenizer."""
    server = scripted(it={"usage": None, "tokenize": True})
    server.arm_measured()

    run = _run(run_here, server.url("it"), "--sessions", "fixed:turns=2,think=10ms")

    assert ["ok"] * 20 == run.requests["status"].to_pylist()
    assert {"server tokenizer"} == set(run.http["counted_by"].to_pylist())
