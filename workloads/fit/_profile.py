"""The curve of a day (and of a week) in a trace that is long enough to show that it comes back."""

import numpy as np
import numpy.typing as npt

from harness.stats.arrivals import autocorrelation
from workloads.fit._cox import DispersionCurve, summed

Floats = npt.NDArray[np.float64]

HOUR_S, DAY_S, WEEK_S = 3600.0, 86_400.0, 604_800.0
LEAST_DAYS = 2
COMES_BACK = 0.4  # autocorrelation of hourly counts at 24 h, above which there is a curve of the day


def hourly(times_s: Floats, zero_s: float = 0.0) -> tuple[float, ...]:
    """24 factors of mean 1, one per hour of the day counted from the trace's time 0; empty where days differ.

    A curve is taken if the trace covers two days and the hourly counts of one day tell those of the next
    (autocorrelation at 24 h of at least 0.4; a month of BurstGPT has 0.03, a pure daily curve 0.996).
    """
    hours = np.floor((times_s - zero_s) / HOUR_S).astype(np.int64)
    whole = int(hours[-1])  # the last hour is not full
    if whole < LEAST_DAYS * 24:
        return ()
    counts = np.bincount(hours[hours < whole], minlength=whole)
    again = autocorrelation(counts, 24)
    if again is None or again < COMES_BACK:
        return ()
    slot = np.arange(whole) % 24
    mean = np.bincount(slot, counts, 24) / np.bincount(slot, minlength=24)
    if (mean == 0).all():
        return ()
    return tuple(float(x) for x in mean / mean.mean())


def weekly(times_s: Floats, day: tuple[float, ...]) -> tuple[float, ...]:
    """7 factors of mean 1, one per day counted from the trace's time 0; empty below two weeks or without `day`."""
    days = np.floor(times_s / DAY_S).astype(np.int64)
    whole = int(days[-1])
    if not day or whole < 14:
        return ()
    counts = np.bincount(days[days < whole], minlength=whole)
    again = autocorrelation(counts, 7)
    if again is None or again < COMES_BACK:
        return ()
    slot = np.arange(whole) % 7
    mean = np.bincount(slot, counts, 7) / np.bincount(slot, minlength=7)
    return tuple(float(x) for x in mean / mean.mean())


def factors(at_s: npt.NDArray[np.floating], day: tuple[float, ...], week: tuple[float, ...]) -> Floats:
    """(N,) factors at the moments `at_s`."""
    found = np.ones(len(at_s))
    if day:
        found = found * np.array(day)[(at_s // HOUR_S).astype(np.int64) % 24]
    if week:
        found = found * np.array(week)[(at_s // DAY_S).astype(np.int64) % 7]
    return np.asarray(found)


def variance(curve: DispersionCurve, day: tuple[float, ...], week: tuple[float, ...]) -> Floats:
    """(W + 1,) variance of the mean factor over each width of the curve, as the trace's span shows it, and 0 for the
    span itself: the curve is the same in every draw."""
    if not day:
        return np.zeros(len(curve.widths_s) + 1)
    step_s = 300.0
    values = factors(np.arange(int(curve.span_s / step_s)) * step_s, day, week)
    values = values / values.mean()
    widths = np.maximum(np.round(curve.widths_s / step_s), 1).astype(int)
    found = [float((summed(values, int(w)) / w).var()) for w in widths]
    return np.append(found, 0.0)
