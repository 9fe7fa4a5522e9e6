"""Checks of numbers that users give; a refusal is one sentence."""

from __future__ import annotations

import math


def positive(**values: float) -> None:
    """Raise ValueError unless every value is a finite number above 0."""
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name} must be > 0, got {value:g}.")


def at_least_one(**values: float) -> None:
    """Raise ValueError unless every value is a finite number of at least 1."""
    for name, value in values.items():
        if not (math.isfinite(value) and value >= 1):
            raise ValueError(f"{name} must be at least 1, got {value:g}.")
