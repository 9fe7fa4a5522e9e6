"""The chat template of a model folder: how a conversation becomes one text."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
from jinja2.ext import Extension
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from harness.errors import UsageError

_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")


def plain(messages: Sequence[Mapping[str, object]]) -> str:
    """A conversation without a template: a line `role: text` each, and the start of the answer."""
    lines = [f"{message.get('role', 'user')}: {message.get('content') or ''}\n" for message in messages]
    return "".join(lines) + "assistant:"


@dataclass(frozen=True, slots=True)
class Template:
    """`source` is Jinja as in the Hugging Face folders, None for a model without a template."""

    source: str | None = None
    tokens: Mapping[str, str] = field(default_factory=dict)
    _compiled: jinja2.Template | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.source is not None:
            object.__setattr__(self, "_compiled", _environment().from_string(self.source))

    @property
    def is_plain(self) -> bool:
        """Whether the model brought none: then its tokenizer adds the token of beginning."""
        return self.source is None

    def render(self, messages: Sequence[Mapping[str, object]]) -> str:
        """The text, ready for the answer. Raises ValueError with the template's own words when it refuses."""
        if self._compiled is None:
            return plain(messages)
        try:
            return self._compiled.render(
                messages=list(messages), tools=None, documents=None, add_generation_prompt=True, **self.tokens
            )
        except (jinja2.TemplateError, TypeError, ValueError, KeyError) as error:
            raise ValueError(f"the chat template of the model refuses these messages: {error}") from None


def read_template(folder: Path) -> Template:
    """The template of `chat_template.jinja`, or of `tokenizer_config.json`. Raises UsageError when it is broken."""
    config = _config(folder / "tokenizer_config.json")
    path = folder / "chat_template.jinja"
    source = path.read_text(encoding="utf-8") if path.is_file() else _default(config.get("chat_template"))
    tokens = {name: text for name in _TOKENS if (text := _text(config.get(name))) is not None}
    try:
        return Template(source, tokens)
    except jinja2.TemplateError as error:
        raise UsageError(f"The chat template of '{folder}' cannot be read: {error}") from None


def _config(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        return {}
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UsageError(f"'{path}' is not JSON: {error}") from None
    return read if isinstance(read, dict) else {}


def _default(found: object) -> str | None:
    """One text, or a list of named ones of which `default` is taken."""
    if isinstance(found, list):
        named = {entry.get("name"): entry.get("template") for entry in found if isinstance(entry, dict)}
        found = named.get("default")
    return found if isinstance(found, str) else None


def _text(token: object) -> str | None:
    """A special token is a text, or an object with its text as `content`."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


class _Generation(Extension):
    """`{% generation %}` marks what the model said, for training; here its inside is rendered like the rest."""

    tags = frozenset({"generation"})  # type: ignore[assignment]  # a set that nobody changes

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> jinja2.Environment:
    """What such templates expect: blocks trimmed, `raise_exception`, `strftime_now`, JSON that is not escaped.

    Sandboxed, because a template is a program that came with a download. Source: Hugging Face, "Chat templates:
    writing a template" (transformers `utils/chat_template_utils.py`).
    """
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
    )
    environment.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().astimezone().strftime(form)
    return environment


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)
