"""`bench quick`: what it finds, what it refuses, and where its search begins."""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from backends.client import discover
from backends.client.discover import Found, find
from harness.api import RequestRecord
from harness.cli import main
from harness.data.records import to_table
from harness.errors import BackendError, UsageError
from harness.experiments.capacity import quick
from harness.experiments.capacity.blocks import ALONE
from harness.experiments.capacity.conditions import Settings
from harness.experiments.capacity.execute import set_up
from harness.experiments.capacity.store import Store
from harness.experiments.capacity.trials import Key, Trial
from harness.options import Given, run_spec
from harness.runner.live import Live

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
TEXT = {"choices": [{"text": "one", "message": {"content": "one"}}]}
ONE = {"data": [{"id": "m"}]}


@contextmanager
def server(answers: dict[str, tuple[int, object]], wait_s: float = 0.0) -> Iterator[int]:
    """A server that gives these answers by path, 404 for any other, after so long; its port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            self.rfile.read(length)
            if self.command == "POST":
                time.sleep(wait_s)
            status, body = answers.get(self.path, (404, {"error": {"message": "no such route"}}))
            text = json.dumps(body).encode()
            with suppress(OSError):  # a client that did not wait
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield http.server_port
        finally:
            http.shutdown()
            thread.join()


def found(port: int, model: str | None = None) -> Found | None:
    return asyncio.run(find(f"http://127.0.0.1:{port}/v1", model, {}))


def test_the_first_usual_port_with_models_is_taken_and_the_others_are_named() -> None:
    """A user with two servers would not know which one was measured."""
    answers = {"/v1/models": (200, ONE), CHAT: (200, TEXT)}
    with server({}) as web, server(answers) as one, server(answers) as two:
        ports = (1, web, one, two)
        taken = asyncio.run(find(None, None, {}, ports))

    assert Found(f"http://127.0.0.1:{one}/v1", "m", "chat", (f"http://127.0.0.1:{two}/v1",)) == taken


def test_no_server_on_any_port_is_none() -> None:
    """The built-in engine would never be measured."""
    assert asyncio.run(find(None, None, {}, [1])) is None


def test_the_environment_names_the_server() -> None:
    """A local server would be measured in place of the one that every other client of the shell uses."""
    with server({"/v1/models": (200, ONE), CHAT: (200, TEXT)}) as named, server({"/v1/models": (200, ONE)}) as usual:
        taken = asyncio.run(find(None, None, {"OPENAI_BASE_URL": f"http://127.0.0.1:{named}/v1"}, [usual]))

    assert taken is not None and str(named) in taken.url


def test_a_model_without_a_chat_template_gets_completions() -> None:
    """A base model would be refused."""
    with server({"/v1/models": (200, ONE), CHAT: (400, {}), COMPLETIONS: (200, TEXT)}) as port:
        taken = found(port)

    assert taken is not None and taken.api == "completions"


@pytest.mark.parametrize(("answers", "error", "words"), [
    ({"/v1/models": (401, {})}, BackendError, "needs a key .HTTP 401.; set OPENAI_API_KEY"),
    ({"/v1/models": (200, ONE), CHAT: (403, {})}, BackendError, "needs a key .HTTP 403."),
    ({"/v1/models": (200, {"data": [{"id": "a"}, {"id": "b"}]})}, UsageError, "by --model NAME.*Known: a, b"),
    ({"/v1/models": (404, {})}, UsageError, "does not list its models .HTTP 404.; name one by --model"),
    ({"/v1/models": (200, ONE), EMBEDDINGS: (200, {})}, BackendError, "'m' at .* is an embedding model"),
    ({"/v1/models": (200, ONE)}, BackendError, "generates no text with the model 'm' .HTTP 404, 'no such route'."),
    ({"/v1/models": (200, ONE), CHAT: (503, {})}, BackendError, "is not ready .HTTP 503."),
])  # fmt: skip
def test_a_server_that_cannot_be_measured_is_refused_in_a_sentence(
    answers: dict[str, tuple[int, object]], error: type[Exception], words: str
) -> None:
    """A newcomer would get a search of failed requests, or a traceback."""
    with server(answers) as port, pytest.raises(error, match=words):
        found(port)


def test_a_named_model_is_not_looked_up() -> None:
    """A gateway that lists hundreds of models, or none, could not be measured."""
    with server({CHAT: (200, TEXT)}) as port:
        taken = found(port, "m")

    assert taken is not None and taken.model == "m"


def test_a_server_that_does_not_answer_ends_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three minutes would pass before a sentence."""
    monkeypatch.setattr(discover, "ANSWER_S", 0.2)
    with server({"/v1/models": (200, ONE), CHAT: (200, TEXT)}, wait_s=1.0) as port:
        code = main(["quick", f"127.0.0.1:{port}"])
    error = capsys.readouterr().err

    assert code == 3
    assert "did not answer a request for one token within 0.2 s" in error
    assert "Traceback" not in error


def test_wrong_input_is_one_sentence(monkeypatch: pytest.MonkeyPatch, refusals: Callable[..., None]) -> None:
    """A wrong option would be met after the search, or as a traceback."""
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.setattr(find, "__defaults__", ({}, ()))  # no port of this machine

    refusals("wrong-quick.txt")


def _setup() -> quick.Setup:
    options = {
        "backend": "openai:url=http://127.0.0.1:1/v1,model=m",
        "lengths": "fixed:prompt=8,output=11",
        "slo": "ttft=1",
    }
    return set_up(run_spec(Given(options)), Settings())


def _record(i: int, due_s: float, first_s: float, status: str = "ok") -> RequestRecord:
    stamps = [] if status == "cancelled" else [due_s + first_s + 0.1 * k for k in range(11)]
    ended_s = 12.0 if status == "cancelled" else None
    return RequestRecord(i, due_s, due_s, stamps, None, 8, len(stamps), 11, status, ended_s=ended_s)  # type: ignore[arg-type]  # a status


def test_a_search_begins_below_the_load_that_was_too_much() -> None:
    """It would begin at a rate that floods the server, or spend its minutes on ones that tell nothing.

    Five requests a second begin, each under way for 2 s, until they miss from 6 s on: about 10 are under way, which are
    5 a second, so the search begins at 80 % of that.
    """
    good = [_record(i, 0.2 * i, 1.0) for i in range(30)]
    bad = [_record(i, 0.2 * i, 3.0) for i in range(30, 38)]
    cut = [_record(i, 0.2 * i, 0.0, "cancelled") for i in range(38, 60)]
    rate_rps = quick.first_rate(to_table([*good, *bad, *cut]), _setup())

    assert rate_rps == pytest.approx(0.8 * 5, rel=0.15)


@pytest.mark.parametrize("added_rps", [2.0, 8.0, 16.0])
def test_a_server_that_takes_one_request_at_a_time_is_searched_from_near_what_it_answers(added_rps: float) -> None:
    """Users that are added faster than it answers only wait: half of the budget would go into rates far too high."""
    ended = [_record(i, i / added_rps, (i + 1) / 0.8 - i / added_rps) for i in range(8)]
    cut = [_record(i, i / added_rps, 0.0, "cancelled") for i in range(8, round(10 * added_rps))]
    rate_rps = quick.first_rate(to_table([*ended, *cut]), _setup())

    assert rate_rps == pytest.approx(0.8, rel=0.25)


def test_a_load_that_was_never_too_much_is_where_a_search_begins() -> None:
    """A server that does far more than the loop requested would be searched from below."""
    table = to_table([_record(i, 0.2 * i, 0.9) for i in range(50)])

    assert quick.first_rate(table, _setup()) == pytest.approx(5, rel=0.15)


def test_a_loop_without_an_answer_tells_no_rate() -> None:
    """A division by zero would end the command."""
    assert quick.first_rate(to_table([_record(i, 0.2 * i, 0.0, "cancelled") for i in range(9)]), _setup()) is None


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    """Makes the closed loop of a quick search end in this way."""

    def ends(how: BaseException) -> None:
        def execute(*_: object, **__: object) -> None:
            raise how

        monkeypatch.setattr(quick, "execute", execute)

    return ends


def _alone(setup: quick.Setup) -> Trial:
    record = _record(0, 0.0, 0.5)
    shares = quick.shares(to_table([record] * 3), setup.slo)
    return Trial(Key(0, 0.0, ALONE), 3, 3, 0.0, True, False, 1.5, 4.5, 5.0, shares)


def test_ctrl_c_ends_a_quick_search_with_what_it_has(tmp_path: Path, loop: Callable[[BaseException], None]) -> None:
    """Half a minute of measuring would be lost."""
    setup, store = _setup(), Store(tmp_path / "cap")
    with store.opened(setup):
        store.ledger.add(_alone(setup))
    loop(KeyboardInterrupt())
    info = quick.quick_search(setup, store, time.monotonic() + 60)

    assert info.state == "interrupted"
    assert info.cost is not None and info.cost.requests == 3
    assert json.loads((tmp_path / "cap" / "capacity.json").read_text())["state"] == "interrupted"


def test_a_server_that_dies_in_the_loop_is_an_error(tmp_path: Path, loop: Callable[[BaseException], None]) -> None:
    """A dead server would be reported as a capacity of 0."""
    setup, store = _setup(), Store(tmp_path / "cap")
    with store.opened(setup):
        store.ledger.add(_alone(setup))
    loop(BackendError("the server has gone away"))

    with pytest.raises(BackendError, match="gone away"):
        quick.quick_search(setup, store, time.monotonic() + 60)


@pytest.mark.nightly
def test_without_a_server_the_engine_is_measured_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A newcomer without a GPU would see nothing."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.setattr(find, "__defaults__", ({}, ()))
    begun_s = time.monotonic()
    code = main(["quick", "--budget", "30s", "--lengths", "fixed:prompt=32,output=8", "--out", "found"])
    shown = capsys.readouterr()

    assert code in (0, 4, 5)  # 4: other programs of this machine made the client late
    assert "measuring the built-in engine" in shown.err
    assert "Capacity at 90%" in shown.out
    assert (tmp_path / "found" / "report.html").exists()
    assert time.monotonic() - begun_s < 40


@pytest.mark.nightly
def test_a_server_is_found_and_its_capacity_with_the_error_of_the_client(
    bench,
    tmp_path: Path,  # type: ignore[no-untyped-def]  # a fixture of all tests
) -> None:
    """The product: one command, no option."""
    serving = bench("serve", "--backend", "null:ttft=0.02,itl=0.005", "--port", "0")
    port = serving.stdout.readline().strip()
    done = bench(
        "quick", f"127.0.0.1:{port}", "--budget", "60s", "--lengths", "fixed:prompt=16,output=4", "--slo", "ttft=0.5",
        "--out", "found", "--format", "json",
    )  # fmt: skip
    out, err = done.communicate(timeout=120)
    info = json.loads(out)

    assert done.returncode in (4, 5), err
    assert "Measuring 'null' at" in err
    assert info["answers"][0]["bracket"] is not None
    assert info["floor"]["ttft"]["p99_s"] > 0


def test_a_loop_that_begins_late_is_still_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine its time was over before it could be stopped: it took 90 of 180 s to answer all 64 users."""
    monkeypatch.setattr(quick, "TICK_S", 0.001)
    ended: list[bool] = []
    live = Live()
    watch = quick._TooMuch(1e-9, time.monotonic())
    watch.begin(None, live)  # type: ignore[arg-type]  # not read
    while not watch.stopped:
        time.sleep(0.001)
    live.end = ended.append
    ends_s = time.monotonic() + 60
    while not ended and time.monotonic() < ends_s:  # nothing more is sent, and no answer is awaited
        time.sleep(0.001)
    watch.over.set()

    assert [True] == ended
