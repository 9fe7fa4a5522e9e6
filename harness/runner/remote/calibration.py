"""The client's floor: the error of its times, measured against a server whose own times are known.

Before and after a run the same senders send for some seconds to the null server (`backends/client/null_server.py`), at
the rate and with as many streams as the run is expected to have. What they saw minus what that server did is their
error. It is not subtracted from results: it says which digits of them are significant.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from harness.api import Calibrated, Remote, Request, RequestRecord, Served
from harness.data.records import schedule_chunk
from harness.data.run_json import Floor, FloorError
from harness.data.schedule import Schedule, digest
from harness.errors import BackendError
from harness.ipc import Outbox
from harness.metrics.quantiles import quantiles
from harness.runner.remote.coordinator import Senders
from harness.runner.remote.hosts import READY_S, ending, greet, label, start
from harness.runner.remote.sender import FLUSH_S, Calibrate, Measured, work
from harness.runner.remote.split import ITL_S, TTFT_S, requests_rps, share

FILL_S, FILL_RPS = 0.5, 1_000.0
"""How long the streams that are there from the beginning take to begin at least, and how many of them a second."""
LEAST_REQUESTS, LEAST_TOKENS = 50, 4
"""A 99th percentile of fewer requests says nothing; answers of fewer tokens have next to no gaps."""
MOST_EVENTS_RPS = 40_000.0
"""What the null server can send from one core; more streams than that makes are not tried."""
MOST_RPS = 1_000.0
DRAIN_S = 5.0
"""How long answers may take after the last request; the null server needs no such time."""
MOST_PROMPT_TOKENS = 8_192
PARTS = ("ttft", "itl", "tpot", "e2e", "lateness")


@dataclass(frozen=True, slots=True)
class Load:
    """What the client is measured under."""

    rate_rps: float
    streams: int
    prompt_tokens: int
    output_tokens: int
    ttft_s: float = TTFT_S
    itl_s: float = ITL_S

    @classmethod
    def planned(cls, schedule: Schedule, ttft_s: float = TTFT_S, itl_s: float = ITL_S) -> Load:
        """What a schedule asks for, if its server takes so long: rate, and streams at once by Little's law."""
        output_tokens = max(1.0, float(schedule.table["output_tokens"].to_numpy().mean()))
        prompt_tokens = min(MOST_PROMPT_TOKENS, round(float(schedule.table["prompt_tokens"].to_numpy().mean())))
        lasts_s = ttft_s + (output_tokens - 1) * itl_s
        rate_rps = min(MOST_RPS, requests_rps(schedule, lasts_s))
        streams = rate_rps * lasts_s
        most = MOST_EVENTS_RPS * itl_s if itl_s else streams
        return cls(
            rate_rps, max(1, round(min(streams, most))), max(1, prompt_tokens), round(output_tokens), ttft_s, itl_s
        )

    def seen_in(self, seconds: float) -> Load:
        """As many streams and tokens a second, of shorter answers where too few would begin in so many seconds."""
        rate_rps = max(self.rate_rps, LEAST_REQUESTS / seconds)
        if rate_rps == self.rate_rps:
            return self
        spare_s = max(0.0, self.streams / rate_rps - self.ttft_s)
        fitting = 1 + int(spare_s / self.itl_s) if self.itl_s else self.output_tokens
        shorter = replace(self, rate_rps=rate_rps, output_tokens=min(self.output_tokens, max(LEAST_TOKENS, fitting)))
        return replace(shorter, streams=max(self.streams, round(rate_rps * shorter.lasts_s)))

    @property
    def lasts_s(self) -> float:
        """From the arrival of a request to its last token."""
        return self.ttft_s + (self.output_tokens - 1) * self.itl_s


@dataclass(frozen=True, slots=True)
class Errors:
    """What the client was off by, seconds, absolute: one value a request, `itl` one a gap. Lateness is as it is."""

    ttft: np.ndarray
    itl: np.ndarray
    tpot: np.ndarray
    e2e: np.ndarray
    lateness: np.ndarray


async def measure(
    remote: Remote, schedule: Schedule, senders: int, seconds: float, *, raised: bool = True
) -> dict[str, Any]:
    """The floor of so many senders under the load that a schedule plans, measured for `seconds`.

    Raises BackendError when the client cannot be aimed at the null server, or gets nothing from it.
    """
    if not isinstance(remote, Calibrated):
        raise BackendError("This backend cannot be calibrated: it cannot send to the null server.")
    load = Load.planned(schedule).seen_in(seconds)
    with remote.null_server(load.ttft_s, load.itl_s) as server:
        fill_s = max(FILL_S, load.streams / FILL_RPS)
        records, epoch_s = await _sent(server.client, drawn(load, seconds, fill_s), senders, raised)
        served, late_p99_s = await asyncio.to_thread(server.served)
    measured = errors(records, served, epoch_s, (fill_s, fill_s + seconds))
    if not len(measured.ttft):
        why = next((record.error for record in records if record.error), "no reason is known")
        raise BackendError(f"The null server answered none of {len(records)} requests: {why}.")
    return {
        **{part: _quantiles(getattr(measured, part)) for part in PARTS},
        "streams": load.streams,
        "rate_rps": load.rate_rps,
        "seconds": seconds,
        "requests": len(measured.ttft),
        "failed": sum(record.status != "ok" for record in records),
        "server_late_p99_s": late_p99_s,
    }


async def measure_hosts(
    remote: Remote, schedule: bytes, places: Sequence[str], seconds: float, *, raised: bool = True
) -> dict[str, Any]:
    """The floor of senders on other machines: each measures its own, all at once; the larger errors count.

    Raises BackendError where one of them cannot.
    """

    async def one(index: int) -> dict[str, Any]:
        name = f"sender {index + 1} of {len(places)} ({label(places[index])})"
        line = await start(places[index])
        try:
            await greet(line, name)
            line.send(Calibrate(remote, schedule, index, len(places), seconds, raised))
            answer = await asyncio.wait_for(line.receive(Measured), READY_S + 2 * seconds)
        except (asyncio.IncompleteReadError, ConnectionError, TimeoutError):
            raise BackendError(f"{name} {await ending(line)}") from None
        finally:
            await line.end(done=True)
        if answer.error is not None:
            raise BackendError(f"{name}: {answer.error}")
        return answer.found

    floors = await asyncio.gather(*(one(index) for index in range(len(places))))
    sums = {name: sum(floor[name] for floor in floors) for name in ("streams", "rate_rps", "requests", "failed")}
    late_s = max((floor["server_late_p99_s"] or 0.0 for floor in floors), default=0.0)
    return {**_worst(*floors), **sums, "seconds": seconds, "server_late_p99_s": late_s}


async def serve(job: object, reader: asyncio.StreamReader, outbox: Outbox) -> None:
    """On another machine: send a share of a schedule, or measure the floor under it."""
    if not isinstance(job, Calibrate):
        await work(job, reader, outbox)
        return
    try:
        shard = share(Schedule.received(job.schedule), job.index, job.count)
        answer = Measured(await measure(job.backend, shard, 1, job.seconds, raised=job.raised))
    except Exception as error:  # noqa: BLE001  # a run without a floor is better than no run
        answer = Measured({}, f"{type(error).__name__}: {error}")
    outbox.send(answer)
    await outbox.flush(FLUSH_S)


def combined(before: Mapping[str, Any], after: Mapping[str, Any]) -> Floor:
    """The floor of a run for run.json: of each figure the larger one of before and after, and both measurements.

    One measurement alone is given as both.
    """
    larger: dict[str, Any] = {part: FloorError(**values) for part, values in _worst(before, after).items()}
    facts = {name: before[name] for name in ("streams", "rate_rps", "seconds")}
    return Floor(**larger, **facts, before=dict(before), after=None if after is before else dict(after))


def _worst(*floors: Mapping[str, Any]) -> dict[str, dict[str, float | None]]:
    """Of each figure the largest that is known."""
    return {
        part: {name: max((f[part][name] for f in floors if f[part][name] is not None), default=None) for name in stats}
        for part, stats in ((part, floors[0][part]) for part in PARTS)
    }


def drawn(load: Load, seconds: float, fill_s: float = FILL_S, seed: int = 0) -> Schedule:
    """A schedule with all its streams at once from `fill_s` until `seconds` later.

    Those that are there at the beginning have what is left of their tokens; all end within `fill_s` after it.
    """
    rng = np.random.default_rng(seed)
    end_s = fill_s + seconds
    left_tokens = rng.integers(1, load.output_tokens, load.streams, endpoint=True)
    gaps_s = rng.exponential(1 / load.rate_rps, int(load.rate_rps * seconds * 2) + 50)
    times_s = fill_s + np.cumsum(gaps_s)
    times_s = times_s[times_s < end_s]
    at_s = np.concatenate((np.linspace(0, fill_s, load.streams, endpoint=False), times_s))
    tokens = np.concatenate((left_tokens, np.full(len(times_s), load.output_tokens)))
    if load.itl_s:
        until_s = end_s + rng.uniform(0.0, fill_s, len(at_s))  # if all ended at once, that would be what is measured
        fitting = 1 + np.floor(np.maximum(0.0, until_s - at_s - load.ttft_s) / load.itl_s)
        tokens = np.minimum(tokens, fitting.astype(np.int64))
    rows = len(at_s)
    prompts = np.full(rows, load.prompt_tokens)
    table = schedule_chunk(rows, id=np.arange(rows), scheduled_s=at_s, prompt_tokens=prompts, output_tokens=tokens)
    return Schedule(table, digest(table))


def errors(
    records: Sequence[RequestRecord], served: Mapping[str, Served], epoch_s: float, window_s: tuple[float, float]
) -> Errors:
    """What the client saw against what the server did: requests due, answers and gaps ended within the window.

    A request that failed, or of which one side saw another number of tokens, has no error; it is counted elsewhere.
    """
    ttft, itl, tpot, e2e, lateness = [], [np.empty(0)], [], [], []
    for record in records:
        truth = served.get(str(record.request_id))
        if record.sent_s is None or truth is None or record.status != "ok":
            continue
        seen, written = np.asarray(record.token_s), np.asarray(truth.written_s)
        if len(seen) != len(written) or not len(seen):
            continue
        off_s, ends_s = np.abs(np.diff(seen) - np.diff(written)), written[1:] - epoch_s
        itl.append(off_s[(ends_s >= window_s[0]) & (ends_s < window_s[1])])
        if window_s[0] <= record.scheduled_s < window_s[1]:
            lateness.append(record.sent_s - record.scheduled_s)
            ttft.append(abs((seen[0] - record.sent_s) - (written[0] - truth.arrived_s)))
        if not window_s[0] <= written[-1] - epoch_s < window_s[1]:
            continue
        e2e.append(abs((seen[-1] - record.sent_s) - (written[-1] - truth.arrived_s)))
        if len(seen) > 1:
            tpot.append(abs((seen[-1] - seen[0]) - (written[-1] - written[0])) / (len(seen) - 1))
    return Errors(np.array(ttft), np.concatenate(itl), np.array(tpot), np.array(e2e), np.array(lateness))


@dataclass(slots=True)
class Records:
    """Recorder and display of a calibration: keeps the records and shows nothing."""

    records: list[RequestRecord] = field(default_factory=list)
    sent: int = 0
    finished: int = 0
    error: Exception | None = None
    epoch_s: float = 0.0

    def add(self, record: RequestRecord) -> None:
        self.records.append(record)

    def add_steps(self, steps: object) -> None:
        """A remote endpoint reports none."""

    def start(self, epoch_s: float) -> None:
        """When time 0 is, in seconds of the host's monotonic clock."""
        self.epoch_s = epoch_s

    def departed(self, late_s: float) -> None:
        """The record holds it too."""

    def say(self, line: str) -> None:
        """Nothing is printed."""


class Words:
    """A content that costs no time: the same word for every token."""

    def token_ids(self, request: Request, vocab_size: int) -> np.ndarray:
        """(T,) ids in order."""
        return np.arange(request.prompt_tokens, dtype=np.int64) % min(vocab_size, 1000)

    def text(self, request: Request, opening: Sequence[int] = ()) -> str:  # noqa: ARG002  # all words are the same
        """A word per token."""
        return "and " * request.prompt_tokens


async def _sent(remote: Remote, schedule: Schedule, count: int, raised: bool) -> tuple[list[RequestRecord], float]:
    """The records of a schedule sent by so many senders, and the start in seconds of the host's monotonic clock."""
    collected = Records()
    with tempfile.TemporaryDirectory(prefix="bench-floor-") as folder:
        path = Path(folder) / "schedule.parquet"
        schedule.save(path)
        try:
            await remote.open(Words())
            senders = Senders(
                remote, path, count, None, DRAIN_S, collected, collected, begun=collected.start, raised=raised
            )
            try:
                await senders.open()
                outcome = await senders.run()
                if outcome.ended == "stopped":
                    raise BackendError(str(outcome.error))
            finally:
                await senders.close()
        finally:
            await remote.close()
    return collected.records, collected.epoch_s


def _quantiles(values: np.ndarray) -> dict[str, float | None]:
    if not len(values):
        return {"p50_s": None, "p99_s": None}
    return dict(zip(("p50_s", "p99_s"), quantiles(values.copy(), (0.5, 0.99)), strict=True))
