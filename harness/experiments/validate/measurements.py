"""Measurements of a real system as tables, and the same traffic simulated again.

A TOML file of the deployment stands beside a row a request, a row a run, or both; docs/guide/validate.md describes the
form. What is wrong with a file is one sentence with its name and what is allowed.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, TypeAlias, cast

import msgspec
import numpy as np
import numpy.typing as npt
import pandas as pd

from harness import registry, untrusted
from harness.api import Request, RequestRecord, Simulator, Slo
from harness.errors import UsageError, no_such
from harness.experiments.validate.answer import HOW, WORSE_HALF
from harness.metrics.objective import parse_slo
from harness.spec import Spec, parse

REQUEST_COLUMNS = ("run", "arrival_s", "prompt_tokens", "output_tokens", "ttft_s", "tpot_s", "repeat", "users")
RUN_COLUMNS = ("run", "backend", "requests", "calibrated", "rate_rps", "curve")
TEXTS = ("run", "backend", "requests", "calibrated", "curve")
METRIC = re.compile(r"(?P<name>ttft|tpot)_(?:mean|p(?P<percentile>\d{1,2}(?:\.\d+)?))_s|itl_mean_s")
METRICS = "ttft_mean_s, ttft_p90_s (any percentile), tpot_mean_s, tpot_p90_s, itl_mean_s"
QUANTILES = tuple(f"{name}_p{q}_s" for name in ("ttft", "tpot") for q in (50, 90, 99))
YES_OR_NO = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False, "": False}
Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Traffic:
    """The requests of a measured run, each (requests,): seconds, tokens, tokens.

    `users`: it was a closed loop, in which so many were under way at once; None: they arrived when they did.
    """

    arrival_s: Floats
    prompt_tokens: Ints
    output_tokens: Ints
    users: int | None = None

    def requests(self) -> list[Request]:
        """The requests in order of arrival."""
        order = np.argsort(self.arrival_s, kind="stable")
        rows = zip(self.arrival_s[order].tolist(), self.prompt_tokens[order].tolist(),
                   self.output_tokens[order].tolist(), strict=True)  # fmt: skip
        return [Request(i, at_s, prompt, output) for i, (at_s, prompt, output) in enumerate(rows)]


@dataclass(frozen=True, slots=True, eq=False)
class Times:
    """The times of the requests that ended well, each (requests,) seconds, measured or simulated.

    `tpot_s` is (last - first token) / (tokens - 1), NaN for a single token; `itl_s` is the mean of every gap between
    two tokens of all of them. `missed` more requests did not end well.
    """

    ttft_s: Floats
    tpot_s: Floats
    itl_s: float
    missed: int


@dataclass(frozen=True, slots=True, eq=False)
class Requests:
    """The requests of a run, and their measured times where the table has them: of those that `ended` well."""

    traffic: Traffic
    times: Times | None
    ended: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """A run: its backend (None: nothing names one), its requests in each repeat, and what was measured of it by metric.

    `calibrated` says that the backend was calibrated on it; `rate_rps` is its place on the `curve`.
    """

    name: str
    backend: Spec | None
    repeats: tuple[Requests, ...]
    measured: Mapping[str, float]
    calibrated: bool = False
    rate_rps: float | None = None
    curve: str = ""


class Limit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A target of the file: a limit on the error `how` over the pairs of a metric, of these runs (empty: of all)."""

    metric: str
    how: str
    limit: Annotated[float, msgspec.Meta(ge=0)]
    published: str = ""
    runs: tuple[str, ...] = ()


class _File(msgspec.Struct, frozen=True):
    """The TOML file; what its keys mean is in docs/guide/validate.md."""

    requests: str
    runs: str | None = None
    name: str | None = None
    title: str | None = None
    setting: tuple[str, ...] = ()
    backend: str | None = None
    backends: dict[str, dict[str, object]] = {}
    slo: str | dict[str, str] = {}
    metrics: tuple[str, ...] = ()
    targets: tuple[Limit, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Deployment:
    """What the files say. `metrics` are computed of requests; `slo` holds the bounds of each attainment by its name."""

    path: Path
    name: str
    title: str
    setting: tuple[str, ...]
    runs: tuple[Run, ...]
    metrics: tuple[str, ...]
    slo: Mapping[str, Slo]
    limits: tuple[Limit, ...]


def read(path: Path) -> Deployment:
    """The deployment of a TOML file and its tables. Raises UsageError for whatever they cannot be."""
    held = _toml(path)
    bounds = _bounds(path, held.slo)
    file = path.parent / held.requests
    needed = ("run", "arrival_s", "prompt_tokens", "output_tokens")
    requests = _requests(file, _frame(file, "requests", REQUEST_COLUMNS, needed))
    metrics = held.metrics or (*bounds, *QUANTILES)
    for metric in metrics:
        _check_metric(path, metric, bounds)
    backends = _backends(held.backends)
    if held.runs is None:
        default = _backend(held.backend, backends)
        runs = [Run(name, default, repeats, {}) for name, repeats in requests.items()]
    else:
        file = path.parent / held.runs
        runs = _runs(file, _frame(file, "runs", None, ("run",)), requests, bounds, backends, held.backend)
    for limit in held.targets:
        _check_limit(path, limit, bounds, [run.name for run in runs])
    name, title = held.name or path.stem, held.title or path.stem
    return Deployment(path, name, title, held.setting, tuple(runs), metrics, bounds, held.targets)


def of_table(file: Path) -> list[Run]:
    """The runs of a table of requests alone, and of one without the column `run` the only one."""
    frame = _frame(file, "requests", None, REQUEST_COLUMNS[1:6])
    if "run" not in frame:
        frame["run"] = str(file)
    return [Run(name, None, repeats, {}) for name, repeats in _requests(file, frame).items()]


def _toml(path: Path) -> _File:
    with untrusted.readable(f"'{path}'"):
        held = untrusted.read_toml(path)
    for key in held:
        if key not in _File.__struct_fields__:
            raise no_such(f"key of measurements ('{path}')", key, _File.__struct_fields__)
    try:
        return msgspec.convert(held, _File)
    except msgspec.ValidationError as error:
        raise UsageError(f"'{path}' is not a file of measurements: {error}.") from None


def _bounds(path: Path, given: str | Mapping[str, str]) -> dict[str, Slo]:
    """The bounds of each attainment: a text is those of `attainment_pct`, a table those of its names."""
    bounds = {}
    for name, text in ({"attainment_pct": given} if isinstance(given, str) else given).items():
        if not re.fullmatch(r"attainment\w*_pct", name):
            raise UsageError(f"'{path}': slo.{name} must be named attainment_..._pct.")
        bounds[name] = bounds_of(text)
    return bounds


def bounds_of(text: str) -> Slo:
    """Bounds that a request's TTFT and TPOT can be scored under. Raises UsageError for others."""
    slo = parse_slo(text)
    for bound in slo.bounds:
        if bound.metric not in ("ttft", "tpot") or bound.tag is not None or bound.percentile is not None:
            wrong = str(bound)
            raise UsageError(f"slo '{text}': measurements are scored by ttft and tpot of a request, not by '{wrong}'.")
    return slo


def _check_metric(path: Path, metric: str, bounds: Iterable[str], columns: Iterable[str] = ()) -> None:
    if metric not in bounds and METRIC.fullmatch(metric) is None:
        allowed = ", ".join([*columns, METRICS, *bounds])
        raise UsageError(f"'{path}': '{metric}' is no metric of measurements; allowed are {allowed}.")


def _backends(tables: Mapping[str, Mapping[str, object]]) -> dict[str, Spec]:
    """The tables of [backends.NAME]: options of `bench run` by their names; `backend` is sim where none says so."""
    backends: dict[str, Spec] = {}
    for name, table in tables.items():
        options = {key.replace("-", "_"): str(value) for key, value in table.items() if key != "backend"}
        spec = parse(str(table.get("backend", "sim")))
        backends[name] = Spec(spec.name, spec.args | options, spec.first)
    return backends


def _backend(given: str | None, backends: Mapping[str, Spec]) -> Spec | None:
    """The backend of that name, or of that spec."""
    if not given:
        return None
    if given in backends:
        return backends[given]
    spec = parse(given)
    if spec.name not in registry.names("backends"):
        raise no_such("backend", given, [*backends, *registry.names("backends")])
    return spec


def simulator(spec: Spec) -> Simulator:
    """The simulator of a spec. Raises UsageError for a backend that runs in real time."""
    if not issubclass(registry.find("backends", spec.name), Simulator):
        raise UsageError(f"backend '{spec.name}' runs in real time; name a simulator, such as sim:latency=file:PATH.")
    return cast("Simulator", registry.make("backends", spec, log_steps=False))


def _frame(file: Path, key: str, allowed: Sequence[str] | None, needed: Sequence[str]) -> pd.DataFrame:
    """The table that the TOML file names under a key."""
    if file.suffix not in (".csv", ".parquet"):
        raise UsageError(f"{key} = '{file}' must name a .csv or .parquet file.")
    with untrusted.readable(f"'{file}'"):
        csv = file.suffix == ".csv"
        frame = pd.read_csv(file, dtype=str, skipinitialspace=True) if csv else untrusted.read_parquet(file).to_pandas()
    for column in needed:
        if column not in frame:
            raise UsageError(f"'{file}' has no column {column}; its columns are {', '.join(map(str, frame.columns))}.")
    for column in frame.columns:
        if allowed is not None and column not in allowed:
            raise no_such(f"column of {key} ('{file}')", str(column), allowed)
    if frame.empty:
        raise UsageError(f"'{file}' has no row.")
    for column in TEXTS:
        if column in frame:
            frame[column] = frame[column].fillna("").astype(str).str.strip()
    return frame


def _numbers(file: Path, frame: pd.DataFrame, column: str, least: float, *, empty: bool = False) -> Floats:
    """(rows,) the numbers of a column, NaN where it is empty. Raises UsageError for others, with the row."""
    values = np.array([_number(cell) for cell in frame[column].tolist()])
    blank = frame[column].isna().to_numpy()
    wrong = np.flatnonzero(~(np.isfinite(values) & (values >= least)) & ~(blank & empty))
    if len(wrong):
        row, allowed = int(wrong[0]), f"a number of at least {least:g}{' or empty' if empty else ''}"
        got = "nothing" if blank[row] else f"'{frame[column].iloc[row]}'"
        raise UsageError(f"'{file}', row {row + 1}: {column} must be {allowed}, got {got}.")
    return values


def _number(cell: object) -> float:
    """The cell of a table; NaN where it is no number. Note: pandas' own parser of numbers rounds in the last bit."""
    try:
        return float(cell)  # type: ignore[arg-type]  # whatever it is
    except (TypeError, ValueError):
        return float("nan")


def _requests(file: Path, frame: pd.DataFrame) -> dict[str, tuple[Requests, ...]]:
    """The requests of each run, a part for each repeat."""
    counts = {column: _numbers(file, frame, column, 1) for column in ("prompt_tokens", "output_tokens")}
    arrival_s = _numbers(file, frame, "arrival_s", 0)
    measured = [_numbers(file, frame, c, 0, empty=True) for c in ("ttft_s", "tpot_s") if c in frame]
    if len(measured) == 1:
        raise UsageError(f"'{file}' has one of ttft_s and tpot_s; give both, or neither.")
    users = _numbers(file, frame, "users", 1, empty=True) if "users" in frame else np.full(len(frame), np.nan)
    names = frame["run"].to_numpy()
    repeats = frame["repeat"].to_numpy() if "repeat" in frame else np.zeros(len(frame))
    by_run: dict[str, tuple[Requests, ...]] = {}
    for name in dict.fromkeys(names.tolist()):
        parts = []
        for repeat in dict.fromkeys(repeats[names == name].tolist()):
            rows = (names == name) & (repeats == repeat)
            prompt, output = (counts[c][rows].astype(np.int64) for c in ("prompt_tokens", "output_tokens"))
            traffic = Traffic(arrival_s[rows], prompt, output, users_of(file, name, users[rows]))
            parts.append(
                measured_requests(traffic, *(values[rows] for values in measured))
                if measured
                else Requests(traffic, None, np.zeros(len(prompt), bool))
            )
        by_run[name] = tuple(parts)
    return by_run


def users_of(file: Path, run: str, values: Floats) -> int | None:
    """How many were under way at once in a closed loop, the same in every row; None where the column is empty."""
    distinct = np.unique(values[~np.isnan(values)])
    if not len(distinct):
        return None
    if len(distinct) > 1 or np.isnan(values).any() or distinct[0] < 1 or distinct[0] != round(distinct[0]):
        raise UsageError(
            f"'{file}', run '{run}': users must be one whole number in all rows of a run, or empty in all."
        )
    return int(distinct[0])


def measured_requests(traffic: Traffic, ttft_s: Floats, tpot_s: Floats) -> Requests:
    """What was measured; a request without a TTFT did not end well."""
    ended = ~np.isnan(ttft_s)
    gaps = np.where(np.isnan(tpot_s), 0, traffic.output_tokens - 1)[ended]
    total = float(gaps.sum())
    itl_s = float((np.nan_to_num(tpot_s[ended]) * gaps).sum()) / total if total else 0.0
    return Requests(traffic, Times(ttft_s[ended], tpot_s[ended], itl_s, int((~ended).sum())), ended)


def _runs(
    file: Path, frame: pd.DataFrame, requests: Mapping[str, tuple[Requests, ...]], bounds: Mapping[str, Slo],
    backends: Mapping[str, Spec], default: str | None,
) -> list[Run]:  # fmt: skip
    """A run for each row; columns that are not those of every run are metrics."""
    metrics = [str(column) for column in frame.columns if column not in RUN_COLUMNS]
    for metric in metrics:
        _check_metric(file, metric, bounds, RUN_COLUMNS)
    measured = {metric: _numbers(file, frame, metric, 0, empty=True) for metric in metrics}
    rates = _numbers(file, frame, "rate_rps", 0, empty=True) if "rate_rps" in frame else np.full(len(frame), np.nan)
    text = {c: frame[c].tolist() if c in frame else [""] * len(frame) for c in RUN_COLUMNS}
    runs = []
    for row, name in enumerate(text["run"]):
        source = text["requests"][row] or name
        if source not in requests:
            raise no_such(f"run with requests ('{file}', row {row + 1})", source, requests)
        seen = YES_OR_NO.get(text["calibrated"][row].lower())
        if seen is None:
            raise UsageError(f"'{file}', row {row + 1}: calibrated must be yes or no, got '{text['calibrated'][row]}'.")
        rate = None if np.isnan(rates[row]) else float(rates[row])
        values = {metric: float(column[row]) for metric, column in measured.items() if not np.isnan(column[row])}
        backend = _backend(text["backend"][row] or default, backends)
        runs.append(Run(name, backend, requests[source], values, seen, rate, text["curve"][row]))
    return runs


def _check_limit(path: Path, limit: Limit, bounds: Iterable[str], runs: Sequence[str]) -> None:
    """Raises UsageError for a target of what is not there."""
    if limit.metric not in ("ttft_s", "tpot_s"):
        _check_metric(path, limit.metric, bounds)
    if limit.how.removesuffix(f", {WORSE_HALF}") not in HOW:
        ways, how = ", ".join(HOW), limit.how
        raise UsageError(f"'{path}': how of a target must be one of {ways}, or one with ', {WORSE_HALF}'; got '{how}'.")
    for name in limit.runs:
        if name not in runs:
            raise no_such(f"run of a target ('{path}')", name, runs)


def times(traffic: Traffic, simulator: Simulator) -> Times:
    """The times of the simulated requests, in order of arrival."""
    return _times(list(sent_again(simulator, traffic.requests(), traffic.users)))


def sent_again(simulator: Simulator, requests: list[Request], users: int | None) -> Iterator[RequestRecord]:
    """The records of the requests: sent when they arrived, or of a closed loop, the next one whenever one is over."""
    if users is None:
        return simulator.simulate(requests)
    rest = iter(requests[users:])

    def next_one(record: RequestRecord) -> Iterable[Request]:
        ends_s = [record.scheduled_s, *record.token_s[-1:], *([] if record.ended_s is None else [record.ended_s])]
        return [replace(request, scheduled_s=max(ends_s)) for request in (next(rest, None),) if request is not None]

    return simulator.simulate(requests[:users], next_one)


def _times(records: list[RequestRecord]) -> Times:
    ended = sorted((r for r in records if r.status == "ok"), key=lambda r: r.request_id)
    spans_s = np.array([r.token_s[-1] - r.token_s[0] for r in ended])
    gaps = sum(r.output_tokens - 1 for r in ended)
    ttft_s, tpot_s = (np.array(times, dtype=np.float64)  # None is NaN there
                      for times in ([r.ttft_s for r in ended], [r.tpot_s for r in ended]))  # fmt: skip
    return Times(ttft_s, tpot_s, float(spans_s.sum()) / gaps if gaps else 0.0, len(records) - len(ended))
