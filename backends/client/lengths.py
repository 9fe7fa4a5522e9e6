"""Corrects prompt lengths: tokens that the server adds to each prompt, and how it counts the words of a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from backends.client import message
from backends.client.body import PATHS, Builder
from backends.client.capabilities import Capabilities
from harness.api import Content, LearningContent, Request

if TYPE_CHECKING:
    from backends.client.control import ControlClient

MEASURED = (32, 96)
"""Prompt tokens of the requests that tell a constant overhead: equal twice, it is one."""

LEARNED = (64, 1000, 16, 1000, 32, 512, 16, 1000, 64, 1000, 256, 1000)
"""Prompt tokens of the requests that calibrate a content; each requests one output token."""

PASSABLE = 0.02
"""A relative length error above this is reported. Source: the guide on endpoints."""


async def correct(control: ControlClient, found: Capabilities, content: Content, key: str | None) -> Capabilities:
    """Calibrate the content by the server's counts, or note the overhead; adds a warning where neither works."""
    if found.ask.prompt == "text" and isinstance(content, LearningContent):
        return await _teach(control, found, content, key)
    found = replace(found, ask=replace(found.ask, overhead_tokens=0))  # may be that of a server probed before
    pairs = await _counts(control, found, content, key, MEASURED, 0)
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


async def _teach(
    control: ControlClient, found: Capabilities, content: LearningContent, key: str | None
) -> Capabilities:
    seen: list[tuple[int, int]] = []
    for i, planned in enumerate(LEARNED):
        pairs = await _counts(control, found, content, key, (planned,), i)
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
) -> list[tuple[int, int]]:
    """(planned tokens, tokens by the server's count) of prompts that fit it."""
    builder = Builder(found.ask, content, key)
    pairs = []
    for i, tokens in enumerate(planned):
        request = Request(-1000 - first - i, 0.0, tokens, 1)
        if found.max_model_len is not None and 2 * tokens > found.max_model_len:
            continue
        response = await control.ask(builder, request, PATHS[found.ask.api])
        counted = response.prompt_tokens
        if response.status != 200 or counted is None:
            continue
        pairs.append((tokens, counted))
        if found.ask.prompt == "text" and isinstance(content, LearningContent):
            content.observe(request, counted)
    return pairs


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
