"""Lists of values as they are written: `1,2,4`, `1:8:0.5`, `1:16:x2`, `sarathi|static:size=8,timeout=1`."""

import re
from collections.abc import Iterator
from decimal import Decimal

from harness.errors import UsageError

MOST = 1000
"""Values that one list may hold; a range with more has most likely a wrong step."""

MOST_DIGITS = 15
"""Digits of a number beyond which an exponent is easier to read."""

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_RANGE = re.compile(rf"({_NUMBER}):({_NUMBER}):(x?)({_NUMBER})")
_STEPLESS = re.compile(rf"({_NUMBER}):({_NUMBER})")
_ARGUMENT = re.compile(r"[^:]*=.*", re.DOTALL)


def values(text: str, name: str, *, whole: bool = False) -> tuple[str, ...]:
    """The values of a list, numbers in their shortest form; `name` is how messages call what they are for.

    Commas stand between values, or `|` where a value holds commas itself; where each value is `whole`, only `|` does.
    `1:8:0.5` counts up by 0.5 and `1:16:x2` doubles, both up to and with the last. Raises UsageError for a list that
    is empty, doubtful or too long.
    """
    found = [value for part in _parts(text, name, whole or "|" in text) for value in _each(part, name)]
    if len(found) > MOST:
        raise UsageError(f"{name}: '{text}' has more than {MOST:,} values; take a larger step.")
    twice = next((value for value in found if found.count(value) > 1), None)
    if twice is not None:
        raise UsageError(f"{name}: '{twice}' stands twice in '{text}'.")
    return tuple(found)


def plain(text: str) -> str:
    """A number without needless digits: '1.50' is '1.5'; any other text as it is."""
    return _short(Decimal(text)) if re.fullmatch(_NUMBER, text) else text


def valued(text: str) -> int | float | str:
    """The number that a text is, or the text."""
    if not re.fullmatch(_NUMBER, text):
        return text
    return int(text) if re.fullmatch(r"[-+]?\d+", text) else float(text)


def _parts(text: str, name: str, whole: bool) -> list[str]:
    parts = [part.strip() for part in text.split("|" if whole else ",")]
    if "|" in text and len(parts) > 1 and not parts[-1]:
        parts.pop()  # `a,b|` is one value that holds a comma
    if not all(parts):
        raise UsageError(f"{name}: a value is missing in '{text}'; write values with commas between them, or 1:8:0.5.")
    if not whole and any(_ARGUMENT.fullmatch(part) for part in parts[1:]):
        raise UsageError(
            f"{name}: in '{text}' a comma may stand between two values or inside one; "
            "write | between values that hold commas, and at the end of a single one."
        )
    return parts


def _each(part: str, name: str) -> Iterator[str]:
    if _STEPLESS.fullmatch(part):
        raise UsageError(f"{name}: the range '{part}' has no step; write '{part}:0.5', or '{part}:x2' to double.")
    match = _RANGE.fullmatch(part)
    if match is None:
        yield plain(part)
        return
    start, stop, step = Decimal(match[1]), Decimal(match[2]), Decimal(match[4])
    if start > stop or (match[3] and start <= 0):
        raise UsageError(f"{name}: the range '{part}' must count up{', from above 0' if match[3] else ''}.")
    if step <= (1 if match[3] else 0):
        raise UsageError(f"{name}: the step of the range '{part}' must be above {'x1' if match[3] else '0'}.")
    last = stop + abs(stop) * Decimal("1e-9")
    for _ in range(MOST + 1):
        if start > last:
            return
        yield _short(start)
        start = start * step if match[3] else start + step


def _short(value: Decimal) -> str:
    if abs(value.adjusted()) > MOST_DIGITS:
        return str(value)
    text = format(Decimal(f"{value:.12g}"), "f")
    return text.rstrip("0").rstrip(".") if "." in text else text
