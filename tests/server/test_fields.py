"""What clients may ask for: what is wrong is named, what is unknown is ignored."""

from typing import Any

import pytest

from backends.server import fields
from backends.server.fields import Refused
from backends.server.tokenizer import Builtin

TOKENIZER = Builtin(300)
HELLO: dict[str, object] = {"messages": [{"role": "user", "content": "hello"}]}


def ask(api: Any = "completions", limit: int = 100, **given: object) -> fields.GenerationRequest:
    base: dict[str, object] = dict(HELLO) if api == "chat" else {"prompt": [1, 2, 3]}
    return fields.ask(api, base | given, TOKENIZER, limit)


WRONG: list[tuple[dict[str, object], str, str]] = [
    ({"prompt": ["a", "b"]}, "prompt", "one prompt a request"),
    ({"prompt": None}, "prompt", "a text or a list of token ids"),
    ({"prompt": ""}, "prompt", "empty"),
    ({"prompt": []}, "prompt", "empty"),
    ({"prompt": [1, True]}, "prompt", "token ids"),
    ({"prompt": [300]}, "prompt", "from 0 to 299"),
    ({"prompt": [-1]}, "prompt", "from 0 to 299"),
    ({"n": 0}, "n", "from 1 to 128"),
    ({"n": 129}, "n", "from 1 to 128"),
    ({"best_of": 3}, "best_of", "must be 1"),
    ({"n": "two"}, "n", "whole number"),
    ({"echo": True}, "echo", "not available"),
    ({"logprobs": 5}, "logprobs", "not available"),
    ({"max_tokens": 0}, "max_tokens", "at least 1"),
    ({"max_tokens": 1.5}, "max_tokens", "whole number"),
    ({"max_tokens": True}, "max_tokens", "whole number"),
    ({"max_tokens": 98}, "max_tokens", "1 too many"),
    ({"max_tokens": 5, "min_tokens": 6}, "min_tokens", "from 0 to max_tokens (5)"),
    ({"temperature": -1}, "temperature", "from 0 to 100"),
    ({"temperature": "hot"}, "temperature", "number"),
    ({"top_p": 0}, "top_p", "above 0"),
    ({"top_p": 1.1}, "top_p", "from 0 to 1"),
    ({"seed": "x"}, "seed", "whole number"),
    ({"stop": ["a"]}, "stop", "leave it out"),
    ({"stream": "yes"}, "stream", "true or false"),
    ({"stream_options": 1}, "stream_options", "object"),
    ({"ignore_eos": 1}, "ignore_eos", "true or false"),
]


@pytest.mark.parametrize(("given", "param", "words"), WRONG, ids=lambda value: str(value)[:40])
def test_what_is_wrong_is_named(given: dict[str, object], param: str, words: str) -> None:
    """A client would not know which of its fields the server refuses."""
    with pytest.raises(Refused) as refused:
        ask(**given)

    assert 400 == refused.value.status
    assert param == refused.value.param
    assert words in str(refused.value)


@pytest.mark.parametrize(
    "messages",
    [None, [], "hi", [1], [{"content": "x"}], [{"role": "user", "content": 5}],
     [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]],
)  # fmt: skip
def test_messages_that_cannot_be_read_are_refused(messages: object) -> None:
    """A prompt would lose what the client put into it."""
    with pytest.raises(Refused) as refused:
        ask("chat", messages=messages)

    assert (400, "messages") == (refused.value.status, refused.value.param)


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b'"x"', b"\xff\xfe", b"null"])
def test_a_body_that_is_no_object_is_refused(body: bytes) -> None:
    """A broken client would meet a traceback."""
    with pytest.raises(Refused) as refused:
        fields.parse(body)

    assert 400 == refused.value.status


def test_a_prompt_is_a_text_or_tokens_or_a_list_of_one() -> None:
    """Token prompts make lengths exact, and some clients wrap them in a list."""
    assert (1, 2, 3) == ask(prompt=[1, 2, 3]).prompt == ask(prompt=[[1, 2, 3]]).prompt
    assert tuple(b"ab") == ask(prompt="ab").prompt == ask(prompt=["ab"]).prompt


def test_parts_of_a_message_are_joined() -> None:
    """AIPerf and langchain send texts as lists of parts."""
    whole = ask("chat").prompt
    parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]

    assert whole == ask("chat", messages=[{"role": "user", "content": parts}]).prompt


def test_unused_fields_of_clients_are_ignored() -> None:
    """vLLM's benchmark would be refused for its repetition_penalty."""
    plain = ask(max_tokens=5)

    assert plain == ask(
        max_tokens=5, repetition_penalty=1.0, best_of=1, n=1, logprobs=None, echo=False, user="x", colour="red",
        min_tokens=None, stop=None, seed=None, stream_options=None,
    )  # fmt: skip


def test_the_newer_name_of_max_tokens_wins() -> None:
    """OpenAI's API has replaced max_tokens in chat."""
    assert 7 == ask("chat", max_completion_tokens=7, max_tokens=9).sampling.max_tokens
    assert 9 == ask("chat", max_tokens=9).sampling.max_tokens


def test_without_a_length_a_chat_fills_the_context_and_a_completion_has_16() -> None:
    """Answers would have other lengths than those of the servers that this one stands in for."""
    assert 100 - len(ask("chat").prompt) == ask("chat").sampling.max_tokens
    assert 16 == ask().sampling.max_tokens
    assert 7 == ask(limit=10).sampling.max_tokens


def test_a_prompt_that_fills_the_context_leaves_no_room() -> None:
    """The model would be requested a token beyond its context."""
    with pytest.raises(Refused) as refused:
        ask(limit=3)

    assert "context_length_exceeded" == refused.value.code


def test_how_to_draw_is_handed_on() -> None:
    """Greedy requests would be answered by chance."""
    sampling = ask(temperature=0, top_p=0.5, seed=7, min_tokens=2, ignore_eos=True).sampling

    assert (0.0, 0.5, 7, 2, True) == (
        sampling.temperature, sampling.top_p, sampling.seed, sampling.min_tokens, sampling.ignore_eos,
    )  # fmt: skip
    assert None is ask().sampling.temperature


def test_usage_is_sent_only_in_streams_that_request_it() -> None:
    """A client that did not ask would stumble over a chunk without choices."""
    options = {"include_usage": True}
    every = {"continuous_usage_stats": True}

    assert (False, False) == (ask(stream=True).usage, ask(stream_options=options).usage)
    assert (True, False) == (ask(stream=True, stream_options=options).usage, ask(stream=True).usage_on_every_chunk)
    assert (True, True) == (
        ask(stream=True, stream_options=every).usage, ask(stream=True, stream_options=every).usage_on_every_chunk,
    )  # fmt: skip


class Untouched:
    """A tokenizer that must not be called."""

    vocab_size = 512

    def encode(self, text: str, special: bool = True) -> list[int]:
        raise AssertionError(text[:10], special)

    def chat(self, messages: Any) -> list[int]:
        raise AssertionError(len(messages))


@pytest.mark.parametrize(
    ("api", "prompt"),
    [
        ("completions", {"prompt": "a" * 6401}),
        ("chat", {"messages": [{"role": "user", "content": "a" * 3200}] * 2}),
    ],
)
def test_a_text_that_is_far_too_long_is_refused_before_it_is_tokenised(api: Any, prompt: dict[str, object]) -> None:
    """The tokens of all other answers would be late by the seconds that it takes."""
    with pytest.raises(Refused, match=r"context is 100 tokens; the prompt has 64[0-9]+ characters") as caught:
        fields.ask(api, prompt, Untouched(), 100)  # type: ignore[arg-type]  # no more of it is needed

    assert (400, "context_length_exceeded") == (caught.value.status, caught.value.code)
