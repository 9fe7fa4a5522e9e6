import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backends.openai import OpenAI
from harness.api import RequestRecord, Status
from harness.data.schedule import Schedule
from harness.errors import BackendError
from harness.runner.remote.calibration import FILL_S, PARTS, Load, combined, drawn, errors, measure


@dataclass
class ServedRequest:
    arrived_s: float
    written_s: list[float]


def record(number: int, due_s: float, sent_s: float, token_s: list[float], status: Status = "ok") -> RequestRecord:
    tokens = len(token_s)
    return RequestRecord(number, due_s, sent_s, token_s, None, 10, tokens, tokens, status)


def schedule_of(requests: int, output_tokens: int, seconds: float) -> Any:
    return drawn(Load(requests / seconds, 1, 100, output_tokens), seconds)


def test_the_load_follows_the_schedule_by_littles_law() -> None:
    """The client would be measured under another load than it works under."""
    table = schedule_of(400, 1, 10.0).table
    output_tokens = np.full(len(table), 21)
    table = table.set_column(table.schema.get_field_index("output_tokens"), "output_tokens", [output_tokens])
    load = Load.planned(Schedule(table, ""), ttft_s=0.5, itl_s=0.1)

    times = table["scheduled_s"].to_numpy()
    rate_rps = len(table) / (times[-1] - times[0])
    assert rate_rps == pytest.approx(load.rate_rps)
    assert round(rate_rps * (0.5 + 20 * 0.1)) == load.streams
    assert 21 == load.output_tokens
    assert 100 == load.prompt_tokens
    assert 2.5 == load.lasts_s


def test_more_streams_than_the_null_server_can_feed_are_not_tried() -> None:
    """A server that cannot keep up would be taken for a client that cannot."""
    table = schedule_of(20_000, 1, 10.0).table
    table = table.set_column(
        table.schema.get_field_index("output_tokens"), "output_tokens", [np.full(len(table), 10_000)]
    )
    load = Load.planned(Schedule(table, ""))

    assert 1000.0 == load.rate_rps
    assert 2000 == load.streams


@pytest.mark.parametrize(("rate_rps", "output_tokens"), [(3.0, 200), (0.1, 200), (20.0, 1), (0.5, 1000)])
def test_a_slow_schedule_is_measured_with_enough_requests(rate_rps: float, output_tokens: int) -> None:
    """The client's error would be estimated from two requests, or not at all."""
    planned = Load(rate_rps, max(1, round(rate_rps * Load(1, 1, 1, output_tokens).lasts_s)), 100, output_tokens)
    load = planned.seen_in(2.0)

    assert 50 <= 2.0 * load.rate_rps
    assert output_tokens >= load.output_tokens
    assert load.output_tokens >= min(4, output_tokens)
    assert load.streams >= planned.streams
    assert load.streams == pytest.approx(load.rate_rps * load.lasts_s, rel=0.1)


def test_a_fast_schedule_is_measured_as_it_is() -> None:
    """The client would be measured under a load that the run never has."""
    load = Load(100.0, 500, 100, 97)

    assert load == load.seen_in(2.0)


@pytest.mark.parametrize(("streams", "output_tokens"), [(1, 1), (50, 7), (200, 64), (200, 5000)])
def test_all_streams_are_there_from_the_beginning_to_the_end(streams: int, output_tokens: int) -> None:
    """A measurement of two seconds would see an empty client, because its streams last for longer than that."""
    load = Load(streams / Load(1, 1, 1, output_tokens).lasts_s, streams, 100, output_tokens)
    table = drawn(load, 4.0).table
    start_s, tokens = table["scheduled_s"].to_numpy(), table["output_tokens"].to_numpy()
    end_s = start_s + load.ttft_s + (tokens - 1) * load.itl_s

    assert (tokens >= 1).all()
    assert (tokens <= output_tokens).all()
    assert (end_s[tokens > 1] <= FILL_S + 4.0 + FILL_S + 1e-9).all()
    assert streams <= (start_s < FILL_S).sum()
    if streams >= 50:
        there = [((start_s <= at) & (end_s >= at)).sum() for at in np.linspace(FILL_S, FILL_S + 3.0, 30)]
        assert streams == pytest.approx(np.mean(there), rel=0.25)


def test_errors_are_what_the_client_saw_minus_what_the_server_did() -> None:
    """The floor would be made of something else than the client's own errors."""
    epoch_s = 1000.0
    truth = {
        "0": ServedRequest(1001.0, [1001.5, 1001.6, 1001.8]),
        "1": ServedRequest(1001.0, [1001.5]),
        "2": ServedRequest(1001.0, [1001.5, 1001.6]),
        "3": ServedRequest(1009.0, [1009.5]),
    }
    records = [
        record(0, 0.9, 0.999, [1.502, 1.603, 1.801]),  # sent 1 ms before arrival, tokens seen 2, 3 and 1 ms late
        record(1, 0.9, 1.0, [1.5], status="truncated"),
        record(2, 0.9, 1.0, [1.5]),  # the server wrote two
        record(3, 9.0, 9.0, [9.5]),  # due after the window
        record(4, 0.9, 1.0, [1.5]),  # the server knows nothing of it
    ]
    found = errors(records, truth, epoch_s, (0.5, 5.0))

    assert [0.003] == pytest.approx(found.ttft.tolist())
    assert [0.001, 0.002] == pytest.approx(found.itl.tolist())
    assert [0.0005] == pytest.approx(found.tpot.tolist())
    assert [0.002] == pytest.approx(found.e2e.tolist())
    assert [0.099] == pytest.approx(found.lateness.tolist())


def test_the_larger_of_before_and_after_counts() -> None:
    """A client that got worse during the run would be reported at its best."""
    parts = {part: {"p50_s": 1.0, "p99_s": 2.0} for part in PARTS}
    before: dict[str, Any] = {**parts, "streams": 5, "rate_rps": 1.0, "seconds": 2.0}
    after = {**before, "ttft": {"p50_s": 0.5, "p99_s": 3.0}, "tpot": {"p50_s": None, "p99_s": None}}
    both = combined(before, after)

    assert (1.0, 3.0) == (both.ttft.p50_s, both.ttft.p99_s)
    assert (1.0, 2.0) == (both.tpot.p50_s, both.tpot.p99_s)
    assert 5 == both.streams
    assert after == both.after
    assert None is combined(before, before).after


def test_a_client_that_cannot_be_aimed_says_so() -> None:
    """The floor of a foreign backend would be a traceback."""
    with pytest.raises(BackendError, match="cannot be calibrated"):
        asyncio.run(measure(object(), schedule_of(10, 2, 1.0), 1, 0.1))  # type: ignore[arg-type]


@pytest.mark.parametrize(("api", "senders"), [pytest.param("chat", 1, marks=pytest.mark.nightly), ("completions", 2)])
def test_the_floor_is_measured_by_the_runs_own_senders(api: str, senders: int) -> None:
    """The number beside each percentile would come from something that does not send like a run, or from nothing."""
    client = OpenAI("http://127.0.0.1:1/v1", "elsewhere", api=api)  # type: ignore[arg-type]
    found = asyncio.run(measure(client, schedule_of(40, 4, 2.0), senders, 0.5))

    assert 0 == found["failed"]
    assert found["requests"] > 0
    known = [found[part] for part in PARTS if found[part]["p50_s"] is not None]  # none: all were sent after the window
    assert all(0 <= part["p50_s"] <= part["p99_s"] for part in known)


def test_limits_for_a_fast_server_do_not_keep_the_floor_from_being_measured() -> None:
    """The client could not be measured where a server may not be as slow as ours."""
    client = OpenAI("http://127.0.0.1:1/v1", "elsewhere", timeout_s=0.1, first_token_s=0.05, idle_s=0.05)
    found = asyncio.run(measure(client, schedule_of(40, 4, 2.0), 1, 0.5))

    assert 0 == found["failed"]


def test_our_own_server_never_sees_the_key_of_another(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A key may go to the host that it is for, and nowhere else."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    key = tmp_path / "key"
    key.write_text("sk-other")
    client = OpenAI("http://a/v1", "m", key_file=str(key), header="x-api-key: sk-third", extra_body='{"token": "x"}')
    ours = client.aimed_at("http://127.0.0.1:1/v1", "null")

    assert None is ours._key()
    assert (None, None, None) == (ours.key_file, ours.header, ours.extra_body)
    assert "sk-other" == client._key()
