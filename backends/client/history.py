"""What follow-ups repeat: the messages of their conversation so far, and the server's own answers among them.

One sender sends all requests of a session, so what came back is known where the next one is built.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from itertools import accumulate
from operator import itemgetter
from typing import NamedTuple

from backends.client.body import SMALL_VOCABULARY, Message, Piece, RequestFormat, salted_ids, salted_text
from harness.api import Content, Request, TextContent, alike

MOST_TOKENS = 16_000_000
"""Tokens of conversations that are kept for follow-ups to come, some 80 MB of text; the least recent go first."""


class _Answered(NamedTuple):
    """A request and the messages of its prompt and answer; `tokens` of all of them as the server counts."""

    request: Request
    messages: tuple[Message, ...]
    tokens: int


@dataclass(slots=True)
class History:
    """The conversations of one sender, whose answers are those of the server (`live`) or made up (`recorded`).

    Where a request shares nothing with any before it in its session, its prompt is one message. `turn_tokens` is what
    the server counts for a further turn beyond its words (template); where no probe knows it, it `learns` it from the
    counts of answers. `follow_ups` counts requests that come after others, `repeating` those that repeat an answer.
    """

    ask: RequestFormat
    content: Content
    live: bool
    turn_tokens: float = 0.0
    learns: bool = True
    follow_ups: int = 0
    repeating: int = 0
    _learned: int = 0
    _sent: dict[int, tuple[Message, ...]] = field(default_factory=dict)
    _kept: OrderedDict[int, list[_Answered]] = field(default_factory=OrderedDict)
    _tokens: int = 0

    def prompt(self, request: Request) -> tuple[Message, ...]:
        """The messages of a request; remembered until `take` or `forget`."""
        before, tokens = self._before(request)
        new = request.prompt_tokens - tokens - round(self.turn_tokens)
        if before and new > 0:
            planned = request.prompt_tokens - sum(message.tokens for message in before)
            messages = (*before, Message("user", self._further(replace(request, prompt_tokens=new)), planned))
        else:
            salted = salted_ids(self.content, request, self.ask).tolist() if self._ids else None
            opening: Piece = salted_text(self.content, request, self.ask) if salted is None else salted
            messages = (Message("user", opening, request.prompt_tokens),)
        self.follow_ups += bool(request.after)
        self.repeating += len(messages) > 1
        self._sent[request.id] = messages
        return messages

    def take(self, request: Request, text: str, ids: list[int], counted: tuple[int, int] | None) -> None:
        """Keep the answer to a request: text or ids, and the tokens of prompt and answer that the server counts."""
        messages = self._sent.get(request.id)
        piece: Piece = ids if self._ids else text
        if messages is None or request.session is None or (self.live and not piece):
            return
        if not self.live:
            piece = self._further(replace(request, id=~request.id, prompt_tokens=request.output_tokens))
        tokens = request.prompt_tokens + request.output_tokens
        if counted is not None:
            if len(messages) > 1 and self.learns:
                self._learned += 1
                self.turn_tokens += (counted[0] - request.prompt_tokens) / self._learned
            tokens = counted[0] + (counted[1] if self.live else request.output_tokens)
        conversation = (*messages, Message("assistant", piece, request.output_tokens))
        session = self._kept.pop(request.session, [])
        others = [
            earlier for earlier in session if earlier.messages != conversation[: len(earlier.messages)]
        ]  # this one holds the rest
        self._kept[request.session] = [*others, _Answered(request, conversation, tokens)]
        self._tokens += tokens - sum(earlier.tokens for earlier in session) + sum(earlier.tokens for earlier in others)
        while self._tokens > MOST_TOKENS:
            self._tokens -= sum(earlier.tokens for earlier in self._kept.popitem(last=False)[1])

    def forget(self, request_id: int) -> None:
        """The answer to this request has come, and was taken or is not wanted."""
        self._sent.pop(request_id, None)

    @property
    def _ids(self) -> bool:
        return self.ask.prompt == "ids"

    def _before(self, request: Request) -> tuple[tuple[Message, ...], int]:
        """What a request repeats, up to an answer, and its tokens as the server counts them."""
        best: tuple[tuple[Message, ...], int] = (), 0
        for earlier in self._kept.get(request.session, ()) if request.session is not None else ():
            before, ids = earlier.request, request.prefix_ids
            same = alike(before.prefix_ids, ids)
            common = same * before.prefix_block_tokens
            if same == min(len(before.prefix_ids), len(ids)):  # it goes on, be its last block whole or not
                common = before.prompt_tokens + before.output_tokens
            ends = [*accumulate(message.tokens for message in earlier.messages)]
            count = bisect_right(ends, min(common, request.prompt_tokens - 1))
            count -= count % 2  # questions and answers take turns
            tokens = earlier.tokens if count == len(ends) else ends[count - 1] if count else 0
            best = max(best, (earlier.messages[:count], tokens), key=itemgetter(1))
        return best

    def _further(self, request: Request) -> Piece:
        """Words, or ids, of a request that nothing else has."""
        unshared = replace(request, prefix_ids=())
        if self._ids:
            ids: list[int] = self.content.token_ids(unshared, self.ask.vocab_size or SMALL_VOCABULARY).tolist()
            return ids
        assert isinstance(self.content, TextContent)
        text = self.content.text(unshared, (0,))  # the first word is that of the probe, which measures `turn_tokens`
        return text if self.ask.api == "chat" or text.startswith(" ") else f" {text}"
