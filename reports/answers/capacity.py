"""The answer of `bench capacity` in words: rates with their intervals, what binds, what it took."""

import re
from collections.abc import Mapping
from textwrap import wrap
from typing import Any

from reports._format import clean, in_markdown
from reports.answers import _capacity_said as said
from reports.answers import _curve
from reports.answers._curve import PLAIN, Look


def text(info: Mapping[str, Any], look: Look = PLAIN) -> str:
    """The answer for a terminal, at most 100 columns: tables first, then what was found and what to do next."""
    if "answers" not in info:
        return look.bold(said.RUNNING) + "\n"
    parts = [
        _titled(said.bounds_title(info, one), said.BOUND_HEADS, said.bound_rows(one), look)
        for one in info["answers"]
        if len(one["bounds"]) > 1
    ]
    if info["curve"]:
        parts.append(_titled(said.curve_title(info), said.heads(info), said.curve_rows(info), look))
    if look.curve:
        parts.append(_curve.drawn(_drawn(info), blocks=look.blocks))
    parts.append(_wrapped(said.cost(info)))
    lines = []
    for one in info["answers"]:
        lines.append(look.judged(said.headline(info, one), said.good(one)))
        lines += [_wrapped(sentence, "  ") for sentence in said.sentences(info, one)]
    parts.append("\n".join(lines))
    told, command = said.advice(info)
    parts.append(f"{look.bold('next')}  {told}:\n  {_copied(command)}")
    return "\n\n".join(part.rstrip("\n") for part in parts if part) + "\n"


def markdown(info: Mapping[str, Any]) -> str:
    """The same in markdown."""
    if "answers" not in info:
        return said.RUNNING + "\n"
    parts = [
        f"**{_marked(said.headline(info, one))}**\n\n{_marked(*said.sentences(info, one))}" for one in info["answers"]
    ]
    parts += [
        _marked(said.bounds_title(info, one)) + "\n\n" + _curve.markdown(said.BOUND_HEADS, said.bound_rows(one))
        for one in info["answers"]
        if len(one["bounds"]) > 1
    ]
    if info["curve"]:
        parts.append(
            _marked(said.curve_title(info)) + "\n\n" + _curve.markdown(said.heads(info), said.curve_rows(info))
        )
    parts.append(said.cost(info))
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def _marked(*sentences: str) -> str:
    return in_markdown(" ".join(sentences), None)


def _titled(title: str, heads: tuple[str, ...], rows: Any, look: Look) -> str:
    return look.bold(title) + "\n" + _curve.text(heads, rows, look=look)


def _drawn(info: Mapping[str, Any]) -> _curve.Curve:
    """The means made to fall, as the search takes them."""
    answers = info["answers"]
    points = [(point["rate_rps"], point["falling"]) for point in info["curve"]]
    of = "attainment" if said.heads(info) == said.HEADS else f"share within {clean(info['curve_of'])}"
    return _curve.Curve(
        points[said.lone([rate for rate, _ in points]) :],
        [one["goal"] for one in answers],
        f"{of} by rate, made to fall; a column stands at each capacity",
        "req/s",
        [one["capacity_rps"] for one in answers if one["capacity_rps"]],
    )


def _copied(command: str) -> str:
    """A command over several lines that a shell takes as one."""
    options = re.split(r" (?=--)", command)
    lines = [options[0]]
    for option in options[1:]:
        if len(lines[-1]) + len(option) > _curve.TABLE_WIDTH - 8:
            lines.append(option)
        else:
            lines[-1] += f" {option}"
    return " \\\n    ".join(lines)


def _wrapped(sentence: str, indent: str = "") -> str:
    return "\n".join(wrap(sentence, 98, initial_indent=indent, subsequent_indent=indent))
