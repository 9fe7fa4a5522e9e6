"""A limit on the requests in flight, beside a rate, under both clocks."""

import asyncio
from collections.abc import Iterator
from heapq import heappop, heappush
from types import SimpleNamespace

import numpy as np
import pytest

from harness.api import FollowUps, Request, RequestRecord
from harness.experiments.trial import simulate
from harness.options import Given, run_spec
from harness.runner.live import Live
from harness.runner.virtual import Capped
from harness.runner.wall import WallDriver

UNIT_S = 0.0137  # seconds of a prompt token


class Known:
    """A simulator, and the transport of a driver: answers of one token, `UNIT_S` after sending for each of a prompt."""

    failure = None

    def simulate(self, requests: Iterator[Request], follow_ups: FollowUps | None = None) -> Iterator[RequestRecord]:
        ending: list[tuple[float, int, Request]] = []
        coming = [(r.scheduled_s, r.id, r) for r in requests]
        while coming or ending:
            if coming and (not ending or coming[0][0] < ending[0][0]):
                sent_s, number, request = heappop(coming)
                heappush(ending, (sent_s + UNIT_S * request.prompt_tokens, number, request))
                continue
            end_s, _, request = heappop(ending)
            for more in follow_ups(record(request, request.scheduled_s, end_s)) if follow_ups else ():
                heappush(coming, (more.scheduled_s, more.id, more))
            yield record(request, request.scheduled_s, end_s)

    def start(self, epoch_s: float) -> None:
        self.epoch_s = epoch_s

    def prepare(self, request: Request) -> None:
        """Nothing to prepare."""

    async def carry(self, request: Request, sent_s: float) -> RequestRecord:
        await asyncio.sleep(UNIT_S * request.prompt_tokens)
        return record(request, sent_s, asyncio.get_running_loop().time() - self.epoch_s)

    def record(self, request: Request, sent_s: float, arrived: RequestRecord) -> RequestRecord:  # noqa: ARG002
        return arrived

    def steps(self) -> tuple[()]:
        return ()


class Kept:
    """Keeps the records that a driver makes."""

    error = None

    def __init__(self) -> None:
        self.add_steps, self.rows = list, list[RequestRecord]()
        self.add = self.rows.append


class Instant(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer: nothing takes time but what waits for a time."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s, select = 0.0, self._selector.select

        def jump(timeout: float | None = None) -> list:
            self.now_s += (timeout or 0.0) + 1e-9  # a turn of the loop takes some time
            return select(0)

        self._selector.select = jump

    def time(self) -> float:
        return self.now_s


def record(request: Request, sent_s: float, end_s: float) -> RequestRecord:
    return RequestRecord(request.id, request.scheduled_s, sent_s, [end_s], None, request.prompt_tokens, 1, 1, "ok",
                         session=request.session, turn=request.turn)  # fmt: skip


def traffic(seed: int, sessions: bool) -> tuple[list[Request], FollowUps | None]:
    """Forty requests, the first of some sessions of three turns with pauses between them."""
    rng = np.random.default_rng(seed)
    at_s, tokens = np.cumsum(rng.exponential(0.1, 40)), rng.integers(3, 40, 40)
    first = [Request(i, float(at_s[i]), int(tokens[i]), 1, session=i) for i in range(40)]

    def follow_ups(ended: RequestRecord) -> list[Request]:
        if ended.turn == 2 or ended.request_id % 3:
            return []
        due_s = ended.token_s[-1] + (ended.prompt_tokens % 7) * 0.01
        return [Request(ended.request_id + 300, due_s, ended.prompt_tokens, 1, session=ended.session,
                        turn=ended.turn + 1)]  # fmt: skip

    return first, follow_ups if sessions else None


@pytest.mark.parametrize(
    ("seed", "sessions", "most"), [(1, False, 1), (2, False, 4), (3, True, 2), (4, True, 5), (5, True, 9)]
)
def test_both_clocks_hold_and_send_the_same_requests_at_the_same_times(
    seed: int, sessions: bool, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a simulator predicts of a capped client would not be what that client does."""
    requests, follow_ups = traffic(seed, sessions)
    simulated = list(Capped(Known(), most).simulate(iter(requests), follow_ups))  # type: ignore[arg-type]  # what it needs
    kept, loop = Kept(), Instant()
    monkeypatch.setattr("harness.runner.wall.time", SimpleNamespace(monotonic=loop.time, thread_time=loop.time))
    driver = WallDriver(Known(), iter(requests), follow_ups, kept, Live(total=40), 9.0, most)  # type: ignore[arg-type]
    outcome = loop.run_until_complete(driver.run())
    loop.close()
    sent, expected = (
        {row.request_id: (row.sent_s, row.cap_wait_s or 0.0) for row in rows} for rows in (kept.rows, simulated)
    )

    assert outcome.sent == len(kept.rows) == len(simulated) > 39
    assert expected.keys() == sent.keys()
    np.testing.assert_allclose([sent[i] for i in sorted(sent)], [expected[i] for i in sorted(sent)], atol=1e-6)
    events = sorted(
        [(round(row.sent_s, 6), 1) for row in kept.rows] + [(round(row.token_s[-1], 6), -1) for row in kept.rows]
    )
    assert most == np.cumsum([change for _, change in events]).max()


@pytest.mark.parametrize("seed", range(4))
def test_a_request_leaves_when_a_place_is_free_and_its_wait_counts(seed: int) -> None:
    """A capped client would look faster than its users find it: the wait would be hidden, or be called late."""
    rng = np.random.default_rng(seed)
    most, rate = int(rng.integers(1, 12)), float(rng.uniform(1, 8))
    spec = run_spec(Given({"backend": "sim", "workload": "chatbot", "rate": str(rate), "requests": "60",
                           "seed": str(seed), "max-in-flight": str(most)}))  # fmt: skip
    table = simulate(spec).table.sort_by("scheduled_s")
    due_s, sent_s = (table[name].to_numpy() for name in ("scheduled_s", "sent_s"))
    ends_s = np.sort([stamps[-1] for stamps in table["token_s"].to_pylist()])
    freed_s = np.concatenate([np.zeros(min(most, 60)), ends_s])[:60]  # when the place of each request became free

    np.testing.assert_array_equal(np.maximum(due_s, freed_s), sent_s)
    np.testing.assert_allclose(np.nan_to_num(table["cap_wait_s"].to_numpy()), sent_s - due_s, atol=1e-12)
