"""Checks of settings that policies and memory modes share."""


def at_least(name: str, value: int | None, least: int = 1) -> None:
    """Raise ValueError unless `value` is None or at least `least`."""
    if value is not None and value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")


def positive(of: object, *names: str) -> None:
    """Raise ValueError unless each of these fields of `of` is None or at least 1."""
    for name in names:
        at_least(name, getattr(of, name))


def next_power_of_two(tokens: int) -> int:
    """The least power of two that is at least `tokens`."""
    return 1 << (tokens - 1).bit_length()
