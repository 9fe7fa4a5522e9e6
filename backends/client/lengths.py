"""Corrects prompt lengths: tokens that the server adds to each prompt, and how it counts the words of a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from backends.client import message
from backends.client.body import PATHS, Builder
from backends.client.capabilities import Capabilities, Lesson
from harness.api import Content, LearningContent, RecordedContent, Request

if TYPE_CHECKING:
    from backends.client.control import ControlClient

MEASURED = (32, 96)
"""Prompt tokens of the requests that tell a constant overhead: equal twice, it is one."""

LEARNED = (64, 1000, 16, 1000, 32, 512, 16, 1000, 64, 1000, 256, 1000)
"""Prompt tokens of the requests that calibrate a content; each requests one output token."""

LONG = 1000
"""Prompt tokens of the one that does so after a short one: what is around a text and what a word is, separately."""

PASSABLE = 0.02
"""A relative length error above this is reported. Source: the guide on endpoints."""


async def correct(
    control: ControlClient,
    found: Capabilities,
    content: Content,
    key: str | None,
    first: tuple[Request, int | None] | None = None,
) -> Capabilities:
    """Calibrate the content by the server's counts, or note the overhead; adds a warning where neither works.

    `first` is a request with the count that its answer had: then at most one more is sent.
    """
    if first is not None and first[1] is None:
        return _unknown(found)
    if isinstance(content, RecordedContent):
        return found
    if found.ask.prompt == "text" and isinstance(content, LearningContent):
        return await (
            _teach(control, found, content, key) if first is None else _hint(control, found, content, key, first)
        )
    pairs = [] if first is None or first[1] is None else [(first[0].prompt_tokens, first[1])]
    if not pairs or pairs[0][0] != pairs[0][1]:
        found, more = await _counts(control, found, content, key, MEASURED[len(pairs) :], len(pairs))
        pairs += more
    if not pairs:
        return _unknown(found)
    overheads = [counted - planned for planned, counted in pairs]
    if len(set(overheads)) > 1:
        error = max((counted - planned) / planned for planned, counted in pairs)
        counts = ", ".join(f"{counted} for {planned}" for planned, counted in pairs)
        note = f"the server counts other prompt lengths than planned ({counts}); give the tokenizer of its model"
        return replace(found, length_error=error, warnings=(*found.warnings, note))
    ask = replace(found.ask, overhead_tokens=overheads[0])
    note = f"{overheads[0]} tokens are added to every prompt (template, salt); the planned text is that much shorter"
    warnings = (*found.warnings, note) if overheads[0] > 0 else found.warnings
    return replace(found, ask=ask, overhead_tokens=overheads[0], length_error=0.0, warnings=warnings)


async def _hint(
    control: ControlClient, found: Capabilities, content: LearningContent, key: str | None,
    first: tuple[Request, int | None],
) -> Capabilities:  # fmt: skip
    """Calibrate by the count that is known and that of one long prompt; what error remains is seen in the run.

    One count alone does not tell what is around a text from what a word is: of it nothing is learned.
    """
    request, counted = first
    assert counted is not None
    lesson = Lesson(content.text(request), request.prompt_tokens, counted)
    longest = LONG
    if found.max_model_len is not None:  # a text of this language may have several times the tokens
        longest = min(LONG, int(found.max_model_len / 2 * min(1.0, request.prompt_tokens / counted)))
    before = found
    found, pairs = await _counts(control, found, content, key, (longest,), 0)
    if not pairs:
        return _unknown(found) if found is before else found
    content.observe(*lesson)
    return replace(found, lessons=(*found.lessons, lesson))


async def _teach(
    control: ControlClient, found: Capabilities, content: LearningContent, key: str | None
) -> Capabilities:
    seen: list[tuple[int, int]] = []
    for i, planned in enumerate(LEARNED):
        found, pairs = await _counts(control, found, content, key, (planned,), i)
        if not pairs and not seen and i > 1:
            return _unknown(found)
        seen += pairs
    if not seen:
        return _unknown(found)
    last = seen[len(seen) // 2 :]
    error = sum(counted for _, counted in last) / sum(planned for planned, _ in last) - 1
    warnings = found.warnings
    if abs(error) > PASSABLE:
        note = f"prompts are still {abs(error):.1%} {'longer' if error > 0 else 'shorter'} than planned"
        warnings = (*warnings, f"{note} after calibration with {len(seen)} texts")
    return replace(found, length_error=error, warnings=warnings)


async def _counts(
    control: ControlClient, found: Capabilities, content: Content, key: str | None, planned: Sequence[int], first: int
) -> tuple[Capabilities, list[tuple[int, int]]]:
    """(planned tokens, tokens by the server's count) of prompts that fit it; a warning where the server fails."""
    builder = Builder(found.ask, content, key)
    pairs = []
    for i, tokens in enumerate(planned):
        request = Request(-1000 - first - i, 0.0, tokens, 1)
        if found.max_model_len is not None and 2 * tokens > found.max_model_len:
            continue
        response = await control.ask(builder, request, PATHS[found.ask.api], "prompt lengths")
        counted = response.prompt_tokens
        if response.status != 200:
            how = f"got status {response.status}" if response.status else "broke off"
            note = f"{control.where} answers, but the request for the length of {tokens} prompt tokens {how}"
            note += f": {control.quoted(response.words)}; prompt lengths may be inexact"
            if not any("the request for the length of" in warning for warning in found.warnings):
                found = replace(found, warnings=(*found.warnings, note))
        if response.status != 200 or counted is None:
            continue
        pairs.append((tokens, counted))
        if found.ask.prompt == "text" and isinstance(content, LearningContent):
            lesson = Lesson(content.text(request), request.prompt_tokens, counted)
            content.observe(*lesson)
            found = replace(found, lessons=(*found.lessons, lesson))
    return found, pairs


def _unknown(found: Capabilities) -> Capabilities:
    note = "the server does not report prompt tokens: prompt lengths are unverified"
    return replace(found, warnings=(*found.warnings, note))


def counted(found: object) -> int | None:
    """The number of tokens in an answer of `/tokenize`."""
    if isinstance(found, list):
        return len(found)
    if not isinstance(found, dict):
        return None
    tokens = found.get("tokens")
    count = message.whole(found.get("count"))
    return count if count is not None else len(tokens) if isinstance(tokens, list) else None
