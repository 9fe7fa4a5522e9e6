"""Heavier clients against `bench serve`: no errors by their own word and by the server's log, and known counts."""

import runpy
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(900)  # vLLM takes minutes to start on a busy machine

NAMES = [
    "openai 2", "litellm", "langchain-openai", "guidellm", "aiperf", "vllm bench, chat", "vllm bench, completions",
]  # fmt: skip
OWN_COUNT = ("aiperf",)  # it counts with its own tokenizer, which is not the server's


@pytest.fixture(scope="module")
def null(clients, tmp_path_factory):
    """Tokens at stated times."""
    folder = tmp_path_factory.mktemp("null")
    with clients["serving"](clients["NULL"], "demo", folder) as (url, log):
        yield url, log


@pytest.mark.parametrize("name", NAMES)
def test_a_client_ends_without_errors(clients, environment, null, tiny, tmp_path, name):
    """If this failed, a benchmark that people know could not be tried against a known truth."""
    url, log = null
    request, run = clients["CLIENTS"][name]
    report = run(environment(request), clients["Server"](url, "demo", tiny("ascii"), tmp_path))
    real = clients["truth"](log)

    assert ([], clients["REQUESTS"]) == (list(report.errors), report.completed)
    assert (clients["REQUESTS"], 0) == (real.answers, real.failed)
    assert clients["REQUESTS"] * clients["TOKENS"] == real.tokens
    assert name in OWN_COUNT or report.tokens == real.tokens


def test_sessions_are_replayed_as_recorded(environment, tmp_path, monkeypatch):
    """If this failed, agents would be replayed in another order, at other times or with other prefixes."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1]))
    replay = runpy.run_path(str(Path(__file__).parents[1] / "session_replay.py"))
    lines = list(replay["table"](environment("aiperf"), tmp_path))
    aiperf, bench, recorded = ([cell.strip() for cell in line.strip("| ").split("|")] for line in lines[2:])

    assert ["52 of 52", "8 of 8"] == bench[1:3] == aiperf[1:3]
    assert float(bench[3]) <= max(5.0, float(aiperf[3]))
    for of in (bench, aiperf):
        assert abs(float(of[5].split("%")[0]) - float(recorded[5].split("%")[0])) <= 3.0
