"""The fields of a request that can be left out, and how a request is put without them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from backends.client.body import Ask


WITHOUT: Mapping[str, Callable[[Ask], Ask | None]] = {
    "continuous_usage_stats": lambda ask: (
        replace(ask, continuous_usage=False) if ask.stream and ask.include_usage and ask.continuous_usage else None
    ),
    "ignore_eos": lambda ask: replace(ask, ignore_eos=False) if ask.ignore_eos else None,
    "min_tokens": lambda ask: replace(ask, min_tokens=False) if ask.min_tokens else None,
    "generation_config": lambda ask: replace(ask, generation_config=False) if ask.generation_config else None,
    "max_completion_tokens": lambda ask: (
        replace(ask, length_field="max_tokens") if ask.length == "max_completion_tokens" else None
    ),
    "include_usage": lambda ask: replace(ask, include_usage=False) if ask.stream and ask.include_usage else None,
    "seed": lambda ask: replace(ask, seed=None) if ask.seed is not None else None,
    "stop": lambda ask: replace(ask, stop=()) if ask.stop else None,
    "top_p": lambda ask: replace(ask, top_p=None) if ask.top_p is not None else None,
    "temperature": lambda ask: replace(ask, temperature=None) if ask.temperature is not None else None,
}
"""How to ask without a field; None where it is not asked with it. In the order of what is given up most gladly."""

SPELLING = {"include_usage": "(include_usage|stream_options)"}
