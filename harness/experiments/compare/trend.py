"""What a series of nights tells: the level of each metric, and the steps in it, called after two nights in a row.

Stored nights never gate a real server, whose noise from one occasion to the next is larger than what matters; they
show a step, its first night, and what changed with it.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from harness.data import host
from harness.experiments.compare.history import METRICS, OUTPUT_TOKENS, Metric, Night, read
from harness.stats.steps import pieces
from harness.stats.watch import EXACT, ROBUST, Found, Judged, Rule, Watch, watch

NOISY = 0.03
"""Scatter from night to night above which a step of 10 % is found within a week in less than two of three cases."""

FEWEST_FOR_SCATTER = 8
_OWN = "version of bench"
_NEAR = 3
"""Nights by which the first one of a step may lie away from the first suspect one."""


def trend(root: Path) -> dict[str, Any]:
    """The answer for a folder of nights, as JSON. Raises UsageError where there are none."""
    found = read(root)
    series = [_series(name, nights) for name, nights in found.items()]
    states = [metric["state"] for one in series for metric in one["metrics"] if metric["judged"]]
    state = _whole(states, series)
    return {
        "schema": 1,
        "kind": "trend",
        "versions": host.versions(),
        "exit_code": {"longer": 4, "regressed": 1, "invalid": 4, "incomparable": 5, "missing": 5}.get(state, 0),
        "folder": str(root),
        "state": state,
        "rule": Rule().stored,
        "series": series,
    }


def _whole(states: Sequence[str], series: Sequence[Mapping[str, Any]]) -> str:
    """The state of all series together, from those of the judged metrics."""
    if "longer" in states:
        return "longer"
    if "regressed" in states:
        return "regressed"
    if not any(one["valid"] for one in series):
        return "invalid"
    if "none" in states or any(one["missing"] for one in series):
        return "missing"
    if not states or set(states) != {"few"}:
        return "steady"
    for one in series:
        seen = {night["state"] for metric in one["metrics"] for night in metric["nights"]}
        if not (one["breaks"] and one["valid"] > Rule().reference and seen <= {"few", "gap"}):
            return "few"
    return "incomparable"  # there would have been nights enough, had they been comparable


def _series(name: str, nights: Sequence[Night]) -> dict[str, Any]:
    there = [metric for metric in METRICS if any(metric.name in night.values for night in nights)]
    judged = [_Series(metric, nights).as_json() for metric in there]
    return {
        "name": name,
        "exact": _exact(nights),
        "first": nights[0].at,
        "last": nights[-1].at,
        "nights": len(nights),
        "valid": sum(night.why is None for night in nights),
        "missing": nights[-1].why is not None,
        "metrics": judged,
        "gaps": [{"night": night.at, "path": str(night.path), "why": night.why} for night in nights if night.why],
        "breaks": [{"night": nights[place].at, "changed": changed} for place, changed in _breaks(nights).items()],
        "versions": _versions(nights),
    }


@dataclass(frozen=True, slots=True)
class _Part:
    """Nights that can be compared with one another, and have a value; what the rule says of them."""

    nights: Sequence[Night]
    values: Sequence[float]
    watch: Watch


class _Series:
    """One metric over the nights of a series."""

    def __init__(self, metric: Metric, nights: Sequence[Night]) -> None:
        self.metric = metric
        self.nights = nights
        self.exact = _exact(nights)
        plain = Rule(least=metric.least, relative=metric.relative)
        self.rule = replace(EXACT, relative=metric.relative) if self.exact else plain
        places = [0, *_breaks(nights), len(nights)]  # between two of them nothing changed that must not
        self.parts = [self._part(nights[start:stop]) for start, stop in pairwise(places)]

    def as_json(self) -> dict[str, Any]:
        """The metric as trend.json holds it."""
        steps = [self._step(part, step) for part in self.parts for step in part.watch.steps]
        last = self.parts[-1]
        state = self._state(last)
        scatter = None if self.exact else _scatter(last.values)
        # What the last value is shown beside: what it was held to, or the level before a step that is still news.
        news = state in ("regressed", "improved", "changed", "longer")
        beside = last.watch.steps if news else last.watch.judged
        reference = beside[-1].reference if beside else None
        return {
            "name": self.metric.name,
            "unit": self.metric.unit,
            "better": "higher" if self.metric.higher else "lower",
            "judged": self.metric.judged,
            "state": state,
            "needed": max(0, self.rule.reference - len(last.values)) if state == "few" else 0,
            "last": _plain(last.values[-1]) if len(last.values) else None,
            "reference": _plain(reference),
            "change_pct": self._change(last, reference),
            "sd_pct": None if scatter is None else 100 * scatter,
            "noisy": scatter is not None and scatter > NOISY and self.metric.relative,
            "steps": steps,
            "nights": self._each(),
        }

    def _part(self, nights: Sequence[Night]) -> _Part:
        there = [night for night in nights if self._value(night) is not None]
        values = [value for night in there if (value := self._value(night)) is not None]
        return _Part(there, values, watch(values, self.rule, higher=self.metric.higher))

    def _value(self, night: Night) -> float | None:
        if night.why is None and night.overloaded and self.metric.latency:
            return math.inf
        return night.values.get(self.metric.name)

    def _state(self, part: _Part) -> str:
        """The state after the last night."""
        if not part.values:
            return "none"
        step = part.watch.steps[-1] if part.watch.steps else None
        if step is not None and step.ended is None and self._lasts(step, part):
            after = statistics.median(part.values[step.first : self._until(part, step)])
            matters = abs(part.watch.loss(after, step.reference)) >= self.metric.least
            if matters and self.metric.name == OUTPUT_TOKENS and step.side == "better":
                return "longer"  # more work: what came before is no measure of any speed
            return {"worse": "regressed", "better": "improved"}[step.side] if matters else "changed"
        state = part.watch.judged[-1].state
        if state == "few":
            return state
        return "none" if self._value(self.nights[-1]) is None else "suspect" if state == "suspect" else "steady"

    def _lasts(self, step: Found, part: _Part) -> bool:
        """Whether a step is still news: for a week, or until its level is the reference."""
        return step.open or (self.exact and len(part.values) - step.first <= Rule().settled)

    def _until(self, part: _Part, step: Found) -> int:
        """Where the level of a step ends: it went back, or another step follows."""
        later = [other.first for other in part.watch.steps if other.first > step.first]
        return min([len(part.values), *later, *([] if step.ended is None else [step.ended])])

    def _step(self, part: _Part, step: Found) -> dict[str, Any]:
        first = step.first if self.exact else _first_night(part.values, step.first)
        after = statistics.median(part.values[first : max(first + 1, self._until(part, step))])
        night, before = part.nights[first], part.nights[first - 1]
        return {
            "side": step.side,
            "first": night.at,
            "commit": night.commit,
            "night_before": before.at,
            "commit_before": before.commit,
            "called": part.nights[step.called].at,
            "ended": None if step.ended is None else part.nights[step.ended].at,
            "open": step.open or (step.ended is None and self._lasts(step, part)),
            "before": _plain(step.reference),
            "after": _plain(after),
            "loss_pct": _plain(100 * part.watch.loss(after, step.reference)),
            "changed": _changed(before.marks, night.marks),
        }

    def _change(self, part: _Part, reference: float | None) -> float | None:
        """The last value beside a reference in %, plus being more; None where there is no reference."""
        if reference is None or not (math.isfinite(part.values[-1]) and math.isfinite(reference)):
            return None
        if not self.metric.relative:
            return 100 * (part.values[-1] - reference)
        return 100 * (part.values[-1] / reference - 1) if reference else None

    def _each(self) -> list[dict[str, Any]]:
        judged = {
            id(night): verdict
            for part in self.parts
            for night, verdict in zip(part.nights, part.watch.judged, strict=True)
        }
        return [self._night(night, judged.get(id(night))) for night in self.nights]

    def _night(self, night: Night, judged: Judged | None) -> dict[str, Any]:
        value = self._value(night)
        finite = value is not None and math.isfinite(value)
        low, high = night.within.get(self.metric.name, (None, None)) if finite else (None, None)
        return {
            "night": night.at,
            "commit": night.commit,
            "path": str(night.path),
            "value": None if value is None else _plain(value),
            "low": low,
            "high": high,
            "overloaded": value is not None and not math.isfinite(value),
            "state": "gap" if judged is None else judged.state,
            "reference": None if judged is None else _plain(judged.reference),
            "threshold_pct": None if judged is None or judged.threshold is None else 100 * judged.threshold,
        }


def _exact(nights: Sequence[Night]) -> bool:
    """Whether the clock was virtual, so that any difference is one of the systems."""
    usable = [night for night in nights if night.why is None]
    return bool(usable) and all(night.exact for night in usable)


def _breaks(nights: Sequence[Night]) -> dict[int, list[dict[str, str]]]:
    """Places of the nights from which on something differs that must not, and what; a killed run may not tell."""
    known: dict[str, str] = {}
    found = {}
    for place, night in enumerate(nights):
        if changed := _changed(known, night.facts):
            found[place] = changed
        known |= night.facts
    return found


def _versions(nights: Sequence[Night]) -> list[dict[str, Any]]:
    """Nights with other versions than the night before that told any, and which; values are compared across them.

    Another bench is not among them: it breaks the series.
    """
    known: dict[str, str] = {}
    found = []
    for night in nights:
        told = {name: version for name, version in night.marks.items() if "version" in name and name != _OWN}
        if changed := _changed(known, told):
            found.append({"night": night.at, "changed": changed})
        known |= told
    return found


def _changed(before: Mapping[str, str], after: Mapping[str, str]) -> list[dict[str, str]]:
    """What both tell, and tell differently."""
    return [
        {"what": name, "before": before[name], "after": after[name]}
        for name in before
        if name in after and before[name] != after[name]
    ]


def _first_night(values: Sequence[float], suspected: int) -> int:
    """Where the level changes nearest to the first suspect night; that night, where the fit finds nothing near."""
    if not all(math.isfinite(value) for value in values):
        return suspected
    starts = [piece.start for piece in pieces(values)[1:]]
    near = [start for start in starts if abs(start - suspected) <= _NEAR]
    return min(near, key=lambda start: abs(start - suspected), default=suspected)


def _scatter(values: Sequence[float]) -> float | None:
    """Standard deviation from night to night as a share, robust: steps and single bad nights hardly move it."""
    finite = [value for value in values if math.isfinite(value)]
    if len(finite) < FEWEST_FOR_SCATTER:
        return None
    middle = statistics.median(finite)
    apart = statistics.median(abs(after - before) for before, after in pairwise(finite))
    return ROBUST * apart / math.sqrt(2) / abs(middle) if middle else None


def _plain(value: float | None) -> float | None:
    """A number for JSON, which knows no infinity."""
    return value if value is not None and math.isfinite(value) else None
