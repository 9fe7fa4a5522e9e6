"""Where servers put text, thinking and counts: a stream of each family, as it was recorded, with made-up words."""

import json
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from backends.client.connection import Answer
from backends.client.framing import events, follow
from backends.client.reading import Reader
from backends.client.shapes import SHAPES, other_api, words
from harness.api import Ended, Request, TokenEvent

THOUGHTS, WORDS = ("Let", " me", " see", " now"), ("Well", " yes", " it", " is")
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"


def delta(value: Mapping[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": value, "finish_reason": finish}], **more}


def used(prompt: int, completion: int, **more: Any) -> dict[str, Any]:
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion, **more}


def own(usage: Mapping[str, Any]) -> dict[str, Any]:
    return {"choices": [], "usage": usage}


def texts(name: str = "content", parts: Sequence[str] = WORDS) -> list[dict[str, Any]]:
    return [delta({name: part}) for part in parts]


def answer(chunks: Sequence[Mapping[str, Any]], done: bool = True) -> Answer:
    """Event i arrives at i + 1 seconds."""
    data = [
        HEAD,
        *(f"data: {json.dumps(chunk)}\n\n".encode() for chunk in chunks),
        b"data: [DONE]\n\n" if done else b"",
    ]
    stamps = array("d", range(len(data)))
    return Answer(sent_s=-1.0, ended_s=999.0, how="closed", data=data, stamp_s=stamps, read_s=stamps)


def read(chunks: Sequence[Mapping[str, Any]], output_tokens: int = 1000) -> tuple[list[TokenEvent], Ended]:
    *tokens, ended = Reader().read(answer(chunks), Request(5, 0.0, 7, output_tokens))
    assert isinstance(ended, Ended)
    return [token for token in tokens if isinstance(token, TokenEvent)], ended


STOP = delta({}, "stop")
DETAILS = {"completion_tokens_details": {"reasoning_tokens": 4}}
OPENROUTER = [
    delta({"role": "assistant", "content": "", "reasoning": part,
           "reasoning_details": [{"type": "reasoning.text", "text": part, "format": "unknown", "index": 0}]})
    for part in THOUGHTS
]  # fmt: skip
LITELLM = [
    delta({"content": "", "reasoning_content": part, "thinking_blocks": blocks,
           "provider_specific_fields": {"thinking_blocks": blocks}})
    for part in THOUGHTS for blocks in [[{"type": "thinking", "thinking": part, "signature": ""}]]
]  # fmt: skip
SIGNED = delta({"content": "", "thinking_blocks": [{"type": "thinking", "thinking": "", "signature": "ErcBCkgIBxAB"}]})
GEMINI = [delta({"content": part, "extra_content": {"google": {"thought": True}}, "role": "assistant"})
          for part in THOUGHTS]  # fmt: skip
FAMILIES: dict[str, list[dict[str, Any]]] = {
    "DeepSeek": [*(delta({"content": None, "reasoning_content": part}) for part in THOUGHTS),
                 *(delta({"content": part, "reasoning_content": None}) for part in WORDS), STOP,
                 own(used(7, 8, **DETAILS))],
    "OpenRouter": [*OPENROUTER, *texts(), STOP, own(used(7, 8, **DETAILS))],
    "LiteLLM with Anthropic": [*LITELLM, SIGNED, *texts(), STOP, own(used(7, 8, **DETAILS))],
    "Mistral": [
        *(delta({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": part}]}]})
          for part in THOUGHTS),
        *(delta({"content": [{"type": "text", "text": part}]}) for part in WORDS[:2]), *texts(parts=WORDS[2:]),
        delta({"content": ""}, "stop", usage=used(7, 8)),
    ],
    "Databricks with Anthropic": [
        *(delta({"content": [{"type": "reasoning", "summary": [{"type": "summary_text", "text": part}]}]})
          for part in THOUGHTS), *texts(), STOP, own(used(7, 8))],
    "Gemini": [*GEMINI, *texts(), delta({}, "stop", usage=used(7, 8))],
    "Gemini's own parts": [
        *(delta({"content": {"parts": [{"text": part, "thought": True}]}}) for part in THOUGHTS),
        *(delta({"content": {"parts": [{"text": part}]}}) for part in WORDS), delta({}, "stop", usageMetadata={
            "promptTokenCount": 7, "candidatesTokenCount": 4, "thoughtsTokenCount": 4, "totalTokenCount": 15})],
    "Bedrock": [*(delta({"reasoningContent": {"text": part}}) for part in THOUGHTS), *texts("text"),
                delta({}, "stop", usage={"inputTokens": 7, "outputTokens": 8, "totalTokens": 15})],
    "Copilot": [*texts("reasoning_text", THOUGHTS), delta({"reasoning_opaque": "c2VjcmV0"}), *texts(), STOP,
                own(used(7, 8))],
    "Ollama": [*texts("reasoning", THOUGHTS), *texts(), delta({}, "stop", prompt_eval_count=7, eval_count=8)],
    "Kimi": [*texts("reasoning_content", THOUGHTS), *texts(),
             {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "usage": used(7, 8)}]}],
    "Groq": [*texts("reasoning", THOUGHTS), *texts(), delta({}, "stop", x_groq={"id": "r", "usage": used(7, 8)})],
    "xAI, reasoning beside the answer": [
        *texts("reasoning_content", THOUGHTS), *texts(), STOP, own(used(7, 4, **DETAILS) | {"total_tokens": 15})],
    "Perplexity": [*(delta({"content": part}, message={"content": "all so far"}) for part in (*THOUGHTS, *WORDS)),
                   {"choices": [{"delta": {}, "message": {"content": "Let me see"}, "finish_reason": "stop"}],
                    "usage": used(7, 8)}],
    "a completion with its thinking beside the text": [
        *({"choices": [{"index": 0, "text": "", "reasoning_content": part}]} for part in THOUGHTS),
        *({"choices": [{"index": 0, "text": part, "logprobs": None}]} for part in WORDS),
        {"choices": [{"index": 0, "text": "", "finish_reason": "stop", "content_filter_results": {"hate": {
            "filtered": False, "severity": "safe"}}}]}, own(used(7, 8))],
    "content in the choice itself": [
        *({"choices": [{"content": part}]} for part in (*THOUGHTS, *WORDS)), STOP, own(used(7, 8))],
    "watsonx": [*texts("reasoning_content", THOUGHTS), *texts(), delta({}, "stop", usage={
        "input_token_count": 7, "generated_token_count": 8})],
    "Cohere": [*(delta({"content": {"type": "thinking", "thinking": part}}) for part in THOUGHTS), *texts(),
               delta({}, "stop", meta={"billed_units": {"input_tokens": 7, "output_tokens": 8}})],
    "Vercel": [*texts("reasoning", THOUGHTS), *texts(), delta({}, "stop", usage={
        "promptTokens": 7, "completionTokens": 8})],
    "gpt-oss with its channels": [
        *(delta({"channel": "analysis", "content": part}) for part in THOUGHTS),
        *(delta({"channel": "final", "content": part}) for part in WORDS), STOP, own(used(7, 8))],
    "a name that no table has": [*texts("inner_voice", THOUGHTS), *texts(), STOP, own(used(7, 8))],
    "a name like those of thinking": [*texts("deep_thinking_text", THOUGHTS), *texts(), STOP, own(used(7, 8))],
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_of_servers_is_read_to_the_last_token(family: str) -> None:
    """Thinking, or the count of all tokens, would be missed where a server calls it by another name."""
    tokens, ended = read(FAMILIES[family])

    assert ended.exchange is not None and ("ok", None) == (ended.status, ended.error)
    assert [1.0 + i for i in range(4)] == [token.at_s for token in tokens][:4]
    assert [1] * 8 == [token.tokens for token in tokens]
    assert (7, None) == (ended.prompt_tokens_server, ended.unseen_tokens)
    assert ended.exchange.first_content_s == (1.0 if family in PLAIN else 6.0 - (family not in LATE))
    assert ended.exchange.unknown_text == ("inner_voice" if family == "a name that no table has" else None)


PLAIN = ("Perplexity", "content in the choice itself")
"""Without thinking."""
LATE = ("LiteLLM with Anthropic", "Copilot")
"""They send an event without words between the thinking and the answer."""


@pytest.mark.parametrize(
    ("part", "text", "thought"),
    [
        ({"content": "a", "refusal": None}, "a", ""),
        ({"refusal": "no"}, "no", ""),
        ({"content": [{"type": "text", "text": {"value": "a"}}], "role": "assistant"}, "", ""),
        ({"tool_calls": [{"index": 0, "id": "x", "type": "function", "function": {"name": "f", "arguments": "{"}}]},
         "f{", ""),
        ({"tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]}, 'f{"a": 1}', ""),
        ({"tool_calls": [{"type": "custom", "custom": {"name": "f", "input": "x"}}]}, "fx", ""),
        ({"function_call": {"arguments": "1}"}}, "1}", ""),
        ({"role": "assistant", "name": "Bot", "content": ""}, "", ""),
        ({"audio": {"id": "a", "transcript": "hm"}}, "hm", ""),
        ({"audio": {"data": "UklGRg=="}}, "\ufffc", ""),
        ({"images": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBO"}}]}, "\ufffc", ""),
        ({"reasoning": "a", "reasoning_content": "a"}, "", "a"),
        ({"reasoning_details": [{"type": "reasoning.encrypted", "data": "c2Vj"}]}, "", ""),
        ({"content": [{"type": "redacted_thinking", "data": "c2Vj"}]}, "", ""),
        ({"thought": "a", "content": "b"}, "b", "a"),
    ],
)  # fmt: skip
def test_the_words_of_an_event_are_those_that_a_user_could_read(part: dict, text: str, thought: str) -> None:
    """Ids, signatures and what is encrypted would be tokens, or the parts of an answer would be counted twice."""
    found = words({"delta": part})

    assert (text, thought) == (found.text, found.thinking)


def test_each_name_of_the_table_stands_in_one_family() -> None:
    """A name would be changed in one place and stay in the other."""
    names = [(kind, name) for shape in SHAPES for kind in shape.__slots__ if kind != "family"
             for name in getattr(shape, kind)]  # fmt: skip

    assert len(names) == len(set(names))


def hidden(prompt: int, completion: int, **details: Any) -> dict[str, Any]:
    return own(used(prompt, completion, completion_tokens_details=details))


TEN = [f" word{i}" for i in range(10)]
LUMPS = ["".join(f" word{i}" for i in range(k, k + 4)) for k in range(0, 40, 4)]
SUMMARY = ["**Looking", " at", " it**"]
COUNTS: dict[str, tuple[list[dict[str, Any]], int, int]] = {
    # the stream, its streamed tokens, and those unseen
    "reasoning named, none streamed": ([*texts(parts=TEN), STOP, hidden(7, 40, reasoning_tokens=30)], 10, 30),
    "reasoning not named": ([*texts(parts=TEN), STOP, own(used(7, 40))], 10, 30),
    "reasoning partly streamed as a summary": (
        [*texts("reasoning", SUMMARY), *texts(parts=TEN), STOP, hidden(7, 110, reasoning_tokens=100)], 14, 96),
    "reasoning excluded (include_reasoning: false), named": (
        [*texts(parts=LUMPS), STOP, hidden(7, 90, reasoning_tokens=50)], 40, 50),
    "reasoning beside the completion (xAI)": (
        [*texts(parts=TEN), STOP, own(used(7, 10, **DETAILS) | {"total_tokens": 21})], 10, 4),
    "more reasoning than completion (Perplexity)": (
        [*texts(parts=TEN), STOP, own(used(7, 10, reasoning_tokens=500))], 10, 500),
    "thoughts in the total alone (Gemini)": (
        [*texts(parts=TEN), STOP, own(used(7, 10) | {"total_tokens": 47})], 10, 30),
    "thoughts by the name of Gemini": (
        [*texts(parts=TEN), delta({}, "stop", usage_metadata={
            "prompt_token_count": 7, "candidates_token_count": 10, "thoughts_token_count": 30,
            "total_token_count": 47})], 10, 30),
    "reasoning within the text, between marks": (
        [*texts(parts=["<think>", *TEN, "</think>", *TEN]), STOP, hidden(7, 22, reasoning_tokens=12)], 22, 0),
    "a prediction that was refused": ([*texts(parts=TEN), STOP, hidden(7, 25, rejected_prediction_tokens=15)], 10, 15),
    "audio that does not come": ([*texts(parts=TEN), STOP, hidden(7, 60, audio_tokens=50)], 10, 50),
    "audio that comes": ([*(delta({"audio": {"data": "UklGRg=="}}) for _ in range(10)), STOP,
                          hidden(7, 60, audio_tokens=60)], 60, 0),
    "four tokens an event": ([*texts(parts=LUMPS), STOP, own(used(7, 40))], 40, 0),
    "four tokens an event of German": (
        [*texts(parts=["Dampfschiff", "fahrtsgesell", "schaft an der", " Donau und"] * 3), STOP, own(used(7, 40))],
        40, 0),
    "four tokens an event of Chinese": ([*texts(parts=["我们今天", "去公园玩", "天气很好", "大家开心"] * 2), STOP,
                                         own(used(7, 32))], 32, 0),
    "four tokens an event, ten times as many not named": ([*texts(parts=LUMPS), STOP, own(used(7, 440))], 40, 400),
    "texts held back until their characters are whole": (
        [*texts(parts=["é", "a", "ü", "b", "c", "d", "e", "f", "g", "h"]), STOP, own(used(7, 12))], 12, 0),
    "tokens that decode to nothing": (
        [*(delta({"content": part}) for word in TEN for part in (word, "")), STOP, own(used(7, 20))], 20, 0),
    "usage in each chunk, reasoning before the first": (
        [*(delta({"content": word}, usage=used(7, 31 + i)) for i, word in enumerate(TEN)), STOP], 10, 30),
    "usage in each chunk, reasoning named": (
        [*(delta({"content": word}, usage=used(7, 5 + i, completion_tokens_details={"reasoning_tokens": 4}))
           for i, word in enumerate(TEN)), STOP], 10, 4),
    "usage of each chunk alone": ([*(delta({"content": w}, usage=used(7, 1)) for w in TEN), STOP], 10, 0),
    "usage that counts down": (
        [*(delta({"content": w}, usage=used(7, 10 - i)) for i, w in enumerate(TEN)), STOP], 10, 0),
    "zeros after the right usage": ([*texts(parts=TEN), delta({}, "stop", usage=used(7, 10)), own(used(0, 0))], 10, 0),
    "each half of the usage by itself (Anthropic)": (
        [delta({"role": "assistant"}, usage={"input_tokens": 7, "output_tokens": 1}), *texts(parts=TEN), STOP,
         own({"output_tokens": 10})], 10, 0),
}  # fmt: skip


@pytest.mark.parametrize("name", COUNTS)
def test_tokens_that_were_never_streamed_are_distinguished_from_several_in_an_event(name: str) -> None:
    """TPOT would be divided by tokens that no user ever saw, or tokens of a fast stream would be called hidden."""
    chunks, streamed, unseen = COUNTS[name]

    tokens, ended = read(chunks)

    assert "ok" == ended.status and ended.exchange is not None
    assert (streamed, unseen or None) == (sum(token.tokens for token in tokens), ended.unseen_tokens)
    assert ended.exchange.counted_by in ("usage", "continuous usage") and ended.prompt_tokens_server == 7
    assert all(token.tokens > 0 for token in tokens)


@pytest.mark.parametrize(
    ("chunks", "unseen"),
    [
        ([delta({"role": "assistant", "content": ""}), STOP, own(used(7, 1))], 1),
        ([STOP, own(used(7, 0))], None),
        ([delta({"content": ""}), delta({}, "length"), hidden(7, 40, reasoning_tokens=40)], 40),
        ([delta({"content": "", "trace": "a1"}), delta({}, "tool_calls")], None),
    ],
)
def test_an_answer_without_text_that_ended_well_is_empty(chunks: list[dict[str, Any]], unseen: int | None) -> None:
    """A model that ends at once, or that reasons till its end unseen, would be a broken server."""
    tokens, ended = read(chunks)

    assert ("empty", [], unseen) == (ended.status, tokens, ended.unseen_tokens)
    assert ended.error is not None and ended.error.startswith("no text: finish_reason ")


def cut(chunks: Sequence[Mapping[str, Any]]) -> Iterator[int]:
    for n in range(len(chunks) + 1):
        body = b"".join(f"data: {json.dumps(chunk)}\n\n".encode() for chunk in chunks[:n])
        yield len([text for text in follow(events(body), whole=True).text if text])


def test_a_stream_is_read_at_each_of_its_events() -> None:
    """A first token would be found late, because names are only known at the end."""
    for chunks in FAMILIES.values():
        found = [*cut(chunks)]

        assert found == sorted(found) and 8 == found[-1]


OTHER_APIS: dict[str, list[str]] = {
    "Ollama's own API": [
        '{"model":"m","created_at":"t","message":{"role":"assistant","content":"Hi"},"done":false}',
        '{"model":"m","created_at":"t","response":"Hi","done":true,"done_reason":"stop","eval_count":1}',
    ],
    "OpenAI's Responses API": [
        '{"type":"response.created","response":{"id":"r","status":"in_progress"}}',
        '{"type":"response.output_text.delta","item_id":"i","delta":"Hi"}',
    ],
    "Anthropic's Messages API": [
        '{"type":"message_start","message":{"role":"assistant","content":[],"usage":{"input_tokens":7}}}',
        '{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hi"}}',
        '{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":1}}',
    ],
    "Gemini's own API": [
        '{"candidates":[{"content":{"parts":[{"text":"Hi"}]}}],"usageMetadata":{"promptTokenCount":7}}'
    ],
    "Cohere's own API": ['{"type":"content-delta","delta":{"message":{"content":{"text":"Hi"}}}}'],
    "text-generation-inference's own API": ['{"index":1,"token":{"id":5,"text":"Hi"},"generated_text":null}'],
    "llama.cpp's own API": ['{"index":0,"content":"Hi","stop":false}'],
}


@pytest.mark.parametrize(
    "answer", [{"response": "He", "p": "x"}, {"output": {"text": "He"}}, {"status": "IN_QUEUE", "output": None}]
)
def test_common_keys_name_no_api(answer: dict[str, Any]) -> None:
    """Answers of Cloudflare and RunPod would be called those of OpenAI and Bedrock."""
    assert other_api(answer) is None


@pytest.mark.parametrize("form", ["events", "lines", "list", "one object"])
@pytest.mark.parametrize("api", OTHER_APIS)
def test_an_answer_of_another_api_is_named_with_what_to_give_instead(api: str, form: str) -> None:
    """It ended 'without finish_reason', and a user would look for the fault in the server."""
    body = {
        "events": "".join(f"data: {event}\n\n" for event in OTHER_APIS[api]),
        "lines": "\n".join(OTHER_APIS[api]),
        "list": f"[{', '.join(OTHER_APIS[api][:1])}\n]",
        "one object": OTHER_APIS[api][0],
    }[form]
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    stamps = array("d", [1.0])
    came = Answer(sent_s=0.0, ended_s=2.0, how="complete", data=[(head + body).encode()], stamp_s=stamps, read_s=stamps)
    (ended,) = Reader().read(came, Request(5, 0.0, 7, 10))

    port = "11434" if "Ollama" in api else "PORT"
    error = f"the answer is in {api}; give the URL of its API that is OpenAI's, such as http://HOST:{port}/v1"
    assert isinstance(ended, Ended) and ("error", error) == (ended.status, ended.error)


def test_a_page_in_place_of_an_answer_is_no_answer_in_one_piece() -> None:
    """The page of a proxy where one signs in would be answered by 'use stream=false'."""
    data = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 13\r\n\r\n<html></html>"
    stamps = array("d", [1.0])
    came = Answer(sent_s=0.0, ended_s=2.0, how="complete", data=[data], stamp_s=stamps, read_s=stamps)
    (ended,) = Reader().read(came, Request(5, 0.0, 7, 10))

    assert isinstance(ended, Ended) and "malformed answer (text/html): <html></html>" == ended.error
