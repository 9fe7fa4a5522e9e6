"""What several policies share: the limits that they check."""

from __future__ import annotations


def at_least(name: str, value: int, least: int) -> None:
    """Raise ValueError unless `value >= least`."""
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
