"""Bounds of arguments that users give, stated in the types of fields and checked by one function.

rate_rps: Positive = 1.0
share: Annotated[float, Meta(gt=0, le=0.5)] = 0.1
"""

import math
from functools import cache
from typing import Annotated, Any, Literal, TypeAlias, get_args, get_origin

from msgspec import Meta

from harness.spec import types_of

Positive: TypeAlias = Annotated[float, Meta(gt=0)]
NotNegative: TypeAlias = Annotated[float, Meta(ge=0)]
Share: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
PositiveShare: TypeAlias = Annotated[float, Meta(gt=0, le=1)]
PartialShare: TypeAlias = Annotated[float, Meta(ge=0, lt=1)]
AtLeastZero: TypeAlias = Annotated[int, Meta(ge=0)]
AtLeastOne: TypeAlias = Annotated[int, Meta(ge=1)]
AtLeastTwo: TypeAlias = Annotated[int, Meta(ge=2)]

EXTREMES = 1e-30, 1e30  # no quantity is as small or large but 0, and the squares of times would leave what floats hold
LARGEST_TOKENS = 10_000_000  # far above any context window; a larger count is a mistake
Tokens: TypeAlias = Annotated[int, Meta(ge=1, le=LARGEST_TOKENS)]
MeanTokens: TypeAlias = Annotated[float, Meta(ge=1, le=LARGEST_TOKENS)]
DayHour: TypeAlias = Annotated[float, Meta(ge=0, lt=24)]
Weekday: TypeAlias = Annotated[int, Meta(ge=0, le=6, description="0 is Monday")]


class Checked:
    """A dataclass whose fields are within the bounds of their types; its own `__post_init__` would call `check`."""

    __slots__ = ()

    def __post_init__(self) -> None:
        check(self)


def check(of: object) -> None:
    """Raise ValueError for the first field that is not within the bounds of its type; None is within all."""
    kind: Any = type(of)
    for name, bound in _bounds(kind):
        if (value := getattr(of, name)) is not None and not _holds(value, bound):
            got = f"{value:g}" if isinstance(value, float) else f"'{value}'" if isinstance(value, str) else value
            hint = f"; {bound.description}" if isinstance(bound, Meta) and bound.description else ""
            raise ValueError(f"{name} must {_sentence(bound)}, got {got}{hint}.")
        if isinstance(value, float) and value and not EXTREMES[0] <= abs(value) <= EXTREMES[1]:
            raise ValueError(f"{name} must be 0 or between {EXTREMES[0]:g} and {EXTREMES[1]:g} in size, got {value:g}.")


def positive(**values: float) -> None:
    """Raise ValueError unless every value is a finite number above 0."""
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name} must be above 0, got {value:g}.")


@cache
def _bounds(cls: Any) -> list[tuple[str, Meta | tuple[Any, ...]]]:
    """Return the fields that have bounds: of a number, or the values of a Literal."""
    limits: list[tuple[str, Meta | tuple[Any, ...]]] = []
    for name, hint in types_of(cls, bounds=True).items():
        for option in (hint, *get_args(hint)):
            if get_origin(option) is Literal:
                limits.append((name, get_args(option)))
            limits += [(name, part) for part in getattr(option, "__metadata__", ()) if isinstance(part, Meta)]
    return limits


def _holds(value: Any, bound: Meta | tuple[Any, ...]) -> bool:
    if isinstance(bound, tuple):
        return value in bound
    return (
        math.isfinite(value)
        and (bound.gt is None or value > bound.gt)
        and (bound.ge is None or value >= bound.ge)
        and (bound.lt is None or value < bound.lt)
        and (bound.le is None or value <= bound.le)
    )


def _sentence(bound: Meta | tuple[Any, ...]) -> str:
    if isinstance(bound, tuple):
        return f"be one of {', '.join(map(str, bound))}"
    if bound.ge is not None and bound.le is not None:
        return f"be between {_number(bound.ge)} and {_number(bound.le)}"
    if bound.ge == 0 and bound.lt is None:
        return "not be negative"
    limits = {"above": bound.gt, "at least": bound.ge, "below": bound.lt, "at most": bound.le}
    return "be " + " and ".join(f"{word} {_number(limit)}" for word, limit in limits.items() if limit is not None)


def _number(bound: float) -> str:
    return f"{bound:g}" if isinstance(bound, float) else f"{bound:,}"
