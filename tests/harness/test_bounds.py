"""Bounds that fields state in their types: which values pass, and the sentence for those that don't."""

import math
import re
from dataclasses import dataclass
from typing import Annotated, Literal

import pytest
from msgspec import Meta

from harness.bounds import AtLeastTwo, Checked, NotNegative, Positive, Share


@dataclass(frozen=True, slots=True)
class Machine(Checked):
    """Fields of every form of bound."""

    speed: Positive = 1.0
    wait_s: NotNegative | None = None
    share: Share = 0.5
    parts: AtLeastTwo = 2
    hour: Annotated[float, Meta(ge=0, lt=24)] = 0.0
    day: Annotated[int, Meta(ge=0, le=6, description="0 is Monday")] = 0
    unit: Literal["s", "ms"] = "s"
    free: float = math.nan


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("speed", 0.0, "speed must be above 0, got 0."),
        ("speed", math.inf, "speed must be above 0, got inf."),
        ("wait_s", -1.0, "wait_s must not be negative, got -1."),
        ("wait_s", math.nan, "wait_s must not be negative, got nan."),
        ("share", 1.5, "share must be between 0 and 1, got 1.5."),
        ("parts", 1, "parts must be at least 2, got 1."),
        ("hour", 24.0, "hour must be at least 0 and below 24, got 24."),
        ("day", 7, "day must be between 0 and 6, got 7; 0 is Monday."),
        ("speed", 1e-300, "speed must be 0 or between 1e-30 and 1e+30 in size, got 1e-300."),
        ("wait_s", 1e300, "wait_s must be 0 or between 1e-30 and 1e+30 in size, got 1e+300."),
        ("unit", "h", "unit must be one of s, ms, got 'h'."),
    ],
)
def test_a_value_outside_its_bound_is_refused_in_a_sentence(field: str, value: float | str, sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        Machine(**{field: value})  # type: ignore[arg-type]


def test_the_bounds_themselves_and_none_are_within() -> None:
    Machine(wait_s=None, share=0.0, parts=2, day=6)
    Machine(wait_s=0.0, share=1.0, unit="ms")
