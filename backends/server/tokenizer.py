"""Text to tokens and back: `tokenizer.json` of a model folder, or a small built-in tokenizer for models without one.

The chat template of a model folder: how a conversation becomes one text.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
from jinja2.ext import Extension
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from backends.server.service import TextStream, Tokenizer
from harness import untrusted
from harness.errors import UsageError

if TYPE_CHECKING:
    import tokenizers


BYTES = 256  # ids of the built-in tokenizer below this are bytes
_ONSETS, _VOWELS, _LETTERS = "bcdfghjklmnpqrstvwxz", "aeiou", "abcdefghijklmnopqrstuvwxyz"
_SYLLABLES = tuple(onset + vowel for onset in _ONSETS for vowel in _VOWELS)
_WORD = re.compile(f" (?:[{_ONSETS}][{_VOWELS}])+")
_SPACE = 0x20
_PARTS_FROM = 2048  # a vocabulary with less room has no parts of words
_PART_BYTES = 1 << 13
_PIECES = re.compile(rb" ?[a-z]+|[^ a-z]+| ")
_HELD_TOKENS = 32  # longest run that is kept back where tokens are not simply bytes; no script's character needs 8


_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")


def word(index: int) -> str:
    """The text of word `index` (from 0): a space, then 1, 2 or more syllables; all are different."""
    base, length, first = len(_SYLLABLES), 1, 0
    while index - first >= base**length:
        first += base**length
        length += 1
    rest, syllables = index - first, []
    for _ in range(length):
        rest, last = divmod(rest, base)
        syllables.append(_SYLLABLES[last])
    return " " + "".join(reversed(syllables))


def _parts() -> Iterator[str]:
    """Letters that stand together, with or without the space before them; the most useful ones first."""
    # frequent English words, chosen for this tokenizer: one token for each, as in the vocabularies of real models
    frequent = Path(__file__).with_name("common_words.txt").read_text(encoding="ascii").split()
    common = [space + text for space in (" ", "") for text in frequent if len(text) > 3]
    yield from (text for text in dict.fromkeys(common) if not _WORD.fullmatch(text))
    for space, length in ((" ", 1), ("", 2), (" ", 2), (" ", 3), ("", 3)):
        candidates = (space + "".join(letters) for letters in product(_LETTERS, repeat=length))
        yield from (text for text in candidates if not _WORD.fullmatch(text))


@dataclass(slots=True)
class Builtin:
    """A tokenizer for models without one: bytes, words of made-up syllables, and parts of other words.

    Ids 0..255 are bytes, those in `words` are words: separated by the space before them, so that the text of words
    alone is encoded as the same ids again. In a large vocabulary two thirds of the room, at most, are frequent English
    words and groups of one to three letters: a token of English has some 3.5 characters, nearly as with real models.
    """

    vocab_size: int
    words: range = field(init=False)
    _ids: dict[bytes, int] = field(init=False, repr=False)
    _bytes: list[bytes] = field(init=False, repr=False)
    _longest: int = field(init=False, repr=False)
    _table: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.vocab_size < 1:
            raise ValueError(f"vocab_size must be at least 1, got {self.vocab_size}")
        room = max(0, self.vocab_size - BYTES)
        parts = list(islice(_parts(), 2 * room // 3)) if room >= _PARTS_FROM else []
        self.words = range(BYTES, BYTES + room - len(parts))
        texts = [text.encode() for text in (*map(word, range(room - len(parts))), *parts)]
        self._longest = max(map(len, texts), default=0)
        self._bytes = [bytes([i]) for i in range(min(BYTES, self.vocab_size))] + texts
        self._ids = {text: BYTES + i for i, text in enumerate(texts)}
        other = ord("?") % self.vocab_size
        self._table = bytes([b if b < self.vocab_size else other for b in range(BYTES)])

    def encode(self, text: str, special: bool = True) -> list[int]:  # noqa: ARG002  it has no special tokens
        """Words and parts where they stand, bytes elsewhere. A byte beyond a small vocabulary becomes '?'."""
        ids: list[int] = []
        data, lookup = text.encode("utf-8", "replace").translate(self._table), self._ids.get
        start = 0
        while start < len(data):  # parts, so that another thread gets its turn; a piece never goes on over a space
            end = data.find(b" ", start + _PART_BYTES)
            pieces = _PIECES.findall(data, start, len(data) if end < 0 else end)
            tokens = list(map(lookup, pieces))
            start = len(data) if end < 0 else end
            if None not in tokens:
                ids.extend(tokens)  # type: ignore[arg-type]  # all are known
                continue
            for piece, token in zip(pieces, tokens, strict=True):
                if token is not None:
                    ids.append(token)
                elif len(piece) > 1 and (piece[0] == _SPACE or piece.islower()):
                    ids.extend(self._cut(piece))
                else:
                    ids.extend(piece)
        return ids

    def chat(self, messages: Sequence[Mapping[str, object]]) -> list[int]:
        """The conversation as lines `role: text`."""
        return self.encode(plain(messages))

    def stream(self) -> TextStream:
        return ByteStream(self._bytes)

    def _cut(self, letters: bytes) -> list[int]:
        """Letters that are no token together: the longest token that they begin with, and so on."""
        ids, start = [], 0
        while start < len(letters):
            sizes = range(min(self._longest, len(letters) - start), 1, -1)
            size = next((n for n in sizes if letters[start : start + n] in self._ids), 1)
            ids.append(self._ids[letters[start : start + size]] if size > 1 else letters[start])
            start += size
        return ids


class ByteStream:
    """Text of tokens that are bytes, character by character."""

    def __init__(self, bytes_of: Sequence[bytes]) -> None:
        self._bytes_of = bytes_of
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token_ids: Sequence[int]) -> str:
        return self._decoder.decode(b"".join([self._bytes_of[i] for i in token_ids]))

    def rest(self) -> str:
        """What never became a character, as U+FFFD."""
        return self._decoder.decode(b"", final=True)


@dataclass(slots=True)
class HuggingFace:
    """The tokenizer of a model folder."""

    library: tokenizers.Tokenizer
    template: Template
    vocab_size: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.vocab_size = self.library.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Token ids of a text. Half a surrogate pair, which JSON can hold and UTF-8 cannot, becomes '?'."""
        if not text.isascii():
            text = text.encode("utf-8", "replace").decode()
        ids: list[int] = self.library.encode(text, add_special_tokens=special).ids
        return ids

    def chat(self, messages: Sequence[Mapping[str, object]]) -> list[int]:
        """The conversation in the model's template. Raises ValueError when the template refuses it."""
        return self.encode(self.template.render(messages), special=self.template.is_plain)

    def stream(self) -> TextStream:
        return _Decoded(self.library)


class _Decoded:
    """Text of the tokens of a library: what is half a character is kept, for at most 32 tokens.

    A run of more than that is given out as it stands, so that one step never costs more.
    """

    def __init__(self, library: tokenizers.Tokenizer) -> None:
        self._library = library
        self._held: list[int] = []
        self._begin([])

    def add(self, token_ids: Sequence[int]) -> str:
        return "".join([self._one(token) for token in token_ids])

    def rest(self) -> str:
        """What never became a character, as U+FFFD."""
        text: str = self._library.decode(self._held, skip_special_tokens=True)
        self._begin(self._held)
        return text

    def _begin(self, before: list[int]) -> None:
        from tokenizers.decoders import DecodeStream

        self._stream, self._held = DecodeStream(ids=before, skip_special_tokens=True), []

    def _one(self, token: int) -> str:
        self._held.append(token)
        try:
            text: str | None = self._stream.step(self._library, token)
        except Exception:  # noqa: BLE001  the library raises Exception itself, where broken bytes change earlier text
            return self.rest()
        if text is None:
            return self.rest() if len(self._held) > _HELD_TOKENS else ""
        self._held = []
        return text


def of_folder(folder: Path) -> Tokenizer | None:
    """The tokenizer of a model folder, None where it has no `tokenizer.json`.

    Raises UsageError when the file is broken or the library that reads it is not installed.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        return None
    return HuggingFace(untrusted.open_tokenizer(str(path), f"'{path}'")[0], read_template(folder))


def plain(messages: Sequence[Mapping[str, object]]) -> str:
    """A conversation without a template: a line `role: text` each, and the start of the answer.

    One space stands before a text, so that an answer, which brings its own, stands in the next turn as it was made.
    """
    lines = [f"{m.get('role', 'user')}: {str(m.get('content') or '').removeprefix(' ')}\n" for m in messages]
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
    settings = config(folder / "tokenizer_config.json")
    path = folder / "chat_template.jinja"
    source = path.read_text(encoding="utf-8") if path.is_file() else _default(settings.get("chat_template"))
    tokens = {name: text for name in _TOKENS if (text := _text(settings.get(name))) is not None}
    try:
        return Template(source, tokens)
    except jinja2.TemplateError as error:
        raise UsageError(f"The chat template of '{folder}' cannot be read: {error}") from None


def config(path: Path) -> Mapping[str, Any]:
    """The object in a JSON file of a model's folder; empty where there is none. Raises UsageError."""
    if not path.is_file():
        return {}
    with untrusted.readable(f"'{path}'"):
        read = untrusted.read_json(path)
    return read if isinstance(read, dict) else {}


def _default(found: object) -> str | None:
    """One text, or a list of named ones of which `default` is taken."""
    if isinstance(found, list):
        templates = {entry.get("name"): entry.get("template") for entry in found if isinstance(entry, dict)}
        found = templates.get("default")
    return found if isinstance(found, str) else None


def _text(token: object) -> str | None:
    """A special token is a text, or an object with its text as `content`."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


class _Generation(Extension):
    """`{% generation %}` marks the model's output, for training; here its inside is rendered like the rest."""

    tags = frozenset({"generation"})  # type: ignore[assignment]  # never modified

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
