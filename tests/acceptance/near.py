"""Comparisons that rows share: nearness, and texts of several numbers."""

from collections.abc import Iterable, Sequence


def near(published: Sequence[float], obtained: Sequence[float], relative: float = 0.0, absolute: float = 0.0) -> bool:
    """Whether every number is within `relative` of its published one, or within `absolute` of it."""
    pairs = zip(published, obtained, strict=True)
    return all(abs(b - a) <= max(abs(a) * relative, absolute) * (1 + 1e-9) for a, b in pairs)


def spelled(values: Iterable[float], digits: int = 4) -> str:
    """'1.5, 2.516, 4.336': numbers with so many significant digits and thousands set off."""
    return ", ".join(_number(value, digits) for value in values)


def _number(value: float, digits: int) -> str:
    return f"{value:,.0f}" if abs(value) >= 10 ** (digits - 1) else f"{value:.{digits}g}"
