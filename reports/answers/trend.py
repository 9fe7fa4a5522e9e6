"""The trend of a folder of nights: each series with its metrics, the steps in them, gaps, and breaks in the series."""

from collections.abc import Mapping
from typing import Any

from reports._format import clean, in_markdown
from reports.answers import _curve
from reports.answers._curve import PLAIN, Look
from reports.trend import wording as said


def text(info: Mapping[str, Any], look: Look = PLAIN) -> str:
    """The trend for a terminal, at most 100 columns."""
    lines = [look.bold(said.head(info)), ""]
    for series in info["series"]:
        table = _curve.text(said.HEADS, said.rows(series), look=look, tones=said.tones(series))
        lines += [look.bold(said.title(series)), "", table.rstrip("\n"), ""]
        more = [*said.told(series), *said.footnotes(series)]
        lines += [*(line for sentence in more for line in _wrapped(clean(sentence, 400))), *([""] if more else [])]
    lines += [look.judged(line, said.good(info)) for line in _wrapped(said.end(info))]
    return "\n".join(lines).rstrip("\n") + "\n"


def markdown(info: Mapping[str, Any]) -> str:
    """The same for a job summary or a pull request."""
    parts = [f"**{in_markdown(said.head(info), 400)}**\n"]
    for series in info["series"]:
        parts.append(f"### {in_markdown(said.title(series), 400)}\n")
        parts.append(_curve.markdown(said.HEADS, said.rows(series)))
        told = [*said.told(series), *said.footnotes(series)]
        if told:
            parts.append("".join(f"- {in_markdown(sentence, 400)}\n" for sentence in told))
    parts.append(in_markdown(said.end(info), 400) + "\n")
    return "\n".join(parts)


def _wrapped(sentence: str) -> list[str]:
    import textwrap

    return textwrap.wrap(
        sentence, _curve.TABLE_WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )
