"""Trends in series of nightly runs: the level of each metric, and the steps in it, called after two runs in a row.

Stored runs never gate a real server, whose noise from one occasion to the next is larger than what matters; they show
a step, its first run, and what changed with it.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path

from harness.data import host
from harness.experiments.compare.history import METRICS, OUTPUT_TOKENS, Metric, NightlyRun, read
from harness.experiments.compare.trend_json import (
    ChangedRun,
    FactChange,
    InvalidRun,
    MetricState,
    RunValue,
    Step,
    TrendAnswer,
    TrendMetric,
    TrendRule,
    TrendSeries,
    TrendState,
)
from harness.stats.steps import pieces
from harness.stats.watch import EXACT, ROBUST, Found, Judged, Rule, Watch, watch

NOISY = 0.03
"""Scatter from run to run above which a step of 10 % is found within a week in less than two of three cases."""

FEWEST_FOR_SCATTER = 8
_OWN = "version of bench"
_NEAR = 3
"""Runs by which the first one of a step may lie away from the first suspect one."""
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
        rule=TrendRule(**asdict(Rule())),
        series=series,
    )


def _whole(series: Sequence[TrendSeries]) -> TrendState:
    """The state of all series together, from those of the judged metrics."""
    states = {metric.state for one in series for metric in one.judged}
    if "longer" in states:
        return "longer"
    if "regressed" in states:
        return "regressed"
    if not any(one.valid for one in series):
        return "invalid"
    if "none" in states or any(one.missing for one in series):
        return "missing"
    if states != {"few"}:
        return "steady"
    for one in series:
        seen = {run.state for metric in one.metrics for run in metric.runs}
        if not (one.breaks and one.valid > Rule().reference and seen <= {"few", "gap"}):
            return "few"
    return "incomparable"  # there would have been enough runs, had they been comparable


def _series(name: str, runs: Sequence[NightlyRun]) -> TrendSeries:
    there = [metric for metric in METRICS if any(metric.name in run.values for run in runs)]
    return TrendSeries(
        name=name,
        exact=_exact(runs),
        first=runs[0].at,
        last=runs[-1].at,
        runs=len(runs),
        valid=sum(run.why is None for run in runs),
        missing=runs[-1].why is not None,
        metrics=[_MetricHistory(metric, runs).summary() for metric in there],
        gaps=[InvalidRun(night=run.at, path=str(run.path), why=run.why) for run in runs if run.why],
        breaks=[ChangedRun(night=runs[place].at, changed=changed) for place, changed in _breaks(runs).items()],
        versions=_versions(runs),
    )


@dataclass(frozen=True, slots=True)
class _Part:
    """Runs that can be compared with one another, and have a value; the verdicts of the rule on them."""

    runs: Sequence[NightlyRun]
    values: Sequence[float]
    watch: Watch


class _MetricHistory:
    """One metric over the runs of a series."""

    def __init__(self, metric: Metric, runs: Sequence[NightlyRun]) -> None:
        self.metric = metric
        self.runs = runs
        self.exact = _exact(runs)
        plain = Rule(least=metric.least, relative=metric.relative)
        self.rule = replace(EXACT, relative=metric.relative) if self.exact else plain
        places = [0, *_breaks(runs), len(runs)]  # between two of them nothing changed that must not
        self.parts = [self._part(runs[start:stop]) for start, stop in pairwise(places)]

    def summary(self) -> TrendMetric:
        """The metric as trend.json holds it."""
        last = self.parts[-1]
        state = self._state(last)
        scatter = None if self.exact else _scatter(last.values)
        # The last value is shown beside what it was compared with, or the level before a step that is still news.
        news = state in ("regressed", "improved", "changed", "longer")
        beside = last.watch.steps if news else last.watch.judged
        reference = beside[-1].reference if beside else None
        return TrendMetric(
            name=self.metric.name,
            unit=self.metric.unit,
            better="higher" if self.metric.higher else "lower",
            judged=self.metric.judged,
            state=state,
            needed=max(0, self.rule.reference - len(last.values)) if state == "few" else 0,
            last=_finite(last.values[-1]) if len(last.values) else None,
            reference=_finite(reference),
            change_pct=self._change(last, reference),
            sd_pct=None if scatter is None else 100 * scatter,
            noisy=scatter is not None and scatter > NOISY and self.metric.relative,
            steps=[self._step(part, step) for part in self.parts for step in part.watch.steps],
            runs=self._each(),
        )

    def _part(self, runs: Sequence[NightlyRun]) -> _Part:
        there = [run for run in runs if self._value(run) is not None]
        values = [value for run in there if (value := self._value(run)) is not None]
        return _Part(there, values, watch(values, self.rule, higher=self.metric.higher))

    def _value(self, run: NightlyRun) -> float | None:
        if run.why is None and run.overloaded and self.metric.latency:
            return math.inf
        return run.values.get(self.metric.name)

    def _state(self, part: _Part) -> MetricState:
        """The state after the last run."""
        if not part.values:
            return "none"
        step = part.watch.steps[-1] if part.watch.steps else None
        if step is not None and step.ended is None and self._lasts(step, part):
            after = statistics.median(part.values[step.first : self._until(part, step)])
            if abs(part.watch.loss(after, step.reference)) < self.metric.least:
                return "changed"
            if step.side == "worse":
                return "regressed"
            # longer answers are more work: earlier runs are no measure of any speed
            return "longer" if self.metric.name == OUTPUT_TOKENS else "improved"
        if part.watch.judged[-1].state == "few":
            return "few"
        if self._value(self.runs[-1]) is None:
            return "none"
        return "suspect" if part.watch.judged[-1].state == "suspect" else "steady"

    def _lasts(self, step: Found, part: _Part) -> bool:
        """Whether a step is still news: for a week, or until its level is the reference."""
        return step.open or (self.exact and len(part.values) - step.first <= Rule().settled)

    def _until(self, part: _Part, step: Found) -> int:
        """Where the level of a step ends: it went back, or another step follows."""
        later = [other.first for other in part.watch.steps if other.first > step.first]
        return min([len(part.values), *later, *([] if step.ended is None else [step.ended])])

    def _step(self, part: _Part, step: Found) -> Step:
        first = step.first if self.exact else _first_run(part.values, step.first)
        after = statistics.median(part.values[first : max(first + 1, self._until(part, step))])
        run, before = part.runs[first], part.runs[first - 1]
        return Step(
            side=step.side,
            first=run.at,
            commit=run.commit,
            night_before=before.at,
            commit_before=before.commit,
            called=part.runs[step.called].at,
            ended=None if step.ended is None else part.runs[step.ended].at,
            open=step.open or (step.ended is None and self._lasts(step, part)),
            before=_finite(step.reference),
            after=_finite(after),
            loss_pct=_finite(100 * part.watch.loss(after, step.reference)),
            changed=_changed(before.marks, run.marks),
        )

    def _change(self, part: _Part, reference: float | None) -> float | None:
        """The last value beside a reference in %, plus being more; None where there is no reference."""
        if reference is None or not (math.isfinite(part.values[-1]) and math.isfinite(reference)):
            return None
        if not self.metric.relative:
            return 100 * (part.values[-1] - reference)
        return 100 * (part.values[-1] / reference - 1) if reference else None

    def _each(self) -> list[RunValue]:
        judged = {
            id(run): verdict for part in self.parts for run, verdict in zip(part.runs, part.watch.judged, strict=True)
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


def _breaks(runs: Sequence[NightlyRun]) -> dict[int, list[FactChange]]:
    """Places of the runs from which on something differs that must not, and what; a killed run may lack facts."""
    known: dict[str, str] = {}
    found = {}
    for place, run in enumerate(runs):
        if changed := _changed(known, run.facts):
            found[place] = changed
        known |= run.facts
    return found


def _versions(runs: Sequence[NightlyRun]) -> list[ChangedRun]:
    """Runs with other versions than the last run that stored any, and which; values are compared across them.

    Another bench is not among them: it breaks the series.
    """
    known: dict[str, str] = {}
    found = []
    for run in runs:
        stored = {name: version for name, version in run.marks.items() if "version" in name and name != _OWN}
        if changed := _changed(known, stored):
            found.append(ChangedRun(night=run.at, changed=changed))
        known |= stored
    return found


def _changed(before: Mapping[str, str], after: Mapping[str, str]) -> list[FactChange]:
    """The facts that both have, with different values."""
    return [
        FactChange(what=name, before=before[name], after=after[name])
        for name in before
        if name in after and before[name] != after[name]
    ]


def _first_run(values: Sequence[float], suspected: int) -> int:
    """Where the level changes nearest to the first suspect run; that run, where the fit finds nothing near."""
    if not all(math.isfinite(value) for value in values):
        return suspected
    starts = [piece.start for piece in pieces(values)[1:]]
    near = [start for start in starts if abs(start - suspected) <= _NEAR]
    return min(near, key=lambda start: abs(start - suspected), default=suspected)


def _scatter(values: Sequence[float]) -> float | None:
    """Standard deviation from run to run as a share, robust: steps and single bad runs hardly move it."""
    finite = [value for value in values if math.isfinite(value)]
    if len(finite) < FEWEST_FOR_SCATTER:
        return None
    middle = statistics.median(finite)
    apart = statistics.median(abs(after - before) for before, after in pairwise(finite))
    return ROBUST * apart / math.sqrt(2) / abs(middle) if middle else None


def _finite(value: float | None) -> float | None:
    """A number for JSON, which has no infinity."""
    return value if value is not None and math.isfinite(value) else None
