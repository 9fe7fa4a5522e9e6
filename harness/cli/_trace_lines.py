"""Lines, tables and numbers of `bench trace` on the terminal."""

import io
import math
import shutil
import textwrap
from collections.abc import Sequence

from harness.cli import _terminal

WIDEST, NARROWEST, NAME = 110, 60, 12


def named(lines: Sequence[tuple[str, str]]) -> str:
    """Names in a column of their own; long texts go on in the next line, in theirs."""
    width = min(max(shutil.get_terminal_size((WIDEST, 24)).columns, NARROWEST), WIDEST) - NAME
    shown = []
    for name, text in lines:
        parts = textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]
        shown += [f"{name if i == 0 else '':<{NAME}}{part}" for i, part in enumerate(parts)]
    return "\n".join(shown)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> str:
    """A table without lines around it; numbers to the right, the columns `left` to the left."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    color = _terminal.colored()
    drawn = Table(box=box.SIMPLE_HEAD if color else None, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False)
    for i, head in enumerate(heads):
        drawn.add_column(
            head, justify="left" if i in left else "right", no_wrap=True, min_width=NAME - 2 if i == 0 else 0
        )
    for row in rows:
        drawn.add_row(*row)
    file = io.StringIO()
    console = Console(
        file=file, width=400, color_system="standard" if color else None, force_terminal=color, no_color=not color,
        highlight=False, markup=False, emoji=False, _environ={},
    )  # fmt: skip
    console.print(drawn)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


def number(value: float | None, *, whole: bool = False) -> str:
    """Three significant digits and no exponent; `whole` leaves out decimals of large numbers only from 100 on."""
    if value is None or not math.isfinite(value):
        return "-"
    if value == 0:
        return "0"
    if whole and value == int(value):
        return f"{value:,.0f}"
    exponent = int(f"{value:.2e}".partition("e")[2])
    return f"{value:,.{min(max(0, 2 - exponent), 9)}f}"


def share(value: float | None) -> str:
    """A share in percent; what may happen is not shown as 0."""
    if value is None:
        return "-"
    return "<0.1%" if 1e-6 < value < 0.0005 else f"{100 * value:.1f}%"


def duration(value_s: float) -> str:
    """Seconds in the unit that people would use: '0.25 s', '58 min 22 s', '3 h 5 min', '61 d 2 h'."""
    if value_s < 120:
        return f"{number(value_s)} s"
    total = round(value_s)
    for unit, part, long, short in ((86400, 3600, "d", "h"), (3600, 60, "h", "min"), (60, 1, "min", "s")):
        if total >= unit:
            rest = total % unit // part
            return f"{total // unit} {long}" + (f" {rest} {short}" if rest else "")
    return f"{total} s"


def size(count: float) -> str:
    """Bytes as '3.0 MB'."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"
