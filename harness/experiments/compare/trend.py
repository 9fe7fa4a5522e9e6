"""Trends in series of nightly runs: the level of each metric beside a reference, and the first run of each change.

Stored runs never gate a real server, whose noise from one occasion to the next is larger than what matters; they show
a change, its first run, and what changed with it.
"""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from harness.data import host
from harness.experiments.compare.compare_json import (
    AcceptedRun,
    ChangedRun,
    FactChange,
    InvalidRun,
    MetricState,
    RunValue,
    Step,
    TrendAnswer,
    TrendMetric,
    TrendSeries,
    TrendState,
)
from harness.experiments.compare.history import METRICS, OUTPUT_TOKENS, Metric, NightlyRun, accepted_places, read
from harness.stats.watch import EXACT, Judged, Rule, Watch, watch

NOISY = 0.03
"""Scatter from run to run above which a step of 10 % may stay unfound for weeks."""

_EXIT_CODES: Mapping[TrendState, int] = {
    "longer": 4, "regressed": 1, "invalid": 4, "incomparable": 5, "missing": 5,
}  # fmt: skip


def trend(root: Path) -> TrendAnswer:
    """The answer for a folder of nightly runs. Raises UsageError where there are none."""
    series = [_series(name, runs) for name, runs in read(root).items()]
    state = _whole(series)
    return TrendAnswer(
        versions=dict(host.versions()),
        exit_code=_EXIT_CODES.get(state, 0),
        folder=str(root),
        state=state,
        series=series,
    )


def _whole(series: Sequence[TrendSeries]) -> TrendState:
    """The state of all series together, from those of the judged metrics."""
    states = {metric.state for trend in series for metric in trend.judged}
    if "longer" in states:
        return "longer"
    if "regressed" in states:
        return "regressed"
    if not any(trend.valid for trend in series):
        return "invalid"
    if "none" in states or any(trend.missing for trend in series):
        return "missing"
    if states != {"few"}:
        return "steady"
    for trend in series:
        seen = {run.state for metric in trend.metrics for run in metric.runs}
        if not (trend.breaks and trend.valid > Rule().reference and seen <= {"few", "gap"}):
            return "few"
    return "incomparable"  # there would have been enough runs, had they been comparable


def _series(name: str, runs: Sequence[NightlyRun]) -> TrendSeries:
    metrics = [metric for metric in METRICS if any(metric.name in run.values for run in runs)]
    breaks, levels = _changing(runs, lambda run: run.facts), accepted_places(runs)
    places = sorted({0, *breaks, *levels, len(runs)})  # between two of them one accepted level counts
    spans = [
        Span(runs[start:stop], runs[stop : stop + Rule().window] if stop in levels and stop not in breaks else ())
        for start, stop in pairwise(places)
    ]
    return TrendSeries(
        name=name,
        exact=_exact(runs),
        first=runs[0].at,
        last=runs[-1].at,
        runs=len(runs),
        valid=sum(run.why is None for run in runs),
        missing=runs[-1].why is not None,
        metrics=[MetricHistory(metric, runs, spans).summary() for metric in metrics],
        gaps=[InvalidRun(night=run.at, path=str(run.path), why=run.why) for run in runs if run.why],
        breaks=[ChangedRun(night=runs[place].at, changed=changed) for place, changed in breaks.items()],
        versions=[
            ChangedRun(night=runs[place].at, changed=changed)
            for place, changed in _changing(runs, lambda run: run.versions).items()
        ],
        accepted=[
            AcceptedRun(night=runs[place].at, run=level.run, date=level.date, reason=level.reason)
            for place, level in levels.items()
        ],
    )


@dataclass(frozen=True, slots=True)
class Span:
    """Runs of one accepted level that can be compared with one another, and the first runs of the next one."""

    runs: Sequence[NightlyRun]
    following: Sequence[NightlyRun] = ()


@dataclass(frozen=True, slots=True)
class _Part:
    """The runs of a span that have a value, `own` of them before the next level; what the rule says of all."""

    runs: Sequence[NightlyRun]
    own: int
    watch: Watch


class MetricHistory:
    """One metric over the runs of a series; an accepted level counts for each of the `spans`."""

    def __init__(self, metric: Metric, runs: Sequence[NightlyRun], spans: Sequence[Span]) -> None:
        self.metric = metric
        self.runs = runs
        self.exact = _exact(runs)
        rule = EXACT if self.exact else Rule(least=metric.least)
        # more output tokens are no gain: the first level stays the measure of them
        self.rule = replace(rule, relative=metric.relative, ratchet=metric.name != OUTPUT_TOKENS)
        self.parts = [self._part(span) for span in spans]

    def summary(self) -> TrendMetric:
        """The metric as trend.json holds it."""
        last = self.parts[-1]
        state, values, gained = self._state(last), last.watch.values, last.watch.gained
        reference = last.watch.level if last.watch.judged and last.watch.judged[-1].state != "few" else None
        judged = reference is not None and math.isfinite(reference)
        scatter = last.watch.scatter.sd / (abs(reference) if reference and self.metric.relative else 1)
        level, margin = self._level(last) if judged else (None, None)
        beside = self._beside(level, reference)
        return TrendMetric(
            name=self.metric.name,
            unit=self.metric.unit,
            better="higher" if self.metric.higher else "lower",
            judged=self.metric.judged,
            state=state,
            needed=max(0, self.rule.reference - len(values)) if state == "few" else 0,
            last=_finite(values[-1]) if values else None,
            reference=_finite(reference),
            gained=None if gained is None else last.runs[gained.first].at,
            change_pct=self._beside(values[-1] if values else None, reference),
            sd_pct=100 * scatter if judged and not self.exact else None,
            noisy=judged and self.metric.relative and scatter > NOISY,
            level_pct=beside,
            level_low_pct=None if beside is None or margin is None else beside - margin,
            level_high_pct=None if beside is None or margin is None else beside + margin,
            steps=[step for part in self.parts for step in self._steps(part, last=part is last)],
            runs=self._each(),
        )

    def _part(self, span: Span) -> _Part:
        runs = [run for run in (*span.runs, *span.following) if self._value(run) is not None]
        span_runs = sum(self._value(run) is not None for run in span.runs)
        values = [value for run in runs if (value := self._value(run)) is not None]
        return _Part(runs, span_runs, watch(values, self.rule, higher=self.metric.higher))

    def _value(self, run: NightlyRun) -> float | None:
        if run.why is None and run.overloaded and self.metric.latency:
            return math.inf
        return run.values.get(self.metric.name)

    def _state(self, part: _Part) -> MetricState:
        """The state after the last run."""
        if not part.runs:
            return "none"
        change = part.watch.open
        if change is not None:
            level, _ = self._level(part)
            if abs(part.watch.loss(level, part.watch.level)) < self.metric.least and self.exact:
                return "changed"
            if change.side == "worse":
                return "regressed"
            # longer answers are more work: earlier runs are no measure of any speed
            return "longer" if self.metric.name == OUTPUT_TOKENS else "improved"
        if part.watch.judged[-1].state == "few":
            return "few"
        if self._value(self.runs[-1]) is None:
            return "none"
        return "suspect" if part.watch.judged[-1].state == "suspect" else "steady"

    def _level(self, part: _Part) -> tuple[float, float]:
        """The level of the last week, or since the change, and half its 95 % interval in percent."""
        values, change = part.watch.values, part.watch.open
        count = self.rule.window if change is None else min(self.rule.window, len(values) - change.first)
        return statistics.median(values[-count:]), 100 * part.watch.margin(count)

    def _steps(self, part: _Part, *, last: bool) -> Iterator[Step]:
        """The changes of a part as rows, each with the level in its last week."""
        values = part.watch.values
        for change, following in pairwise((*part.watch.changes, None)):
            assert change is not None
            stop = change.ended or (len(values) if following is None else max(change.first + 1, following.first))
            after = statistics.median(values[max(change.first, stop - self.rule.window) : stop])
            run, run_before = part.runs[change.first], part.runs[change.first - 1]
            yield Step(
                side=change.side,
                first=run.at,
                commit=run.commit,
                night_before=run_before.at,
                commit_before=run_before.commit,
                called=part.runs[change.called].at,
                ended=None if change.ended is None else part.runs[change.ended].at,
                open=change is part.watch.open and last,
                before=_finite(change.reference),
                after=_finite(after),
                loss_pct=_finite(100 * part.watch.loss(after, change.reference)),
                changed=_changed(run_before.marks, run.marks),
            )

    def _beside(self, value: float | None, reference: float | None) -> float | None:
        """A value beside a reference in %, plus being more; None where there is none of them."""
        if value is None or reference is None or not (math.isfinite(value) and math.isfinite(reference)):
            return None
        if not self.metric.relative:
            return 100 * (value - reference)
        return 100 * (value / reference - 1) if reference else None

    def _each(self) -> list[RunValue]:
        judged = {
            id(run): verdict
            for part in self.parts
            for run, verdict in zip(part.runs[: part.own], part.watch.judged[: part.own], strict=True)
        }
        return [self._run(run, judged.get(id(run))) for run in self.runs]

    def _run(self, run: NightlyRun, judged: Judged | None) -> RunValue:
        value = self._value(run)
        overloaded = value is not None and not math.isfinite(value)
        measured = value is not None and not overloaded
        low, high = run.within.get(self.metric.name, (None, None)) if measured else (None, None)
        return RunValue(
            night=run.at,
            commit=run.commit,
            path=str(run.path),
            value=_finite(value),
            low=low,
            high=high,
            overloaded=overloaded,
            state="gap" if judged is None else judged.state,
            reference=None if judged is None else _finite(judged.reference),
            threshold_pct=None if judged is None or judged.threshold is None else 100 * judged.threshold,
        )


def _exact(runs: Sequence[NightlyRun]) -> bool:
    """Whether the clock was virtual, so that any difference is one of the systems."""
    usable = [run for run in runs if run.why is None]
    return bool(usable) and all(run.exact for run in usable)


def _changing(
    runs: Sequence[NightlyRun], facts: Callable[[NightlyRun], Mapping[str, str]]
) -> dict[int, list[FactChange]]:
    """Return the places of the runs from which on a fact differs, and what; a killed run may lack facts."""
    latest: dict[str, str] = {}
    places = {}
    for place, run in enumerate(runs):
        if changed := _changed(latest, facts(run)):
            places[place] = changed
        latest |= facts(run)
    return places


def _changed(before: Mapping[str, str], after: Mapping[str, str]) -> list[FactChange]:
    """The facts that both have, with different values."""
    return [
        FactChange(what=name, before=before[name], after=after[name])
        for name in before
        if name in after and before[name] != after[name]
    ]


def _finite(value: float | None) -> float | None:
    """A number for JSON, which has no infinity."""
    return value if value is not None and math.isfinite(value) else None
