"""What a sweep varies: `--rate 1:4:0.5`, `--over policy=sarathi,static`, `--over arrivals.cv=1,2`.

Lists of values as they are written: `1,2,4`, `1:8:0.5`, `1:16:x2`, `sarathi|static:size=8,timeout=1`.

Where the runs of a sweep stand in its folder, and which of them belong to which point of its curve.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import product
from typing import Any

from harness.errors import UsageError, no_such
from harness.options import OPTIONS
from harness.spec import Spec, parse

RATE, SLO, SCALE = "rate", "slo", "slo-scale"
RESCORED = (SLO, SCALE)
"""Axes of `bench slo`, which scores the same runs again: no axes of a sweep."""

SPECS = ("workload", "arrivals", "lengths", "sessions", "prefixes", "content", "scale",
         "backend", "latency", "policy", "router")  # fmt: skip
"""Options whose value is a spec, so that one of its arguments can be swept: arrivals.cv."""

INSTEAD = {"seed": "--seeds 5", "goal": "--goal 0.9,0.99", "fail-under": "--fail-under 0.9"}

MOST_POINTS = 2000
"""Points that a sweep may have."""
Values = tuple[tuple[str, str], ...]
"""The axes of one point with the text that each has there."""
MOST = 1000
"""Values that one list may hold; a range with more has most likely a wrong step."""
MOST_DIGITS = 15
"""Digits of a number beyond which an exponent is easier to read."""
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_RANGE = re.compile(rf"({_NUMBER}):({_NUMBER}):(x?)({_NUMBER})")
_STEPLESS = re.compile(rf"({_NUMBER}):({_NUMBER})")
_ARGUMENT = re.compile(r"[^:]*=.*", re.DOTALL)
LONGEST = 100
"""Letters in the name of a folder; a longer one is cut."""


@dataclass(frozen=True, slots=True)
class Axis:
    """An option, or the argument of one (`arrivals.cv`), and the texts that it takes in turn."""

    name: str
    values: tuple[str, ...]

    @property
    def stored(self) -> dict[str, Any]:
        """The axis as sweep.json holds it."""
        return {"name": self.name, "values": [valued(value) for value in self.values]}


def axis(name: str, text: str) -> Axis:
    """The axis of that name over a list. Raises UsageError for a name that no option has, and for a wrong list."""
    option = f"--{name}" if name == RATE else f"--over {name}"
    return Axis(name, values(text, option, whole=name in OPTIONS and OPTIONS[name].commas))


def named(text: str) -> tuple[str, str]:
    """The name and the list of `NAME=VALUES`. Raises UsageError where one of them is missing."""
    name, _, rest = (part.strip() for part in text.partition("="))
    if not name or not rest:
        raise UsageError(f"--over '{text}' has no values; write --over NAME=VALUES, such as --over replicas=1,2,4.")
    return name.lstrip("-").replace("_", "-"), rest


def over(text: str) -> Axis:
    """The axis of `NAME=VALUES`."""
    name, rest = named(text)
    if name in INSTEAD:
        raise UsageError(f"--over {name}: give several at once with {INSTEAD[name]} instead.")
    option, dot, argument = name.partition(".")
    if dot and (option not in SPECS or not argument):
        raise no_such(
            "option with arguments", option, SPECS, f"An argument of it is written as --over {SPECS[1]}.cv=1,2."
        )
    names = {name for name, option in OPTIONS.items() if not option.secret} - {SLO}  # a secret must not name a folder
    if not dot and name not in names:
        raise no_such("option to sweep over", name, names - {*INSTEAD})
    return axis(name, rest)


def points(axes: Sequence[Axis]) -> list[Values]:
    """The product of all axes, the last one counting fastest. Raises UsageError for an axis that is given twice."""
    names = [a.name for a in axes]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"{twice} is swept over twice; give all of its values at once.")
    grid = [tuple(zip(names, texts, strict=True)) for texts in product(*(a.values for a in axes))]
    if len(grid) > MOST_POINTS:
        raise UsageError(f"These lists have {len(grid):,} points together; a sweep takes {MOST_POINTS:,} at most.")
    return grid


def applied(options: Mapping[str, object], values: Values, file: Mapping[str, object]) -> dict[str, object]:
    """The options of a run with the values of a point in their place, whole options before arguments of them.

    An option of which an argument is changed may stand in a `file` too. Rates are left to those who know the traffic.
    Raises UsageError for an argument of an option that is not there.
    """
    changed = dict(options)
    for name, text in sorted(values, key=lambda value: "." in value[0]):
        option, dot, argument = name.partition(".")
        if dot:
            changed[option] = str(_with_argument(changed.get(option, file.get(option)), option, argument, text))
        elif name != RATE:
            changed[name] = text
    return changed


def _with_argument(base: object, option: str, argument: str, text: str) -> Spec:
    if base is None:
        raise UsageError(
            f"--over {option}.{argument} changes an argument of --{option}, which is not given; give --{option} NAME."
        )
    spec = parse(str(base))
    others = {key: value for key, value in spec.args.items() if key.replace("_", "-") != argument}
    return replace(spec, args={**others, argument: text})


def values(text: str, name: str, *, whole: bool = False) -> tuple[str, ...]:
    """The values of a list, numbers in their shortest form; `name` is how messages call what they are for.

    Commas stand between values, or `|` where a value holds commas itself; where each value is `whole`, only `|` does.
    `1:8:0.5` counts up by 0.5 and `1:16:x2` doubles, both up to and with the last. Raises UsageError for a list that
    is empty, doubtful or too long.
    """
    texts = [value for part in _parts(text, name, whole or "|" in text) for value in _each(part, name)]
    if len(texts) > MOST:
        raise UsageError(f"{name}: '{text}' has more than {MOST:,} values; take a larger step.")
    twice = next((value for value in texts if texts.count(value) > 1), None)
    if twice is not None:
        raise UsageError(f"{name}: '{twice}' stands twice in '{text}'.")
    return tuple(texts)


def plain(text: str) -> str:
    """A number without needless digits: '1.50' is '1.5'; any other text as it is."""
    return _short(Decimal(text)) if re.fullmatch(_NUMBER, text) else text


def valued(text: str) -> int | float | str:
    """The number that a text is, or the text."""
    if not re.fullmatch(_NUMBER, text):
        return text
    return int(text) if re.fullmatch(r"[-+]?\d+", text) else float(text)


def _parts(text: str, name: str, whole: bool) -> list[str]:
    parts = [part.strip() for part in text.split("|" if whole else ",")]
    if "|" in text and len(parts) > 1 and not parts[-1]:
        parts.pop()  # `a,b|` is one value that holds a comma
    if not all(parts):
        raise UsageError(f"{name}: a value is missing in '{text}'; write values with commas between them, or 1:8:0.5.")
    if not whole and any(_ARGUMENT.fullmatch(part) for part in parts[1:]):
        raise UsageError(
            f"{name}: in '{text}' a comma may stand between two values or inside one; "
            "write | between values that hold commas, and at the end of a single one."
        )
    return parts


def _each(part: str, name: str) -> Iterator[str]:
    if _STEPLESS.fullmatch(part):
        raise UsageError(f"{name}: the range '{part}' has no step; write '{part}:0.5', or '{part}:x2' to double.")
    match = _RANGE.fullmatch(part)
    if match is None:
        yield plain(part)
        return
    start, stop, step = Decimal(match[1]), Decimal(match[2]), Decimal(match[4])
    if start > stop or (match[3] and start <= 0):
        raise UsageError(f"{name}: the range '{part}' must count up{', from above 0' if match[3] else ''}.")
    if step <= (1 if match[3] else 0):
        raise UsageError(f"{name}: the step of the range '{part}' must be above {'x1' if match[3] else '0'}.")
    last = stop + abs(stop) * Decimal("1e-9")
    for _ in range(MOST + 1):
        if start > last:
            return
        yield _short(start)
        start = start * step if match[3] else start + step


def _short(value: Decimal) -> str:
    if abs(value.adjusted()) > MOST_DIGITS:
        return str(value)
    text = format(Decimal(f"{value:.12g}"), "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


@dataclass(frozen=True, slots=True)
class Layout:
    """The points of a sweep and the seeds of each; all of it follows from what sweep.json tells of the plan."""

    points: tuple[Values, ...]
    seeds: tuple[int, ...]

    @classmethod
    def of(cls, axes: Sequence[Axis], seeds: Sequence[int], added: Sequence[Values] = ()) -> Layout:
        """The layout over these axes, the last one counting fastest; with `added` points by rising rate."""
        more = [tuple((a.name, dict(values)[a.name]) for a in axes) for values in added]
        grid = dict.fromkeys([*points(axes), *more])
        planned = sorted(grid, key=lambda values: float(dict(values)[RATE])) if added else grid
        return cls(tuple(planned), tuple(seeds))

    @classmethod
    def restored(cls, stored: Mapping[str, Any]) -> Layout:
        """The layout of a sweep.json."""
        axes = [Axis(axis["name"], tuple(plain(str(value)) for value in axis["values"])) for axis in stored["axes"]]
        more = stored.get("added") or ()
        added = [tuple((name, plain(str(value))) for name, value in point.items()) for point in more]
        return cls.of(axes, stored["seeds"], added)

    @property
    def runs(self) -> list[str]:
        """The folders of all runs."""
        return [run_folder(point_folder(point), seed) for seed in self.seeds for point in self.points]


def point_folder(values: Values) -> str:
    """Where the runs of a point stand: points/rate=1.5,policy=static; odd characters make way for dashes and a hash."""
    label = ",".join(f"{name}={text}" for name, text in values) or "base"
    name = "".join(c if c.isascii() and (c.isalnum() or c in "-_.,=+") else "-" for c in label)[:LONGEST]
    if name != label:
        name = f"{name}-{hashlib.sha256(label.encode()).hexdigest()[:6]}"
    return f"points/{name}"


def run_folder(folder: str, seed: int) -> str:
    """Where the run of one seed stands."""
    return f"{folder}/seed-{seed}"
