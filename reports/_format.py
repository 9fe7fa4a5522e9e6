"""Numbers as people read them: no exponents, three significant digits, seconds or milliseconds, honest shares.

Foreign text made harmless: model names, tags, error texts, file names and options come from outside.

Cleaning happens once, when the view is built; each form (HTML, markdown, terminal, figures) escapes after it.

The errors of a run, in a few lines: texts that differ only in numbers are one.
"""

import html
import math
import re
import shlex
from collections.abc import Callable, Iterable
from decimal import Decimal

LEAST = 0.001
"""Times below this, in their unit, are printed as below it."""
_ESCAPES = re.compile(
    r"(?:\x1b\]|\x9d)[^\x07\x1b\x9c]{0,4096}(?:\x07|\x1b\\|\x9c)?"  # OSC: titles, links, clipboard
    r"|(?:\x1b[PX^_]|[\x90\x98\x9e\x9f])[^\x1b\x9c]{0,4096}(?:\x1b\\|\x9c)?"  # DCS, SOS, PM, APC
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    r"|\x1b[ -/]*[0-~]"  # two-byte escapes
)
_SPACES = re.compile(r"[\s\u2028\u2029]+")
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
_MARKDOWN = re.compile(r"([\\`*_{}\[\]#|~$@])")


def number(value: float | None, digits: int = 3, decimals: int = 9) -> str:
    """`value` with `digits` significant digits and no exponent: '0.0942', '94.2', '1,234'; '-' for none.

    No more than `decimals` of them stand behind the point.
    """
    if value is None or not math.isfinite(value):
        return "-"
    if value == 0:
        return "0"
    exponent = int(f"{value:.{digits - 1}e}".partition("e")[2])
    return f"{value:,.{min(max(0, digits - 1 - exponent), decimals)}f}"


def plain(value: float, digits: int = 6) -> str:
    """A number that a user chose, without digits that were not entered: '12', '0.25', '1,000,000'."""
    return _positional(value, digits, ",")


def option(value: float, digits: int = 6) -> str:
    """A number as a command takes it: '12', '0.25', '1000000'."""
    return _positional(value, digits, "")


def probability(value: float) -> str:
    """Two significant digits, as far as anybody asks: '0.35', '<0.001'."""
    return "<0.001" if value < 0.001 else number(value, 2)


def share(value: float | None, goal: float | None = None) -> str:
    """A share as '94.2%', rounded half up, but never up to what it did not reach.

    99.96% is not shown as all, and 89.96% not as the `goal` of 90%; a goal with more digits gets as many.
    """
    if value is None or not math.isfinite(value):
        return "-"
    digits = 1 if goal is None else max(1, len(option(goal * 100).partition(".")[2]))
    if 0 < value < 0.5 / 10 ** (digits + 2):
        return f"<{1 / 10**digits:.{digits}f}%"
    unit = 10 ** (digits + 2)
    rounded = math.floor(value * unit + 0.5 + 1e-9)
    crossed = any(value < end and rounded >= round(end * unit) for end in (1.0, *([] if goal is None else [goal])))
    return f"{(math.floor(value * unit) if crossed else rounded) * 100 / unit:.{digits}f}%"


def _positional(value: float, digits: int, separator: str) -> str:
    if not math.isfinite(value):
        return "-"
    text = format(Decimal(f"{value:.{digits - 1}e}"), f"{separator}f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def unit_of(values_s: Iterable[float | None]) -> str:
    """'ms' when all times of a row stay under a second, else 's'."""
    finite = [abs(v) for v in values_s if v is not None and math.isfinite(v)]
    return "ms" if finite and max(finite) < 1.0 else "s"


def in_unit(value_s: float | None, unit: str, error_s: float = 0.0) -> str:
    """`value_s` seconds as a number in `unit` ('s' or 'ms'), without the unit: at most four decimals.

    No decimal stands below the first digit of the error `error_s`; what would then be 0 is printed as below it.
    """
    if value_s is None or not math.isfinite(value_s):
        return "-"
    scale = 1000.0 if unit == "ms" else 1.0
    value, error = value_s * scale, error_s * scale
    decimals = 4 if error <= 0 else min(max(0, -math.floor(math.log10(error))), 4)
    if 0 < value < LEAST:
        return f"<{LEAST}"
    text = number(value, decimals=max(decimals, 0)) if value == 0 or value >= 0.01 else f"{value:.{decimals}f}"
    return f"<{number(error, 1)}" if value > 0 and not text.strip("0.") else text


def seconds(value_s: float | None) -> str:
    """A time with its unit: '250 ms', '1.20 s', '51.2 s'."""
    unit = unit_of([value_s])
    text = in_unit(value_s, unit)
    return text if text == "-" else f"{text} {unit}"


def between(low: float | None, high: float | None, shown: Callable[[float], str] = number) -> str:
    """An interval: '2.07 to 2.34'; '-' where an end is missing."""
    return "-" if low is None or high is None else f"{shown(low)} to {shown(high)}"


def with_unit(value: float | None, unit: str) -> str:
    """A value of a metric: '250 ms', '94.2%', '11.9 req/s'; '-' for none."""
    if value is None:
        return "-"
    if unit == "s":
        return seconds(value)
    return share(value) if unit == "share" else f"{number(value)} {clean(unit, 40)}".rstrip()


def limit(value_s: float) -> str:
    """A bound as its author wrote it: '250 ms', '2 s', without made-up digits."""
    if abs(value_s) < 1.0:
        return f"{option(value_s * 1000)} ms"
    return f"{option(value_s)} s"


def span(seconds_: float) -> str:
    """A stretch of time in the largest unit of which it has several: '31 days', '58.4 minutes', '20 s'."""
    for least, by, unit in ((2 * 86400, 86400, "days"), (3 * 3600, 3600, "hours"), (5 * 60, 60, "minutes")):
        if seconds_ >= least:
            return f"{plain(seconds_ / by, 3)} {unit}"
    return limit(float(f"{seconds_:.3g}")) if seconds_ else "0 s"


def percent(value: float) -> str:
    """'90%', '99.9%'."""
    return f"{option(value * 100)}%"


def count(value: float | None, one: str, many: str | None = None) -> str:
    """'1 request', '1,200 requests'."""
    if value is None:
        return f"- {many or one + 's'}"
    return f"{value:,.0f} {one if value == 1 else many or one + 's'}"


def clean(value: object, limit: int | None = 200) -> str:
    """One line of `value` without control characters, escape sequences and direction marks.

    Letters of every script stay. Text longer than `limit` is cut, and says so.
    """
    text = _SPACES.sub(" ", _ESCAPES.sub("", str(value)))
    text = _CONTROLS.sub("", text).strip()
    if limit is not None and len(text) > limit:
        return f"{text[: limit - 30].rstrip()}... ({len(text):,} characters)"
    return text


def sentence(value: object, limit: int) -> str:
    """The same as a sentence: with a capital and a full stop; empty for nothing."""
    text = clean(value or "", limit)
    return text[:1].upper() + text[1:] + ("" if not text or text.endswith((".", "!", "?", ".)")) else ".")


def quoted(path: object) -> str:
    """A path as a shell takes it."""
    return shlex.quote(clean(path, None))


def in_figure(value: object, limit: int = 60) -> str:
    """Text for a figure: plotly draws a pseudo-HTML (bold, links) and fills in `%{...}` of its own."""
    return html.escape(clean(value, limit), quote=False).replace("%{", "%&#123;")


def in_markdown(value: object, limit: int | None = 200) -> str:
    """Text for a markdown table: marks escaped, no markup, addresses do not become links."""
    text = html.escape(clean(value, limit), quote=False)
    return _MARKDOWN.sub(r"\\\1", text).replace("://", r"\://").replace("www.", r"www\.")
