"""Checks of numbers that users give; a refusal is one sentence."""

import math

LARGEST_TOKENS = 10_000_000  # far above any context window; a larger count is a mistake


def positive(**values: float) -> None:
    """Raise ValueError unless every value is a finite number above 0."""
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name} must be > 0, got {value:g}.")


def token_counts(**values: float) -> None:
    """Raise ValueError unless every value is between 1 and LARGEST_TOKENS."""
    for name, value in values.items():
        if not 1 <= value <= LARGEST_TOKENS:
            raise ValueError(f"{name} must be between 1 and {LARGEST_TOKENS}, got {value:g}.")
