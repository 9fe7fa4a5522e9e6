"""What a server supports, probed before the run, and the file by which the runs of one command share it."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from backends.client.body import FIELDS, RequestFormat
from harness.data.storage import write_json
from harness.errors import UsageError

Mode = Literal["off", "short"]
UsageForm = Literal["every chunk", "a chunk of its own", "the finish chunk", "after the finish", "the answer"]


class Sent(NamedTuple):
    """A request that was not measured: what it was to find out, and the status of its answer (0: broken off)."""

    purpose: str
    status: int


class Lesson(NamedTuple):
    """A text for so many `planned` tokens, and how many the server counted."""

    text: str
    planned: int
    counted: int


class Dropped(NamedTuple):
    """A field that the server refuses, and the effect of leaving it out."""

    field: str
    cost: str


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Result of the probe. `ask` is the request format from now on. None: not found out.

    `requests` are those that found it. `lessons` teach a content what the server counts. `usage` is where token counts
    are sent, None if nowhere; `role_early` whether a chunk without text comes well before the first token.
    `tokens_per_event` is that of the probe's answer. `overhead_tokens` is what the server counts beyond the planned
    prompt. `at_root`: the routes of the server stand beside the `/v1` of its URL. `warnings` are sentences for
    the user. `ignore_eos` in `describe`: whether the server
    accepts it, None if not sent.
    """

    ask: RequestFormat = field(default_factory=RequestFormat)
    requests: tuple[Sent, ...] = ()
    lessons: tuple[Lesson, ...] = ()
    dropped: tuple[Dropped, ...] = ()
    usage: UsageForm | None = None
    role_early: bool | None = None
    done: bool | None = None
    finish_reason: bool | None = None
    tokens_per_event: float | None = None
    cached_tokens: bool | None = None
    overhead_tokens: int | None = None
    length_error: float | None = None
    at_root: bool = False
    max_model_len: int | None = None
    server: str | None = None
    kind: str | None = None
    warnings: tuple[str, ...] = ()

    def describe(self) -> dict[str, object]:
        """Facts for run.json; the caller removes secrets."""
        return {
            "accepted": accepted(self.ask),
            "ignore_eos": self.ask.ignore_eos or (False if "ignore_eos" in dict(self.dropped) else None),
            "dropped": [{"field": name, "cost": cost} for name, cost in self.dropped],
            "prompt": "token ids" if self.ask.prompt == "ids" else "text",
            "usage": self.usage,
            "role_chunk_early": self.role_early,
            "done": self.done,
            "finish_reason": self.finish_reason,
            "tokens_per_event": self.tokens_per_event,
            "cached_tokens": self.cached_tokens,
            "token_ids": self.ask.prompt == "ids",
            "max_model_len": self.max_model_len,
            "server": self.server,
            "kind": self.kind,
            "prompt_overhead_tokens": self.overhead_tokens,
            "prompt_length_error": self.length_error,
        }


def accepted(ask: RequestFormat) -> list[str]:
    """The fields beyond model, prompt and stream that are sent."""
    fields = (field.name for field in FIELDS.values() if field.is_sent(ask))
    return list(dict.fromkeys([ask.length, *fields, *ask.extra]))


@dataclass(frozen=True, slots=True)
class Shared:
    """A file of what was found, by the question: `wanted` of these servers, for a kind of content.

    Nothing that may be secret is in it: headers, extra fields and the salt come from the run that reads it. Of headers
    and extra fields it has a hash, because a server may answer to others otherwise; of the salt only its length counts.
    """

    path: Path
    servers: Sequence[str]
    wanted: RequestFormat
    about: Mapping[str, object]

    @property
    def _key(self) -> str:
        salt = self.wanted.salt
        question = [self.servers, asdict(replace(self.wanted, salt=None)), salt and len(salt), self.about]
        return hashlib.sha256(json.dumps(question, default=str).encode()).hexdigest()[:16]

    def read(self) -> tuple[Capabilities, ...]:
        """What an earlier run has found; empty where none sent the same question."""
        if not self.path.exists():
            return ()
        try:
            entries = json.loads(self.path.read_text(encoding="utf-8")).get(self._key, [])
            caps = msgspec.convert(entries, tuple[Capabilities, ...], strict=False)
        except (OSError, ValueError, AttributeError) as error:
            raise UsageError(
                f"'{self.path}' is not what a probe has found ({type(error).__name__}); remove it."
            ) from None
        form = self.wanted
        return tuple(
            replace(cap, ask=replace(cap.ask, headers=form.headers, extra=form.extra, salt=form.salt)) for cap in caps
        )

    def write(self, found: Sequence[Capabilities]) -> None:
        stored = json.loads(self.path.read_text(encoding="utf-8")) if self.path.exists() else {}
        plain = [replace(cap, ask=replace(cap.ask, headers=(), extra={}, salt=None)) for cap in found]
        write_json(self.path, {**stored, self._key: [asdict(cap) for cap in plain]})
