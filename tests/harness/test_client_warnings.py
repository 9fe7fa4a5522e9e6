"""Warnings and verdicts of a run against a remote server whose client may have distorted the measurement."""

import dataclasses
from collections.abc import Callable
from itertools import cycle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.api import Outcome
from harness.data.codec import encode
from harness.data.folder import Run
from harness.data.large import thinned
from harness.data.records import server_metrics_table
from harness.data.run_json import Compared, Fidelity, OutputLengths, RunInfo
from harness.metrics.objective import Seen, parse_slo, restored_slo
from harness.runner.run import exit_code
from harness.stats.arrivals import Law
from harness.validity import client_warnings, conclude, server_metrics
from harness.validity import remote as validity_remote
from harness.validity.work_done import reasons

RemoteRun = Callable[..., Run]
FINE = "ttft=0.25,tpot=0.1"
DROPPED = {"accepted": [], "dropped": [{"field": "ignore_eos", "cost": "answers may be shorter than requested"}]}
BACKEND = {"name": "openai", "url": "http://127.0.0.1:8000/v1", "model": "m"}


def concluded(run: Run) -> dict[str, Any]:
    """The run.json of a run that has ended."""
    return encode(conclude.conclude(run, restored_slo(run.info), Law(5.0, known=False), outcome(run)))


def codes(run: Run) -> list[str]:
    return [warning["code"] for warning in concluded(run)["warnings"]]


def floor_of(ttft_s: float) -> dict[str, Any]:
    return {name: {"p50_s": ttft_s / 3, "p99_s": ttft_s} for name in ("ttft", "itl", "tpot", "e2e")}


def late(late_s: float, share: float = 1.0) -> dict[str, Any]:
    """Requests that leave so much too late, all or the first share of sixty."""
    return {"sent_s": lambda r: r.scheduled_s + (late_s if r.request_id < 60 * share else 1e-4)}


SHORT = {"output_tokens_asked": 80}
"""Answers of a quarter of what was requested."""
REFUSES = {**BACKEND, "capabilities": DROPPED}
TAKES = {**BACKEND, "capabilities": {"accepted": ["ignore_eos"]}}
CASES: dict[str, dict[str, Any]] = {
    "a sound run": {},
    "late-for-bound": {"ask": late(0.009), "slo": "ttft=0.15"},
    "late within its limit": {"ask": late(0.007), "slo": "ttft=0.15"},
    "late beside its bound": {"ask": late(0.016, 1 / 60), "slo": "ttft=0.15"},
    "late beside a longer bound": {"ask": late(0.016, 1 / 60), "slo": "ttft=0.17"},
    "late beside another bound": {"ask": late(0.016, 1 / 60), "slo": "tpot=0.1"},
    "late beside that of another class": {"ask": late(0.02) | {"tag": "batch"}, "slo": "ttft=0.15,ttft@batch=60"},
    "late beside that of its class": {"ask": late(0.02) | {"tag": "batch"}, "slo": "ttft=60,ttft@batch=0.15"},
    "late beside that of each request": {"ask": late(0.02) | {"slo_ttft_s": 0.1}, "slo": "ttft=60"},
    "slow-reader": {"sender": {"read_lag_p99_s": 0.0021}},
    "a reader within its limit": {"sender": {"read_lag_p99_s": 0.0019}},
    "shared-reads": {"wire": {"shared_events": 2}},
    "busy-client, a core": {"sender": {"cpu_share_max": 0.81}},
    "busy-client, waited": {"sender": {"run_wait_share": 0.06}},
    "busy-client, stalled": {"sender": {"stall_max_s": 0.021}},
    "busy-client, garbage": {"sender": {"gc_max_s": 0.006}},
    "busy-client, others": {"sender": {"other_load_cores": 0.21}},
    "busy-client, the worst of two": {"sender": {"cpu_share_max": 0.81, "stall_max_s": 0.2}},
    "slow-connect": {"wire": {"connect_s": 0.011}},
    "retransmits": {"sender": {"segments": 1000, "retransmits": 2}},
    "resent": {"sender": {"resent": 2}},
    "one of a thing": {
        "sender": {"resent": 1}, "wire": {"counted_by": lambda e: "events" if e.written_s < 0.1 else "usage"},
    },
    "open-files": {"sender": {"open_files": 900, "open_files_limit": 1024}},
    "clock": {"sender": {"clock_steps": 1}},
    "process-stamps": {"client": {"senders": 1, "stamps": "process", "per_sender": []}},
    "fallen-back-stamps": {"sender": {"process_stamps": 20}},
    "floor": {"floor": floor_of(0.011), "slo": "tpot=0.1"},
    "a floor within its limit": {"floor": floor_of(0.009), "slo": "tpot=0.1"},
    "unresolved": {"floor": floor_of(0.004), "slo": "ttft=0.145"},
    "tokens-per-event": {"ask": {"output_tokens": 22, "output_tokens_asked": 22, "token_n": [2, 2, *[1] * 18]}},
    "one event of two tokens": {"ask": {"output_tokens": 21, "output_tokens_asked": 21, "token_n": [2, *[1] * 19]}},
    "early-event": {"wire": {"first_event_s": lambda e: e.first_event_s - 0.006}},
    "late-answer": {"wire": {"first_content_s": lambda e: e.first_content_s + 0.006}},
    "not-streamed": {
        "ask": {"token_s": lambda r: [r.token_s[-1]], "token_n": [20]}, "backend": {**BACKEND, "stream": False},
        "wire": {"first_event_s": lambda e: e.first_event_s - 1, "first_content_s": lambda e: e.first_content_s + 1},
        "server_ttft": 0.2,
    },
    "prompt-lengths": {"ask": {"prompt_tokens_server": 103}},
    "prompts within their limit": {"ask": {"prompt_tokens_server": 101}},
    "dropped-field": {"backend": REFUSES},
    "insecure": {"backend": {**BACKEND, "insecure": True}},
    "no-salt": {"backend": {**BACKEND, "salt": "none"}},
    "made-up-prompts": {"workload": {"provenance": {"prompts": "recorded"}}},
    "server-disagrees": {"server_ttft": 1.06},
    "a server that nearly agrees": {"server_ttft": 1.04},
    "shared-server": {"server_requests": 2},
    "failures that the server did not count": {"ask": {"status": lambda r: "timeout" if r.request_id < 10 else "ok"}},
    "times in the answers": {"wire": {"server_prefill_s": 0.25}},
    "short-answers": {"ask": {"output_tokens_asked": 21}},
    "short, where no length can be requested":
        {"ask": {"output_tokens_asked": 21}, "backend": {**BACKEND, "capabilities": {"accepted": []}}},
    "a quarter of the work": {"ask": SHORT},
    "99 % of it": {"ask": {"output_tokens_asked": lambda r: 32 if r.request_id == 0 else 20}},
    "less than 99 %": {"ask": {"output_tokens_asked": lambda r: 33 if r.request_id == 0 else 20}},
    "a quarter, the server refuses": {"ask": SHORT, "backend": REFUSES},
    "a quarter, refuses and accepted": {"ask": SHORT, "backend": {**REFUSES, "output_lengths": "server"}},
    "a quarter, takes it and accepted": {"ask": SHORT, "backend": {**TAKES, "output_lengths": "server"}},
    "a quarter, refuses and exact": {"ask": SHORT, "backend": {**REFUSES, "output_lengths": "exact"}},
    "a quarter, takes min_tokens":
        {"ask": SHORT, "backend": {**BACKEND, "capabilities": {"accepted": ["min_tokens"]}}},
    "a quarter, counted by chunks": {"ask": SHORT, "wire": {"counted_by": "events"}},
    "counted by a tokenizer": {"wire": {"counted_by": "tokenizer"}},
    "half of the answers broke off": {"ask": {
        "status": lambda r: "truncated" if r.request_id % 2 else "ok",
        "output_tokens_asked": lambda r: 80 if r.request_id % 2 else 20,
    }},
}  # fmt: skip


BESIDE = (
    "a sound run",
    "server-disagrees",
    "shared-server",
    "failures that the server did not count",
    "times in the answers",
)
"""Cases whose sums of the server are shown beside those of the client."""


def test_what_a_run_against_a_server_is_warned_of_golden(remote_run: RemoteRun, golden: Callable[..., None]) -> None:
    """A slow client would be reported as a slow server, less work as speed, or a warning always be there."""
    parts = []
    for reason, changes in CASES.items():
        info = concluded(remote_run(**changes))
        lines = [f"# {reason}", info["verdict"]["text"]]
        warnings = [warning for warning in info["warnings"] if warning["code"] != "few-requests"]
        lines += [f"{warning['code']}: {warning['message']}; {warning['remedy']}" for warning in warnings]
        lengths = next(check for check in info["checks"] if check["check"] == "output-lengths")
        lines.append(f"output-lengths {lengths['state']}: " + lengths["said"])
        rows = info["server"]["compared"] if reason in BESIDE else []
        sides = [
            (row, [None if row[side] is None else round(row[side], 4) for side in ("client", "server")]) for row in rows
        ]
        lines += [
            f"  {row['name']}: client {client}, server {server}, {row['within']}, {row['why']}"
            for row, (client, server) in sides
        ]
        parts.append("\n".join(lines))
    golden("client-warnings.txt", "\n\n".join(parts) + "\n")


@pytest.mark.parametrize("thin", [False, True])
@pytest.mark.parametrize(
    ("merged", "lags_s", "valid"),
    [
        (1, (0.002,), False),
        (0, (0.05,), True),
        (60, (5e-4,), True),
        (60, (5e-4, 0.002), True),
        (9, (5e-4, 0.002), False),
    ],
)
def test_first_tokens_that_are_read_late_with_later_ones_are_no_ttft(
    merged: int, lags_s: tuple[float, ...], valid: bool, thin: bool, remote_run: RemoteRun
) -> None:
    """A client that stood still would be called valid; a server that sends two tokens at once would not."""
    lag_s = cycle(lags_s)
    run = remote_run(
        ask={"token_s": lambda r: [r.token_s[1], *r.token_s[1:]] if r.request_id < merged else r.token_s},
        wire={"read_lag_s": lambda _: next(lag_s)},
    )
    run = dataclasses.replace(run, requests=thinned(run.requests)) if thin else run
    reasons_found = client_warnings.reasons(run, parse_slo(FINE))

    assert ([] if valid else ["late-first-tokens"]) == [reason.code for reason in reasons_found]


def test_a_rate_that_was_not_reached_is_a_warning(remote_run: RemoteRun) -> None:
    """A slow client would be taken for a quiet one."""
    run, bounds = remote_run(), parse_slo(FINE)
    slow = Fidelity(drawn_rps=5.0, achieved_rps=4.9, scheduled=60, sent=60)
    fewer = Fidelity(drawn_rps=5.0, achieved_rps=4.9, scheduled=60, sent=50)

    assert "achieved-rate" in [c.code for c in client_warnings.warnings(run, bounds, slow)]
    assert "achieved-rate" not in [c.code for c in client_warnings.warnings(run, bounds, fewer)]


def test_other_runs_are_left_alone(remote_run: RemoteRun, put) -> None:
    """A simulation would be warned of its network."""
    run = dataclasses.replace(remote_run(**CASES["no-salt"]), http=None)
    put(run, client=None, floor=None, server=None)

    assert ["few-requests"] == codes(run)
    assert "resolution" not in concluded(run)


def outcome(run: Run) -> Outcome:
    return Outcome("finished", run.requests.num_rows, 0, 0)


@pytest.mark.parametrize(
    ("bounds", "error_s", "code"),
    [
        ("ttft=0.25", 0.002, 0),
        ("ttft=0.144", 0.002, 5),  # 90% of the requests are within 0.143 s
        ("ttft=0.1425", 0.002, 5),
        ("ttft=0.135", 0.002, 1),
        ("p50:ttft=0.1205", 0.002, 5),
        ("p50:ttft=0.135", 0.002, 0),
        ("p50:ttft=0.115", 0.002, 1),
        ("tpot=0.0201", 0.001, 5),
        ("tpot=0.0199", 0.00001, 1),
    ],
)
def test_a_bound_within_the_floor_decides_nothing(
    bounds: str, error_s: float, code: int, remote_run: RemoteRun
) -> None:
    """A pipeline would pass or fail by the error of the client that measured."""
    run = remote_run(slo=bounds, floor=floor_of(error_s))
    info = concluded(run)

    assert code == exit_code(RunInfo.of(info), outcome(run), 0.9)
    assert exit_code(RunInfo.of(info), outcome(run), None) == 0
    assert (code == 5) == info["verdict"]["unresolved"] == bool(info["resolution"]["unresolved"])


def test_bounds_that_requests_bring_along_are_moved_too(remote_run: RemoteRun) -> None:
    """The bound of a trace would be decided by the error of the client."""
    own = {"slo_ttft_s": 0.144}
    table = remote_run(ask=own).requests
    moved, near = (
        validity_remote.resolution(Seen(table), parse_slo(""), RunInfo.of({"floor": floor_of(ttft_s)}).floor)
        for ttft_s in (0.002, 0.0001)
    )

    assert moved is not None
    assert moved.undecided
    assert ["ttft (per request)"] == moved.unresolved
    assert near.undecided is False


@pytest.mark.parametrize("floor", [None, {}, {"ttft": None}, {"ttft": {"p50_s": 0.1}}, {"why": "off"}])
def test_without_a_floor_nothing_is_left_open(floor: Any, remote_run: RemoteRun) -> None:
    """A run of an older version could not be read."""
    run = remote_run(floor=floor)

    assert validity_remote.resolution(Seen(run.requests), parse_slo(FINE), run.info.floor) is None
    assert validity_remote.undecided(RunInfo.of(concluded(run)).resolution, 0.9) is False


@pytest.mark.parametrize(
    ("counted", "words", "length"),
    [
        ({"drafts": (10.0, 110.0), "taken": (20.0, 270.0)}, {"drafts": "drafts", "accepted": "taken"}, 3.5),
        ({"mean": (2.0, 3.0)}, {"accept_length": "mean"}, 2.5),
        ({"drafts": (10.0, 10.0), "taken": (20.0, 20.0)}, {"drafts": "drafts", "accepted": "taken"}, None),
    ],
)
def test_accepted_drafts_are_those_of_the_run(
    counted: dict[str, tuple[float, float]], words: dict[str, str], length: float | None, remote_run: RemoteRun
) -> None:
    """A server that speculates would show how fast it is, and not why."""
    up = [(at_s, "up", 'instance="127.0.0.1:8000"', 1.0) for at_s in (0.0, 9.0)]
    rows = [
        (at_s, name, "", value)
        for name, values in counted.items()
        for at_s, value in zip((0.0, 9.0), values, strict=True)
    ]
    server = {
        "kind": "vllm",
        "metrics_url": ["http://h/metrics"],
        "names": words,
        "scrapes": 2,
        "failed": 0,
        "why": None,
    }
    run = dataclasses.replace(remote_run(server=server), server_metrics=server_metrics_table([*up, *rows]))

    found = {row.name: row.server for row in server_metrics.compared(run)}

    assert length == found.get("tokens of a step with a draft")


def test_a_counter_that_begins_again_goes_on(remote_run: RemoteRun) -> None:
    """A server that was restarted in the run would have counted fewer than nothing."""
    series = server_metrics.Series(np.arange(4.0), np.array([100.0, 110.0, 3.0, 5.0]), since_start=True)

    assert series.increase == 15
    assert dataclasses.replace(series, since_start=False).increase == 115
    assert [0.0, 100.0, 110.0, 5.0] == series.at(np.array([-1.0, 0.5, 1.0, 9.0])).tolist()


def test_a_stranger_is_not_compared(remote_run: RemoteRun) -> None:
    """A server of no known kind would break the report."""
    unknown = {"kind": None, "metrics_url": ["http://h/metrics"], "names": {}, "scrapes": 3, "failed": 0, "why": None}

    assert server_metrics.compared(remote_run(server=unknown)) == []
    assert server_metrics.compared(dataclasses.replace(remote_run(), server_metrics=None)) == []


def test_parts_of_a_quantity_are_added(remote_run: RemoteRun) -> None:
    """llama.cpp counts cached tokens of prompts apart: its prompts would seem shorter than those that were sent."""
    run = remote_run()
    run.info.server.names["prompt_tokens"] = "prompt + output"
    rows = {row.name: row for row in server_metrics.compared(run)}

    assert rows["prompt tokens"].server == 7200


def test_a_server_that_was_gone_at_the_end_is_not_held_to_its_sums(remote_run: RemoteRun) -> None:
    """The last counts of a server that died would be reported as wrong."""
    run = remote_run(server_requests=2)
    gone = server_metrics_table([(17.0, "up", 'instance="127.0.0.1:8000"', 0.0)])
    run = dataclasses.replace(run, server_metrics=pa.concat_tables([run.server_metrics, gone]))

    assert {row.within for row in server_metrics.compared(run)} == {None}
    assert "shared-server" not in codes(run)


@given(
    st.lists(st.integers(0, 1000), min_size=1, max_size=30),
    st.integers(0, 1000),
    st.booleans(),
)
def test_a_counter_rises_by_what_was_counted(steps: list[int], before: int, there: bool) -> None:
    """What is left out of the table because it did not change would be missing from the sums."""
    values = np.cumsum([before, *steps]).astype(float)
    kept = [i for i in range(len(values)) if i == 0 or values[i] != values[i - 1]]
    series = server_metrics.Series(np.array(kept, float), values[kept], since_start=there)

    assert series.increase == values[-1] - (values[0] if there else 0.0)
    assert values.tolist() == series.at(np.arange(len(values))).tolist()


def remedies(run: Run) -> dict[str, str]:
    return {warning["code"]: warning["remedy"] for warning in concluded(run)["warnings"]}


@pytest.mark.parametrize(
    ("cpu", "wait", "senders", "cores", "more"),
    [
        (0.10, 0.0, 1, 8, False),
        (0.60, 0.0, 1, 8, False),
        (0.85, 0.0, 1, 8, True),
        (0.85, 0.2, 1, 8, False),
        (0.85, 0.0, 2, 2, False),
        (0.85, 0.0, 1, 1, False),
    ],
)
def test_more_senders_are_advised_only_where_they_help(
    cpu: float, wait: float, senders: int, cores: int, more: bool, remote_run: RemoteRun, put
) -> None:
    """A third sender on two cores, or a second beside an idle one, would make a slow reader slower."""
    run = remote_run(
        sender={"read_lag_p99_s": 0.0021, "cpu_share_max": cpu, "run_wait_share": wait}, host={"cores": cores}
    )
    put(run, client={"senders": senders})
    info = remedies(run)

    for code in ("slow-reader", "busy-client") if cpu > 0.8 else ("slow-reader",):
        assert more == ("more senders" in info[code])
        assert more != ("another one" in info[code])


def test_without_facts_of_the_host_the_cores_of_this_machine_count(
    remote_run: RemoteRun, monkeypatch: pytest.MonkeyPatch, put
) -> None:
    """A folder of an older version could not be reported."""
    run = remote_run(sender={"cpu_share_max": 0.9})
    put(run, host=None)
    monkeypatch.setattr("os.cpu_count", lambda: 1)

    assert "more senders" not in remedies(run)["busy-client"]
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    assert "more senders" in remedies(run)["busy-client"]


"""Answers of a quarter of what was requested."""


def test_only_a_remote_endpoint_gets_advice_about_options_of_servers() -> None:
    """A run of null:tokens=5 advised output-lengths=server, which null refuses."""
    short = OutputLengths(
        by="request", requests=60, output_tokens=5.0, requested_tokens=80.0, share=0.0625, counted=True
    )

    for remote in (True, False):
        (reason,) = reasons(short, remote=remote)
        assert remote == ("output-lengths" in reason.remedy)


@pytest.mark.parametrize(("late_s", "codes"), [(0.006, ["server-late"]), (0.004, [])])
def test_a_server_whose_process_is_late_is_named(late_s: float, codes: list[str]) -> None:
    """The processor that runs `bench serve` would be taken for the GPU that it simulates."""
    rows = [Compared("mean TTFT", "s", 0.1, 0.1), Compared(server_metrics.LATE, "s", None, late_s)]

    assert codes == [warning.code for warning in server_metrics.warnings(rows)]
