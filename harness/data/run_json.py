"""What every reader of run.json takes for granted: of what kind its values are, however deep they stand.

A file that somebody edited, or that was damaged, is refused in one sentence that names the place. What no reader
computes with is not checked.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class _Number:
    """A finite number from `low` to `high`, or nothing."""

    low: float = -1e300
    high: float = 1e300

    def holds(self, value: object) -> bool:
        if value is None:
            return True
        plain = isinstance(value, int | float) and not isinstance(value, bool)
        return plain and math.isfinite(value) and self.low <= value <= self.high  # type: ignore[arg-type,operator]  # plain


@dataclass(frozen=True, slots=True)
class _Kind:
    """A value of one of these types, or nothing."""

    types: tuple[type, ...]

    def holds(self, value: object) -> bool:
        return value is None or isinstance(value, self.types)


@dataclass(frozen=True, slots=True)
class _Object:
    """An object: the shape of known names, of those in `needed` never nothing; any other name has the shape `rest`.

    With `whole` no name stands for nothing.
    """

    known: Mapping[str, Shape]
    needed: tuple[str, ...] = ()
    rest: Shape | None = None
    whole: bool = False


@dataclass(frozen=True, slots=True)
class _List:
    """A list, of `length` items where that is given; none of them is nothing where they are `needed`."""

    of: Shape
    length: int | None = None
    needed: bool = True


Shape: TypeAlias = "_Number | _Kind | _Object | _List"

_NUMBER, _COUNT, _SHARE = _Number(), _Number(low=0), _Number(0.0, 1.0)
_TEXT, _FLAG = _Kind((str,)), _Kind((bool,))
_ANY = _Object({})
_RANGE = _List(_NUMBER, length=2)
_DESCRIBED = _Object({"unit": _TEXT, "n": _COUNT}, rest=_NUMBER)
_CURVES = _Object({}, rest=_NUMBER)
_GAPS = _Object({name: _List(_NUMBER) for name in ("at", "drawn", "declared")})
_BOUND = _Object(
    {"metric": _TEXT, "limit": _Number(low=0), "tag": _TEXT, "percentile": _Number(0, 100)}, needed=("metric", "limit")
)
_SCORED = _Object(
    {
        "text": _TEXT, "metric": _TEXT, "limit_s": _NUMBER, "tag": _TEXT, "percentile": _Number(0, 100),
        "requests": _COUNT, "attainment": _SHARE, "value_s": _NUMBER, "passed": _FLAG,
    },
    needed=("metric",),
)  # fmt: skip
_SUMMARY = _Object(
    {
        "requests": _COUNT, "window_s": _NUMBER, "throughput_rps": _NUMBER, "output_tps": _NUMBER,
        "goodput_rps": _NUMBER, "preemptions": _COUNT, "goal": _SHARE, "attainment": _SHARE, "passed": _FLAG,
        "status": _Object({}, rest=_COUNT, whole=True), "metrics": _Object({}, rest=_DESCRIBED),
        "bounds": _List(_SCORED), "classes": _Object({}, rest=_SHARE),
    }
)  # fmt: skip
_WITHIN = _Object(
    {
        "confidence": _SHARE, "at_least": _SHARE, "why_not": _TEXT,
        "attainment": _Object({"low": _SHARE, "high": _SHARE}, needed=("low", "high")),
        "metrics": _Object({}, rest=_Object({"mean": _RANGE, "p99": _RANGE}), whole=True),
    }
)  # fmt: skip
_NUMBERS_OF_SENDING = (
    "requested_rps", "drawn_rps", "achieved_rps", "gap_cv", "tick_s", "ks", "ks_p", "expected_rps", "rate_z",
    "lateness_p50_s", "lateness_p99_s", "lateness_max_s",
)  # fmt: skip
_FIDELITY = _Object(
    {
        **dict.fromkeys(_NUMBERS_OF_SENDING, _NUMBER),
        "scheduled": _COUNT, "sent": _COUNT, "late_share": _SHARE, "law": _TEXT, "line": _TEXT, "gaps": _GAPS,
        "dispersion": _CURVES, "autocorrelation": _CURVES,
        "rate_curve": _Object({"rps": _List(_NUMBER), "end_s": _NUMBER}),
        "drawn": _Object({"gap_cv": _NUMBER, "dispersion": _CURVES, "autocorrelation": _CURVES}),
    }
)  # fmt: skip
_WARNING = _Object({"code": _TEXT, "message": _TEXT, "remedy": _TEXT})
RUN = _Object(
    {
        "spec": _ANY, "backend": _ANY, "summary": _SUMMARY, "within": _WITHIN, "fidelity": _FIDELITY,
        "workload": _Object({"rate_rps": _NUMBER, "arrivals_rps": _NUMBER, "provenance": _ANY}),
        "slo": _Object({"bounds": _List(_BOUND), "goal": _SHARE, "text": _TEXT}),
        "schedule": _Object({"requests": _COUNT, "span_s": _NUMBER, "sha256": _TEXT}),
        "verdict": _Object({"valid": _FLAG, "reasons": _List(_TEXT), "text": _TEXT}),
        "warmup": _Object(
            {"rule": _TEXT, "at_s": _NUMBER, "requests": _COUNT, "stationary": _FLAG},
            needed=("rule", "at_s", "requests"),
        ),
        "warnings": _List(_WARNING), "checks": _List(_ANY), "request_throughput": _NUMBER, "output_throughput": _NUMBER,
        "floor": _Object({}), "resolution": _Object({"undecided": _FLAG, "unresolved": _List(_TEXT)}),
    }
)  # fmt: skip
"""Of run.json, as far as readers compute with it."""


def broken(info: Mapping[str, Any]) -> str | None:
    """The first place that is not as readers take it to be, such as 'summary.bounds[0].metric'; None where all is."""
    return next(_broken(info, RUN, ""), None)


def _broken(value: Any, shape: Shape, at: str) -> Iterator[str]:
    if value is None:
        return
    if isinstance(shape, _Number | _Kind):
        if not shape.holds(value):
            yield at
    elif isinstance(shape, _List):
        yield from _in_list(value, shape, at)
    elif not isinstance(value, Mapping):
        yield at
    else:
        yield from _in_object(value, shape, at)


def _in_list(value: Any, shape: _List, at: str) -> Iterator[str]:
    if not isinstance(value, list) or shape.length not in (None, len(value)):
        yield at
        return
    for i, item in enumerate(value):
        if item is None and shape.needed:
            yield f"{at}[{i}]"
        yield from _broken(item, shape.of, f"{at}[{i}]")


def _in_object(value: Mapping[str, Any], shape: _Object, at: str) -> Iterator[str]:
    yield from (f"{at}.{name}".lstrip(".") for name in shape.needed if value.get(name) is None)
    yield from (f"{at}.{name}" for name, item in value.items() if item is None and shape.whole)
    for name, item in value.items():
        of = shape.known.get(name, shape.rest)
        if of is not None:
            yield from _broken(item, of, f"{at}.{name}".lstrip("."))
