"""Where the measured part of a run begins: a system that starts empty is faster than one that serves.

`none` cuts nothing, `30s` and `200` cut a time and a number of requests, `mser5` finds the cut.
Source of MSER-5: K. P. White, M. J. Cobb, S. C. Spratt, "A comparison of five steady-state truncation heuristics for
simulation", Winter Simulation Conference 2000.
"""

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from harness.data.lists import number
from harness.data.run_json import Cut
from harness.data.schedule import Schedule
from harness.errors import UsageError
from harness.metrics.measure import first_last, succeeded
from harness.metrics.quantiles import quantile
from harness.validity.rules import Rule

Floats: TypeAlias = npt.NDArray[np.float64]

BATCH = 5
"""Requests in a batch of MSER-5."""

FILLED = 0.9
"""The cut of `mser5` is not before this quantile of E2E after the start: until then the system fills."""

LAST_TENTH = 0.9
"""A cut of `mser5` beyond this part of the first half of the requests, which is all it may take, is none."""


def check_leaves(rule: str | None, schedule: Schedule) -> None:
    """Raises UsageError for a cut that is given as a time or a number and leaves nothing of the schedule to measure."""
    if rule is None or rule in ("none", "mser5"):
        return
    if rule.isdecimal() and int(rule) >= len(schedule):
        there = f"{len(schedule):,} requests that are sent"
    elif not rule.isdecimal() and not schedule.has_follow_ups and float(rule.removesuffix("s")) > _last_s(schedule):
        there = f"{_last_s(schedule):.3g} s of sending"
    else:
        return
    raise UsageError(
        f"--warmup {rule} leaves nothing of the {there} to measure; cut less, or send more (--requests, --duration)."
    )


def _last_s(schedule: Schedule) -> float:
    return float(schedule.table["scheduled_s"][-1].as_py())


def rules(cut: Cut) -> Iterator[Rule]:
    """The rule that a place to cut was found."""
    yield Rule(
        not cut.stationary, "not-stationary",
        "the run never settled: its E2E still changed where at most half of the requests would have been left out, so "
        f"{cut.rule} cut nothing",
        "send more requests (--requests, --duration), lower the load, or name the cut (--warmup 30s)",
    )  # fmt: skip


def find(table: pa.Table, rule: str | None) -> Cut:
    """The cut of a `requests` table by a rule that `harness.options.warmup_rule` gave; None cuts nothing."""
    due_s = number(table, "scheduled_s")
    if rule is None or rule == "none" or not len(due_s):
        return Cut("none", 0.0, 0)
    if rule == "mser5":
        return _mser5(table, due_s)
    if rule.isdecimal():
        count = min(int(rule), len(due_s) - 1)
        return _at(rule, float(np.sort(due_s)[count]), due_s)
    return _at(rule, float(rule.removesuffix("s")), due_s)


def _mser5(table: pa.Table, due_s: Floats) -> Cut:
    """The cut that makes the mean E2E of what is left most certain; of requests that ended well."""
    end_s = np.where(succeeded(table), first_last(table)[1], np.nan)
    known = np.isfinite(end_s)
    order = np.argsort(due_s[known], kind="stable")
    started_s, e2e_s = due_s[known][order], (end_s - due_s)[known][order]
    batches = len(e2e_s) // BATCH
    if batches < 4:
        return Cut("mser5", 0.0, 0)
    means = e2e_s[: batches * BATCH].reshape(-1, BATCH).mean(axis=1)
    filled_s = float(due_s.min()) + quantile(e2e_s, FILLED)
    at_s = max(float(started_s[_least_error(means) * BATCH]), filled_s)
    if at_s >= started_s[int(LAST_TENTH * (batches // 2)) * BATCH]:
        return Cut("mser5", 0.0, 0, stationary=False)
    return _at("mser5", at_s, due_s)


def _least_error(means: Floats) -> int:
    """The d in 0..m/2 that minimises sum over i >= d of (y_i - mean)^2 / (m - d)^2."""
    m = len(means)
    left = m - np.arange(m // 2 + 1)
    total = np.cumsum(means[::-1])[::-1][: len(left)]
    squares = np.cumsum(means[::-1] ** 2)[::-1][: len(left)]
    return int(np.argmin((squares - total**2 / left) / left.astype(float) ** 2))


def _at(rule: str, at_s: float, due_s: Floats) -> Cut:
    """A cut at a time; at least the last request stays."""
    at_s = min(at_s, float(due_s.max()))
    return Cut(rule, at_s, int((due_s < at_s).sum()))
