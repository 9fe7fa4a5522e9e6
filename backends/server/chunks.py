"""The bytes of answers: SSE chunks in the order of OpenAI's API, and whole answers.

Everything of a chunk that does not change from token to token is built once per answer.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from json.encoder import encode_basestring as quote

from backends.server.fields import Api

DONE = "data: [DONE]\n\n"
LAST_CHUNK = b"0\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Usage:
    """How many tokens were read, made, and found in the prefix cache."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0

    def fields(self) -> dict[str, object]:
        """As OpenAI's API writes it."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


class Chunks:
    """Builds the events of one streamed answer. Texts are put in as they are, not escaped to ASCII."""

    __slots__ = ("_after", "_before", "_chat", "_head", "_usage_before", "prompt_tokens")

    def __init__(self, api: Api, answer_id: str, created: int, model: str, prompt_tokens: int) -> None:
        self._chat = api == "chat"
        self.prompt_tokens = prompt_tokens
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        head = _json({"id": answer_id, "object": kind, "created": created, "model": model})
        self._head = f"data: {head[:-1]}," + '"choices":['
        self._before = self._head + ('{"index":0,"delta":{"content":' if self._chat else '{"index":0,"text":')
        self._after = ("}" if self._chat else "") + ',"logprobs":null,"finish_reason":null}]'
        self._usage_before = f',"usage":{{"prompt_tokens":{prompt_tokens},"completion_tokens":'

    def text(self, text: str, made: int | None = None) -> str:
        """A piece of the answer, with the usage so far where `made` tokens are told."""
        return f"{self._before}{quote(text)}{self._after}{self._usage(made)}}}\n\n"

    def role(self, told: bool = False) -> str:
        """The first chunk of a chat, with a usage of no tokens where usage is told; a completion has none."""
        if not self._chat:
            return ""
        delta = '{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]'
        return f"{self._head}{delta}{self._usage(0 if told else None)}}}\n\n"

    def finish(self, reason: str, made: int | None = None) -> str:
        """Tells why the answer has ended."""
        what = '{"index":0,"delta":{}' if self._chat else '{"index":0,"text":""'
        return f'{self._head}{what},"logprobs":null,"finish_reason":"{reason}"}}]{self._usage(made)}}}\n\n'

    def usage(self, usage: Usage) -> str:
        """The chunk of its own that a client asks for with `include_usage`."""
        return f'{self._head}],"usage":{_json(usage.fields())}}}\n\n'

    def _usage(self, made: int | None) -> str:
        if made is None:
            return ""
        return f'{self._usage_before}{made},"total_tokens":{self.prompt_tokens + made}}}'


def error_event(error_json: str) -> str:
    """An error after the head of the answer has gone."""
    return f"data: {error_json}\n\n"


def frame(payload: bytes) -> bytes:
    """One chunk of the chunked transfer encoding."""
    return b"%x\r\n%b\r\n" % (len(payload), payload)


def whole(
    api: Api, answer_id: str, created: int, model: str, text: str, reason: str, usage: Usage
) -> Mapping[str, object]:
    """The answer to a request that does not stream."""
    choice: dict[str, object] = {"index": 0, "logprobs": None, "finish_reason": reason}
    if api == "chat":
        choice["message"] = {"role": "assistant", "content": text}
    else:
        choice["text"] = text
    return {
        "id": answer_id,
        "object": "chat.completion" if api == "chat" else "text_completion",
        "created": created,
        "model": model,
        "choices": [choice],
        "usage": usage.fields(),
    }


def _json(fields: Mapping[str, object]) -> str:
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
