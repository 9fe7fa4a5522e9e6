"""The result of a run as printed rows: percentiles with bounds, counts by status, errors, rates."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, zip_longest
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import UNSET
from msgspec.structs import replace

from harness.api import ENDED_WELL
from harness.data.folder import Run
from harness.data.run_json import Described, RunInfo, ScoredBound
from harness.metrics.measure import ended_well, in_summary, metrics
from harness.metrics.summary import describe, percentiles_of
from harness.validity.client_warnings import tokens_text
from harness.validity.remote import of_held_back
from reports import _data, _format, _sending
from reports._format import clean
from reports._sending import Floor

MOST_CLASSES = 8
MOST_ERRORS = 3
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the percentile table, printed; `missed` when its share is below the goal.

    `values` are the mean, percentiles and the largest; empty texts where nothing was measured.

    `floor` is the client's own error, half of all and 99% of all, where it was measured.
    """

    name: str
    unit: str
    values: dict[str, str]
    bound: str
    met: str
    missed: bool
    floor: str = ""


@dataclass(frozen=True, slots=True)
class Client:
    """What the client says of the rows: its own error per metric, the bounds that stay open, the metrics unknown."""

    floors: Mapping[str, Floor] = field(default_factory=dict)
    unresolved: frozenset[str] = frozenset()
    unknown: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Result:
    """Numbers and printed rows; `broken` names percentile bounds.

    `bounded`: there is an SLO, and something to score. `attainment` is None where there is not, and where all bounds
    are on percentiles.

    Of an `overloaded` run no mean or percentile is printed: it would tell how long the run was.
    """

    total: int
    ok: int
    bounded: bool
    attainment: float | None
    goal: float
    passed: bool
    broken: tuple[str, ...]
    slo_text: str
    overloaded: bool
    rate_rps: float | None
    rows: tuple[Row, ...]


def result(run: Run) -> Result:
    """The result of a run as its summary has it."""
    slo, summary = _data.slo(run), run.info.summary
    bounds = summary.bounds
    total, ok = run.requests.num_rows, summary.status.get("ok", 0)
    overloaded = run.info.warning("overload") is not None
    measured = {} if overloaded else {**summary.metrics, **_largest(run, bounds)}
    return Result(
        total=total,
        ok=ok,
        bounded=bool(bounds)
        and (summary.attainment is not None or _by_percentile(bounds) or run.info.resolution.undecided),
        attainment=summary.attainment if bounds else None,
        goal=slo.goal,
        passed=bool(summary.passed) if bounds else ok == total > 0,
        broken=tuple(_bound_name(b) for b in bounds if b.percentile is not None and b.passed is False),
        slo_text=_slo_text(bounds, slo.goal),
        overloaded=overloaded,
        rate_rps=_sending.offered(run.info),
        rows=rows(measured, bounds, slo.goal, _client(run), _data.percentiles(run)),
    )


def _client(run: Run) -> Client:
    held = of_held_back(run)
    hidden = metrics().values() if held is not None and held.all() else ()
    unknown = frozenset(metric.name for metric in hidden if metric.needs_token_times)
    return Client(_sending.floors(run.info), frozenset(run.info.resolution.unresolved), unknown)


def rows(
    measured: Mapping[str, Described], bounds: Sequence[ScoredBound], goal: float, client: Client,
    percentiles: Sequence[str],
) -> tuple[Row, ...]:  # fmt: skip
    """One row per latency and per bound: a bound on all requests stands in the row of its metric."""
    plain = {b.metric: b for b in bounds if b.tag is None and b.percentile is None}
    largest = [name for name in plain if _data.pooled(name)]
    always = [metric.name for metric in in_summary()]
    extra = [name for name in plain if name not in (*always, *largest)]

    row = partial(_row, statistics=("mean", *percentiles, "max"), goal=goal, client=client)
    listed = [
        row(_data.label(name), name, measured.get(name), None if name in largest else plain.get(name))
        for name in (*always, *extra)
    ]
    listed += [row(_data.bound_label(n), n, measured.get(_data.bound_label(n)), plain[n]) for n in largest]
    separate = [b for b in bounds if b.tag is not None or b.percentile is not None]
    return (*listed, *(row(_bound_name(b), b.metric, None, b) for b in separate))


def _largest(run: Run, bounds: Iterable[ScoredBound], rows: np.ndarray | None = None) -> dict[str, Described]:
    """Percentiles of the largest value of each request (of those in `rows`), where a bound asks for it."""
    bounded = {b.metric for b in bounds if b.tag is None and b.percentile is None}
    ok = _data.answered(run) if rows is None else _data.answered(run) & rows
    values = {name: _data.metric(run, name)[ok] for name in bounded if _data.pooled(name)}
    return {
        _data.bound_label(name): describe(worst[~np.isnan(worst)], None, percentiles_of(run.info.spec))
        for name, worst in values.items()
    }


def _row(
    name: str, metric: str, values: Described | None, bound: ScoredBound | None, *, statistics: Sequence[str],
    goal: float, client: Client,
) -> Row:  # fmt: skip
    floor, limit = client.floors.get(metric), bound.limit_s if bound else None
    measured = values.p99 if values else None
    base_unit = (values.unit if values else None) or "s"
    unit = _format.unit_of([measured, limit]) if base_unit == "s" else base_unit
    unit = "" if measured is None else unit  # the same of all rows without values
    error = "" if floor is None or not unit else _sending.pair(floor, unit)
    printed = dict.fromkeys(statistics, "")
    for statistic in statistics if values else ():
        # of a mean and a median the error is that of half of all
        error_s = 0.0 if floor is None else floor.p50_s if statistic in ("mean", "p50") else floor.p99_s
        printed[statistic] = _format.in_unit(values.at(statistic) if values else None, unit, error_s)
    limit_text, met, missed = "", "", False
    if bound is not None:
        limit_text = "per request" if limit is None else _format.limit(limit)
        met, missed = _met(bound, goal)
        if bound.text in client.unresolved:
            met, missed = f"{met} unresolved", False
    if metric in client.unknown:
        printed, met = {**dict.fromkeys(statistics, ""), "mean": "unknown"}, "unknown" if bound else ""
    return Row(clean(name, 60), unit, printed, limit_text, met, missed, error)


def _met(bound: ScoredBound, goal: float) -> tuple[str, bool]:
    """The share within a bound and whether that is too few; of a percentile bound, its value and verdict."""
    if bound.percentile is None:
        share = bound.attainment
        return _format.share(share, goal), share is not None and share < goal
    if bound.passed is None:
        return "-", False
    value = "too many failed" if bound.value_s is None else _format.seconds(bound.value_s)
    return f"{'met' if bound.passed else 'broken'} ({value})", not bound.passed


def _bound_name(bound: ScoredBound) -> str:
    return _data.bound_label(bound.metric, bound.percentile, bound.tag)


def _slo_text(bounds: list[ScoredBound], goal: float) -> str:
    if not bounds:
        return "none given"
    texts = ", ".join(
        f"{_bound_name(b)} " + ("as each request says" if b.limit_s is None else f"<= {_format.limit(b.limit_s)}")
        for b in bounds
    )
    return texts if _by_percentile(bounds) else f"{texts}, for {goal * 100:g}% of all requests"


def _by_percentile(bounds: Iterable[ScoredBound]) -> bool:
    """Whether all bounds are on percentiles of the run, so that no request is scored by itself."""
    return all(b.percentile is not None for b in bounds)


def span(info: RunInfo) -> str:
    """How long requests were sent, or measured."""
    window = info.summary.window_s
    if window is None and info.source:
        return "sent at unknown times"
    if (info.summary.requests or 0) < 2:
        return ""
    at_once = _sending.at_once(info)  # then the window is the time to the last token
    how = "measured" if info.warmup.requests else "sent"
    return f"{how} over {_format.seconds(window)}" if window and not at_once else "sent at one instant"


def counts(info: RunInfo) -> str:
    """The requests by how they ended, with their shares."""
    by_status = {"ok": 0, **info.summary.status}
    total = max(1, sum(by_status.values()))
    return ", ".join(f"{n:,} {clean(status)} ({_format.share(n / total)})"
                     for status, n in by_status.items() if n or status == "ok")  # fmt: skip


def flow(run: Run, result: Result) -> Iterator[str]:
    """Rates by the time of sending; of an overloaded run what was served up to the last answer, and no goodput."""
    info, summary = run.info, run.info.summary
    name, served, output = "", summary.throughput_rps, summary.output_tps
    if result.overloaded:
        name = "served "
        served, output = (None if v is UNSET else v for v in (info.request_throughput, info.output_throughput))
    yield f"{name}{_format.number(served)} req/s"
    if summary.bounds and _by_percentile(summary.bounds) and not result.overloaded:
        yield "goodput - (no bound on single requests)"
    elif summary.bounds and not result.overloaded:
        at_rate = f" at {_format.plain(result.rate_rps, 4)} req/s" if result.rate_rps else ""
        within = "the bounds on single requests" if summary.percentiles_passed else "the SLO"
        yield f"goodput {_format.number(summary.goodput_rps)} req/s (within {within}{at_rate})"
    yield f"output {_format.number(output)} tokens/s" + (" up to the last answer" if result.overloaded else "")
    if summary.tokens and summary.tokens.output and summary.status.get("ok"):
        mean, streamed = (n / summary.status["ok"] for n in (summary.tokens.output, summary.tokens.streamed or 0))
        yield tokens_text(mean, streamed) + " an answer"
    if summary.preemptions:
        yield f"preemptions {summary.preemptions:,}{_preemption_cost(info.backend)}"
    yield from _cluster(info.backend)
    yield from _found(run)


def _preemption_cost(backend: Mapping[str, Any]) -> str:
    """What preemption cost, where the backend says so."""
    cost = [
        f"{backend[name]:,} {words}"
        for name, words in (("recomputed_tokens", "tokens recomputed"), ("swapped_blocks", "blocks swapped"))
        if isinstance(backend.get(name), int)
    ]
    return f" ({', '.join(cost)})" if cost else ""


def _cluster(backend: Mapping[str, Any]) -> Iterator[str]:
    """What a simulated cluster lost between its replicas and stages, where the backend says so."""
    overflows, bubbles = backend.get("handoff_overflows"), backend.get("bubble_share")
    if isinstance(overflows, int) and overflows:
        yield f"{overflows:,} hand-offs without room"
    if isinstance(loads := backend.get("adapter_loads"), int) and loads:
        mean_time = _format.seconds(backend["adapter_load_s"])
        yield f"{_format.count(loads, 'load')} of adapters into {backend['adapter_slots']:,} slots, {mean_time} each"
    for tier in backend.get("tiers", ()):
        hits = _format.share(tier["hit_tokens"] / max(1, tier["queried_tokens"]))
        loaded, written = (f"{_format.number(tier[way] / 1e9)} GB" for way in ("load_bytes", "store_bytes"))
        name, wait = clean(tier["name"], 40), _format.seconds(tier["wait_s"] / max(1, tier["loads"]))
        yield f"{name} had {hits} of the prompt tokens: {loaded} loaded ({wait} each time), {written} written"
    if isinstance(bubbles, float):
        yield f"bubbles {_format.share(bubbles)} of busy stages"


def _found(run: Run) -> Iterator[str]:
    """What the prefix cache of a simulator or engine saved, and what came before."""
    described = [run.info.summary.run_metrics.get(name) for name in ("cache_best", "cache_prompts")]
    shares = [_format.share(metric.mean) for metric in described if metric is not None and metric.mean is not None]
    best = f" ({' came before, '.join(shares)} {'in prompts' if shares[1:] else 'came before'})" if shares else ""
    if run.info.backend.get("prefix_cache") is True:
        cached, prompt = (pc.sum(run.requests.column(name)).as_py() or 0 for name in ("cached_tokens", "prompt_tokens"))
        yield f"prefix cache found {_format.share(cached / prompt if prompt else 0.0)} of the prompt tokens{best}"


def classes(run: Run, result: Result) -> Iterator[tuple[str, tuple[Row, ...]]]:
    """Percentiles of each class of traffic with what it is, when there are several, the largest first."""
    # all gaps of a large run are too many
    names = [m.name for m in in_summary() if run.whole is None or not m.pooled]
    percentiles = percentiles_of(run.info.spec)
    for tag, in_class in _data.classes(run, MOST_CLASSES):
        bounds = [
            replace(b, tag=None)
            for b in run.info.summary.bounds if tag is not None and b.tag == tag and b.percentile is None
        ]  # fmt: skip
        measured: dict[str, Described] = {}
        if not result.overloaded:
            ok = in_class & _data.answered(run)
            measured = {name: describe(_values(run, name, ok), metrics()[name].unit, percentiles) for name in names}
            measured |= _largest(run, bounds, in_class)
        failed = int(np.sum(in_class & ~ended_well(run.requests)))
        name = "without a class" if tag is None else f"of class {clean(tag, 60)}"
        note = f"{_format.count(int(in_class.sum()), 'request')} {name}, {failed:,} failed"
        yield note, rows(measured, bounds, result.goal, _client(run), _data.percentiles(run))


def _values(run: Run, name: str, ok: np.ndarray) -> np.ndarray:
    """The finite values of a metric over the requests in `ok`, a copy."""
    if _data.pooled(name):
        return _data.seen(run).sample(name, ok)
    values = _data.metric(run, name)[ok]
    finite: np.ndarray = values[np.isfinite(values)]
    return finite


def errors(table: pa.Table) -> Iterator[tuple[str, str, str]]:
    """The most frequent kinds of error (status, text, count), and how many kinds there are besides.

    Texts that differ only in numbers are one kind; those that differ become N.
    """
    failed = pc.and_(pc.invert(pc.is_in(table["status"], pa.array(ENDED_WELL))), pc.is_valid(table["error"]))
    named = table.select(["status", "error"]).filter(failed)
    if named.num_rows:  # else grouping would load a module of pyarrow
        named = named.group_by(["status", "error"]).aggregate([([], "count_all")])
    kinds: dict[tuple[str, str], list[tuple[str, int]]] = defaultdict(list)
    for row in named.to_pylist():
        text = clean(row["error"], 300)
        kinds[clean(row["status"]), _NUMBER.sub("N", text)].append((text, row["count_all"]))
    ranked = sorted((-sum(n for _, n in texts), key) for key, texts in kinds.items())
    for n, key in ranked[:MOST_ERRORS]:
        texts = [text for text, _ in kinds[key]]
        columns = zip(*map(_NUMBER.findall, texts), strict=True)
        printed = [numbers[0] if len(set(numbers)) == 1 else "N" for numbers in columns]
        between = zip_longest(_NUMBER.split(texts[0]), printed, fillvalue="")
        yield key[0], "".join(chain.from_iterable(between)), f"{-n:,}"
    if more := ranked[MOST_ERRORS:]:
        text = f"and {len(more):,} more (see the column error of requests.parquet)"
        yield "", text, f"{-sum(n for n, _ in more):,}"
