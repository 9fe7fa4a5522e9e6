"""Several numbers in one value of a spec, joined by '/', because ',' and ':' are taken: `levels=1/2/4`."""

import math

from harness.errors import UsageError
from harness.spec import seconds


def levels(text: str, name: str = "levels") -> tuple[float, ...]:
    """Rates or relative rates, all >= 0 and not all 0. Raises ValueError otherwise."""
    try:
        found = tuple(float(part) for part in text.split("/"))
    except ValueError:
        raise ValueError(f"{name} must be numbers joined by '/', such as 1/2/4, got '{text}'.") from None
    if not all(0 <= level < math.inf for level in found) or not any(found):
        raise ValueError(f"{name} must be >= 0 and not all 0, got '{text}'.")
    return found


def durations_s(text: str, name: str) -> tuple[float, ...]:
    """Durations in seconds, all > 0, written like '90s/5min'. Raises ValueError otherwise."""
    try:
        found = tuple(seconds(part, name) for part in text.split("/"))
    except UsageError:
        raise ValueError(f"{name} must be durations joined by '/', such as 90s/10s, got '{text}'.") from None
    if not all(duration_s > 0 for duration_s in found):
        raise ValueError(f"{name} must be > 0, got '{text}'.")
    return found
