"""Counts the tokens of answers without usage, after the run: by a tokenizer, never by chunks."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from backends.client import lengths
from backends.client.capabilities import Capabilities
from backends.client.counting import most, share
from harness.api import CountedBy
from harness.errors import BackendError, UsageError

if TYPE_CHECKING:
    import tokenizers

    from backends.client.control import ControlClient

AT_ONCE = 8  # questions to the server under way
MOST_CHARACTERS = 1 << 28  # texts kept; answers beyond them stay counted by events


class Counter(Protocol):
    """Counts the tokens of a text."""

    @property
    def by(self) -> CountedBy:
        """The rule."""
        ...

    async def tokens(self, text: str) -> int | None:
        """Number of tokens without special tokens; None if unknown."""
        ...


@dataclass(frozen=True, slots=True)
class ServerTokenizer:
    """`/tokenize` of the server."""

    control: ControlClient
    found: Capabilities
    by: CountedBy = "server tokenizer"

    async def tokens(self, text: str) -> int | None:
        assert self.found.tokenize is not None
        question: dict[str, object] = {"content": text, "add_special": False}
        if self.found.tokenize_form == "prompt":
            question = {"model": self.found.ask.model, "prompt": text, "add_special_tokens": False}
        status, answer = await self.control.post(self.found.tokenize, question, "tokens of an answer")
        return lengths.counted(answer) if status == 200 else None


@dataclass(frozen=True, slots=True)
class LocalTokenizer:
    """A `tokenizer.json` that the user names."""

    library: tokenizers.Tokenizer
    by: CountedBy = "tokenizer"

    async def tokens(self, text: str) -> int | None:
        return len(self.library.encode(text, add_special_tokens=False).ids)


def local(path: str) -> LocalTokenizer:
    """The tokenizer of a file, or of the folder that holds it. Raises UsageError where there is none."""
    try:
        from tokenizers import Tokenizer  # an optional extra
    except ImportError:
        raise UsageError(
            "Counting by a tokenizer needs the library tokenizers: pip install 'goodput-bench[tokenizers]'."
        ) from None
    file = Path(path)
    file = file / "tokenizer.json" if file.is_dir() else file
    try:
        library = Tokenizer.from_buffer(file.read_bytes())
    except Exception as error:  # noqa: BLE001  # the library raises Exception itself
        why = (error.strerror if isinstance(error, OSError) else None) or "it is not one of Hugging Face tokenizers"
        raise UsageError(f"No tokenizer '{path}': {why}; give the path of a tokenizer.json.") from None
    library.no_truncation()
    library.no_padding()
    return LocalTokenizer(library)


@dataclass(slots=True)
class Recount:
    """The texts of answers that were counted by events, one per token event."""

    texts: dict[int, list[str]] = field(default_factory=dict)
    characters: int = 0

    def __repr__(self) -> str:
        return f"<Recount of {len(self.texts)} answers, {self.characters} characters>"

    def keep(self, request_id: int, texts: Sequence[str]) -> None:
        """Keep the texts of an answer, while there is room."""
        size = sum(map(len, texts))
        if texts and self.characters + size <= MOST_CHARACTERS:
            self.characters += size
            self.texts[request_id] = list(texts)

    async def count(self, counters: Sequence[Counter]) -> Mapping[int, tuple[CountedBy, Sequence[int]]]:
        """By request id: the rule, and the tokens of each event. The first counter that knows a text counts it.

        A counter that fails is not used again: each answer would wait for the timeout of a server that is gone.
        """
        gate, there = asyncio.Semaphore(AT_ONCE), list(counters)

        async def one(request_id: int, texts: list[str]) -> tuple[int, tuple[CountedBy, Sequence[int]]] | None:
            async with gate:
                counted = await _first(there, "".join(texts))
            if counted is None:
                return None
            by, tokens = counted
            return request_id, (by, share(tokens, [len(text) for text in texts]))

        found = await asyncio.gather(*(one(request_id, texts) for request_id, texts in self.texts.items()))
        return dict(item for item in found if item is not None)


async def _first(counters: list[Counter], text: str) -> tuple[CountedBy, int] | None:
    for counter in list(counters):
        try:
            tokens = await counter.tokens(text)
        except BackendError:  # the server is gone, or does not answer: another counter may know
            if counter in counters:
                counters.remove(counter)
            continue
        if tokens and tokens <= most(len(text)):
            return counter.by, tokens
    return None
