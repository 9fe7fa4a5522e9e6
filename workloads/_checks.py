"""Checks of numbers that users give; a refusal is one sentence."""

import math
from typing import Annotated, TypeAlias

from msgspec import Meta

LARGEST_TOKENS = 10_000_000  # far above any context window; a larger count is a mistake
Tokens: TypeAlias = Annotated[int, Meta(ge=1, le=LARGEST_TOKENS)]
MeanTokens: TypeAlias = Annotated[float, Meta(ge=1, le=LARGEST_TOKENS)]
DayHour: TypeAlias = Annotated[float, Meta(ge=0, lt=24)]
Weekday: TypeAlias = Annotated[int, Meta(ge=0, le=6, description="0 is Monday")]


def positive(**values: float) -> None:
    """Raise ValueError unless every value is a finite number above 0."""
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name} must be above 0, got {value:g}.")
