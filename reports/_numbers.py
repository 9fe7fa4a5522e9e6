"""Numbers as people read them: three significant digits, seconds or milliseconds, shares that never flatter."""

from __future__ import annotations

import math
from collections.abc import Iterable


def number(value: float | None, digits: int = 3) -> str:
    """`value` with `digits` significant digits and no exponent: '0.0942', '94.2', '1,234'; '-' for none."""
    if value is None or not math.isfinite(value):
        return "-"
    if value == 0:
        return "0"
    exponent = int(f"{value:.{digits - 1}e}".partition("e")[2])
    return f"{value:,.{min(max(0, digits - 1 - exponent), 9)}f}"


def plain(value: float) -> str:
    """A number that somebody chose, without digits that nobody gave: '12', '0.25'."""
    return f"{value:,.4g}"


def share(value: float | None) -> str:
    """A share as '94.2%', rounded down, so that 99.96% is not shown as all and 89.96% not as the goal of 90%."""
    if value is None or not math.isfinite(value):
        return "-"
    return "<0.1%" if 0 < value < 0.001 else f"{math.floor(value * 1000 + 1e-9) / 10:.1f}%"


def unit_of(values_s: Iterable[float | None]) -> str:
    """'ms' when all times of a row stay under a second, else 's'."""
    finite = [abs(v) for v in values_s if v is not None and math.isfinite(v)]
    return "ms" if finite and max(finite) < 1.0 else "s"


def in_unit(value_s: float | None, unit: str) -> str:
    """`value_s` seconds as a number in `unit` ('s' or 'ms'), without the unit."""
    return number(None if value_s is None else value_s * (1000.0 if unit == "ms" else 1.0))


def seconds(value_s: float | None) -> str:
    """A time with its unit: '250 ms', '1.20 s', '51.2 s'."""
    unit = unit_of([value_s])
    text = in_unit(value_s, unit)
    return text if text == "-" else f"{text} {unit}"


def limit(value_s: float) -> str:
    """A bound as its author wrote it: '250 ms', '2 s', without made-up digits."""
    if abs(value_s) < 1.0:
        return f"{value_s * 1000:.6g} ms"
    return f"{value_s:.6g} s"


def count(value: float | None, one: str, many: str | None = None) -> str:
    """'1 request', '1,200 requests'."""
    if value is None:
        return f"- {many or one + 's'}"
    return f"{value:,.0f} {one if value == 1 else many or one + 's'}"
