"""Checks of single cells of a trace, and how cells are shown: what the fast paths fall back on for an odd block."""

import math
import re
from collections.abc import Callable, Iterable
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Annotated, NoReturn, TypeAlias

from msgspec import Meta

from harness.errors import UsageError

LARGEST_TOKENS = 1 << 31
BlockTokens: TypeAlias = Annotated[int, Meta(ge=1, le=LARGEST_TOKENS - 1)]
LARGEST_NUMBER = 1e300
SECOND_NS = 1_000_000_000
FIRST_YEAR, LAST_YEAR = 1678, 2261  # what 64-bit nanoseconds hold
_LONGEST_SHOWN = 40
_NOTHING = frozenset(("", "-", "n/a", "na", "nan", "none", "null"))
_DECIMAL = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", re.ASCII)
_GROUPED = re.compile(r"[1-9]\d{0,2}(?:(?P<sign>[,. '\u00a0\u202f])\d{3})(?:(?P=sign)\d{3})*", re.ASCII)
_LOCAL = re.compile(
    r"(\d\d?)([/.])(\d\d?)\2(\d{4})(?:[,.]? (\d\d?)(:\d\d(?::\d\d(?:[.,]\d{1,9})?)?)(?:[ \u202f]?([AP])M)?)?",
    re.ASCII | re.IGNORECASE,
)
_STAMP = re.compile(
    r"(\d{4})[-/](\d\d)[-/](\d\d)(?:[ T]([01]\d|2[0-3])(?::([0-5]\d)(?::([0-5]\d)(?:[.,](\d{1,9}))?)?)?"
    r"(Z| UTC|[+-](?:[01]\d|2[0-3])(?::?[0-5]\d)?)?)?",
    re.ASCII,
)

MONTHS = "jan feb mar apr may jun jul aug sep oct nov dec"
_NAMED = re.compile(  # HTTP dates (RFC 1123; its comma is a point where commas are decimal), Apache, nginx, PostgreSQL
    rf"\[?(?:[a-z]{{3,9}}[,.]? )?(\d\d?)[ /-]({MONTHS.replace(' ', '|')})[a-z]{{0,6}}[ /-](\d{{4}})[: T]"
    r"(\d\d:\d\d:\d\d(?:[.,]\d{1,9})?) ?(GMT|Z|[+-]\d\d:?\d\d)?\]?",
    re.ASCII | re.IGNORECASE,
)
_COMPACT = re.compile(r"(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)([.,]\d{1,9})?(Z|[+-]\d\d:?\d\d)?", re.ASCII)
_SINCE_START = re.compile(
    r"(\d{1,4}):([0-5]\d):([0-5]\d(?:[.,]\d{1,9})?)|(\d{1,18}(?:\.\d{1,12})?) ?(ns|us|ms|s)", re.ASCII
)
STAMP = "a stamp such as 2023-11-16 18:15:46.6805900, 00:00:01.5 or 1.5s"
_UNITS = {"0": Decimal(0), "ns": Decimal("1e-9"), "us": Decimal("1e-6"), "ms": Decimal("1e-3"), "s": Decimal(1)}

Fail = Callable[[str], NoReturn]


class BadRow(UsageError):
    """A row of a block cannot be used; `reason` is why, with its place."""

    def __init__(self, message: str, column: str | None, reason: str) -> None:
        super().__init__(message)
        self.column, self.reason = column, reason


class EmptyFile(BadRow):
    """A file has no rows; in a folder of traces it counts as one that cannot be used."""

    def __init__(self, file: Path, what: str) -> None:
        super().__init__(f"Trace '{file}' {what}.", None, f"'{file.name}' {what.partition(';')[0]}")
        self.file = file


def tokens(cell: object, refuse: Fail) -> int:
    """A token count of 0 or more from text or JSON; `refuse` is called with what is wrong."""
    if type(cell) is int:
        value: float = cell
    elif isinstance(cell, str) and cell.isdigit() and cell.isascii() and len(cell) < 16:
        value = int(cell)
    else:
        value = number(cell, refuse)
    if value != int(value):
        refuse(f"a token count must be a whole number, got {shown(cell)}")
    if value < 0:
        refuse(f"must not be negative, got {shown(cell)}")
    if value >= LARGEST_TOKENS:
        refuse(f"a token count must be between 0 and {LARGEST_TOKENS - 1}, got {shown(cell)}")
    return int(value)


def ungrouped(cells: Iterable[object]) -> dict[str, str]:
    """The counts of a column that are written as 7,790, with what they are without a sign between thousands.

    None where they may be decimals: a count is whole, so 8.000 may be 8, but 7.790 cannot be 7.79. Most of them tell,
    and no 0.5 is among them.
    """
    texts = {cell.strip(): cell for cell in cells if isinstance(cell, str)}
    grouped = [text for text in texts if _GROUPED.fullmatch(text)]
    decimal = any(not text.isdigit() and not _GROUPED.fullmatch(text) and _DECIMAL.fullmatch(text) for text in texts)
    if decimal or 2 * sum(not text.endswith("000") for text in grouped) < max(1, len(grouped)):
        return {}
    return {texts[text]: re.sub(r"\D", "", text) for text in grouped}


def is_number(text: str) -> bool:
    """Whether a text is a number in decimal digits."""
    return _DECIMAL.fullmatch(text.strip()) is not None


def number(cell: object, refuse: Fail, expected: str = "a finite number") -> float:
    """A finite number of 0 or more from text or JSON; `expected` is what a refusal asks for."""
    if cell is None or (isinstance(cell, str) and not cell.strip()):
        refuse("a number is missing")
    if isinstance(cell, str):
        value = float(cell.strip()) if is_number(cell) else math.nan  # float keeps separators such as \x1d
    elif isinstance(cell, int | float) and not isinstance(cell, bool):
        value = float(cell) if abs(cell) < LARGEST_NUMBER else math.inf
    else:
        value = math.nan
    if not abs(value) < LARGEST_NUMBER:  # nor is it when it is no number
        refuse(f"{expected} expected, got {shown(cell)}")
    if value < 0:
        refuse(f"must not be negative, got {shown(cell)}")
    return value


def name_of(cell: object, refuse: Fail) -> str | None:
    """A name from text or a whole number; None where there is none."""
    if cell is None:
        return None
    if isinstance(cell, str):
        if half_characters(cell):
            refuse(f"half a character, {shown(cell)}")
        return cell.strip() or None
    if type(cell) is not int or abs(cell) >= 1 << 63:
        refuse(f"a name (text or a whole number) expected, got {shown(cell)}")
    return str(cell)


def half_characters(text: str) -> bool:
    """Whether JSON's escapes made a text that cannot be written as UTF-8."""
    return not text.isascii() and any("\ud800" <= c <= "\udfff" for c in text)


def counted(number: int, noun: str = "row") -> str:
    """'1 row', '2,345 rows'."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def local_dates(cells: Iterable[object]) -> set[tuple[str, ...]]:
    """The different dates such as 05/10/2024 or 10.05.2024: first number, sign, second number, year."""
    matches = (_LOCAL.fullmatch(cell.strip()) for cell in cells if isinstance(cell, str))
    return {match.groups()[:4] for match in matches if match}


def day_first(dates: Iterable[tuple[str, ...]]) -> bool | None:
    """Whether the day comes before the month, by a number above 12 or by points; None where nothing or both tell."""
    orders = {
        sign == "." or int(first) > 12 for first, sign, two, _ in dates if sign == "." or max(int(first), int(two)) > 12
    }
    return orders.pop() if len(orders) == 1 else None


def _iso(text: str, day_first: bool) -> str:
    """A date as ISO 8601 writes it: of 05/10/2024 12:00:00 AM, of RFC 1123, of a log of Apache or nginx, and without
    signs between; any other as it is."""
    if match := _COMPACT.fullmatch(text):
        return "{}-{}-{}T{}:{}:{}{}{}".format(*match.groups(""))
    if match := _NAMED.fullmatch(text):
        day, month, year, clock, zone = match.groups("")
        return f"{year}-{1 + MONTHS.index(month.lower()) // 4:02}-{day:0>2}T{clock}{zone.replace('GMT', 'Z')}"
    if not (match := _LOCAL.fullmatch(text)):
        return text
    first, _, two, year, hour, rest, half = match.groups()
    month, day = (two, first) if day_first else (first, two)
    if half and 1 <= int(hour) <= 12:
        hour = str(int(hour) % 12 + (12 if half in "pP" else 0))
    return f"{year}-{month:0>2}-{day:0>2}" + (f" {hour:0>2}{rest}" if hour else "")


def stamp_ns(cell: object, refuse: Fail, day_first: bool = False) -> tuple[int, bool]:
    """Nanoseconds since 1970 (UTC where the stamp has an offset) or since the start, and whether it has a time zone."""
    text = cell.strip() if isinstance(cell, str) else ""
    if match := _SINCE_START.fullmatch(text):
        hours, minutes, rest, number, unit = match.groups("0")
        clock_s = 3600 * int(hours) + 60 * int(minutes) + Decimal(rest.replace(",", "."))
        at_ns = int((Decimal(number) * _UNITS[unit] + clock_s) * SECOND_NS)
        return at_ns if at_ns < 1 << 63 else refuse(f"a stamp of 64-bit nanoseconds expected, got {shown(cell)}"), False
    match = _STAMP.fullmatch(_iso(text, day_first))
    if not match:
        refuse(f"{STAMP} expected, got {shown(cell)}")
    year, month, day, hour, minute, second, fraction, zone = match.groups()
    try:
        days = date(int(year), int(month), int(day)).toordinal() - date(1970, 1, 1).toordinal()
    except ValueError:
        refuse(f"there is no such date as {shown(cell)}")
    if not FIRST_YEAR <= int(year) <= LAST_YEAR:
        refuse(f"a year between {FIRST_YEAR} and {LAST_YEAR} expected, got {shown(cell)}")
    seconds = ((days * 24 + int(hour or 0)) * 60 + int(minute or 0)) * 60 + int(second or 0)
    if zone and zone not in ("Z", " UTC"):
        minutes = zone[3:].lstrip(":")
        offset = int(zone[1:3]) * 3600 + int(minutes or 0) * 60
        seconds -= offset if zone[0] == "+" else -offset
    return seconds * SECOND_NS + int((fraction or "0").ljust(9, "0")), zone is not None


def has_zone(stamp: object) -> bool:
    """Whether a date has a time zone."""
    match = _STAMP.fullmatch(_iso(str(stamp).strip(), True))
    return match is not None and match.groups()[-1] is not None


def may_be_timestamp(cell: object) -> bool:
    """Whether a cell is a date or a time since the start rather than a plain number."""
    text = cell.strip() if isinstance(cell, str) else ""
    return any(form.fullmatch(_iso(text, True)) for form in (_STAMP, _SINCE_START))


def is_clock(cell: object) -> bool:
    """Whether a cell is written as hours, minutes and seconds without a date."""
    match = _SINCE_START.fullmatch(cell.strip()) if isinstance(cell, str) else None
    return match is not None and match[1] is not None


def filled(cells: Iterable[object]) -> list[object]:
    """The cells that tell what a column holds: not blank, n/a or the like."""
    return [c for c in cells if c is not None and not (isinstance(c, str) and c.strip().lower() in _NOTHING)]


def shown(cell: object) -> str:
    """A cell as it may be printed in one line: quoted, escaped, cut."""
    try:
        text = repr(cell)
    except ValueError:  # an int of more digits than Python prints
        return "a very large number"
    except RecursionError:
        return "a deeply nested value"
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


def shown_columns(columns: tuple[str, ...]) -> str:
    """Column names as they may be printed in one line."""
    names = ", ".join(shown(c)[1:-1] for c in columns[:12])
    return f"{names}, ..." if len(columns) > 12 else names
