"""Fixtures that all tests share."""

import asyncio
import difflib
import gc
import inspect
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import settings

Bench = Callable[..., "subprocess.Popen[str]"]

sys.path.insert(0, str(Path(__file__).parent))  # for modules that tests share
settings.register_profile("quick", max_examples=25, deadline=None, derandomize=True)  # the night draws anew
settings.register_profile("nightly", max_examples=300, deadline=None)
settings.load_profile("quick")  # that of the command line comes later
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # under nohup, which the processes of tests would inherit
    signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ.pop("COLUMNS", None)  # pytest-xdist sets 80, which wraps sentences that tests look for


def pytest_collection() -> None:
    """Nothing that collecting makes is garbage, and looking for it takes a second of each worker."""
    gc.disable()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Let each worker begin with other folders: in a new environment it finds compiled what the others began with.

    All at once in one order, each of them compiles every test and every package, for half a minute.
    """
    report = yield
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if collector.path == Path(__file__).parent and workers > 1 and report.passed:
        first = len(report.result) * int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw")) // workers
        report.result = [*report.result[first:], *report.result[:first]]
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine function in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    from harness.timer import WaitingLoop

    names = pyfuncitem._fixtureinfo.argnames
    with asyncio.Runner(loop_factory=WaitingLoop) as runner:  # that of senders
        runner.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Workers have to agree on the order of the tests."""
    items.sort(key=lambda item: item.path)


def pytest_collection_finish() -> None:
    """Thousands of collected tests stay to the end: collecting garbage among them takes half a second each time."""
    gc.enable()
    gc.freeze()


@pytest.fixture(autouse=True)
def idle_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """No load average: the warning of a busy machine would come or not as the other tests run."""
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0), raising=False)


@pytest.fixture(scope="session")
def interpreted() -> None:
    """Skips where the core is compiled: a compiled class has no subclass that a test could put in its place."""
    from backends.serving import replica

    if not replica.__file__.endswith(".py"):
        pytest.skip("the core is compiled")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real traces and measured latencies above the project; skips where it is absent."""
    for parent in Path(__file__).resolve().parents:
        if (path := parent / "shared" / "data").is_dir():
            return path
    pytest.skip("real traces and measurements (shared/data above the project) are not on this machine")


class TimedExecutor:
    """An executor on a clock of its own, which goes by what a latency model says of each step and of swapped blocks.

    A `model` computes the tokens; without one every token is 7.
    """

    def __init__(self, replica, cost, model) -> None:
        self.replica, self.cost, self.model = replica, cost, model
        self.vocab_size, self.max_tokens = (model.vocab_size, model.max_tokens) if model else (100, 10**6)
        self.now_s, self.moved, self.ran = 0.0, 0, 0

    def copy_out(self, blocks):
        self.moved += len(blocks)
        return self.model.copy_out(blocks) if self.model else blocks

    def copy_in(self, kept, blocks):
        self.moved += len(blocks)
        if self.model:
            self.model.copy_in(kept, blocks)

    def execute(self, pieces):
        if self.replica.swap is not None:
            self.now_s += self.moved * self.replica.swap.block_s
        self.moved = 0
        decoding = {seq.request.id for seq in self.replica.decoding}
        prefills = [(len(p.token_ids), p.position) for p in pieces if p.request_id not in decoding]
        decodes = [p for p in pieces if p.request_id in decoding]
        self.now_s += self.cost.step_s(prefills, len(decodes), sum(p.position for p in decodes))
        self.ran += sum(len(p.token_ids) for p in pieces)
        return self.model.execute(pieces) if self.model else [7 if p.sample else None for p in pieces]


@pytest.fixture(scope="session")
def engine_loop():
    """The engine's loop under a clock that goes by the latency model `engine_loop.latency` (its spec).

    `engine_loop(requests, replica)` gives stamps and token ids by request, what ended, and how many tokens ran.
    """
    import numpy as np

    from backends.latency.builtin import Linear
    from replay._alone import serve_alone

    cost = Linear(base_s=0.01, prefill_token_s=1e-4, decode_seq_s=3e-4, context_token_s=1e-7)

    def run(requests, replica, model=None, token_ids=lambda request, _: np.ones(request.prompt_tokens, np.int64)):
        timed = TimedExecutor(replica, cost, model)
        ended = []
        stamps, tokens = defaultdict(list), defaultdict(list)
        for turn in serve_alone(replica, timed, token_ids, requests):
            for i, token in zip(turn.tokens, turn.token_ids, strict=True):
                stamps[i].append(turn.at_s)
                tokens[i].append(token)
            ended += turn.ended
        return SimpleNamespace(stamps=stamps, tokens=tokens, ended=ended, ran=timed.ran)

    fields = ("base_s", "prefill_token_s", "decode_seq_s", "context_token_s")
    run.latency = "linear:" + ",".join(f"{name}={getattr(cost, name)!r}" for name in fields)
    return run


@pytest.fixture(scope="session")
def draw():
    """A factory of requests: `draw(n, rate_rps, seed, prompt=(low, high), output=(low, high))`, Poisson arrivals."""
    import numpy as np

    from harness.api import Request

    def requests(n=60, rate_rps=4.0, seed=0, prompt=(1, 200), output=(1, 60)):
        rng = np.random.default_rng(seed)
        at_s = np.cumsum(rng.exponential(1 / rate_rps, n)).tolist()
        prompts = rng.integers(prompt[0], prompt[1] + 1, n).tolist()
        outputs = rng.integers(output[0], output[1] + 1, n).tolist()
        return [Request(i, *row) for i, row in enumerate(zip(at_s, prompts, outputs, strict=True))]

    return requests


@pytest.fixture
def remote_run():
    """A factory of runs against a remote server, made without one, in which everything is as it should be.

    `sender` changes what its one sender says of itself, `wire` columns of the `http` table, `ask` fields of every
    record; `server_ttft` and `server_requests` scale what the server counted. The rest replaces keys of run.json.
    """
    import dataclasses
    from pathlib import Path

    import pyarrow as pa

    from harness.api import Exchange, RequestRecord
    from harness.data.codec import encode
    from harness.data.folder import Run
    from harness.data.held_back import stall_s, with_held_back
    from harness.data.records import http_table, server_metrics_table, to_table
    from harness.data.run_json import RunInfo
    from harness.metrics.objective import parse_slo, stored_slo

    sound = {
        "sent": 60, "cpu_share": 0.05, "cpu_share_max": 0.1, "run_wait_share": 0.0, "stall_max_s": 0.001,
        "gc_max_s": 0.0, "read_lag_p50_s": 3e-5, "read_lag_p99_s": 2e-4, "read_lag_max_s": 1e-3, "stamps": "kernel",
        "process_stamps": 0, "clock_steps": 0, "clock_slope_ppm": 2.0, "connections_opened": 8, "resent": 0,
        "open_files": 20, "open_files_limit": 65536, "other_load_cores": 0.05,
    }  # fmt: skip
    floor = {name: {"p50_s": 2e-5, "p99_s": 9e-5} for name in ("ttft", "itl", "tpot", "e2e", "lateness")}

    def metrics(records, ttft, requests):
        kept = [r for r in records if r.status == "ok"]
        label, rows = 'engine="0",model_name="m"', []
        for second in range(-1, 16):
            at_s = second + 0.25
            over = [r for r in kept if r.token_s[-1] <= at_s]
            now = sum(r.sent_s <= at_s < r.token_s[-1] for r in kept)
            rows.append((at_s, "up", 'instance="127.0.0.1:8000"', 1.0))
            for name, value in {
                "ttft_count": len(over) * requests, "ttft_sum": sum(r.token_s[0] - r.sent_s for r in over) * ttft,
                "e2e_count": len(over) * requests, "e2e_sum": sum(r.token_s[-1] - r.sent_s for r in over) * requests,
                "prompt": sum(r.prompt_tokens for r in over), "output": sum(r.output_tokens for r in over),
                "running": now, "waiting": 0, "kv": now / 40, "queue_sum": 0.01 * len(over), "queue_count": len(over),
            }.items():  # fmt: skip
                rows.append((at_s, name, label, float(value) + 7.0 * (name not in ("running", "waiting", "kv"))))
        return server_metrics_table(rows)

    words = {"ttft": "ttft", "e2e": "e2e", "prompt_tokens": "prompt", "output_tokens": "output", "running": "running",
             "waiting": "waiting", "kv_use": "kv", "queue": "queue"}  # fmt: skip

    def make(*, slo="ttft=0.25,tpot=0.1", sender=(), wire=(), ask=(), server_ttft=1.0, server_requests=1, **info):
        records = []
        for i in range(60):
            at_s = i * 0.2
            stamps = [at_s + 0.1 + 0.001 * (i % 50) + 0.02 * k for k in range(20)]
            exchange = Exchange(
                address="127.0.0.1:8000", http_status=200, finish_reason="length", counted_by="usage", reads=22,
                written_s=at_s + 2e-4, first_event_s=stamps[0], first_content_s=stamps[0], read_lag_s=2e-4,
            )  # fmt: skip
            exchange = dataclasses.replace(
                exchange, **{k: v(exchange) if callable(v) else v for k, v in dict(wire).items()}
            )
            record = RequestRecord(
                request_id=i, scheduled_s=at_s, sent_s=at_s + 1e-4, token_s=stamps, token_n=None, prompt_tokens=100,
                output_tokens=20, output_tokens_asked=20, status="ok", prompt_tokens_server=100, exchange=exchange,
            )  # fmt: skip
            changes = {k: v(record) if callable(v) else v for k, v in dict(ask).items()}
            records.append(dataclasses.replace(record, **changes))
        parsed = parse_slo(slo)
        facts = {
            "schema": 2, "state": "finished", "clock": "wall", "started": "2026-01-02T03:04:05.000+00:00",
            "spec": {"workload": "chatbot", "backend": "openai:url=http://127.0.0.1:8000/v1", "rate": 5.0, "seed": 0},
            "command": "bench run --backend openai:url=http://127.0.0.1:8000/v1",
            "workload": {"name": "chatbot", "arrivals": "constant", "lengths": "sharegpt", "rate_rps": 5.0},
            "backend": {
                "name": "openai", "url": "http://127.0.0.1:8000/v1", "api": "chat", "model": "m", "stamps": "kernel",
                "salt": "a1b2", "capabilities": {"accepted": ["ignore_eos"], "dropped": [], "usage": "own chunk"},
            },
            "schedule": {"sha256": "0" * 64, "requests": 60, "span_s": 11.8}, "slo": encode(stored_slo(parsed)),
            "client": {"senders": 1, "stamps": "kernel", "per_sender": [{**sound, **dict(sender)}]},
            "floor": {**floor, "before": floor, "after": floor, "streams": 8, "rate_rps": 5.0, "seconds": 2.0},
            "server": {"kind": "vllm", "metrics_url": ["http://127.0.0.1:8000/metrics"], "names": words, "why": None,
                       "scrapes": 17, "failed": 0},
            **info,
        }  # fmt: skip
        server = metrics(records, server_ttft * server_requests, server_requests)
        tables = {"http": http_table(records), "server_metrics": server}
        assert all(isinstance(table, pa.Table) for table in tables.values())
        info = RunInfo.of(facts)
        requests = with_held_back(to_table(records), tables["http"], stall_s(info))
        return Run(Path("bench-runs/remote"), info, requests, None, None, True, **tables)

    return make


@pytest.fixture
def put():
    """Changes parts of the run.json of a run in memory: `put(run, fidelity={"law": "none"}, floor=None)`.

    The keys of an object are put among those that are there; None takes a part away.
    """
    from harness.data.codec import encode
    from harness.data.run_json import decode

    def change(run, **parts):
        info = encode(run.info)
        for name, value in parts.items():
            both = isinstance(value, dict) and isinstance(info.get(name), dict)
            info[name] = {**info[name], **value} if both else value
        object.__setattr__(run, "info", decode({k: v for k, v in info.items() if v is not None}))

    return change


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """Starts `bench` with these arguments in an empty folder; whatever still runs at the end is killed.

    Variables of its environment are named: `bench("run", OPENAI_API_KEY="...")`.
    """
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "harness", *arguments],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "COLUMNS": "100", **environment},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compares a text with golden/<name> beside the test; a difference is printed and kept as <name>.got."""

    def check(name: str, actual: str) -> None:
        path = request.path.parent / "golden" / name
        expected = path.read_text(encoding="utf-8") if path.exists() else ""
        if expected != actual:
            path.with_name(f"{name}.got").write_text(actual, encoding="utf-8")
            lines = difflib.unified_diff(expected.splitlines(), actual.splitlines(), name, f"{name}.got", lineterm="")
            pytest.fail("\n".join(lines))

    return check


@pytest.fixture
def transcript(
    golden: Callable[[str, str], None], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[[str, Mapping[str, str]], None]:
    """Runs lines of `bench` in this process and compares what they print, and their codes, with golden/<name>.

    `lines` names the reason for each; `cat FILE` shows a file. The folder of the test is written as TMP, the day as
    TODAY.
    """
    from harness.cli import main

    def check(name: str, lines: Mapping[str, str]) -> None:
        parts = []
        for reason, line in lines.items():
            capsys.readouterr()
            command, *words = shlex.split(line)
            if command == "cat":
                parts.append(f"# {reason}\n$ {line}\n{Path(*words).read_text(encoding='utf-8')}")
                continue
            code = main([command, *words])
            out, err = capsys.readouterr()
            parts.append(f"# {reason}\n$ bench {line}\n{out}{err}exit code {code}\n")
        shown = re.sub(r", \d{4}-\d\d-\d\d$", ", TODAY", "\n".join(parts), flags=re.MULTILINE)
        golden(name, shown.replace(str(tmp_path), "TMP"))

    return check


@pytest.fixture
def refusals(
    golden: Callable[[str, str], None],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> Callable[..., None]:
    """Runs the lines after `$ bench` of golden/<name> in the folder of the test: each leaves its sentence, and no file.

    `more` follows the command in each line. Long lists of what is known are NAMES, as each plug-in changes them.
    """
    from harness.cli import main

    def check(name: str, *more: str) -> None:
        monkeypatch.chdir(tmp_path)
        before, parts = sorted(tmp_path.rglob("*")), []
        expected = (request.path.parent / "golden" / name).read_text(encoding="utf-8")
        for line in re.findall(r"^\$ bench (.*)$", expected, re.MULTILINE):
            capsys.readouterr()
            command, *words = shlex.split(line)
            code = main([command, *more, *words])
            out, err = capsys.readouterr()
            assert ("", 1) == (out, err.count("bench: ")), err
            assert err.endswith((".\n", "?\n")), err
            parts.append(f"$ bench {line}\n{err}exit code {code}\n")
        assert before == sorted(tmp_path.rglob("*"))
        shown = re.sub(r"Known: ([\w.:-]+, ){5,}[\w.:-]*\w", "Known: NAMES", "\n".join(parts))
        golden(name, shown.replace(str(tmp_path), "TMP"))

    return check


@pytest.fixture
def late_is_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of this process under the wall clock are valid however late a busy machine lets their requests leave."""
    monkeypatch.setattr("harness.validity.checks.TOO_LATE_SHARE", 1.0)
    monkeypatch.setattr("harness.validity.client_warnings.SPOILT_SHARE", 1.0)


@pytest.fixture
def wait_for() -> Callable[[Callable[[], bool]], None]:
    """Waits until something is true, for four minutes at most: a busy machine may need one."""

    def wait(true: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + 240
        while not true():
            assert time.monotonic() < deadline_s, "it did not happen within four minutes"
            time.sleep(0.02)

    return wait


@pytest.fixture(scope="session")
def advised() -> Callable[[str], list[str]]:
    """Finds the command below `next` in the text of a result, where there is one."""

    def find(printed: str) -> list[str]:
        commands = re.findall(r"^next .*\n(?:  (?!bench).*\n)*  (bench (?:.*\\\n)*.*)$", printed, re.MULTILINE)
        return [" ".join(command.replace("\\\n", " ").split()) for command in commands]

    return find
