"""What one JSON object of an answer says: text, usage, timings, an error. Any key may be missing, null or unknown."""

from collections.abc import Mapping
from typing import TypeAlias

Json: TypeAlias = Mapping[str, object]
NONE: Json = {}


Said: TypeAlias = tuple[str, str]
"""Text of the answer itself (tool calls included), and text of the reasoning before it."""

_NOTHING: Said = ("", "")


def first_choice(chunk: Json) -> Json | None:
    """`choices[0]`, by position; None where there is none."""
    choices = chunk.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        return choices[0]
    return None


def said(choice: Json) -> Said:
    """The text of a choice of a stream (`delta`), of a whole answer (`message`) or of a completion (`text`)."""
    part = choice.get("delta") or choice.get("message")
    if not isinstance(part, dict):
        text = choice.get("text")
        return (text, "") if isinstance(text, str) else _NOTHING
    content = part.get("content")
    if len(part) == 1 and isinstance(content, str):
        return content, ""
    reasoning = part.get("reasoning_content") or part.get("reasoning")
    answer = _text(content) + _text(part.get("refusal")) + _tools(part)
    return answer, _text(reasoning)


def _text(value: object) -> str:
    """A text, or the texts of the parts of one."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(_text(part.get("text")) for part in value if isinstance(part, dict))
    return ""


def _tools(part: Json) -> str:
    calls = part.get("tool_calls")
    listed = [call.get("function") for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    named = [function for function in (*listed, part.get("function_call")) if isinstance(function, dict)]
    return "".join(_text(function.get("name")) + _text(function.get("arguments")) for function in named)


def finish_reason(reason: object) -> str | None:
    """Why the answer ended, None while it goes on (an empty text says nothing)."""
    return reason[:100].encode(errors="replace").decode() if isinstance(reason, str) and reason else None


def usage(chunk: Json, choice: Json | None) -> Json | None:
    """The usage object, wherever it rides."""
    found = chunk.get("usage")
    if found is None and choice is not None:
        found = choice.get("usage")
    return found if isinstance(found, dict) else None


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
    """What an object says of an error, None if it tells of none."""
    error = chunk.get("error")
    if not error and chunk.get("object") != "error":
        return None
    source = error if isinstance(error, dict) else chunk
    if isinstance(error, str):
        return error
    message = source.get("message") or source.get("detail") or source.get("type")
    return message if isinstance(message, str) else str(error or message or "an error without words")
