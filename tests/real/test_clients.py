"""Clients that everybody has, against `bench serve`: no errors, the right counts, the right text."""

import json
import shutil
import subprocess

import pytest

NIGHTLY = pytest.mark.nightly


@pytest.fixture(scope="module")
def null(clients, tmp_path_factory):
    """Tokens at stated times, quickly."""
    folder = tmp_path_factory.mktemp("null")
    with clients["serving"]("null:ttft=0.02,itl=0.001,tokens=16", "null", folder) as (url, log):
        yield url, log


@pytest.fixture(scope="module")
def engine(clients, tiny, tmp_path_factory):
    """The engine with the small model, whose text breaks off inside characters."""
    folder = tmp_path_factory.mktemp("engine")
    backend = f"engine:model={tiny('bytes')},threads=1"
    with clients["serving"](backend, "tiny", folder) as (url, log):
        yield url, log


@pytest.mark.parametrize(
    ("behind", "name"),
    [
        ("engine", "bench"), ("engine", "openai"), ("null", "curl"),
        *(pytest.param(*other, marks=NIGHTLY) for other in (("engine", "curl"), ("null", "bench"), ("null", "openai"))),
    ],
)  # fmt: skip
def test_a_client_ends_without_errors_and_with_the_right_counts(clients, tiny, tmp_path, request, name, behind):
    """If this failed, client programs would break on `bench serve`."""
    if name == "curl" and shutil.which("curl") is None:
        pytest.skip("there is no curl on this machine")
    if name == "openai":
        pytest.importorskip("openai")
    url, log = request.getfixturevalue(behind)
    server = clients["Server"](url, "null" if behind == "null" else "tiny", tiny("bytes"), tmp_path)
    environment, run = clients["CLIENTS"][name]
    report = run(clients["programs_of"](environment), server)
    real = clients["truth"](log)

    assert ([], clients["REQUESTS"]) == (list(report.errors), report.completed)
    assert (clients["REQUESTS"], 0) == (real.answers, real.failed)
    assert report.tokens in (None, real.tokens)
    assert report.ttft_s > real.ttft_s or name != "openai"  # curl stops at the head, and ours at the kernel's stamp


def test_the_library_hears_the_text_of_our_engine(engine, tokenizer, greedy, kit):
    """If this failed, text that breaks off inside characters would get lost on its way to a client."""
    openai = pytest.importorskip("openai")
    texts, words = kit.words(12, 5), tokenizer("bytes")
    ids = words.encode(f"<|user|>{texts}<|end|><|assistant|>").ids
    with openai.OpenAI(base_url=f"{engine[0]}/v1", api_key="none", max_retries=0) as client:
        request = {
            "model": "tiny", "messages": [{"role": "user", "content": texts}], "max_completion_tokens": 60,
            "temperature": 0,
        }  # fmt: skip
        whole = client.chat.completions.create(**request)
        streamed = list(client.chat.completions.create(**request, stream=True, stream_options={"include_usage": True}))
    text = words.decode(greedy("bytes", ids, 60))

    assert text == whole.choices[0].message.content
    assert text == "".join(chunk.choices[0].delta.content or "" for chunk in streamed if chunk.choices)
    assert whole.usage == streamed[-1].usage
    assert (len(ids), 60) == (whole.usage.prompt_tokens, whole.usage.completion_tokens)
    assert "length" == whole.choices[0].finish_reason


def test_the_library_reads_models_and_errors(engine):
    """If this failed, a wrong name or a prompt too long would end in a traceback without a reason."""
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=f"{engine[0]}/v1", api_key="none", max_retries=0) as client:
        names = [model.id for model in client.models.list()]
        with pytest.raises(openai.NotFoundError, match="other"):
            client.completions.create(model="other", prompt="badu", max_tokens=4)
        with pytest.raises(openai.BadRequestError, match="8192"):
            client.completions.create(model="tiny", prompt="badu", max_tokens=9000)

    assert ["tiny"] == names


def test_the_library_that_hangs_up_frees_the_engine(engine, kit):
    """If this failed, a client that goes away would leave its answer to be made to the end."""
    openai = pytest.importorskip("openai")
    url, log = engine
    before = len(log.read_text().splitlines())
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        request = {"model": "tiny", "prompt": "badu fiko", "max_tokens": 8000, "extra_body": {"ignore_eos": True}}
        with client.completions.create(**request, stream=True) as stream:
            next(iter(stream))

    def idle() -> bool:
        gauge = next(m for m in kit.ask(f"{url}/metrics").splitlines() if m.startswith("vllm:num_requests_running{"))
        return 0 == float(gauge.split()[-1])

    kit.until(lambda: len(log.read_text().splitlines()) > before and idle())
    last = json.loads(log.read_text().splitlines()[-1])

    assert 1 <= last["output_tokens"] < 8000
    assert last["finish_reason"] not in ("length", "stop")


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl on this machine")
def test_curl_reads_the_routes_that_clients_ask(null):
    """If this failed, clients that look around before they start would give up."""
    url, _ = null

    def status(*arguments: str) -> str:
        command = ["curl", "--silent", "--output", "/dev/null", "--write-out", "%{http_code}", "--max-time", "20"]
        return subprocess.run([*command, *arguments], check=True, capture_output=True, text=True).stdout

    for route in ("/v1/models", "/health", "/version", "/metrics"):
        assert "200" == status(url + route)
        assert "200" == status("--head", url + route)
    assert "404" == status(f"{url}/server_info")
    assert "400" == status("--data", "{", f"{url}/v1/chat/completions")
