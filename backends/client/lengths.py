"""Makes the lengths of prompts right: what the server adds to each, and how it counts the words of a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from backends.client import message
from backends.client.body import PATHS, Builder
from backends.client.capabilities import Capabilities
from harness.api import Content, LearningContent, Request

if TYPE_CHECKING:
    from backends.client.talk import Talk

MEASURED = (32, 96)
"""Prompt tokens of the requests that tell a constant overhead: equal twice, it is one."""

LEARNED = (64, 1000, 16, 1000, 32, 512, 16, 1000, 64, 1000, 256, 1000)
"""Prompt tokens of the requests from which a content learns; one token is asked of each."""

PASSABLE = 0.02
"""An error of the lengths above this share is told. Source: the guide on endpoints."""


async def correct(talk: Talk, found: Capabilities, content: Content, key: str | None) -> Capabilities:
    """Measure what the server counts, teach the content or note the overhead. Says so where it cannot be known."""
    if found.ask.prompt == "text" and isinstance(content, LearningContent):
        return await _teach(talk, found, content, key)
    found = replace(found, ask=replace(found.ask, overhead_tokens=0))  # perhaps that of a server asked before
    pairs = await _counts(talk, found, content, key, MEASURED, 0)
    if not pairs:
        return _unknown(found)
    overheads = [counted - planned for planned, counted in pairs]
    if len(set(overheads)) > 1:
        error = max((counted - planned) / planned for planned, counted in pairs)
        said = ", ".join(f"{counted} for {planned}" for planned, counted in pairs)
        told = f"the server counts prompts otherwise than planned ({said}): give the tokenizer of its model"
        return replace(found, length_error=error, cautions=(*found.cautions, told))
    ask = replace(found.ask, overhead_tokens=overheads[0])
    told = f"{overheads[0]} tokens are added to every prompt (template, salt); they are taken off the planned text"
    cautions = (*found.cautions, told) if overheads[0] > 0 else found.cautions
    return replace(found, ask=ask, overhead_tokens=overheads[0], length_error=0.0, cautions=cautions)


async def _teach(talk: Talk, found: Capabilities, content: LearningContent, key: str | None) -> Capabilities:
    seen: list[tuple[int, int]] = []
    for i, planned in enumerate(LEARNED):
        pairs = await _counts(talk, found, content, key, (planned,), i)
        if not pairs and not seen and i > 1:
            return _unknown(found)
        seen += pairs
    if not seen:
        return _unknown(found)
    last = seen[len(seen) // 2 :]
    error = sum(counted for _, counted in last) / sum(planned for planned, _ in last) - 1
    cautions = found.cautions
    if abs(error) > PASSABLE:
        told = f"prompts are still {abs(error):.1%} {'longer' if error > 0 else 'shorter'} than planned"
        cautions = (*cautions, f"{told} after {len(seen)} texts from which their lengths were learned")
    return replace(found, length_error=error, cautions=cautions)


async def _counts(
    talk: Talk, found: Capabilities, content: Content, key: str | None, planned: Sequence[int], first: int
) -> list[tuple[int, int]]:
    """(planned tokens, tokens by the server's count) of prompts that fit it."""
    builder = Builder(found.ask, content, key)
    pairs = []
    for i, tokens in enumerate(planned):
        request = Request(-1000 - first - i, 0.0, tokens, 1)
        if found.max_model_len is not None and 2 * tokens > found.max_model_len:
            continue
        heard = await talk.ask(builder, request, PATHS[found.ask.api])
        counted = heard.prompt_tokens
        if heard.status != 200 or counted is None:
            continue
        pairs.append((tokens, counted))
        if found.ask.prompt == "text" and isinstance(content, LearningContent):
            content.observe(request, counted)
    return pairs


def _unknown(found: Capabilities) -> Capabilities:
    told = "the server does not tell how many tokens a prompt has: their lengths are as planned, or are not"
    return replace(found, cautions=(*found.cautions, told))


def counted(found: object) -> int | None:
    """The number of tokens in an answer of `/tokenize`."""
    if isinstance(found, list):
        return len(found)
    if not isinstance(found, dict):
        return None
    tokens = found.get("tokens")
    count = message.whole(found.get("count"))
    return count if count is not None else len(tokens) if isinstance(tokens, list) else None
