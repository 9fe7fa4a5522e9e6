"""Measured runs of a deployment simulated and scored: the requests of its tables, each run by its own backend."""

from collections.abc import Iterator, Mapping, Sequence
from math import inf, isnan, nan
from pathlib import Path

import numpy as np

from harness.api import Slo
from harness.errors import BenchError, UsageError
from harness.experiments.validate import Pair, Validation
from harness.experiments.validate.answer import target
from harness.experiments.validate.measurements import METRIC, Deployment, Run, bounds_of, read, simulator
from harness.experiments.validate.simulated import Times, times
from harness.spec import Spec, parse


def validate(path: Path, backend: str | None = None, slo: str | None = None) -> Validation:
    """Simulate every run of a TOML file of measurements, and score what the calibration did not see.

    `backend` replaces those of the file, and then no run counts as calibrated on; `slo` replaces its bounds. Raises
    UsageError for what cannot be read or simulated.
    """
    held = read(path)
    bounds = held.slo if slo is None else {"attainment_pct": bounds_of(slo)}
    own = None if backend is None else parse(backend)
    pairs = [pair for run in held.runs for pair in _pairs(held, run, own, bounds)]
    if not pairs:
        raise UsageError(
            f"'{path}': nothing was measured; give requests ttft_s and tpot_s, or runs metrics such as ttft_mean_s."
        )
    if slo is not None and not any(pair.metric == "attainment_pct" for pair in pairs):
        raise UsageError(f"--slo scores requests, and the requests of '{path}' have no ttft_s and tpot_s.")
    limits = [one for one in held.limits if slo is None or one.metric not in held.slo]
    setting = held.setting if backend is None else (*held.setting, f"Simulated by {backend}.")
    targets = tuple(
        target([pair for pair in pairs if not one.runs or pair.setting in one.runs], one.metric, one.how, one.limit,
               one.published)
        for one in limits
    )  # fmt: skip
    return Validation(held.name, held.title, setting, tuple(pairs), targets)


def _pairs(held: Deployment, run: Run, own: Spec | None, bounds: Mapping[str, Slo]) -> Iterator[Pair]:
    """What was measured of a run beside what is simulated; of several repeats their mean."""
    spec = own or run.backend
    if spec is None:
        raise UsageError(f"'{held.path}': run '{run.name}' has no backend; name one there, or with --backend sim:...")
    try:
        simulated = [times(one.traffic, simulator(spec)) for one in run.repeats]
    except BenchError as error:
        raise UsageError(f"'{held.path}', run '{run.name}': {error}") from None
    if not all(len(one.ttft_s) for one in simulated):
        raise UsageError(f"'{held.path}', run '{run.name}': no simulated request ended well.")
    for metric, measured in _measured(held, run, bounds).items():
        ours = _mean(simulated, metric, bounds)
        if isnan(measured) or isnan(ours):  # TPOT, where every answer is one token
            continue
        if metric.endswith("_s") and measured <= 0:
            raise UsageError(f"'{held.path}', run '{run.name}': {metric} must be above 0 s to be compared.")
        yield Pair(run.name, metric, measured, ours, run.calibrated and own is None, run.rate_rps, run.curve)


def _measured(held: Deployment, run: Run, bounds: Mapping[str, Slo]) -> dict[str, float]:
    """The metrics of a run: those of its row, else those of its requests; under other bounds those of its requests."""
    own = bounds is not held.slo
    of_row = {metric: value for metric, value in run.measured.items() if not own or metric not in held.slo}
    wanted = [] if run.measured else [metric for metric in held.metrics if not own or metric not in held.slo]
    real = [one.times for one in run.repeats if one.times is not None and len(one.times.ttft_s)]
    of_requests = [*bounds, *wanted] if own else wanted
    return of_row | ({metric: _mean(real, metric, bounds) for metric in of_requests} if real else {})


def _mean(repeats: Sequence[Times], metric: str, bounds: Mapping[str, Slo]) -> float:
    return float(np.mean([_value(one, metric, bounds) for one in repeats]))


def _value(seen: Times, metric: str, bounds: Mapping[str, Slo]) -> float:
    if metric in bounds:
        limits = {bound.metric: bound.limit for bound in bounds[metric].bounds}
        return seen.attainment_pct(limits.get("ttft", inf), limits.get("tpot", inf))
    match = METRIC.fullmatch(metric)
    assert match is not None
    if match["name"] is None:
        return seen.itl_s
    values = seen.ttft_s if match["name"] == "ttft" else seen.tpot_s[~np.isnan(seen.tpot_s)]
    if not len(values):
        return nan
    percentile = match["percentile"]
    return float(values.mean() if percentile is None else np.quantile(values, float(percentile) / 100))
