"""The clients that `client_accuracy.py` compares, each a process of its own that sends one schedule.

    python tests/perf/_accuracy_clients.py CLIENT URL PLAN.json SENT.json

`aiohttp` is written as benchmark clients mostly are: a task per request, a clock read at each line of the answer.
`bench` is ours as `bench run` uses it: one sender in a process of its own, and this one, on the server's core, reads
the answers; `unstamped` is the same with the times at which its process got to read, as on systems whose kernel does
not stamp; `scraped` the same with the metrics of --metrics-port, which a process on the server's core reads each
second.
"""

import asyncio
import contextlib
import dataclasses
import functools
import gc
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from harness.data.schedule import Schedule
from harness.runner.remote.calibration import Records
from harness.runner.wall import ProgressListener, RecordSink

LEAD_S = 0.3  # from when a client is ready to the start
DRAIN_S = 120.0  # for the last answers, which end within `--fill` seconds after the window
Plan = dict[str, Any]
"""`requests`: [id, seconds after the start, output tokens]; `prompt`: token ids; `epoch_s`, once sending begins."""

Row = list[Any]
"""[id, seconds sent at, [seconds of its tokens], None or what went wrong], in seconds of the monotonic clock."""


def started(epoch_s: float, pid: int) -> None:
    """Tell the parent when sending begins, in seconds of the monotonic clock, and which process sends."""
    print(repr(epoch_s), pid, flush=True)


def starting(plan: Plan) -> None:
    """Begin in a moment, from this process."""
    gc.collect()
    plan["epoch_s"] = time.monotonic() + LEAD_S
    started(plan["epoch_s"], os.getpid())


def payload(plan: Plan, tokens: int) -> dict[str, Any]:
    """What each client asks."""
    return {
        "model": "null",
        "prompt": plan["prompt"],
        "max_tokens": tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def open_loop(plan: Plan, send: Callable[[str, int], Awaitable[Row]]) -> list[Row]:
    """A task per request, started at its time by the loop's own timer."""
    tasks = []
    starting(plan)
    for name, at_s, tokens in plan["requests"]:
        left_s = plan["epoch_s"] + at_s - time.monotonic()
        if left_s > 0:
            await asyncio.sleep(left_s)
        tasks.append(asyncio.create_task(send(name, tokens)))
    return list(await asyncio.gather(*tasks))


def _is_token(line: bytes | str) -> bool:
    """Whether a line of the answer holds text."""
    text = line.decode() if isinstance(line, bytes) else line
    if not text.startswith("data: {"):
        return False
    choices = json.loads(text[6:])["choices"]
    return bool(choices and choices[0]["text"])


async def with_aiohttp(url: str, plan: Plan) -> list[Row]:
    """One session without a limit of connections; lines as they come."""
    import aiohttp

    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=60)
    ) as session:

        async def send(name: str, tokens: int) -> Row:
            stamps: list[float] = []
            sent_s = time.monotonic()
            try:
                async with session.post(
                    url + "/completions", json=payload(plan, tokens), headers={"x-request-id": name}
                ) as answer:
                    async for line in answer.content:
                        now_s = time.monotonic()
                        if _is_token(line.strip()):
                            stamps.append(now_s)
            except (aiohttp.ClientError, TimeoutError) as error:
                return [name, sent_s, stamps, repr(error)]
            return [name, sent_s, stamps, None]

        return await open_loop(plan, send)


SCRAPE = "import time, urllib.request as u, sys\nwhile True: u.urlopen(sys.argv[1]).read(); time.sleep(1)"


@contextlib.contextmanager
def scraped(kept: Records, core: int) -> Iterator[tuple[RecordSink, ProgressListener]]:
    """Takes records into `kept`, and counts them for a process that reads the metrics each second."""
    from harness.api import Bound, Slo
    from harness.runner.exporter import exported
    from harness.runner.live import Live
    from harness.runner.recorder import Recorder

    live = Live(slo=Slo((Bound("ttft", 0.25), Bound("tpot", 0.1))))
    rows = SimpleNamespace(add_records=kept.records.extend, flush=lambda: None)
    with exported("127.0.0.1", 0) as (exporter, port), exporter.following(live):
        recorder = Recorder(cast("Any", rows), live.seen)
        command = ["taskset", "-c", str(core), sys.executable, "-c", SCRAPE, f"http://127.0.0.1:{port}/metrics"]
        with subprocess.Popen(command) as scraper:
            try:
                yield recorder, live
            finally:
                scraper.kill()
        recorder.close()
    assert live.epoch_s is not None and live.scored == len(kept.records)
    kept.start(live.epoch_s)


async def with_bench(url: str, plan: Plan, *, stamped: bool = True, metrics: bool = False) -> list[Row]:
    """`backends.openai`, sent as a run does it; not `stamped`: with the times of its reads; `metrics`: `scraped`."""
    from backends.openai import OpenAI
    from harness.runner.remote.calibration import Records, Words
    from harness.runner.remote.coordinator import Senders
    from harness.runner.virtual import quiet_process

    if not stamped:  # in this process, where answers are read; the sender does what it always does
        as_arrived = OpenAI.read
        OpenAI.read = lambda self, request, answer: as_arrived(  # type: ignore[method-assign]
            self, request, dataclasses.replace(answer, stamp_s=answer.read_s)
        )
    backend = OpenAI(url=url, model="null", api="completions", salt="none")
    await backend.open(Words())
    kept = Records()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "schedule.parquet"
        scheduled(plan).save(path)
        with scraped(kept, plan["server_core"]) if metrics else contextlib.nullcontext((kept, kept)) as (sink, live):
            senders = Senders(backend, path, 1, None, DRAIN_S, sink, live, lambda at_s: started(at_s, last_child()))
            await senders.open()
            os.sched_setaffinity(0, [plan["server_core"]])
            with quiet_process():
                os.nice(10)
                await senders.run()
            await senders.close()
    await backend.close()
    at = kept.epoch_s
    return [
        [str(r.request_id), at + (r.sent_s or 0.0), [at + s for s in r.token_s], None if r.status == "ok" else r.error]
        for r in kept.records
    ]


def last_child() -> int:
    """The process that this one started last."""
    return int(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()[-1])


def scheduled(plan: Plan) -> Schedule:
    """The plan as the harness stores it."""
    from harness.data.records import schedule_chunk
    from harness.data.schedule import Schedule, digest

    names, times, tokens = zip(*plan["requests"], strict=True)
    prompts = [len(plan["prompt"])] * len(names)
    table = schedule_chunk(
        len(names), id=[int(name) for name in names], scheduled_s=times, prompt_tokens=prompts, output_tokens=tokens
    )
    return Schedule(table, digest(table))


CLIENTS = {
    "aiohttp": with_aiohttp,
    "bench": with_bench,
    "unstamped": functools.partial(with_bench, stamped=False),
    "scraped": functools.partial(with_bench, metrics=True),
}


def main() -> None:
    """Send the plan and write down what was seen."""
    client, url, plan_path, out = sys.argv[1:5]
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    plan: Plan = json.loads(Path(plan_path).read_text())
    rows = asyncio.run(CLIENTS[client](url, plan))
    Path(out).write_text(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
