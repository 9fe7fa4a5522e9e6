"""What the commands of `bench trace` share: options as values, files, pictures, the tools of the workloads package."""

import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness import compose
from harness.cli import _terminal
from harness.data import files
from harness.errors import UsageError
from harness.options import credible_rate
from harness.spec import seconds

say = _terminal.say


def read(file: str, **options: str | None) -> Any:
    """The slice of a trace that the options choose."""
    return compose.read_trace(file, **numbers(options))


def numbers(options: Mapping[str, str | None]) -> dict[str, Any]:
    """The options that choose rows, as `workloads.replay.read` takes them. Raises UsageError for wrong values."""
    start, stop, limit = options.get("start"), options.get("stop"), options.get("limit")
    plain = {name: value for name, value in options.items() if name not in ("start", "stop", "limit")}
    return plain | {
        "start_s": None if start is None else duration(start, "--start"),
        "stop_s": None if stop is None else duration(stop, "--stop"),
        "limit": None if limit is None else whole(limit, "--limit", 1),
    }


def duration(text: str, name: str) -> float:
    """Seconds of '90s' or '10min', not below 0. Raises UsageError."""
    value = seconds(text, name)
    if value < 0:
        raise UsageError(f"{name} must be at least 0 s, got '{text}'.")
    return value


def whole(text: str, name: str, least: int) -> int:
    """A whole number from `least` on. Raises UsageError."""
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise UsageError(f"{name} must be a whole number from {least} on, got '{text}'.")
    return value


def rate(text: str, name: str) -> float:
    """Requests per second above 0. Raises UsageError."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise UsageError(f"{name} must be a number of requests per second above 0, got '{text}'.")
    return credible_rate(value, name)


def show(report: str, facts: Mapping[str, Any], as_json: bool) -> None:
    """Facts on standard output, as the report of that name or as JSON."""
    if as_json:
        say(json.dumps(facts, indent=2, default=str))
    else:
        tell(report, facts)


def tell(report: str, *given: Any) -> None:
    """Print the report of that name of `reports.answers.trace`."""
    color, blocks = _terminal.colored(), _terminal.blocks(sys.stdout.encoding)
    say(compose.trace_report(report, *given, color=color, blocks=blocks).rstrip("\n"))


def page_to_write(html: str | None) -> None:
    """Raise UsageError where the page of pictures cannot be written: before the work, not after it."""
    if html is not None:
        files.check(html)


def draw(html: str, facts: Mapping[str, object], title: str) -> None:
    """Write a page of pictures (`reports.traffic.page`); an existing file is replaced."""
    compose.put(Path(html), compose.traffic_page(facts, title))
    _terminal.note(f"Pictures: {html}")
