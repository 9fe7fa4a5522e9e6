"""A key goes to the server it is meant for, and nowhere else: not into a file, a log, a report or an error."""

import asyncio
import json
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from harness.api import Request
from harness.errors import BenchError

KEY = "Q7Q9xYtRw2LmZ-no-usual-form"
HEADER = "hunter2-of-the-header"
FIELD = "hunter3-of-the-body"
QUERY = "hunter4-of-the-url"
SECRETS = (KEY, HEADER, FIELD, QUERY)
NOWHERE = "openai:url=http://127.0.0.1:9/v1"


def _texts(path: Path) -> Iterator[tuple[str, str]]:
    """Everything that can be read in a folder: files as bytes, tables unpacked."""
    for file in sorted(path.rglob("*")):
        if file.suffix == ".parquet":
            table = pq.read_table(file)
            yield file.name, f"{table.schema.metadata} {table.to_pylist()}"
        elif file.is_file():
            yield file.name, file.read_bytes().decode("utf-8", errors="replace")


def _hold(texts: dict[str, str]) -> None:
    assert [] == [(where, secret) for where, text in texts.items() for secret in SECRETS if secret in text]


def _ended(finished: tuple[int, str, str], path: Path) -> dict[str, str]:
    return {
        "code": str(finished[0]),
        "standard output": finished[1],
        "standard error": finished[2],
        **dict(_texts(path)),
    }


def _url(server: Any) -> str:
    return f"{server.url('it')}?api-version=1&sig={QUERY}&token={QUERY}"


def _arguments(url: str, *more: str) -> list[str]:
    return [
        "run", "--backend", f"openai:url={url},model=m", "--rate", "50", "--requests", "25",
        "--lengths", "fixed:prompt=30,output=8", "--calibrate", "off", "--out", "out",
        "--header", f"X-Api-Key: {HEADER}", "--extra-body", json.dumps({"api_key": FIELD}), *more,
    ]  # fmt: skip


@pytest.mark.parametrize(
    "quirk", [{"metrics": "vllm:num_requests_running 1\n"}, {"echo": True, "every": 2}], ids=["good", "echoing"]
)
def test_a_run_leaves_no_key_behind(quirk: dict, scripted: Callable, run_here: Callable, tmp_path: Path) -> None:
    """Any reader of a report could use the account of its author; a server may even send the key back."""
    server = scripted(it=quirk)
    server.arm_measured()

    texts = _ended(run_here(*_arguments(_url(server)), OPENAI_API_KEY=KEY), tmp_path)

    _hold(texts)
    sent = server.of("it")
    assert {f"Bearer {KEY}"} == {s.headers["authorization"] for s in sent}
    assert {(HEADER, FIELD)} == {(s.headers["x-api-key"], s.body["api_key"]) for s in sent}
    assert "report.html" in texts and "run.json" in texts
    if "echo" in quirk:
        assert any("it fell over" in text for name, text in texts.items() if name.startswith("requests"))


def test_a_refused_key_is_not_repeated(scripted: Callable, run_here: Callable, tmp_path: Path) -> None:
    """The first thing that goes wrong would print the key into the log of a build."""
    server = scripted(it={"needs_key": "another"})

    texts = _ended(run_here(*_arguments(_url(server)), OPENAI_API_KEY=KEY), tmp_path)

    assert "3" == texts["code"]
    _hold(texts)
    assert "key" in texts["standard error"]


def test_a_key_in_the_place_of_a_name_is_not_repeated(run_here: Callable, scripted: Callable, tmp_path: Path) -> None:
    """Who gives the key itself as key_env would find it in the error."""
    server = scripted(it={})
    key = "sk-bench-7Q9xYtRw2LmZ"
    for option in ("key_env", "key_file"):
        backend = f"openai:url={server.url('it')},model=m,{option}={key}"
        texts = _ended(run_here("run", "--backend", backend, "--requests", "2"), tmp_path)

        assert "2" == texts["code"]
        assert key not in texts["standard error"]


@pytest.mark.parametrize(
    "wrong",
    [(f"{NOWHERE},api_key={KEY}",), (NOWHERE, "--header", f"Authorization Bearer {KEY}")],
    ids=["spec", "header"],
)
def test_a_key_that_is_given_in_a_wrong_way_is_not_repeated(
    wrong: tuple[str, ...], run_here: Callable, tmp_path: Path
) -> None:
    """Who writes the key into the command would find it in the log of a build."""
    texts = _ended(run_here("run", "--requests", "2", "--backend", *wrong), tmp_path)

    assert "2" == texts["code"]
    _hold(texts)
    assert "api_key" in texts["standard error"] or "'Authorization' is not a header" in texts["standard error"]


def test_a_key_is_read_from_a_file_or_a_named_variable(
    scripted: Callable, ask: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key could only be given where every process of the machine sees it."""
    (tmp_path / "key").write_text(f"{KEY}\n", encoding="utf-8")
    monkeypatch.setenv("ELSEWHERE", "sk-of-elsewhere")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-default")
    server = scripted(file={}, named={}, usual={})

    asyncio.run(ask(server, "file", key_file=str(tmp_path / "key")))
    asyncio.run(ask(server, "named", key_env="ELSEWHERE"))
    asyncio.run(ask(server, "usual"))

    assert f"Bearer {KEY}" == server.of("file")[-1].headers["authorization"]
    assert "Bearer sk-of-elsewhere" == server.of("named")[-1].headers["authorization"]
    assert "Bearer sk-of-the-default" == server.of("usual")[-1].headers["authorization"]


def test_a_key_never_follows_a_redirect(scripted: Callable, opened: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server could send the key on to anybody."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    thief = scripted(it={})
    server = scripted(it={"status": 307, "location": thief.url("it") + "/chat/completions"})

    async def run() -> Any:
        async with opened(server.url("it")) as backend:
            server.arm()
            return [e async for e in backend.submit(Request(0, 0.0, 5, 8))][-1]

    assert "error" == asyncio.run(run()).status
    with pytest.raises(BenchError):
        asyncio.run(run())  # armed now: the probe is redirected too
    assert [] == thief.seen


async def test_errors_and_descriptions_of_the_client_hold_no_key(
    scripted: Callable, opened: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log of the objects of a run would hold the key."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    server = scripted(it={"echo": True})

    async with opened(
        _url(server), header=f"X-Api-Key: {HEADER}", extra_body=json.dumps({"api_key": FIELD})
    ) as backend:
        server.arm()
        ended = [e async for e in backend.submit(Request(0, 0.0, 5, 8))][-1]
        copy = pickle.loads(pickle.dumps(backend))  # noqa: S301 - our own
        error, *facts = ended.error, backend.describe(), backend.sender_facts(), copy.describe()

    assert "it fell over" in error
    _hold({"error": error, **{f"facts {i}": str(f) for i, f in enumerate(facts)}})


def test_a_password_in_an_address_is_refused_unseen(run_here: Callable, tmp_path: Path) -> None:
    """The password would stand in the list of processes, and would not be sent where it belongs."""
    backend = f"openai:url=http://me:{QUERY}@127.0.0.1:9/v1,model=m"

    texts = _ended(run_here("run", "--backend", backend, "--requests", "2", OPENAI_API_KEY=KEY), tmp_path)

    assert "2" == texts["code"]
    _hold(texts)
    assert "password" in texts["standard error"]
