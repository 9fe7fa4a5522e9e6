"""What a sweep varies: `--rate 1:4:0.5`, `--over policy=sarathi,static`, `--over arrivals.cv=1,2`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from harness.config import CHECKS
from harness.errors import UsageError, no_such
from harness.spec import Spec, parse
from harness.sweep.values import valued, values

RATE, SLO, SCALE = "rate", "slo", "slo-scale"
RESCORED = (SLO, SCALE)
"""Axes that need no run of their own: the same runs are scored again."""

SPECS = ("workload", "arrivals", "lengths", "sessions", "prefixes", "content", "scale",
         "backend", "latency", "policy", "router", "kv")  # fmt: skip
"""Options whose value is a spec, so that one of its arguments can be swept: arrivals.cv."""

SECRET = ("header",)
"""Options that may hold a secret, which must not become the name of a folder."""

INSTEAD = {"seed": "--seeds 5", "goal": "--goal 0.9,0.99", "fail-under": "--fail-under 0.9"}
WITH_COMMAS = ("slo", "where", "columns", "header", "extra-body")
"""Options of which a single value may hold commas, so that only | stands between two."""

MOST_POINTS = 2000
"""Points that a sweep may have."""


@dataclass(frozen=True, slots=True)
class Axis:
    """An option, or the argument of one (`arrivals.cv`), and the texts that it takes in turn."""

    name: str
    values: tuple[str, ...]

    @property
    def rescored(self) -> bool:
        """Whether its values need no run of their own."""
        return self.name in RESCORED

    @property
    def stored(self) -> dict[str, Any]:
        """The axis as sweep.json holds it."""
        told: dict[str, Any] = {"name": self.name, "values": [valued(value) for value in self.values]}
        return told | {"rescored": True} if self.rescored else told


Values = tuple[tuple[str, str], ...]
"""The axes of one point with the text that each has there."""


def axis(name: str, text: str) -> Axis:
    """The axis of that name over a list. Raises UsageError for a name that no option has, and for a wrong list."""
    said = f"--{name}" if name == RATE else f"--over {name}"
    found = Axis(name, values(text, said, whole=name in WITH_COMMAS))
    for value in found.values if name == SCALE else ():
        scale = valued(value)
        if isinstance(scale, str) or scale <= 0:
            raise UsageError(f"{said}: a scale multiplies every bound, so it is a number above 0, got '{value}'.")
    return found


def over(text: str) -> Axis:
    """The axis of `NAME=VALUES`."""
    name, equals, rest = text.partition("=")
    name = name.strip().lstrip("-").replace("_", "-")
    if not equals or not rest.strip():
        raise UsageError(f"--over '{text}' has no values; write --over NAME=VALUES, such as --over replicas=1,2,4.")
    if name in INSTEAD:
        raise UsageError(f"--over {name}: give several at once with {INSTEAD[name]} instead.")
    option, dot, argument = name.partition(".")
    if dot and (option not in SPECS or not argument):
        raise no_such(
            "option with arguments", option, SPECS, f"An argument of it is written as --over {SPECS[1]}.cv=1,2."
        )
    if not dot and (name not in CHECKS or name in SECRET) and name != SCALE:
        raise no_such("option to sweep over", name, {*CHECKS, SCALE} - {*INSTEAD, *SECRET})
    return axis(name, rest.strip())


def points(axes: Sequence[Axis]) -> list[Values]:
    """The product of all axes, the last one counting fastest. Raises UsageError for an axis that is given twice."""
    names = [a.name for a in axes]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"{twice} is swept over twice; give all of its values at once.")
    found = [tuple(zip(names, texts, strict=True)) for texts in product(*(a.values for a in axes))]
    if len(found) > MOST_POINTS:
        raise UsageError(f"These lists have {len(found):,} points together; a sweep takes {MOST_POINTS:,} at most.")
    return found


def applied(options: Mapping[str, object], values: Values, file: Mapping[str, object]) -> dict[str, object]:
    """The options of a run with the values of a point in their place, whole options before arguments of them.

    An option of which an argument is changed may stand in a `file` too. Rates and scales of the SLO are left to those
    who know the traffic and the score. Raises UsageError for an argument of an option that is not there.
    """
    found = dict(options)
    for name, text in sorted(values, key=lambda value: "." in value[0]):
        option, dot, argument = name.partition(".")
        if dot:
            found[option] = str(_with_argument(found.get(option, file.get(option)), option, argument, text))
        elif name not in (RATE, SCALE):
            found[name] = text
    return found


def _with_argument(base: object, option: str, argument: str, text: str) -> Spec:
    if base is None:
        raise UsageError(
            f"--over {option}.{argument} changes an argument of --{option}, which is not given; give --{option} NAME."
        )
    spec = parse(str(base))
    others = {key: value for key, value in spec.args.items() if key.replace("_", "-") != argument}
    return replace(spec, args={**others, argument: text})
