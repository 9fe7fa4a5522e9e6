"""Warnings and verdicts of a run against a remote server whose client may have distorted the measurement."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.api import Outcome
from harness.data.codec import encode
from harness.data.folder import Run
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


def few(found: list[str]) -> list[str]:
    """Without the warning that sixty requests are few."""
    return [code for code in found if code != "few-requests"]


def floor_of(ttft_s: float) -> dict[str, Any]:
    return {name: {"p50_s": ttft_s / 3, "p99_s": ttft_s} for name in ("ttft", "itl", "tpot", "e2e")}


def test_a_sound_run_has_nothing_to_say(remote_run: RemoteRun) -> None:
    """A warning that is always there is ignored."""
    info = concluded(remote_run())

    assert few([w["code"] for w in info["warnings"]]) == []
    assert info["verdict"]["valid"]
    assert info["verdict"]["unresolved"] is False


CASES: dict[str, dict[str, Any]] = {
    "late-for-bound": {"ask": {"sent_s": lambda r: r.scheduled_s + 0.009}, "slo": "ttft=0.15"},
    "slow-reader": {"sender": {"read_lag_p99_s": 0.0021}},
    "shared-reads": {"wire": {"shared_events": 2}},
    "busy-client": {"sender": {"cpu_share_max": 0.81}},
    "slow-connect": {"wire": {"connect_s": 0.011}},
    "retransmits": {"sender": {"segments": 1000, "retransmits": 2}},
    "resent": {"sender": {"resent": 2}},
    "open-files": {"sender": {"open_files": 900, "open_files_limit": 1024}},
    "clock": {"sender": {"clock_steps": 1}},
    "process-stamps": {"client": {"senders": 1, "stamps": "process", "per_sender": []}},
    "fallen-back-stamps": {"sender": {"process_stamps": 20}},
    "floor": {"floor": floor_of(0.011), "slo": "tpot=0.1"},
    "unresolved": {"floor": floor_of(0.004), "slo": "ttft=0.145"},
    "counted-by-chunks": {"wire": {"counted_by": "events"}},
    "tokens-per-event": {"ask": {"output_tokens": 22, "output_tokens_asked": 22, "token_n": [2, 2, *[1] * 18]}},
    "early-event": {"wire": {"first_event_s": lambda e: e.first_event_s - 0.006}},
    "late-answer": {"wire": {"first_content_s": lambda e: e.first_content_s + 0.006}},
    "not-streamed": {"backend": {**BACKEND, "stream": False}},
    "prompt-lengths": {"ask": {"prompt_tokens_server": 103}},
    "short-answers": {"ask": {"output_tokens_asked": 21}},
    "dropped-field": {"backend": {**BACKEND, "capabilities": DROPPED}},
    "insecure": {"backend": {**BACKEND, "insecure": True}},
    "no-salt": {"backend": {**BACKEND, "salt": "none"}},
    "made-up-prompts": {"workload": {"provenance": {"prompts": "recorded"}}},
    "server-disagrees": {"server_ttft": 1.06},
    "shared-server": {"server_requests": 2},
}


@pytest.mark.parametrize("code", CASES)
def test_what_may_be_the_client_is_a_warning(code: str, remote_run: RemoteRun) -> None:
    """A slow client would be reported as a slow server."""
    run = remote_run(**CASES[code])
    warning = next(w for w in concluded(run)["warnings"] if w["code"] == code)

    assert code in codes(run)
    assert warning["message"]
    assert warning["remedy"] or code in ("late-answer", "dropped-field")


@pytest.mark.parametrize(
    ("sender", "worst"),
    [
        ({"cpu_share_max": 0.81}, "used 81% of a core"),
        ({"run_wait_share": 0.06}, "waited for a core 6.0% of the time"),
        ({"stall_max_s": 0.021}, "was 21 ms late once"),
        ({"gc_max_s": 0.006}, "collected garbage for 6 ms"),
        ({"other_load_cores": 0.21}, "used 0.21 cores per sender"),
        ({"cpu_share_max": 0.81, "stall_max_s": 0.2}, "was 200 ms late once"),
    ],
)
def test_a_busy_machine_is_one_warning_with_its_worst_figure(
    sender: dict[str, float], worst: str, remote_run: RemoteRun
) -> None:
    """Five warnings would say one thing, and a reader would look for five causes."""
    (warning,) = (w for w in concluded(remote_run(sender=sender))["warnings"] if w["code"] != "few-requests")

    assert "busy-client" == warning["code"]
    assert worst in warning["message"]


NEAR: dict[str, dict[str, Any]] = {
    "late-for-bound": {"ask": {"sent_s": lambda r: r.scheduled_s + 0.007}, "slo": "ttft=0.15"},
    "slow-reader": {"sender": {"read_lag_p99_s": 0.0019}},
    "floor": {"floor": floor_of(0.009), "slo": "tpot=0.1"},
    "tokens-per-event": {"ask": {"output_tokens": 21, "output_tokens_asked": 21, "token_n": [2, *[1] * 19]}},
    "prompt-lengths": {"ask": {"prompt_tokens_server": 101}},
    "short-answers": {"ask": {"output_tokens_asked": 21}, "backend": {**BACKEND, "capabilities": {"accepted": []}}},
    "server-disagrees": {"server_ttft": 1.04},
}


@pytest.mark.parametrize("code", NEAR)
def test_what_is_within_its_limit_is_not(code: str, remote_run: RemoteRun) -> None:
    """A warning that is always there is ignored."""
    assert code not in codes(remote_run(**NEAR[code]))


def test_a_rate_that_was_not_reached_is_a_warning(remote_run: RemoteRun) -> None:
    """A slow client would be taken for a quiet one."""
    run, bounds = remote_run(), parse_slo(FINE)
    slow = Fidelity(drawn_rps=5.0, achieved_rps=4.9, scheduled=60, sent=60)
    fewer = Fidelity(drawn_rps=5.0, achieved_rps=4.9, scheduled=60, sent=50)

    assert "achieved-rate" in [c.code for c in client_warnings.warnings(run, bounds, slow)]
    assert "achieved-rate" not in [c.code for c in client_warnings.warnings(run, bounds, fewer)]


def test_a_client_late_beside_its_bound_spoils_the_run(remote_run: RemoteRun) -> None:
    """TTFT within 0.15 s would be denied to a server because its client was 16 ms late."""
    late = {"sent_s": lambda r: r.scheduled_s + (0.016 if r.request_id == 0 else 0.0)}
    info = concluded(remote_run(ask=late, slo="ttft=0.15"))

    assert not info["verdict"]["valid"]
    assert "1.7% of the requests later than 10% of their TTFT bound" in info["verdict"]["reasons"][0]
    assert concluded(remote_run(ask=late, slo="ttft=0.17"))["verdict"]["valid"]
    assert concluded(remote_run(ask=late, slo="tpot=0.1"))["verdict"]["valid"]


def test_each_class_is_late_beside_its_own_bound(remote_run: RemoteRun) -> None:
    """A batch job that may wait a minute would spoil a run by 20 ms."""
    late = {"sent_s": lambda r: r.scheduled_s + 0.02, "tag": "batch"}

    assert concluded(remote_run(ask=late, slo="ttft=0.15,ttft@batch=60"))["verdict"]["valid"]
    assert not concluded(remote_run(ask=late, slo="ttft=60,ttft@batch=0.15"))["verdict"]["valid"]
    assert not concluded(remote_run(ask={**late, "slo_ttft_s": 0.1}, slo="ttft=60"))["verdict"]["valid"]


def test_other_runs_are_left_alone(remote_run: RemoteRun, put) -> None:
    """A simulation would be warned of its network."""
    run = dataclasses.replace(remote_run(**CASES["no-salt"]), http=None)
    put(run, client=None, floor=None, server=None)

    assert few(codes(run)) == []
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


def test_sums_of_the_server_are_those_of_the_run(remote_run: RemoteRun) -> None:
    """What the server counted before the run would be held against the client."""
    rows = {row.name: row for row in server_metrics.compared(remote_run())}

    assert rows["requests"].server == 60
    assert rows["prompt tokens"].server == 6000
    assert rows["output tokens"].server == 1200
    assert rows["mean TTFT"].server == pytest.approx(rows["mean TTFT"].client)
    assert rows["mean E2E"].server == pytest.approx(rows["mean E2E"].client)
    assert rows["mean time in its queue"].server == pytest.approx(0.01)
    assert rows["mean time in its queue"].within is None
    assert rows["requests in flight, mean"].server == rows["requests in flight, mean"].client
    assert all(row.within in (True, None) for row in rows.values())


def test_failed_requests_may_or_may_not_be_counted(remote_run: RemoteRun) -> None:
    """Ten timeouts that the server ended too would look like another user of it."""
    run = remote_run(ask={"status": lambda r: "timeout" if r.request_id < 10 else "ok"})
    rows = {row.name: row for row in server_metrics.compared(run)}

    assert (50.0, 50.0, True) == (rows["requests"].client, rows["requests"].server, rows["requests"].within)
    assert (5000.0, 5000.0, True) == (
        rows["prompt tokens"].client,
        rows["prompt tokens"].server,
        rows["prompt tokens"].within,
    )
    assert rows["mean E2E"].within is None


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


def test_times_in_the_answers_are_compared(remote_run: RemoteRun) -> None:
    """What llama.cpp tells of its prefill, in each answer and not in its metrics, would be lost."""
    run = dataclasses.replace(remote_run(wire={"server_prefill_s": 0.25}), server_metrics=None)

    assert [("mean prefill, in its answers", 0.25)] == [(r.name, r.server) for r in server_metrics.compared(run)]


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


def test_answers_that_were_not_streamed_are_no_disagreement(remote_run: RemoteRun) -> None:
    """stream=false would be reported as a fault of the network or the server."""
    ask = {"token_s": lambda r: [r.token_s[-1]], "token_n": [20]}
    wire = {"first_event_s": lambda e: e.first_event_s - 1.0, "first_content_s": lambda e: e.first_content_s + 1.0}
    info = concluded(remote_run(ask=ask, wire=wire, server_ttft=0.2, backend={**BACKEND, "stream": False}))
    rows = {row["name"]: row for row in info["server"]["compared"]}

    assert ["not-streamed"] == few([w["code"] for w in info["warnings"]])
    assert rows["mean TTFT"]["within"] is None
    assert "answers were not streamed" == rows["mean TTFT"]["why"]
    assert rows["mean E2E"]["within"] is True


def test_one_of_a_thing_is_singular(remote_run: RemoteRun) -> None:
    """'1 answers are counted' reads like a machine that does not care."""
    wire = {"counted_by": lambda e: "events" if e.written_s < 0.1 else "usage"}
    run = remote_run(wire=wire, sender={"resent": 1})
    messages = " ".join(warning["message"] for warning in concluded(run)["warnings"])

    assert "the tokens of 1 answer are counted" in messages
    assert "1 requests" not in messages


def lengths_check(run: RemoteRun, **changes: Any) -> dict[str, Any]:
    info = concluded(run(**changes))
    return next(c for c in info["checks"] if c["check"] == "output-lengths") | {
        "verdict": info["verdict"],
        "info": info,
    }


REFUSES = {**BACKEND, "capabilities": DROPPED}
SHORT: dict[str, Any] = {"ask": {"output_tokens_asked": 80}}
"""Answers of a quarter of what was requested."""


def test_a_server_that_takes_ignore_eos_and_answers_short_makes_the_run_not_valid(remote_run: RemoteRun) -> None:
    """A quarter of the work was measured, and the run was valid."""
    found = lengths_check(remote_run, **SHORT)

    assert ("failed", False) == (found["state"], found["verdict"]["valid"])
    assert "20 of 80 requested output tokens a request (25.0%)" in found["said"]
    assert "output-lengths=server" in found["remedy"]
    assert "output-lengths=server" in found["verdict"]["text"]
    assert {"by": "request", "share": 0.25} == {k: found["info"]["output_lengths"][k] for k in ("by", "share")}


def test_only_a_remote_endpoint_gets_advice_about_options_of_servers() -> None:
    """A run of null:tokens=5 advised output-lengths=server, which null refuses."""
    short = OutputLengths(
        by="request", requests=60, output_tokens=5.0, requested_tokens=80.0, share=0.0625, counted=True
    )

    for remote in (True, False):
        (reason,) = reasons(short, remote=remote)
        assert remote == ("output-lengths" in reason.remedy)


def test_a_mean_output_of_99_percent_is_enough(remote_run: RemoteRun) -> None:
    """A server that loses a token of an answer here and there did the work."""
    once = {"ask": {"output_tokens_asked": lambda r: 32 if r.request_id == 0 else 20}}
    more = {"ask": {"output_tokens_asked": lambda r: 33 if r.request_id == 0 else 20}}

    assert "ok" == lengths_check(remote_run, **once)["state"]
    assert "failed" == lengths_check(remote_run, **more)["state"]


@pytest.mark.parametrize(
    ("backend", "valid"),
    [
        (REFUSES, True),
        ({**REFUSES, "output_lengths": "server"}, True),
        ({**BACKEND, "capabilities": {"accepted": ["ignore_eos"]}, "output_lengths": "server"}, True),
        ({**REFUSES, "output_lengths": "exact"}, False),
        ({**BACKEND, "capabilities": {"accepted": ["min_tokens"]}}, False),
    ],
    ids=["refuses", "refuses and accepted", "takes it and accepted", "refuses and exact", "takes min_tokens"],
)
def test_lengths_by_the_server_are_valid_and_labelled(
    backend: dict[str, Any], valid: bool, remote_run: RemoteRun
) -> None:
    """A provider that decides the lengths could not be measured at all, or only without a warning."""
    found = lengths_check(remote_run, **SHORT, backend=backend)

    assert (valid, "warning" if valid else "failed") == (found["verdict"]["valid"], found["state"])
    assert valid == ("server-output-lengths" in {w["code"] for w in found["info"]["warnings"]})
    assert not valid or found["said"].startswith("output lengths by the server: 20 of 80 requested")


def test_answers_counted_by_chunks_are_not_called_short(remote_run: RemoteRun) -> None:
    """A chunk may hold several tokens: the run is doubted, not condemned."""
    found = lengths_check(remote_run, **SHORT, wire={"counted_by": "events"})

    assert ("warning", True) == (found["state"], found["verdict"]["valid"])
    assert "unknown" == lengths_check(remote_run, wire={"counted_by": "tokenizer"})["state"]


def test_truncated_and_failed_answers_are_no_short_ones(remote_run: RemoteRun) -> None:
    """They miss the SLO already, and the lengths are those of answers that ended well."""
    broken = {"status": lambda r: "truncated" if r.request_id % 2 else "ok",
              "output_tokens_asked": lambda r: 80 if r.request_id % 2 else 20}  # fmt: skip
    found = lengths_check(remote_run, ask=broken)

    assert ("ok", 30) == (found["state"], found["info"]["output_lengths"]["requests"])


@pytest.mark.parametrize(("late_s", "codes"), [(0.006, ["server-late"]), (0.004, [])])
def test_a_server_whose_process_is_late_is_named(late_s: float, codes: list[str]) -> None:
    """The processor that runs `bench serve` would be taken for the GPU that it simulates."""
    rows = [Compared("mean TTFT", "s", 0.1, 0.1), Compared(server_metrics.LATE, "s", None, late_s)]

    assert codes == [warning.code for warning in server_metrics.warnings(rows)]
