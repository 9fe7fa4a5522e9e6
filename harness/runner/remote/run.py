"""A run against a remote endpoint: wait for it, query its capabilities, measure the client, send, read its metrics."""

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from harness import termination
from harness.api import Outcome, Remote, Scraper, Sourced
from harness.data.codec import from_facts
from harness.data.folder import RunFolder
from harness.data.host import process_age_s
from harness.data.records import Recounts
from harness.data.run_json import Client, Sender, Server
from harness.errors import BackendError, NotReady, UsageError
from harness.options import RunSpec
from harness.runner.live import Live
from harness.runner.plan import Plan, make_backend
from harness.runner.recorder import Recorder
from harness.runner.remote import calibration
from harness.runner.remote.coordinator import Senders
from harness.runner.remote.process import yielding
from harness.runner.remote.split import events_rps, hosts, sender_count
from harness.spec import parse

T = TypeVar("T")

Signals: TypeAlias = "Callable[[Callable[[bool], object]], AbstractContextManager[None]]"
"""A context in which Ctrl-C and SIGTERM call a function, which interrupts: at once where it gets True."""

CALIBRATE_S = 2.0
"""How long the client is measured before a run and after it, when nothing says how long."""
PAUSE_S = 1.0
"""Between two tries."""
REMIND_S = 60.0
"""How often the same reason is repeated."""


@dataclass(slots=True)
class RemoteRun:
    """One run of `plan`; `folder` makes its folder when the server is known to answer, `say` tells the user."""

    plan: Plan
    backend: Remote
    live: Live
    folder: Callable[[], RunFolder]
    say: Callable[[str], None]
    shared: Path | None = None
    """The file by which the runs of one command ask the server once."""
    recounted: Recounts = field(default_factory=dict, init=False)
    """Tokens that were counted after the run."""
    _floors: list[dict[str, Any]] = field(default_factory=list, init=False)

    async def run(self, signals: Signals) -> Outcome:
        """Send everything. Raises UsageError or BackendError where the server cannot be reached or used."""
        content = self.plan.loaded.content
        self.live.waits_for = "the server to say what it can do"
        history = self.plan.history if self.plan.schedule.has_follow_ups else "lengths"
        await self.backend.open(content, self.shared, history)
        try:
            notes = self.backend.describe().get("notes")
            for note in (*(notes if isinstance(notes, list | tuple) else ()), *self._too_long()):
                self.say(str(note))
            if not hosts(self.plan.spec.senders) and self._count() > (cores := os.cpu_count() or 1):
                self.say(f"warning: {self._count()} senders share {cores} cores; they will wait for one another")
            folder = self.folder()
            folder.update(content=dict(content.facts) if isinstance(content, Sourced) else {})
            scraper = self.backend.scraper(lambda table: folder.add_table("server_metrics", table))
            if scraper is not None:
                await asyncio.to_thread(scraper.before)
                folder.update(server=from_facts(Server, scraper.facts()))
            await self._measure_client(folder)
            outcome = await self._send(folder, scraper, signals)
            await self._afterwards(folder, outcome, signals)
            return outcome
        finally:
            await self.backend.close()

    async def _afterwards(self, folder: RunFolder, outcome: Outcome, signals: Signals) -> None:
        """Measure the client again and count what was not counted; Ctrl-C leaves that out, and the run is reported."""
        task = asyncio.ensure_future(self._again(folder, outcome))
        with signals(lambda _: task.cancel()):
            await asyncio.wait([task])
        if task.cancelled():
            self.say("interrupted: the client is not measured again, and no tokens are counted again.")
        else:
            task.result()
        folder.update(backend=dict(self.backend.describe()))

    async def _again(self, folder: RunFolder, outcome: Outcome) -> None:
        if outcome.ended == "finished":  # a user who ended it early should not wait
            await self._measure_client(folder)
        self.recounted = await self.backend.recount()

    async def _send(self, folder: RunFolder, scraper: Scraper | None, signals: Signals) -> Outcome:
        spec = self.plan.spec
        recorder = Recorder(folder, self.live.seen)
        follow = scraper.follow if scraper is not None else lambda _: None
        path = folder.path / "schedule.parquet"
        senders = Senders(
            self.backend, path, self._count(), spec.duration, self.plan.drain_s, recorder, self.live, begun=follow,
            hosts=hosts(spec.senders), max_in_flight=spec.max_in_flight, raised=self._raised,
            response_cache=self.plan.response_cache,
        )  # fmt: skip
        policy = None
        self.live.waits_for = f"{self._count()} sender{'s' if self._count() > 1 else ''} to build requests and connect"
        try:
            await senders.open()
            folder.update(startup_s=process_age_s())
            with yielding() as policy, signals(senders.interrupt):
                return await senders.run()
        finally:
            await senders.close()
            try:
                recorder.close()
                sender_rows = [from_facts(Sender, facts) for facts in senders.facts]
                folder.update(client=Client(senders=self._count(), scheduling=policy, per_sender=sender_rows))
            finally:
                facts = None if scraper is None else await asyncio.to_thread(scraper.stop)
            if facts is not None:
                folder.update(server=from_facts(Server, facts))

    def _too_long(self) -> list[str]:
        """A warning about requests that do not fit the server's context; they are sent all the same."""
        capabilities = self.backend.describe().get("capabilities")
        limit = capabilities.get("max_model_len") if isinstance(capabilities, Mapping) else None
        table = self.plan.schedule.table
        total = table["prompt_tokens"].to_numpy() + table["output_tokens"].to_numpy()  # (rows,) of prompt and answer
        over = 0 if not isinstance(limit, int) else int((total > limit).sum())
        if not over:
            return []
        what = f"{over:,} of {len(table):,} requests are longer than the server's context of {limit:,} tokens"
        remedy = "limit the lengths (--lengths)" if self.plan.spec.trace is None else "leave them out (--where)"
        return [f"warning: {what} and will be refused; {remedy}"]

    @property
    def _raised(self) -> bool:
        return self.plan.spec.priority != "off"

    def _count(self) -> int:
        if self.plan.spec.max_in_flight is not None or self.plan.response_cache is not None:
            return 1
        return sender_count(self.plan.spec.senders, events_rps(self.plan.schedule))

    async def _measure_client(self, folder: RunFolder) -> None:
        """The floor, before the run and after it; a client that cannot be measured is no reason to end a run."""
        calibrate_s = self.plan.spec.calibrate
        seconds = CALIBRATE_S if calibrate_s is None else calibrate_s
        if not seconds or not self.backend.stream:
            why = "answers come whole, so no token has a time" if seconds else "--calibrate off"
            folder.update(floor=None, floor_why=why)
            return
        self.say(
            f"measuring the client {'again ' if self._floors else ''}on a server that answers at once, {seconds:g} s"
        )
        self.live.waits_for = "the client to be measured"
        schedule = folder.path / "schedule.parquet"
        try:
            client_floor = await (
                calibration.measure_hosts(self.backend, schedule.read_bytes(), places, seconds, raised=self._raised)
                if (places := hosts(self.plan.spec.senders))
                else calibration.measure(self.backend, self.plan.schedule, self._count(), seconds, raised=self._raised)
            )
        except Exception as error:  # noqa: BLE001  # a run without a floor is better than no run
            folder.update(floor=None, floor_why=f"{type(error).__name__}: {error}")
            return
        self._floors.append(client_floor)
        self.live.floor = calibration.combined(self._floors[0], self._floors[-1])
        folder.update(floor=self.live.floor)


def when_ready(action: Callable[[], T], wait_s: float, say: Callable[[str], None]) -> T:
    """The result of an action as soon as it does not raise NotReady; `say` hears what it waits for.

    Raises BackendError where it still does after `wait_s`.
    """
    begun_s = reminded_s = time.monotonic()
    reason = ""
    while True:
        try:
            return action()
        except NotReady as error:
            now_s = time.monotonic()
            left_s = begun_s + wait_s - now_s
            if wait_s and left_s <= 0:
                raise BackendError(f"{error.args[0]}; gave up after --wait {wait_s:g}s.") from None
            if left_s <= 0:
                raise
            if error.args[0] != reason or now_s - reminded_s >= REMIND_S:
                reason, reminded_s = error.args[0], now_s
                say(f"waiting up to {left_s:.0f} s: {reason}")
            time.sleep(min(PAUSE_S, left_s))


def await_servers(specs: Iterable[RunSpec], wait_s: float | None, say: Callable[[str], None]) -> None:
    """Wait until the servers of runs take requests, by those of a probe, `wait_s` for each; None does not wait.

    Raises UsageError for a backend that is no server.
    """
    if wait_s is None:
        return
    for spec in {spec.backend: spec for spec in specs}.values():
        backend = make_backend(spec)
        if not isinstance(backend, Remote):
            raise UsageError(f"--wait is for a server; the backend '{parse(spec.backend).name}' needs none.")
        when_ready(partial(_open, backend), wait_s, say)


def _open(backend: Remote) -> None:
    async def opened() -> None:
        try:
            await backend.open(calibration.Words())
        finally:
            await backend.close()

    termination.run(opened())
