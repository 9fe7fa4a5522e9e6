"""Options that several forms take, and how their values are read."""

import re
from collections.abc import Callable
from typing import Any

import click

from harness.api import LatencyModel
from harness.errors import UsageError

_format = click.option("--format", "form", type=click.Choice(["text", "markdown", "json"]), default="text",
                       show_default=True, metavar="NAME", help="text, markdown or json.")  # fmt: skip


def _checked(_ctx: click.Context, _param: click.Parameter, out: str | None) -> str | None:
    """The file that is to be written, refused before the work where it cannot be."""
    if out is not None:
        from harness.cli import _terminal

        _terminal.check(out)
    return out


_out = click.option("--out", callback=_checked, metavar="FILE",
                    help="Write it there instead: .html (most with a picture), .md, .json or .txt.")  # fmt: skip
model = click.option("--model", default="opt-13b", show_default=True, metavar="NAME", help="See 'bench list models'.")
hardware = click.option(
    "--hardware", default="a100-80g", show_default=True, metavar="NAME", help="See 'bench list hardware'."
)
latency = click.option(
    "--latency", default="roofline", show_default=True, metavar="SPEC", help="See 'bench list latency'."
)
tp = click.option("--tp", type=click.IntRange(min=1), default=1, show_default=True, metavar="N", help="GPUs a stage.")
_TOKENS = re.compile(r"(\d+)([kK]?)")


def form(function: Callable[..., Any]) -> Callable[..., Any]:
    """--format and --out."""
    return _format(_out(function))


def tell(info: dict[str, Any], form: str, out: str | None) -> int:
    """Print an answer, or write it in the form that the ending of `out` names; returns the exit code."""
    from harness.cli import _terminal

    if out is None:
        _terminal.tell(form, info)
    else:
        _terminal.put(info, out)
    return int(info["exit_code"])


def system(function: Callable[..., Any]) -> Callable[..., Any]:
    """--model, --hardware, --latency and --tp."""
    return model(hardware(latency(tp(function))))


def whole_numbers(given: str, name: str) -> list[int]:
    """'512,1k,2k..16k' (doubling) as whole numbers above 0; k is 1,024. Raises UsageError."""
    found: list[int] = []
    for part in given.split(","):
        low, dots, high = part.strip().partition("..")
        first, last = _whole(low, name), _whole(high if dots else low, name)
        while first <= last:
            found.append(first)
            first *= 2
    if not found:
        raise UsageError(f"{name} '{given}' is an empty range; write 2k..16k or 512,1024.")
    return found


def _whole(given: str, name: str) -> int:
    match = _TOKENS.fullmatch(given.strip())
    if match is None or not int(match[1]):
        raise UsageError(f"{name} must be whole numbers above 0, such as 512,1k or 2k..16k (doubling), got '{given}'.")
    return int(match[1]) * (1024 if match[2] else 1)


def numbers(given: str, name: str) -> list[float]:
    """'1.2,1.4' as numbers above 0. Raises UsageError."""
    try:
        found = [float(part) for part in given.split(",")]
    except ValueError:
        found = []
    if not found or not all(0 < one < 1e18 for one in found):
        raise UsageError(f"{name} must be numbers above 0, such as 1.2,1.6, got '{given}'.")
    return found


def seconds(given: str, name: str) -> float:
    """'80ms' in seconds, above 0. Raises UsageError."""
    from harness.spec import seconds as read

    found = read(given, name)
    if not 0 < found < float("inf"):
        raise UsageError(f"{name} must be a duration above 0, got '{given}'.")
    return found


def priced(latency: str, **system: Any) -> LatencyModel:
    """The latency model of that spec. Raises UsageError for one that has no step times of its own."""
    from harness import registry

    found = registry.make("latency", latency, **system)
    if not isinstance(found, LatencyModel):
        raise UsageError(f"'{latency}' repeats the steps of a stored run, and has no step of its own; name another.")
    return found
