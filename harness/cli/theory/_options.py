"""Options that several forms share, the types of their values, and where an answer goes."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import click

from harness import registry
from harness.api import LatencyModel
from harness.cli import _terminal
from harness.cli._options import COUNT, Value, formats
from harness.errors import UsageError
from harness.experiments.theory.tables import TheoryAnswer

option = partial(click.option, show_default=True)
_TOKENS = re.compile(r"(\d+)([kK]?)")


def _whole_numbers(value: object, name: str) -> list[int]:
    """'512,1k,2k..16k' (doubling) as whole numbers above 0; k is 1,024."""
    found: list[int] = []
    for part in str(value).split(","):
        low, dots, high = part.strip().partition("..")
        match, end = _TOKENS.fullmatch(low.strip()), _TOKENS.fullmatch((high if dots else low).strip())
        if match is None or end is None or not int(match[1]) or not int(end[1]):
            raise UsageError(
                f"{name} must be whole numbers above 0, such as 512,1k or 2k..16k (doubling), got '{part.strip()}'."
            )
        first, last = (int(one[1]) * (1024 if one[2] else 1) for one in (match, end))
        while first <= last:
            found.append(first)
            first *= 2
    if not found:
        raise UsageError(f"{name} '{value}' is an empty range; write 2k..16k or 512,1024.")
    return found


def _numbers(value: object, name: str) -> list[float]:
    """'1.2,1.4' as numbers above 0."""
    try:
        found = [float(part) for part in str(value).split(",")]
    except ValueError:
        found = []
    if not found or not all(0 < one < 1e18 for one in found):
        raise UsageError(f"{name} must be numbers above 0, such as 1.2,1.6, got '{value}'.")
    return found


def counts(what: str, most: int, least: int = 1) -> Value:
    """The type of '3', '1,2,3' or '1..4': whole numbers from `least` to `most`, one by one."""

    def check(value: object, name: str) -> list[int]:
        text = str(value).strip()
        if match := re.fullmatch(r"(\d{1,9})\.\.(\d{1,9})", text):
            low, high = int(match[1]), int(match[2])
            found = [low, high] if high > most else [*range(low, high + 1)]
        else:
            found = [int(one) for one in text.split(",") if one.strip().isdigit()]
        if not found or min(found) < least or max(found) > most:
            raise UsageError(
                f"{name} must be {what} from {least} to {most:,}, such as 3, 1,2,3 or 1..4, got '{value}'."
            )
        return found

    return Value(check)


def _answer_file(value: object, name: str) -> str:  # noqa: ARG001  # the message names the file
    _terminal.check(str(value))
    return str(value)


WHOLE_NUMBERS, NUMBERS = Value(_whole_numbers), Value(_numbers)
model = option("--model", default="opt-13b", metavar="NAME", help="Model (bench list models).")
hardware = option("--hardware", default="a100-80g", metavar="NAME", help="GPU (bench list hardware).")
latency = option("--latency", default="roofline", metavar="SPEC", help="Latency model (bench list latency).")
tp = option("--tp", type=COUNT, default=1, metavar="N", help="GPUs per pipeline stage.")


def form_options(function: Callable[..., Any]) -> Callable[..., Any]:
    written = "Write to this file instead: .html (most with a chart), .md, .json, .csv or .txt."
    out = click.option("--out", type=Value(_answer_file), metavar="FILE", help=written)
    return formats(out(function))


def system_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """--model, --hardware, --latency and --tp."""
    return model(hardware(latency(tp(function))))


def show(info: TheoryAnswer, form: str, out: str | None) -> int:
    """Print an answer, or write it in the form that the ending of `out` names; returns the exit code."""
    if out is None:
        _terminal.show(form, info)
    else:
        _terminal.put(info, out)
    return info.exit_code


def priced(latency: str, **system: Any) -> LatencyModel:
    """The latency model of that spec. Raises UsageError for one that has no step times of its own."""
    found = registry.make("latency", latency, **system)
    if not isinstance(found, LatencyModel):
        raise UsageError(f"'{latency}' repeats the steps of a stored run, and has no step of its own; name another.")
    return found
