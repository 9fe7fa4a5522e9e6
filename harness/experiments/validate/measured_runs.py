"""Measured runs of a deployment simulated and scored: the requests of its tables, each run by its own backend."""

from collections.abc import Iterator, Mapping, Sequence
from math import isnan, nan
from pathlib import Path

import numpy as np

from harness.api import Slo
from harness.errors import BenchError, UsageError
from harness.experiments.fit import requests
from harness.experiments.fit.requests import fit_with_kv, with_kv
from harness.experiments.validate.answer import Pair, Validation, target, validation
from harness.experiments.validate.measurements import (
    METRIC,
    QUANTILES,
    Deployment,
    Run,
    Times,
    bounds_of,
    of_table,
    read,
    simulator,
    times,
)
from harness.metrics.objective import met_bounds
from harness.spec import Spec, parse


def validate(path: Path, backend: str | None = None, slo: str | None = None, latency: str | None = None) -> Validation:
    """Simulate every run of a TOML file of measurements or of a table, and score what the calibration did not see.

    `backend` replaces those of the file, and then no run counts as calibrated on; `slo` replaces its bounds. With a
    `latency` model each run is simulated by that model, fitted on all others. Raises UsageError for what cannot be read
    or simulated.
    """
    if path.suffix == ".toml":
        held = read(path)
    else:
        held = Deployment(path, path.stem, path.stem, (), tuple(of_table(path)), QUANTILES, {}, ())
    bounds = held.slo if slo is None else {"attainment_pct": bounds_of(slo)}
    sim = None if backend is None else parse(backend)
    fitted = {} if latency is None else _fitted(held, sim, latency)
    fresh = sim is not None or latency is not None
    pairs = [
        pair for run in held.runs for pair in _pairs(held, run, fitted.get(run.name, sim or run.backend), bounds, fresh)
    ]
    if not pairs:
        raise UsageError(
            f"'{path}': nothing was measured; give requests ttft_s and tpot_s, or runs metrics such as ttft_mean_s."
        )
    if slo is not None and not any(pair.metric == "attainment_pct" for pair in pairs):
        raise UsageError(f"--slo scores requests, and the requests of '{path}' have no ttft_s and tpot_s.")
    limits = [row for row in held.limits if slo is None or row.metric not in held.slo]
    setting = held.setting if backend is None else (*held.setting, f"Simulated by {backend}.")
    if latency is not None:
        setting = (*setting, f"Each run is simulated with a model '{latency}' fitted on all others.")
    targets = [
        target([pair for pair in pairs if not row.runs or pair.setting in row.runs], row.metric, row.how, row.limit,
               row.published)
        for row in limits
    ]  # fmt: skip
    return validation(held.name, held.title, setting, pairs, targets)


def _fitted(held: Deployment, own: Spec | None, latency: str) -> dict[str, Spec]:
    """The backend of each run, with the latency model that was fitted on the runs of other names."""
    specs = {run.name: spec for run in held.runs if (spec := own or run.backend) is not None}
    if len({run.name for run in held.runs}) < 2:
        raise UsageError(f"'{held.path}' has one run; leaving one out needs two or more.")
    seen = {run.name: requests.of_measurements(run, held.path) for run in held.runs}
    backends: dict[str, Spec] = {}
    for name, spec in specs.items():
        plain = Spec(spec.name, {key: value for key, value in spec.args.items() if key != "latency"}, spec.first)
        rest = [seen[other] for other in specs if other != name and specs[other] == spec]
        if not rest:
            raise UsageError(
                f"'{held.path}', run '{name}': no other run has its backend, so nothing is there to fit on."
            )
        masks = [np.full(len(measured), True) for measured in rest]
        constants, _, memory = fit_with_kv(latency, rest, masks, plain, {})
        if memory is not None and memory.tokens is not None:
            plain = with_kv(plain, memory.tokens)
        backends[name] = requests.spec_of(latency, constants, plain)
    return backends


def _pairs(held: Deployment, run: Run, spec: Spec | None, bounds: Mapping[str, Slo], again: bool) -> Iterator[Pair]:
    """What was measured of a run beside what is simulated; of several repeats their mean.

    `again`: not by the backend of the file, so that nothing was calibrated on the run.
    """
    if spec is None:
        raise UsageError(f"'{held.path}': run '{run.name}' has no backend; name one there, or with --backend sim:...")
    try:
        simulated = [times(repeat.traffic, simulator(spec)) for repeat in run.repeats]
    except BenchError as error:
        raise UsageError(f"'{held.path}', run '{run.name}': {error}") from None
    if not all(len(repeat.ttft_s) for repeat in simulated):
        raise UsageError(f"'{held.path}', run '{run.name}': no simulated request ended well.")
    for metric, measured in _measured(held, run, bounds).items():
        obtained = _mean(simulated, metric, bounds)
        if isnan(measured) or isnan(obtained):  # TPOT, where every answer is one token
            continue
        if metric.endswith("_s") and measured <= 0:
            raise UsageError(f"'{held.path}', run '{run.name}': {metric} must be above 0 s to be compared.")
        yield Pair(run.name, metric, measured, obtained, run.calibrated and not again, run.rate_rps, run.curve)


def _measured(held: Deployment, run: Run, bounds: Mapping[str, Slo]) -> dict[str, float]:
    """The metrics of a run: those of its row, else those of its requests; under other bounds those of its requests."""
    replaced = bounds is not held.slo
    of_row = {metric: value for metric, value in run.measured.items() if not replaced or metric not in held.slo}
    missing = [] if run.measured else [metric for metric in held.metrics if not replaced or metric not in held.slo]
    real = [repeat.times for repeat in run.repeats if repeat.times is not None and len(repeat.times.ttft_s)]
    of_requests = [*bounds, *missing] if replaced else missing
    return of_row | ({metric: _mean(real, metric, bounds) for metric in of_requests} if real else {})


def _mean(repeats: Sequence[Times], metric: str, bounds: Mapping[str, Slo]) -> float:
    return float(np.mean([_value(repeat, metric, bounds) for repeat in repeats]))


def _value(seen: Times, metric: str, bounds: Mapping[str, Slo]) -> float:
    if metric in bounds:
        met = met_bounds({"ttft": seen.ttft_s, "tpot": seen.tpot_s}, bounds[metric].bounds)
        return 100 * float(met.sum()) / (len(met) + seen.missed)
    match = METRIC.fullmatch(metric)
    assert match is not None
    if match["name"] is None:
        return seen.itl_s
    values = seen.ttft_s if match["name"] == "ttft" else seen.tpot_s[~np.isnan(seen.tpot_s)]
    if not len(values):
        return nan
    percentile = match["percentile"]
    return float(values.mean() if percentile is None else np.quantile(values, float(percentile) / 100))
