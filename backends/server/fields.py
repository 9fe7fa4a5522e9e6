"""Parses and checks the JSON body of a request before anything is computed.

Unknown fields are ignored, as real servers do; what would change the answer and is not supported
(log probabilities, images) is refused with an error message.

Errors have the form of OpenAI's API: a status and `{"error": {"message", "type", "param", "code"}}`.

Reports the maximum length of prompt and answer together.
"""

import json
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar, cast

import msgspec

from backends.server.service import Sampling, Tokenizer
from backends.serving.cluster import Cluster
from backends.serving.replica import Replica
from harness.api import Request

T = TypeVar("T")
D = TypeVar("D")
Api = Literal["chat", "completions"]
COMPLETION_TOKENS = 16
"""`max_tokens` of a completion that names none (OpenAI's API reference); a chat may fill the context."""
MOST_ANSWERS = 128
"""Answers to a request (OpenAI's API reference)."""
_CHARACTERS = 64
"""Characters per token that no prompt has on average: English has some 4."""


TYPES: Mapping[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "service_unavailable_error",
}


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One parsed request for tokens."""

    api: Api
    prompt: tuple[int, ...]
    sampling: Sampling
    stream: bool
    usage: bool
    usage_on_every_chunk: bool
    token_ids: bool = False
    n: int = 1


def parse(body: bytes) -> dict[str, object]:
    """The object in the body; raises Refused (400) when it holds none."""
    try:
        fields = msgspec.json.decode(body)
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"The body is not JSON: {error}.", code="invalid_json") from None
    if not isinstance(fields, dict):
        raise Refused(400, "The body must be a JSON object.", code="invalid_json")
    return fields


def check_model(fields: Mapping[str, object], names: Sequence[str]) -> None:
    """Raises Refused (404) for a request of another model; a missing model is accepted."""
    model = fields.get("model")
    if model is not None and model not in names:
        message = f"The model '{model}' does not exist here; this server has '{names[0]}'."
        raise Refused(404, message, param="model", code="model_not_found")


def ask(api: Api, fields: Mapping[str, object], tokenizer: Tokenizer, max_model_len: int) -> GenerationRequest:
    """Read a request. Raises Refused (400) naming the field that is wrong."""
    _refuse_what_is_not_here(fields)
    tokens = (chat_prompt if api == "chat" else text_prompt)(fields, tokenizer, max_model_len)
    room = max_model_len - len(tokens)
    options: Mapping[str, object] = _typed(fields, "stream_options", dict, "an object", {})
    n = _whole(fields, "n")
    if n is not None and not 1 <= n <= MOST_ANSWERS:
        raise Refused(400, f"n must be from 1 to {MOST_ANSWERS}, got {n}.", param="n")
    stream = _flag(fields, "stream")
    continuous = _flag(options, "continuous_usage_stats")
    return GenerationRequest(
        api,
        tuple(tokens),
        _sampling(api, fields, len(tokens), room, max_model_len),
        stream,
        stream and (continuous or _flag(options, "include_usage")),
        stream and continuous,
        _flag(fields, "return_token_ids"),
        n or 1,
    )


def chat_prompt(fields: Mapping[str, object], tokenizer: Tokenizer, max_model_len: int) -> list[int]:
    """Token ids of `messages`. Raises Refused (400), also for what has far too many characters to fit."""
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        raise Refused(400, "messages must be a list of at least one message.", param="messages")
    read: list[dict[str, object]] = []
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise Refused(400, "Each message is an object with a role and a content.", param="messages")
        read.append({**message, "content": _content(message.get("content"))})
    _check_size(sum(len(text) for message in read for text in message.values() if isinstance(text, str)), max_model_len)
    try:
        return tokenizer.chat(read)
    except ValueError as error:
        raise Refused(400, str(error), param="messages") from None


def text_prompt(fields: Mapping[str, object], tokenizer: Tokenizer, max_model_len: int) -> list[int]:
    """Token ids of `prompt`: a text, token ids, or a list of one of these. Raises Refused (400) like `chat_prompt`."""
    prompt = fields.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], (str, list)):
        prompt = prompt[0]
    if isinstance(prompt, str):
        _check_size(len(prompt), max_model_len)
        tokens = tokenizer.encode(prompt, special=_flag(fields, "add_special_tokens", default=True))
    elif isinstance(prompt, list) and set(map(type, prompt)) <= {int}:
        tokens = cast("list[int]", prompt)
        if tokens and not 0 <= min(tokens) <= max(tokens) < tokenizer.vocab_size:
            raise Refused(400, f"Token ids must be from 0 to {tokenizer.vocab_size - 1}.", param="prompt")
    else:
        raise Refused(400, "prompt must be a text or a list of token ids (one prompt a request).", param="prompt")
    if not tokens:
        raise Refused(400, "The prompt is empty.", param="prompt")
    return tokens


def _check_size(characters: int, max_model_len: int) -> None:
    """Refuse a hopeless text before tokenising it: meanwhile the tokens of all other answers would be late."""
    if characters > _CHARACTERS * max_model_len:
        message = (
            f"This model's context is {max_model_len} tokens; the prompt has {characters} characters, and more than "
            f"{_CHARACTERS * max_model_len} cannot fit."
        )
        raise Refused(400, message, code="context_length_exceeded")


def _content(content: object) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise Refused(400, "The content of a message must be a text or a list of parts.", param="messages")
    return "".join(_part(part) for part in content)


def _part(part: object) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, dict) and part.get("type") in ("text", "input_text") and isinstance(part.get("text"), str):
        return cast("str", part["text"])
    raise Refused(400, "Only parts of type 'text' can be read.", param="messages")


def _refuse_what_is_not_here(fields: Mapping[str, object]) -> None:
    if _whole(fields, "best_of") not in (None, 1):
        raise Refused(400, "best_of must be 1: every answer is sent.", param="best_of")
    for name in ("echo", "logprobs", "stop"):
        if fields.get(name) not in (None, False, []):  # 0 log probabilities are none too
            raise Refused(400, f"{name} is not available here; leave it out.", param=name)


def _sampling(api: Api, fields: Mapping[str, object], prompt_tokens: int, room: int, max_model_len: int) -> Sampling:
    preferred = _whole(fields, "max_completion_tokens")
    requested = preferred if preferred is not None else _whole(fields, "max_tokens")
    if requested is not None and requested < 1:
        raise Refused(400, f"max_tokens must be at least 1, got {requested}.", param="max_tokens")
    least = requested if requested is not None else 1
    if room < least:
        message = (
            f"This model's context is {max_model_len} tokens; the prompt has {prompt_tokens} and the answer asks for "
            f"{least}: {prompt_tokens + least - max_model_len} too many."
        )
        raise Refused(400, message, param="max_tokens" if room > 0 else None, code="context_length_exceeded")
    if not (top_p := _number(fields, "top_p", 1.0, 1.0)):
        raise Refused(400, "top_p must be above 0 and at most 1.", param="top_p")
    max_tokens = requested if requested is not None else min(room, COMPLETION_TOKENS) if api == "completions" else room
    min_tokens = _whole(fields, "min_tokens") or 0
    if not 0 <= min_tokens <= max_tokens:
        message = f"min_tokens must be from 0 to max_tokens ({max_tokens}), got {min_tokens}."
        raise Refused(400, message, param="min_tokens")
    return Sampling(
        max_tokens,
        min_tokens,
        _flag(fields, "ignore_eos"),
        _number(fields, "temperature", None, 100.0),
        top_p,
        _whole(fields, "seed"),
    )


def _flag(fields: Mapping[str, object], name: str, default: bool = False) -> bool:
    return _typed(fields, name, bool, "true or false", default)


def _whole(fields: Mapping[str, object], name: str) -> int | None:
    return _typed(fields, name, int, "a whole number", None)


def _number(fields: Mapping[str, object], name: str, default: float | None, high: float) -> float | None:
    value = fields.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= high:
        raise Refused(400, f"{name} must be a number from 0 to {high:g}.", param=name)
    return float(value)


def _typed(fields: Mapping[str, object], name: str, kind: type[T], what: str, default: D) -> T | D:
    """The value of a field, the default where it is missing or null. Raises Refused (400) for one of another kind."""
    if (value := fields.get(name)) is None:
        return default
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise Refused(400, f"{name} must be {what}.", param=name)
    return value


class Refused(Exception):
    """The request gets this error response; `message` is one sentence for the client."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.headers = dict(headers or {})


def body(status: int, message: str, param: str | None = None, code: str | None = None) -> str:
    """The JSON text of an error."""
    kind = TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return json.dumps({"error": {"message": message, "type": kind, "param": param, "code": code}})


def longest_tokens(serving: Replica | Cluster, most: int) -> int:
    """Tokens of the longest prompt and answer that are served, at most `most` (what the model takes).

    Memory and policy judge a request of one token of prompt, for which nothing else refuses what is shorter.
    """
    return 1 + bisect_left(
        range(2, most + 1), True, key=lambda total: serving.refusal(Request(0, 0.0, 1, total - 1)) is not None
    )
