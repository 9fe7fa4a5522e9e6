"""A first guess of linear constants from results of requests: which of them decoded together was measured.

The time from the first token to the last is so many steps, each with the sequences and the context that were there on
the average, and with the prompts that came between.

A latency model from results of requests: their arrivals and lengths are simulated, and the constants are searched.

Steps are unknown here, so the simulator needs the policy and the memory of the system that was measured.

How much KV memory the measured system had, where its requests tell, is the size that simulates their waits best. A
larger memory changes nothing as long as no request had to wait for it, so the requests tell a size only where their
errors with it are surely smaller than without any limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import cast

import numpy as np

from harness import registry
from harness.api import Request, Simulator
from harness.errors import UsageError, no_such
from harness.experiments import imports
from harness.experiments.fit.fit_json import Score
from harness.experiments.fit.solve import estimate, identify, score
from harness.experiments.fit.steps import numbers
from harness.experiments.validate import measurements
from harness.experiments.validate.measurements import Run, sent_again
from harness.metrics.measure import metrics, per_request
from harness.spec import Spec

NAMES = ("base_s", "prefill_token_s", "decode_seq_s", "context_token_s", "front_end_s")

BLOCK_TOKENS = 16
KV_STEPS = np.geomspace(0.6, 3.0, 28)
"""Sizes that are tried, as multiples of what was under way at once: a preempted request held nothing for a while."""
KV_ROUNDS = 4
SURE = 3.0
"""Standard errors by which errors must differ."""
LOTS = 20
"""Neighbouring requests wait for the same memory: their errors count together, in so many lots of a run."""
FORMS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "linear": NAMES,
        "mixed": ("floor_s", "token_s", "seq_s", "context_token_s", "front_end_s"),
    }
)
"""What is searched in each latency model; those of `mixed` in the order of `linear`."""
QUEUED = 5.0
"""A request has queued where its TTFT or TPOT is so many times the median of the run with the shortest."""
ROUNDS, HEED, PATIENCE = 16, 0.7, 3
"""How often constants are corrected by what the guess gets wrong of simulated times, by how much of it, and how many
turns may go by without a gain."""


@dataclass(frozen=True, slots=True)
class Guess:
    """Constants of `linear`, and half the width of the 95 % interval of each that was not given."""

    values: Mapping[str, float]
    plus_minus: Mapping[str, float]


def guess(
    runs: Sequence[Measured], fixed: Mapping[str, float], replicas: int = 1, *, together: bool = True,
    strict: bool = False,
) -> Guess:  # fmt: skip
    """The constants of `linear`, not negative; `fixed` are known before.

    They are off by what an average hides. With `strict` raises UsageError where the requests do not tell a constant.
    """
    most_s = [QUEUED * min(map(_median, times)) for times in ([r.ttft_s for r in runs], [r.tpot_s for r in runs])]
    parts = [_rows(run.take(np.isfinite(run.ttft_s)), replicas, most_s, together) for run in runs]
    matrix, seconds = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
    usable = np.isfinite(seconds) & (seconds > 0)
    matrix, seconds = matrix[usable], seconds[usable]
    free = [i for i, name in enumerate(NAMES) if name not in fixed]
    fixed_s = matrix @ np.array([fixed.get(name, 0.0) for name in NAMES])
    if strict:
        identify([NAMES[i] for i in free], matrix[:, free] / seconds[:, None])
    fitted, spread = estimate(matrix[:, free], seconds, fixed_s)
    values = {**dict(zip([NAMES[i] for i in free], fitted.tolist(), strict=True)), **fixed}
    widths = dict(zip([NAMES[i] for i in free], spread.tolist(), strict=True))
    return Guess({name: values[name] for name in NAMES}, widths)


def _median(times_s: np.ndarray) -> float:
    """That of the times that are known; infinite where none is."""
    finite_s = times_s[np.isfinite(times_s)]
    return float(np.median(finite_s)) if len(finite_s) else np.inf


def _rows(run: Measured, replicas: int, most_s: Sequence[float], together: bool) -> tuple[np.ndarray, np.ndarray]:
    """((rows, constants), (rows,) seconds): a row for the answer of each request, and one for its first token.

    Above `most_s` (TTFT, TPOT) they are left out: such requests have queued, for memory or behind steps of decodes,
    which the row does not tell. `together`: prompts run between the decodes, not on GPUs of their own.
    """
    first_s = run.arrival_s + run.ttft_s
    steps = np.maximum(run.output_tokens - 1, 0)
    last_s = first_s + np.nan_to_num(run.tpot_s) * steps
    long_s = np.maximum(last_s - first_s, 1e-9)
    context = run.prompt_tokens + run.output_tokens / 2
    beside = _mean(first_s, last_s, np.ones(len(run)), first_s, last_s) / long_s / replicas
    read = _mean(first_s, last_s, context, first_s, last_s) / long_s / replicas
    between = _prompts(first_s, run.prompt_tokens, first_s, last_s) / replicas * together
    zeros, ones = np.zeros(len(run)), np.ones(len(run))
    answers = np.stack([steps, between, steps * beside, steps * read, zeros], axis=1)
    ahead = _prompts(first_s, run.prompt_tokens, run.arrival_s, first_s) / replicas
    firsts = np.stack([ones, np.maximum(ahead, run.prompt_tokens), zeros, zeros, ones], axis=1)
    return np.concatenate([answers, firsts]), np.concatenate(
        [
            np.where((steps > 0) & (run.tpot_s <= most_s[1]), run.tpot_s * steps, np.nan),
            np.where(run.ttft_s <= most_s[0], run.ttft_s, np.nan),
        ]
    )


def _mean(
    start_s: np.ndarray, end_s: np.ndarray, weight: np.ndarray, low_s: np.ndarray, high_s: np.ndarray
) -> np.ndarray:
    """(rows,) integral from low to high of the summed weights of the intervals that are open."""
    at_s = np.concatenate([start_s, end_s])
    order = np.argsort(at_s, kind="stable")
    at_s, level = at_s[order], np.cumsum(np.concatenate([weight, -weight])[order])
    area = np.concatenate([[0.0], np.cumsum(level[:-1] * np.diff(at_s))])
    integral: np.ndarray = np.interp(high_s, at_s, area) - np.interp(low_s, at_s, area)
    return integral


def _prompts(first_s: np.ndarray, tokens: np.ndarray, low_s: np.ndarray, high_s: np.ndarray) -> np.ndarray:
    """(rows,) prompt tokens of the requests whose first token came after low, and not after high."""
    order = np.argsort(first_s, kind="stable")
    total = np.concatenate([[0.0], np.cumsum(tokens[order])])
    places = [np.searchsorted(first_s[order], at_s, side="right") for at_s in (low_s, high_s)]
    between: np.ndarray = total[places[1]] - total[places[0]]
    return between


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """The requests of one run that ended well, in order of arrival, each (requests,); TPOT is nan for one token.

    `users`: it was a closed loop, in which so many were under way at once.
    """

    name: str
    arrival_s: np.ndarray
    prompt_tokens: np.ndarray
    output_tokens: np.ndarray
    ttft_s: np.ndarray
    tpot_s: np.ndarray
    users: int | None = None

    def __len__(self) -> int:
        return len(self.arrival_s)

    def take(self, which: np.ndarray) -> Measured:
        """The requests that the mask shows."""
        columns = ("arrival_s", "prompt_tokens", "output_tokens", "ttft_s", "tpot_s")
        return replace(self, **{name: getattr(self, name)[which] for name in columns})

    def requests(self) -> list[Request]:
        """What to simulate."""
        columns = (self.arrival_s.tolist(), self.prompt_tokens.tolist(), self.output_tokens.tolist())
        return [Request(i, at_s, int(p), int(o)) for i, (at_s, p, o) in enumerate(zip(*columns, strict=True))]


def read(paths: Sequence[str]) -> list[Measured]:
    """The runs at these places: run folders, results of other tools, tables of requests or TOML files of measurements.

    In a table (parquet, CSV) a column `run` tells runs apart.
    """
    return [run for path in paths for run in _of(Path(path))]


def of_measurements(run: Run, path: Path) -> Measured:
    """The requests of a measured run; of several repeats the first."""
    first = run.repeats[0]
    if first.times is None:
        raise UsageError(f"'{path}', run '{run.name}': a fit needs ttft_s and tpot_s of its requests.")
    sent, seen = first.traffic, first.times
    columns = (sent.arrival_s, sent.prompt_tokens.astype(float), sent.output_tokens.astype(float))
    return _kept(run.name, *(column[first.ended] for column in columns), seen.ttft_s, seen.tpot_s, users=sent.users)


def _of(path: Path) -> list[Measured]:
    if path.suffix in (".toml", ".csv", ".parquet"):
        runs = measurements.read(path).runs if path.suffix == ".toml" else measurements.of_table(path)
        return [of_measurements(run, path) for run in runs]
    measured = []
    for run in imports.open(path):
        rows = run.requests.filter(run.requests["status"].to_numpy(zero_copy_only=False) == "ok")
        names = ("scheduled_s", "prompt_tokens", "output_tokens")
        at_s, prompt, output = (numbers(rows, name, run.path) for name in names)
        ttft_s, tpot_s = (per_request(metrics()[name], rows) for name in ("ttft", "tpot"))
        measured.append(_kept(str(run.path), at_s, prompt, output, ttft_s, tpot_s))
    return measured


def _kept(name: str, *columns: np.ndarray, users: int | None = None) -> Measured:
    good = np.all([np.isfinite(column) for column in columns[:4]], axis=0) & (columns[1] > 0) & (columns[2] > 0)
    if good.sum() < 10:
        raise UsageError(f"'{name}' tells the times of {int(good.sum())} requests; at least 10 are needed.")
    order = np.flatnonzero(good)[np.argsort(columns[0][good], kind="stable")]
    at_s, prompt, output, ttft_s, tpot_s = (column[order] for column in columns)
    return Measured(name, at_s - at_s[0], prompt, output, np.maximum(ttft_s, 1e-6), tpot_s, users)


def fit(
    latency: str, runs: Sequence[Measured], seen: Sequence[np.ndarray], backend: Spec, fixed: Mapping[str, float]
) -> tuple[dict[str, float], dict[str, float]]:
    """(constants, half widths of their 95 % intervals), from the requests of each run that its mask `seen` shows.

    The simulated requests give the guess that the measured ones give. Raises UsageError for constants that the requests
    do not tell.

    Note: single times jump where a request slips into another batch, so that slopes of their errors lead nowhere; the
    guess averages over all requests and does not (indirect inference: Gourieroux, Monfort, Renault, 1993).
    """
    form = FORMS.get(latency)
    if form is None:
        raise UsageError(
            f"Requests identify the latency models {' and '.join(FORMS)}, not '{latency}'; others need --steps."
        )
    for name in fixed:
        if name not in form:
            raise no_such(f"constant of {latency}", name, form)
    shown = [(run, mask) for run, mask in zip(runs, seen, strict=True) if mask.any()]
    names = dict(zip(NAMES, form, strict=True))
    plain_fixed = {plain: fixed[name] for plain, name in names.items() if name in fixed}
    _simulator(latency, _named(names, dict.fromkeys(NAMES, 0.001)), backend)  # a wrong spec is reported first
    options = backend.args
    replicas, together = int(options.get("replicas", 1)), "decode" not in options
    measured = guess([run.take(mask) for run, mask in shown], plain_fixed, replicas, together=together, strict=True)
    constants, best, least = dict(measured.values), dict(measured.values), np.inf
    best_in = 0
    for turn in range(ROUNDS):
        if turn - best_in > PATIENCE:
            break
        times = [simulated(run, latency, _named(names, constants), backend) for run, _ in shown]
        errors = np.concatenate([errors_of(run, mask, t) for (run, mask), t in zip(shown, times, strict=True)])
        if (error := float(np.median(np.abs(errors)))) < least:
            least, best, best_in = error, dict(constants), turn
        sim_runs = [
            replace(run, ttft_s=ttft_s, tpot_s=tpot_s).take(mask)
            for (run, mask), (ttft_s, tpot_s) in zip(shown, times, strict=True)
        ]
        obtained = guess(sim_runs, plain_fixed, replicas, together=together)
        for name in measured.plus_minus:
            wrong = measured.values[name] - obtained.values[name]
            constants[name] = max(constants[name] + HEED * wrong, 0.0)
    return _named(names, best), _named(names, measured.plus_minus)


def _named(names: Mapping[str, str], values: Mapping[str, float]) -> dict[str, float]:
    return {names[name]: value for name, value in values.items()}


def simulated(
    run: Measured, latency: str, constants: Mapping[str, float], backend: Spec
) -> tuple[np.ndarray, np.ndarray]:
    """(TTFT, TPOT) of each request, (requests,) seconds, nan for a request that did not end well."""
    simulator = _simulator(latency, constants, backend)
    times_s = np.full((2, len(run)), np.nan)
    for record in sent_again(simulator, run.requests(), run.users):
        if record.status == "ok":
            times_s[:, record.request_id] = record.ttft_s, record.tpot_s  # None is NaN there
    return times_s[0], times_s[1]


def _simulator(latency: str, constants: Mapping[str, float], backend: Spec) -> Simulator:
    """The simulator of the spec, with that latency model. Raises UsageError."""
    return cast("Simulator", registry.make("backends", spec_of(latency, constants, backend), log_steps=False))


def spec_of(latency: str, constants: Mapping[str, float], backend: Spec) -> Spec:
    """The backend with the latency model of these constants."""
    source = {"constants": "given"} if latency == "mixed" else {}
    arguments = {**source, **{name: repr(float(value)) for name, value in constants.items()}}
    return Spec(backend.name, {**backend.args, "latency": str(Spec(latency, arguments))}, backend.first)


def errors_of(run: Measured, mask: np.ndarray, times: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Logarithms of simulated over measured times; a request that did not end counts as ten times too slow."""
    parts = []
    for obtained, measured in zip(times, (run.ttft_s, run.tpot_s), strict=True):
        valid = mask & np.isfinite(measured) & (measured > 0)
        ratio = np.log(np.maximum(obtained[valid], 1e-9) / measured[valid])
        parts.append(np.where(np.isfinite(ratio), ratio, np.log(10.0)))
    errors: np.ndarray = np.concatenate(parts)
    return errors


def scores(
    runs: Sequence[Measured], masks: Sequence[np.ndarray], latency: str, constants: Mapping[str, float], backend: Spec
) -> list[Score]:
    """Errors of TTFT and TPOT of the requests that the masks show."""
    pairs: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {"TTFT": [], "TPOT": []}
    for run, mask in zip(runs, masks, strict=True):
        if mask.any():
            times = simulated(run, latency, constants, backend)
            for name, obtained, measured in zip(pairs, times, (run.ttft_s, run.tpot_s), strict=True):
                valid = mask & np.isfinite(measured) & np.isfinite(obtained) & (measured > 0)
                pairs[name].append((measured[valid], obtained[valid]))
    per_metric = []
    for name, parts in pairs.items():
        measured, obtained = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
        scored = score(name, measured, obtained)
        if scored is not None:
            per_metric.append(scored)
    return per_metric


def split(runs: Sequence[Measured], share: float, seed: int) -> list[np.ndarray]:
    """What the fit may see of each run: of several runs whole ones are held out, of one run its last requests."""
    if len(runs) == 1:
        return [np.arange(len(runs[0])) < round((1 - share) * len(runs[0]))]
    held = np.random.default_rng(seed).permutation(len(runs))[: max(1, round(share * len(runs)))]
    return [np.full(len(run), place not in held) for place, run in enumerate(runs)]


@dataclass(frozen=True, slots=True)
class KvSize:
    """`tokens` of KV memory of a replica; None where the requests do not tell. `under_way` were at once, at most."""

    tokens: int | None
    under_way: int


def kv_size(
    shown: Sequence[tuple[Measured, np.ndarray]], latency: str, constants: Mapping[str, float], backend: Spec
) -> KvSize | None:
    """The size of the KV memory of each replica; None where the backend says it, or has sides with memory of their own.

    Raises UsageError for a backend that does not simulate.
    """
    if {"kv_blocks", "kv", "prefill", "decode"} & backend.args.keys():
        return None
    replicas = int(backend.args.get("replicas", 1))
    longest = max(float((run.prompt_tokens + run.output_tokens).max()) for run, _ in shown)
    held = max(longest, *(_held(run) / replicas for run, _ in shown))
    sizes = [BLOCK_TOKENS * int(np.ceil(max(longest, held * step) / BLOCK_TOKENS)) for step in KV_STEPS]

    usual_s = min(float(np.median(run.ttft_s)) for run, _ in shown)
    waited = [(run, mask & (run.ttft_s > QUEUED * usual_s)) for run, mask in shown]
    if not any(mask.sum() > LOTS for _, mask in waited):
        return KvSize(None, round(held))

    def lots(spec: Spec) -> np.ndarray:
        means = []
        for run, mask in waited:
            errors = np.abs(errors_of(run, mask, simulated(run, latency, constants, spec)))[: mask.sum()]  # of TTFT
            means += [float(lot.mean()) for lot in np.array_split(errors, LOTS) if len(lot)]
        return np.array(means)

    plenty = lots(with_kv(backend, BLOCK_TOKENS * int(np.ceil(50 * held / BLOCK_TOKENS))))
    lot_errors = [lots(with_kv(backend, size)) for size in sizes]
    best = int(np.argmin([row.mean() for row in lot_errors]))
    worse = plenty - lot_errors[best]  # lot by lot
    sure = worse.mean() > SURE * worse.std(ddof=1) / np.sqrt(len(worse))
    return KvSize(sizes[best] if sure else None, round(held))


def with_kv(backend: Spec, tokens: int) -> Spec:
    """The backend with so much KV memory."""
    return Spec(backend.name, {**backend.args, "kv_blocks": str(tokens // BLOCK_TOKENS)}, backend.first)


def _held(run: Measured) -> float:
    """The most tokens that were under way at once, from the first token of a request to its last."""
    first_s = run.arrival_s + run.ttft_s
    last_s = first_s + np.nan_to_num(run.tpot_s) * np.maximum(run.output_tokens - 1, 0)
    per_s = run.output_tokens / np.maximum(last_s - first_s, 1e-9)
    at_s = np.concatenate([first_s, last_s])
    order = np.argsort(at_s, kind="stable")
    gaps_s = np.diff(at_s[order], prepend=at_s[order[0]])
    rate = np.concatenate([[0.0], np.cumsum(np.concatenate([per_s, -per_s])[order])[:-1]])  # tokens/s before each time
    jumps = np.concatenate([run.prompt_tokens, -(run.prompt_tokens + run.output_tokens)])[order]
    return float(np.max(np.cumsum(rate * gaps_s + jumps), initial=0.0))


def fit_with_kv(
    latency: str, runs: Sequence[Measured], masks: Sequence[np.ndarray], backend: Spec, fixed: Mapping[str, float]
) -> tuple[dict[str, float], dict[str, float], KvSize | None]:
    """(constants, half widths of their intervals, KV memory) from the requests that the masks show.

    Constants and memory explain the same waits, so each is found again with the other. Raises UsageError as `fit` does.
    """
    masked = [(run, mask) for run, mask in zip(runs, masks, strict=True) if mask.any()]
    constants, spread = fit(latency, runs, masks, backend, fixed)
    size = kv_size(masked, latency, constants, backend)
    for _ in range(KV_ROUNDS):
        if size is None or size.tokens is None:
            break
        constants, spread = fit(latency, runs, masks, with_kv(backend, size.tokens), fixed)
        next_size = kv_size(masked, latency, constants, backend)
        if next_size is None or next_size.tokens is None or next_size.tokens == size.tokens:
            break
        size = next_size
    return constants, spread, size
