"""The bytes of a request."""

import json
import pickle
from collections.abc import Sequence

import numpy as np
import pytest

from backends.client.body import Builder, RequestFormat, sound_headers
from harness.api import DeadlineSlo, Extra, Request
from harness.errors import UsageError
from workloads.content.tokens import Tokens

SHARING = (
    Request(1, 0.0, 12, 4, prefix_ids=(7,), prefix_block_tokens=8),
    Request(2, 0.0, 12, 4, prefix_ids=(7,), prefix_block_tokens=8),
)


class Plain:
    """Token i of a prefix block is the block, other tokens are the request's; words say the same."""

    def token_ids(self, request: Request, vocab_size: int) -> np.ndarray:
        shared = len(request.prefix_ids) * request.prefix_block_tokens
        return np.array([7 if i < shared else request.id for i in range(request.prompt_tokens)]) % vocab_size

    def text(self, request: Request, opening: Sequence[int] = ()) -> str:
        words = [f"w{i}" for i in self.token_ids(request, 100)]
        return " ".join([*(f"o{i}" for i in opening), *words[len(opening) :]])


def sent(ask: RequestFormat, request: Request = SHARING[0], key: str | None = None) -> tuple[dict[str, str], dict]:
    head, _, body = Builder(ask, Plain(), key).rest(request).partition(b"\r\n\r\n")
    headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
    assert str(len(body)) == headers["Content-Length"]
    return headers, json.loads(body)


@pytest.mark.parametrize(("api", "prompt"), [("chat", "text"), ("completions", "text"), ("completions", "ids")])
def test_no_request_gets_the_fields_of_another(api, prompt) -> None:
    """What requests have in common is built once: lengths, models and numbers of answers would be mixed up."""
    ask = RequestFormat(model="m", api=api, prompt=prompt, min_tokens=True, generation_config=True, extra={"top_k": 1})
    requests = [
        Request(i, 0.0, 5 + i, tokens, extra=extra)
        for i, (tokens, extra) in enumerate(
            [(4, None), (5, None), (4, Extra(model="b")), (4, None), (4, Extra(n=2)), (5, Extra(model="b", n=2))]
        )
    ]
    builder = Builder(ask, Plain())

    assert [builder.fields(request) for request in requests] == [json.loads(builder.body(r)) for r in requests]


def test_a_chat_asks_for_one_message_with_the_fields_of_a_chat() -> None:
    """Servers would answer something else than was planned."""
    headers, body = sent(RequestFormat(model="m"), key="k123")

    assert {
        "model": "m", "messages": [{"role": "user", "content": Plain().text(SHARING[0], (0,))}], "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True}, "max_completion_tokens": 4,
        "ignore_eos": True,
    } == body  # fmt: skip
    assert ("Bearer k123", "identity", "1") == (
        headers["Authorization"], headers["Accept-Encoding"], headers["x-request-id"]
    )  # fmt: skip


def test_a_completion_takes_token_ids_and_its_own_field_of_length() -> None:
    """Lengths would be inexact where they need not be."""
    _, body = sent(RequestFormat(model="m", api="completions", prompt="ids", vocab_size=50))

    assert [7] * 8 + [1] * 4 == body["prompt"] and 4 == body["max_tokens"] and "max_completion_tokens" not in body


@pytest.mark.parametrize("vocab_size", [1, 2, 10, 11, 128_256])
def test_token_ids_are_written_as_json_has_them(vocab_size: int) -> None:
    """A digit lost or a zero in front would be another prompt."""
    ask = RequestFormat(model='"prompt":[]', api="completions", prompt="ids", vocab_size=vocab_size)
    builder = Builder(ask, Tokens(), None)
    for tokens in (0, 1, 3000):
        request = Request(0, 0.0, tokens, 4)

        assert json.loads(builder.body(request)) == builder.fields(request)
        assert b" " not in builder.body(request)


def test_only_what_is_named_is_sent() -> None:
    """The client's default would replace the server's."""
    plain = {"model", "messages", "stream", "max_tokens"}
    bare = RequestFormat(model="m", stream=False, ignore_eos=False, length_field="max_tokens")
    full = RequestFormat(
        model="m", stream=False, ignore_eos=False, length_field="max_tokens", temperature=0.0, top_p=0.5, seed=0,
        stop=("x",), min_tokens=True, generation_config=True,
    )  # fmt: skip

    assert plain == set(sent(bare)[1])
    assert plain | {"temperature", "top_p", "seed", "stop", "min_tokens", "generation_config"} == set(sent(full)[1])
    assert {"min_new_tokens": 4, "max_new_tokens": 4} == json.loads(sent(full)[1]["generation_config"])


def test_what_the_user_adds_wins() -> None:
    """A field could not be changed, or its neighbours would be lost."""
    ask = RequestFormat(
        model="m", extra={"ignore_eos": False, "stream_options": {"include_usage": False}, "top_k": 1},
        headers=(("user-agent", "mine"), ("X-Other", "1")),
    )  # fmt: skip
    headers, body = sent(ask)

    assert {"include_usage": False, "continuous_usage_stats": True} == body["stream_options"]
    assert (False, 1) == (body["ignore_eos"], body["top_k"])
    assert "mine" == headers["user-agent"] and "User-Agent" not in headers and "1" == headers["X-Other"]


@pytest.mark.parametrize("prompt", ["ids", "text"])
def test_a_salt_changes_every_prompt_and_leaves_its_sharing(prompt: str) -> None:
    """A cache warmed by an earlier run would help, or one warmed by this run would not."""

    def prompts(salt: str | None) -> list:
        asks = RequestFormat(model="m", api="completions", prompt=prompt, salt=salt, vocab_size=1000)
        return [sent(asks, request)[1]["prompt"] for request in SHARING]

    unsalted, one, again, other = prompts(None), prompts("a"), prompts("a"), prompts("b")

    assert one == again and one[0] != other[0] and one[0] != unsalted[0]
    salted, first, plain = (p if prompt == "ids" else p.split() for p in (one[0], one[1], unsalted[0]))
    assert salted[:8] == first[:8] and salted[8:] == plain[8:] and 12 == len(salted)


def test_what_the_server_adds_is_taken_off() -> None:
    """Prompts would all be longer than planned by the template."""
    assert 9 == len(sent(RequestFormat(api="completions", prompt="text", overhead_tokens=3))[1]["prompt"].split())
    assert 1 == len(sent(RequestFormat(api="completions", prompt="ids", overhead_tokens=30))[1]["prompt"])


def test_turns_of_a_conversation_are_named_only_when_requested() -> None:
    """A router would see sessions where the run wants none, or none where it wants them."""
    turn = Request(1, 0.0, 4, 4, session=9)

    assert "x-session-affinity" not in sent(RequestFormat(), turn)[0]
    assert "session-9" == sent(RequestFormat(affinity=True), turn)[0]["x-session-affinity"]
    assert "x-correlation-id" not in sent(RequestFormat(affinity=True), SHARING[0])[0]


def test_a_header_names_what_each_request_is_due_by() -> None:
    """A gateway with tiers would see one tier for all, or a line of a trace as a header of its own."""
    due = Extra(slo=DeadlineSlo(2.5))
    ask = RequestFormat(headers=(("x-tier", "{tag}"), ("x-due", "{slo_e2e_s} s"), ("x-json", '{"tag": 1}')))
    bounded = sent(ask, Request(1, 0.0, 4, 4, tag="gold\r\nHost: evil", extra=due))[0]
    plain = sent(ask, Request(2, 0.0, 4, 4))[0]

    assert ["gold%0D%0AHost%3A evil", "2.5 s"] == [bounded[name] for name in ("x-tier", "x-due")]
    assert '{"tag": 1}' == plain["x-json"] == bounded["x-json"]
    assert not {"x-tier", "x-due"} & set(plain)


@pytest.mark.parametrize(
    ("url", "proxy", "first"),
    [
        ("http://host:8000/v1", False, b"POST /v1/completions HTTP/1.1\r\nHost: host:8000\r\n"),
        ("https://u:p@[::1]/v1/", False, b"POST /v1/completions HTTP/1.1\r\nHost: [::1]\r\n"),
        ("http://host/v1?a=1", True, b"POST http://host/v1/completions?a=1 HTTP/1.1\r\nHost: host\r\n"),
    ],
)
def test_the_first_lines_name_the_path_and_the_host(url: str, proxy: bool, first: bytes) -> None:
    """Servers behind one address, and proxies, would not find the way."""
    assert first == Builder(RequestFormat(api="completions"), Plain()).first(url, proxy=proxy)


def test_a_builder_travels_to_another_process_and_does_not_tell_its_key() -> None:
    """Senders could not build requests; or a log would hold the key."""
    builder = Builder(RequestFormat(model="m"), Plain(), "k123secret")

    assert "k123secret" not in repr(builder)
    assert builder.rest(SHARING[0]) == pickle.loads(pickle.dumps(builder)).rest(SHARING[0])  # noqa: S301  # our own


@pytest.mark.parametrize("headers", [
    (("a b", "x"),), (("", "x"),), (("A", "x\r\nB: y"),), (("A", "ü"),), (("Content-Length", "1"),),
    (("Host", "other"),), (("transfer-encoding", "chunked"),), (("X-Team", "a"), ("x-team", "b")),
])  # fmt: skip
def test_headers_that_http_does_not_allow_are_refused(headers: tuple[tuple[str, str], ...]) -> None:
    """A value with a line end would forge another header; a server would read one Host, and a proxy the other."""
    with pytest.raises(UsageError, match="header"):
        sound_headers(headers)


def test_a_request_enforces_its_length_unless_it_may_end_earlier() -> None:
    """A run with stop texts of the user would be condemned for the answers that they end."""
    assert RequestFormat(model="m").enforces_length
    assert RequestFormat(model="m", ignore_eos=False, min_tokens=True).enforces_length
    assert not RequestFormat(model="m", ignore_eos=False).enforces_length
    assert not RequestFormat(model="m", stop=("END",)).enforces_length
    assert not RequestFormat(model="m", extra={"stop_token_ids": [2]}).enforces_length


def test_a_request_names_its_own_model() -> None:
    """Requests for LoRA adapters would all be answered by the base model."""
    own = Request(1, 0.0, 3, 2, extra=Extra(model="adapter-7"))

    assert ["base", "adapter-7"] == [sent(RequestFormat(model="base"), r)[1]["model"] for r in (SHARING[0], own)]
