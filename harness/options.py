"""What a run is told: the options of `bench run` as plain data, from the command line and a file (`harness.configs`).

The command line wins over the file. Parts of a backend (`--policy`, `--model`, ...) fill fields of its spec.
"""

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from difflib import get_close_matches
from types import MappingProxyType

from harness.errors import UsageError
from harness.spec import parse, seconds

PARTS = (
    "model", "hardware", "latency", "policy", "router", "kv", "admission", "preempt", "prefix-cache", "speculate",
    "replicas", "tp", "pp", "prefill", "decode", "handoff", "link", "header", "extra-body",
    "output-lengths",
)  # fmt: skip
"""Options that fill the field of the same name of the backend."""
TRACE_ONLY = ("reader", "columns", "start", "stop", "limit", "where", "scale", "jitter", "turns")
WORKLOAD_ONLY = ("rate", "arrivals", "lengths", "sessions", "prefixes")
SCHEDULE = ("workload", "trace", *TRACE_ONLY, *WORKLOAD_ONLY, "content", "requests", "duration", "seed")
"""Options that decide what is sent and when."""
DEFAULT_WORKLOAD = "chatbot"
HIDDEN = "[hidden]"
"""What stands in a run.json where a secret was given."""


@dataclass(frozen=True, slots=True)
class RunSpec:
    """Everything that repeats a run; fields are the options of `bench run`, durations in seconds.

    `goal` is the share of requests that must keep the SLO; below `fail_under` the exit code is 1. It is 3
    where more than the share `max_failed` failed for another reason than load (None: 1%). Requests before the cut of
    `warmup` (harness.validity.warmup) are sent and not measured. Requests that are unanswered `drain` seconds after the
    last departure are given up.
    """

    workload: str | None = None
    trace: str | None = None
    reader: str | None = None
    columns: str | None = None
    start: float | None = None
    stop: float | None = None
    limit: int | None = None
    where: str | None = None
    scale: str | None = None
    jitter: str | None = None
    turns: str | None = None
    rate: float | None = None
    arrivals: str | None = None
    lengths: str | None = None
    sessions: str | None = None
    prefixes: str | None = None
    content: str | None = None
    requests: int | None = None
    duration: float | None = None
    seed: int = 0
    backend: str = "engine"
    model: str | None = None
    hardware: str | None = None
    latency: str | None = None
    policy: str | None = None
    router: str | None = None
    kv: str | None = None
    admission: str | None = None
    preempt: str | None = None
    prefix_cache: str | None = None
    speculate: str | None = None
    replicas: int | None = None
    tp: int | None = None
    pp: int | None = None
    prefill: str | None = None
    decode: str | None = None
    handoff: str | None = None
    link: str | None = None
    header: str | None = None
    extra_body: str | None = None
    output_lengths: str | None = None
    senders: str | None = None
    calibrate: float | None = None
    slo: str | None = None
    warmup: str | None = None
    goal: float = 0.9
    fail_under: float | None = None
    max_failed: float | None = None
    drain: float | None = None

    def parts(self) -> dict[str, object]:
        """The parts of the backend that were given one by one."""
        names = [name.replace("-", "_") for name in PARTS]
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def options(self) -> dict[str, object]:
        """Option name -> value, for run.json: every option that is set."""
        values = {f.name.replace("_", "-"): getattr(self, f.name) for f in fields(self)}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Given:
    """Options with the place they come from, for messages: `--rate`, or `rate in bench.toml`."""

    values: Mapping[str, object]
    file: str | None = None

    def name(self, option: str) -> str:
        """How a message calls an option."""
        return f"--{option}" if self.file is None else f"{option} in '{self.file}'"


def run_spec(command_line: Given, file: Given | None = None) -> RunSpec:
    """The spec of a run from the options given; the command line wins over the file.

    Raises UsageError for unknown options, values of a wrong type or out of range, and options that do not go
    together.
    """
    values: dict[str, object] = {}
    for given in (file, command_line):
        if given is not None:
            _overlay(values, {option: _value(option, text, given) for option, text in given.values.items()})
    spec = RunSpec(**{name.replace("-", "_"): value for name, value in values.items()})  # type: ignore[arg-type]  # _value made them
    _check_together(spec)
    _check_nothing_hidden(spec)
    if spec.trace is None and spec.workload is None:
        values["workload"] = DEFAULT_WORKLOAD
        return RunSpec(**{name.replace("-", "_"): value for name, value in values.items()})  # type: ignore[arg-type]  # as above
    return spec


def _overlay(values: dict[str, object], more: dict[str, object]) -> None:
    """Put `more` over `values`: a new workload drops an old trace, a new backend the parts of the old one."""
    if more.get("workload") is not None and more.get("trace") is None:
        for option in ("trace", *TRACE_ONLY):
            values.pop(option, None)
    if more.get("trace") is not None and more.get("workload") is None:
        for option in ("workload", *WORKLOAD_ONLY):
            values.pop(option, None)
    old = values.get("backend")
    if "backend" in more and isinstance(old, str) and parse(old).name != parse(str(more["backend"])).name:
        for option in PARTS:
            values.pop(option, None)
    elif "backend" in more:
        for option in parse(str(more["backend"])).args:
            values.pop(option, None)
    elif isinstance(old, str):
        values["backend"] = _without(old, [part for part in PARTS if part in more])
    values.update(more)


def _without(backend: str, parts: list[str]) -> str:
    spec = parse(backend)
    for part in parts:
        spec.args.pop(part, None)
    return str(spec)


def _check_together(spec: RunSpec) -> None:
    if spec.trace is not None and spec.workload is not None:
        raise UsageError("--workload and --trace exclude each other; give one of them.")
    if spec.trace is None:
        for option in TRACE_ONLY:
            if getattr(spec, option) is not None:
                raise UsageError(f"--{option} belongs to a trace; give --trace FILE too.")
    else:
        for option in WORKLOAD_ONLY:
            if getattr(spec, option) is not None:
                instead = "change its load with --scale" if option == "rate" else "use --workload"
                raise UsageError(f"--{option} does not go with --trace, which brings its own; {instead}.")
    if spec.start is not None and spec.stop is not None and spec.stop <= spec.start:
        raise UsageError(f"--stop must lie after --start, got {spec.stop:g} s and {spec.start:g} s.")
    args = parse(spec.backend).args
    for part in spec.parts():
        if part in args:
            raise UsageError(f"{part} is given twice: in --backend '{spec.backend}' and by --{part}.")


def _check_nothing_hidden(spec: RunSpec) -> None:
    """A run.json holds no secrets, so what needed one must be given anew."""
    for option, value in spec.options().items():
        if isinstance(value, str) and HIDDEN in value:
            raise UsageError(
                f"The run to repeat had a secret in --{option}, which was not stored; give --{option} again."
            )


def _value(option: str, value: object, given: Given) -> object:
    check = CHECKS.get(option)
    if check is None:
        near = get_close_matches(option.replace("_", "-"), CHECKS, n=1, cutoff=0.5)
        guess = f" Did you mean '{near[0]}'?" if near else ""
        where = "" if given.file is None else f" (in '{given.file}')"
        raise UsageError(f"No option '{option}'{where}.{guess} Known: {', '.join(sorted(CHECKS))}.")
    return check(value, given.name(option))


def _text(value: object, name: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise UsageError(f"{name} must be a text that is not empty, got {value!r}.")
    return value.strip()


def _one(value: object, name: str) -> str:
    """One spec: several would need a run each."""
    text = _text(value, name)
    if "," in text.partition(":")[0]:
        option = name.removeprefix("--").partition(" ")[0]
        several = text.replace(",", "|") if "=" not in text else "FIRST|SECOND"
        raise UsageError(
            f"{name} takes one name, got '{text}'; compare several with: bench sweep --over '{option}={several}'"
        )
    return text


def _number(value: object, name: str, wanted: str) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]  # answered below
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise UsageError(f"{name} must be {wanted}, got '{value}'.")
    return number


def _rate(value: object, name: str) -> float:
    number = _number(value, name, "a number of requests per second above 0")
    if number <= 0:
        raise UsageError(f"{name} must be a number of requests per second above 0, got '{value}'.")
    return credible_rate(number, name)


def credible_rate(rate_rps: float, name: str) -> float:
    """The rate itself. Raises UsageError for one at which a schedule would be drawn for hours, or span centuries."""
    if not 1e-6 <= rate_rps <= 1e6:
        raise UsageError(f"{name} must lie between 0.000001 and 1,000,000 requests per second, got {rate_rps:g}.")
    return rate_rps


def _whole(least: int) -> Callable[[object, str], int]:
    def check(value: object, name: str) -> int:
        number = _number(value, name, f"a whole number from {least} on")
        if number != int(number) or number < least:
            raise UsageError(f"{name} must be a whole number from {least} on, got '{value}'.")
        return int(number)

    return check


def _share(*, zero: bool) -> Callable[[object, str], float]:
    wanted = "a share from 0 to 1, such as 0.05 or 5%" if zero else "a share above 0 and up to 1, such as 0.9 or 90%"

    def check(value: object, name: str) -> float:
        if isinstance(value, str) and value.strip().endswith("%"):
            number = _number(value.strip()[:-1], name, wanted) / 100
        else:
            number = _number(value, name, wanted)
        if not 0 <= number <= 1 or (number == 0 and not zero):
            raise UsageError(f"{name} must be {wanted}, got '{value}'.")
        return number

    return check


def _seconds(*, zero: bool) -> Callable[[object, str], float]:
    def check(value: object, name: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise UsageError(f"{name} must be a duration such as 250ms, 60s or 5min, got '{value}'.")
        number = seconds(str(value), name)
        if number < 0 or (number == 0 and not zero):
            raise UsageError(f"{name} must be {'at least' if zero else 'longer than'} 0 s, got '{value}'.")
        return number

    return check


def warmup_rule(rule: object, name: str) -> str:
    """The rule itself. Raises UsageError, calling it `name`, for a text that is none."""
    text = str(rule).strip().lower()
    if text in ("none", "mser5") or (text.isdecimal() and int(text) > 0):
        return text
    with suppress(UsageError):
        if not text.isdecimal() and (at_s := seconds(text, name)) > 0:
            return f"{at_s:g}s"
    raise UsageError(f"{name} must be 'mser5', 'none', a time such as 30s or a number of requests, got '{rule}'.")


def _senders(value: object, name: str) -> str:
    if value == "auto":
        return "auto"
    wanted = "'auto' or how many processes send, 1 to 256"
    number = _number(value, name, wanted)
    if number != int(number) or not 1 <= number <= 256:
        raise UsageError(f"{name} must be {wanted}, got '{value}'.")
    return str(int(number))


CHECKS: Mapping[str, Callable[[object, str], object]] = MappingProxyType(
    {
        **dict.fromkeys(("workload", "trace", "arrivals", "lengths", "sessions", "prefixes", "content", "slo"), _text),
        **dict.fromkeys(("reader", "columns", "where", "scale", "jitter", "turns"), _text),
        **dict.fromkeys(("backend", "model", "hardware", "latency", "prefix-cache", "speculate"), _text),
        **dict.fromkeys(("policy", "router", "kv", "admission", "preempt"), _one),
        **dict.fromkeys(("prefill", "decode", "handoff", "link"), _text),
        **dict.fromkeys(("header", "extra-body", "output-lengths"), _text),
        "warmup": warmup_rule,
        "senders": _senders,
        "calibrate": lambda value, name: 0.0 if value == "off" else _seconds(zero=True)(value, name),
        "start": _seconds(zero=True),
        "stop": _seconds(zero=False),
        "duration": _seconds(zero=False),
        "drain": _seconds(zero=True),
        "rate": _rate,
        "limit": _whole(1),
        "requests": _whole(1),
        "replicas": _whole(1),
        "tp": _whole(1),
        "pp": _whole(1),
        "seed": _whole(0),
        "goal": _share(zero=False),
        "fail-under": _share(zero=False),
        "max-failed": _share(zero=True),
    }
)
"""Every option of a run, and what turns its value into the one that is used."""
