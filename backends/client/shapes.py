"""Where answers have their text, their thinking and their token counts: one table over the families of servers.

Fields are known by name, at whatever depth they stand: a list of parts, a part within a part, an object of the vendor.
Any key may be missing, null or unknown.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

Json: TypeAlias = Mapping[str, object]
NONE: Json = {}


DATA = "\ufffc"
"""Stands for a piece of audio or an image among the words (Unicode's object replacement character)."""
_WORDLESS = re.compile(
    r"(role|type|index|object|model|created|status|format|name|language|channel|recipient|(.*[_-])?(id|ids|url|uri|hash|signature|reason|"
    r"tokens?|time|timestamp|opaque|effort|logprobs?|fingerprint|obfuscation|padding|version|seed)|"
    r"(encrypted|redacted|search|citation|annotation|web|cache|content_filter|provider|native|extra|matched).*)",
    re.IGNORECASE,
)
"""Names of fields that are known to hold no words of an answer."""
_LIKE_THINKING = re.compile(r".*(think|thought|reasoning|(^|_)cot(_|$))", re.IGNORECASE)
_OTHER_APIS = (
    ("Ollama's own API", ("done",), ()),
    ("OpenAI's Responses API", (), ("response",)),
    (
        "Anthropic's Messages API",
        ("stop_reason",),
        ("message_start", "content_block_start", "content_block_delta"),
    ),
    ("Gemini's own API", ("candidates",), ()),
    ("Bedrock's own API", ("messageStart", "contentBlockDelta", "stopReason"), ()),
    ("Cohere's own API", ("event_type",), ("message-start", "content-start", "content-delta")),
    ("text-generation-inference's own API", ("token", "generated_text"), ()),
    ("llama.cpp's own API", ("stop",), ()),
    ("vLLM's or Triton's own API", ("text", "text_output"), ()),
)
"""APIs whose events have no choices: keys of their events, and their types (or objects) up to a point in them."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Names by which a family of servers calls the parts of an answer, as far as no family above has them.

    The fields of one object that hold `text` repeat each other, and so do those that hold `thinking`: the first that
    is not empty counts. `calls` are of tools, and their words are text too; `media` stand for tokens without words.
    `usage` are objects with counts: `prompt` and `completion` tokens, their `total`, those `cached`, those of
    `reasoning`, and `wordless` ones, which never come as text.
    """

    family: str
    text: tuple[str, ...] = ()
    thinking: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    media: tuple[str, ...] = ()
    usage: tuple[str, ...] = ()
    prompt: tuple[str, ...] = ()
    completion: tuple[str, ...] = ()
    total: tuple[str, ...] = ()
    cached: tuple[str, ...] = ()
    reasoning: tuple[str, ...] = ()
    wordless: tuple[str, ...] = ()


# fmt: off
SHAPES = (
    Shape(
        "OpenAI, Azure, vLLM, SGLang", text=("content", "text", "refusal"),
        calls=("tool_calls", "function_call", "function", "custom"), media=("audio",), usage=("usage",),
        prompt=("prompt_tokens",), completion=("completion_tokens",), total=("total_tokens",),
        cached=("cached_tokens",), reasoning=("reasoning_tokens",),
        wordless=("audio_tokens", "image_tokens", "rejected_prediction_tokens"),
    ),
    Shape("DeepSeek, Qwen, Kimi, GLM, llama.cpp", thinking=("reasoning_content",), cached=("prompt_cache_hit_tokens",)),
    Shape("OpenRouter, Together, Ollama", thinking=("reasoning", "reasoning_details", "summary"),
          media=("images", "image_url"), prompt=("prompt_eval_count",), completion=("eval_count",)),
    Shape(
        "Mistral, Anthropic, LiteLLM", text=("partial_json",), thinking=("thinking", "thinking_blocks"),
        prompt=("input_tokens",), completion=("output_tokens",), cached=("cache_read_input_tokens",),
        reasoning=("thinking_tokens",),
    ),
    Shape(
        "Gemini", text=("parts",), thinking=("thought", "thoughts"), calls=("functionCall",), media=("inlineData",),
        usage=("usageMetadata", "usage_metadata"),
        prompt=("promptTokenCount", "prompt_token_count"),
        completion=("candidatesTokenCount", "candidates_token_count"),
        total=("totalTokenCount", "total_token_count"),
        cached=("cachedContentTokenCount", "cached_content_token_count"),
        reasoning=("thoughtsTokenCount", "thoughts_token_count"),
    ),
    Shape(
        "Bedrock", thinking=("reasoningContent", "reasoningText"), usage=("amazon-bedrock-invocationMetrics",),
        prompt=("inputTokens", "inputTokenCount"), completion=("outputTokens", "outputTokenCount"),
        total=("totalTokens",), cached=("cacheReadInputTokens", "cacheReadInputTokenCount"),
    ),
    Shape("Copilot", thinking=("reasoning_text", "cot_summary")),
    Shape("watsonx, Cohere, Vercel", usage=("billed_units",), prompt=("input_token_count", "promptTokens"),
          completion=("generated_token_count", "completionTokens")),
)
# fmt: on
"""Vendors put `usage` into objects of their own too (`x_groq` of Groq, the choice of Kimi): it is looked for there."""

TEXT, THINKING, CALLS, MEDIA, USAGE = (
    frozenset(name for shape in SHAPES for name in getattr(shape, part))
    for part in ("text", "thinking", "calls", "media", "usage")
)
_COUNTS = {
    name: kind
    for shape in SHAPES
    for kind in ("prompt", "completion", "total", "cached", "reasoning", "wordless")
    for name in getattr(shape, kind)
}


def other_api(chunk: Json) -> str | None:
    """Return the error for an event, or an answer, of an API that is not read; None where its form is not known."""
    if "choices" in chunk or error_text(chunk) is not None:
        return None
    kind = str(chunk.get("type") or chunk.get("object")).partition(".")[0]
    name = next((name for name, keys, kinds in _OTHER_APIS if kind in kinds or not chunk.keys().isdisjoint(keys)), None)
    port = "11434" if name == "Ollama's own API" else "PORT"
    return name and f"the answer is in {name}; give the URL of its API that is OpenAI's, such as http://HOST:{port}/v1"


@dataclass(slots=True)
class Words:
    """What one event of an answer says. `unknown` are the texts of fields that are not in the table, by path."""

    text: str = ""
    thinking: str = ""
    unknown: dict[str, str] | None = None

    def add(self, value: object, *, thinking: bool = False, called: bool = False, path: str = "") -> None:
        """Add the words of a text, a list of parts or an object; `called`: it is a call of a tool."""
        if isinstance(value, str):
            if thinking:
                self.thinking += value
            else:
                self.text += value
        elif isinstance(value, list):
            for part in value:
                self.add(part, thinking=thinking, called=called, path=path)
        elif isinstance(value, dict):
            self._object(value, thinking=thinking or _is_thought(value), called=called, path=path)

    def _object(self, value: Json, *, thinking: bool, called: bool, path: str) -> None:
        texts = thoughts = 0  # characters so far, of fields that may repeat each other
        for name, inner in value.items():
            if not inner or not isinstance(inner, str | list | dict):
                continue
            size = len(self.text) + len(self.thinking)
            if name in TEXT:
                if not texts:
                    self.add(inner, thinking=thinking, path=path)
                    texts = len(self.text) + len(self.thinking) - size
            elif name in THINKING or (_LIKE_THINKING.match(name) and not _WORDLESS.fullmatch(name)):
                if not thoughts:
                    self.add(inner, thinking=True, path=path)
                    thoughts = len(self.text) + len(self.thinking) - size
            elif name in CALLS:
                self.add(inner, called=True, path=path)
            elif called and name in ("name", "arguments", "input", "args"):
                self.text += inner if isinstance(inner, str) else json.dumps(inner)
            elif name in MEDIA:
                self._media(inner)
            elif not _WORDLESS.fullmatch(name):
                self._unknown(inner, f"{path}.{name}" if path else name)

    def _media(self, value: str | Json | list[object]) -> None:
        data: object = value
        if isinstance(value, dict):
            self.add(value.get("transcript"))
            data = value.get("data") or value.get("url")
        self.text += DATA if data else ""

    def _unknown(self, value: object, path: str) -> None:
        if isinstance(value, str):
            self.unknown = self.unknown or {}
            self.unknown[path] = self.unknown.get(path, "") + value
        elif isinstance(value, list):
            for part in value:
                self._unknown(part, path)
        elif isinstance(value, dict):
            for name, inner in value.items():
                if not _WORDLESS.fullmatch(name):
                    self._unknown(inner, f"{path}.{name}")


def _is_thought(part: Json) -> bool:
    """Whether a part is marked as thinking: by its type, a flag, its channel (gpt-oss), a vendor's flag (Gemini)."""
    kind, extra = part.get("type"), part.get("extra_content")
    vendor = extra.get("google") if isinstance(extra, dict) else None
    return (
        (isinstance(kind, str) and kind.startswith(("thinking", "reasoning", "thought")))
        or part.get("thought") is True
        or part.get("channel") == "analysis"
        or (isinstance(vendor, dict) and vendor.get("thought") is True)
    )


def words(choice: Json, *, fresh: bool = True) -> Words:
    """The words of a choice of a stream (`delta`), of a whole answer (`message`) or of a completion (`text`).

    A `message` in a stream that is not `fresh` repeats what came before (Perplexity).
    """
    delta = choice.get("delta")
    part = delta or (choice.get("message") if fresh else None)
    if not isinstance(part, dict):
        text = choice.get("text")
        if text and isinstance(text, str):
            return Words(text)
        if isinstance(delta, dict) or "message" in choice:
            return Words()
        part = choice
    content = part.get("content")
    if len(part) == 1 and isinstance(content, str):
        return Words(content)  # nearly every event
    collected = Words()
    collected.add(part)
    return collected


@dataclass(slots=True)
class Usage:
    """The token counts of an answer as they were sent, None where they were not; `wordless` are sums of their kinds.

    `claimed` is the largest number of completion tokens, be it plausible or not.
    """

    prompt: int | None = None
    completion: int | None = None
    total: int | None = None
    cached: int | None = None
    reasoning: int | None = None
    wordless: int | None = None
    claimed: int = 0

    @property
    def beside(self) -> int:
        """Output tokens that `completion` leaves out.

        xAI and Perplexity send reasoning_tokens beside completion_tokens, and Gemini only a total that is larger.
        """
        reasoning, completion = self.reasoning or 0, self.completion or 0
        extra = (self.total or 0) - self.prompt - completion if self.prompt else 0
        if reasoning > completion or (reasoning and extra >= reasoning):
            return reasoning
        return extra if completion and not reasoning and extra > 0 and extra != self.cached else 0

    def merged(self, later: Usage) -> Usage:
        """The largest count of each kind: some servers close with zeros, count down, or send each kind by itself."""
        return Usage(
            _larger(self.prompt, later.prompt),
            _larger(self.completion, later.completion),
            _larger(self.total, later.total),
            _larger(self.cached, later.cached),
            _larger(self.reasoning, later.reasoning),
            _larger(self.wordless, later.wordless),
            max(self.claimed, later.claimed),
        )

    def count(self, value: Json, *, of_prompt: bool = False) -> None:
        """Take the counts of an object, and of the objects within it that give details or hold another usage."""
        for name, inner in value.items():
            if isinstance(inner, dict):
                self.count(inner, of_prompt=of_prompt or "prompt" in name or "input" in name)
            elif (kind := _COUNTS.get(name)) is not None and (kind == "cached" or not of_prompt):
                if kind == "completion" and type(inner) is int:
                    self.claimed = max(self.claimed, inner)
                number, before = whole(inner), getattr(self, kind)
                if number is not None:
                    setattr(self, kind, number + (before or 0) if kind == "wordless" else _larger(before, number))


def _larger(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else max(a, b)


def usage(chunk: Json, choice: Json | None) -> Usage | None:
    """The counts of an event, wherever they ride: beside the choices, in the choice, in an object of the vendor."""
    objects: list[Json] = []
    for holder in (chunk, choice):
        for name, value in holder.items() if holder is not None else ():
            if type(value) is dict:
                if name in USAGE:
                    objects.append(value)
                elif not USAGE.isdisjoint(value):
                    objects += (inner for key, inner in value.items() if key in USAGE and type(inner) is dict)
    if "eval_count" in chunk:
        objects.append({name: chunk.get(name) for name in ("prompt_eval_count", "eval_count")})
    if not objects:
        return None
    merged = Usage()
    for counts in objects:
        merged.count(counts)
    return None if merged.completion is None and merged.prompt is None and not merged.claimed else merged


def choices(chunk: Json) -> list[Json]:
    """The `choices` of an event or a whole answer."""
    listed = chunk.get("choices")
    return [choice for choice in listed if isinstance(choice, dict)] if isinstance(listed, list) else []


def finish_reason(reason: object) -> str | None:
    """Why the answer ended, None while it goes on (an empty text: no detail)."""
    return reason[:100].encode(errors="replace").decode() if isinstance(reason, str) and reason else None


def whole(value: object) -> int | None:
    """A count: a number without a fraction, not negative."""
    if type(value) is int and 0 <= value < 1 << 31:
        return value
    if not isinstance(value, float) or not 0 <= value < 1 << 31:
        return None
    return int(value) if value == int(value) else None


def inside(value: object) -> Json:
    """An object within an object, empty where there is none."""
    return value if isinstance(value, dict) else NONE


def seconds(value: object) -> float | None:
    """Milliseconds of a server as seconds."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e12:
        return None
    return value / 1000


def error_text(chunk: Json) -> str | None:
    """The error message of an object, None without an error."""
    error = chunk.get("error")
    if not error and chunk.get("object") != "error":
        return None
    source = error if isinstance(error, dict) else chunk
    if isinstance(error, str):
        return error
    message = source.get("message") or source.get("detail") or source.get("type")
    return message if isinstance(message, str) else str(error or message or "an error without words")


def error_words(answer: Json) -> str:
    """What the JSON of an error says; empty where it says nothing."""
    return str(error_text(answer) or answer.get("message") or answer.get("detail") or "")
