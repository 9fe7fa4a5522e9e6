"""Heavier clients against `bench serve`: no errors by their own word and by the server's log, and known counts."""

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
