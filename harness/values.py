"""Values of options: each function checks one value and returns it in its final form.

The value is text from a command line or a plain value from TOML or JSON; `name` is how messages call it (`--rate`, or
`rate in 'bench.toml'`). All raise UsageError.
"""

import math
import re
import shlex
from collections.abc import Callable
from contextlib import suppress

from harness import registry
from harness.errors import UsageError
from harness.spec import seconds

Check = Callable[[object, str], object]
_ADDRESS = re.compile(r"https?://.*|(?P<host>[\w.-]+|\[[0-9a-fA-F:]+\]):\d+(/[^,]*)?(,.*)?")


def text(value: object, name: str) -> str:
    """Any text that is not empty."""
    if not isinstance(value, str) or not value.strip():
        raise UsageError(f"{name} must be a text that is not empty, got {value!r}.")
    return value.strip()


def is_url(text: str) -> bool:
    """Whether a text is the address of a server, `http://HOST:8000` or `HOST:8000`, and not the spec of a backend."""
    match = _ADDRESS.fullmatch(text.strip())
    return match is not None and match["host"] not in registry.names("backends")


def backend(value: object, name: str) -> str:
    """The spec of a backend; that of the server, for a plain URL (and arguments after it, `URL,model=NAME`)."""
    spec = text(value, name)
    return f"openai:url={spec}" if is_url(spec) else spec


def one_spec(value: object, name: str) -> str:
    """One spec: several would need a run each."""
    spec = text(value, name)
    if "," in spec.partition(":")[0]:
        option = name.removeprefix("--").partition(" ")[0]
        several = spec.replace(",", "|") if "=" not in spec else "FIRST|SECOND"
        raise UsageError(
            f"{name} takes one name, got '{spec}'; compare several with bench sweep: --over '{option}={several}'"
        )
    return spec


def _number(value: object, name: str, allowed: str) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]  # answered below
    except (TypeError, ValueError):
        number = math.nan
    except OverflowError:
        raise UsageError(f"{name} must be {allowed}, got one of more than 300 digits.") from None
    if not math.isfinite(number):
        raise UsageError(f"{name} must be {allowed}, got '{value}'.")
    return number


def rate_rps(value: object, name: str) -> float:
    """Requests per second, in a range in which a schedule neither takes hours to draw nor spans centuries."""
    allowed = "a number of requests per second above 0"
    number = _number(value, name, allowed)
    if number <= 0:
        raise UsageError(f"{name} must be {allowed}, got '{value}'.")
    if not 1e-6 <= number <= 1e6:
        raise UsageError(f"{name} must lie between 0.000001 and 1,000,000 requests per second, got {number:g}.")
    return number


def _whole(value: object, name: str, least: int) -> int:
    number = _number(value, name, f"a whole number from {least} on")
    if number != int(number) or number < least:
        raise UsageError(f"{name} must be a whole number from {least} on, got '{value}'.")
    return int(number)


def count(value: object, name: str) -> int:
    """A whole number from 1 on."""
    return _whole(value, name, 1)


def seed(value: object, name: str) -> int:
    """A whole number from 0 on."""
    return _whole(value, name, 0)


def _share(value: object, name: str, allowed: str) -> float:
    percent = isinstance(value, str) and value.strip().endswith("%")
    number = _number(value.strip()[:-1], name, allowed) / 100 if percent else _number(value, name, allowed)  # type: ignore[attr-defined]  # a text
    if not 0 <= number <= 1:
        raise UsageError(f"{name} must be {allowed}, got '{value}'.")
    return number


def share(value: object, name: str, example: str = "0.9 or 90%") -> float:
    """A share above 0: 0.9 of 0.9 or '90%'."""
    allowed = f"a share above 0 and up to 1, such as {example}"
    if not (number := _share(value, name, allowed)):
        raise UsageError(f"{name} must be {allowed}, got '{value}'.")
    return number


def share_or_zero(value: object, name: str) -> float:
    """A share from 0 to 1: 0.05 of 0.05 or '5%'."""
    return _share(value, name, "a share from 0 to 1, such as 0.05 or 5%")


def _seconds(value: object, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise UsageError(f"{name} must be a duration such as 250ms, 60s or 5min, got '{value}'.")
    return seconds(str(value), name)


def time_s(value: object, name: str) -> float:
    """Seconds from 0 on, of a number or '250ms', '60s', '5min'."""
    if (number := _seconds(value, name)) < 0:
        raise UsageError(f"{name} must be at least 0 s, got '{value}'.")
    return number


def duration_s(value: object, name: str) -> float:
    """Seconds above 0."""
    if (number := _seconds(value, name)) <= 0:
        raise UsageError(f"{name} must be longer than 0 s, got '{value}'.")
    return number


def calibration_s(value: object, name: str) -> float:
    """Seconds from 0 on; 'off' is 0."""
    return 0.0 if value == "off" else time_s(value, name)


def history(value: object, name: str) -> str:
    """What a follow-up repeats of the conversation before it: 'live', 'recorded' or 'lengths'."""
    return _one_of(value, name, "live", "recorded", "lengths")


def priority(value: object, name: str) -> str:
    """That of the processes that send: 'raised' or 'off'."""
    return _one_of(value, name, "raised", "off")


def _one_of(value: object, name: str, *allowed: str) -> str:
    if value not in allowed:
        raise UsageError(f"{name} must be {', '.join(allowed[:-1])} or {allowed[-1]}, got '{value}'.")
    return str(value)


def warmup(value: object, name: str) -> str:
    """A warm-up cut: 'none', 'mser5', a time ('30s') or a number of requests ('200')."""
    rule = str(value).strip().lower()
    if rule in ("none", "mser5") or (rule.isdecimal() and int(rule) > 0):
        return rule
    with suppress(UsageError):
        if not rule.isdecimal() and (at_s := seconds(rule, name)) > 0:
            return f"{at_s:g}s"
    raise UsageError(f"{name} must be 'mser5', 'none', a time such as 30s or a number of requests, got '{value}'.")


def percentiles(value: object, name: str) -> str:
    """Rising numbers between 0 and 100: '50,95' of '95,50'."""
    with suppress(ValueError):
        texts = value if isinstance(value, (list, tuple)) else str(value).split(",")
        numbers = sorted({float(f"{float(str(text).strip().removeprefix('p')):g}") for text in texts})
        if numbers and numbers[0] > 0 and numbers[-1] < 100:
            return ",".join(f"{number:g}" for number in numbers)
    raise UsageError(f"{name} must be numbers above 0 and below 100, such as 50,90,95,99, got '{value}'.")


def senders(value: object, name: str) -> str:
    """'auto', a number of processes from 1 to 256, or where each of them runs: 'ssh:HOST' or a command, with commas."""
    if value == "auto":
        return "auto"
    allowed = "'auto' or how many processes send, 1 to 256, or where (ssh:HOST,ssh:HOST)"
    places = [part.strip() for part in str(value).split(",")]
    with suppress(ValueError):  # a quotation without end
        words = [shlex.split(place) for place in places if place != "ssh:"]
        if 0 < len(words) == len(places) <= 256 and all(w and (len(w) == 1) == w[0].startswith("ssh:") for w in words):
            return ",".join(places)
    number = _number(value, name, allowed)
    if number != int(number) or not 1 <= number <= 256:
        raise UsageError(f"{name} must be {allowed}, got '{value}'.")
    return str(int(number))
