"""What is compared, on which scale, and what of it decides: quantities of a run, and gates on them.

    --gate tpot=2%:5%,p99:ttft=10%:20%,latency_ms=2%:5%:lower
A gate names a quantity, the largest loss to ignore, and the smallest that must be found.

The numbers of the two runs of a pair: of the same requests, under the same SLO.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pyarrow as pa

from harness.api import Metric, Slo
from harness.data.folder import Run
from harness.data.held_back import HELD_BACK
from harness.data.lists import number
from harness.data.records import since
from harness.data.run_json import Described, Summary
from harness.errors import UsageError, no_such
from harness.experiments.compare.pairing import Pair, Searched, Source
from harness.metrics.measure import metrics, per_request, succeeded
from harness.metrics.objective import restored_slo
from harness.metrics.summary import summarize
from harness.stats.paired import Limits, steady_loss
from harness.validity import steady_state
from harness.validity.checks import LATENESS, Scores, decide_alike, failed_checks, from_sent
from harness.values import share_or_zero

Better = Literal["higher", "lower"]
Scale = Literal["ratio", "difference"]

_RATES = ("capacity_rps", "goodput_rps", "throughput_rps", "output_tps", "token_goodput_tps")
_SHARES: Mapping[str, Better] = {"attainment": "higher", "failed": "lower"}
MISSED = "missed "
"""What the share of runs that miss a bound on a percentile begins with; the bound follows."""


FEW_REQUESTS = 2
_USUAL = (0.02, 0.05)
_EXACT = ("goodput_rps", "ttft", "tpot", "failed")
_DEFAULTS: Mapping[str, tuple[float, float]] = {
    "capacity_rps": (0.02, 0.05),
    "tpot": (0.02, 0.05),
    "ttft": (0.05, 0.15),
    "failed": (0.005, 0.005),
}
_FORM = "write NAME=IGNORED:FOUND, such as tpot=2%:5%"
Values = dict[str, float | None]


def compared() -> Mapping[str, Metric]:
    """Metrics of which mean and percentiles are compared: the headlines first, then by name."""
    comparable = [metric for metric in metrics().values() if metric.compared is not None]
    return {m.name: m for m in sorted(comparable, key=lambda m: m.place if m.headline else math.inf)}


@dataclass(frozen=True, slots=True)
class Quantity:
    """One number of a run. Positive ones are compared as ratios, those that may be zero as differences."""

    name: str
    unit: str
    better: Better
    scale: Scale

    def loss(self, base: float | None, head: float | None) -> float | None:
        """How much worse the head is: ln of the ratio, or the difference. None where neither is known.

        Infinite where only one side can be measured, or only one is 0 on a scale of ratios.
        """
        sign = -1.0 if self.better == "higher" else 1.0
        if base is None or head is None:
            return None if base is head else math.inf if head is None else -math.inf
        if self.scale == "difference" or base == head:
            return sign * (head - base)
        if base <= 0 or head <= 0:
            return sign * math.copysign(math.inf, head - base)
        return sign * math.log(head / base)

    def change_pct(self, loss: float) -> float:
        """The change of the quantity itself in percent (points where it is a share), from a loss."""
        change = -loss if self.better == "higher" else loss
        if self.scale == "difference":
            return 100 * change
        return 100 * math.expm1(change) if change < 700 else math.inf

    def loss_pct(self, loss: float) -> float:
        """A loss in percent, or points: positive is worse, in either direction."""
        return -self.change_pct(loss) if self.better == "higher" else self.change_pct(loss)

    def loss_of(self, share: float) -> float:
        """The loss of which `loss_pct` is `share`, as a share."""
        if self.scale == "difference":
            return share
        return -math.log1p(-share) if self.better == "higher" else math.log1p(share)

    @property
    def label(self) -> str:
        """Its name in a table: 'tpot mean', 'ttft p99', 'goodput_rps'."""
        if self.name.startswith(MISSED):
            return f"runs that miss {self.name.removeprefix(MISSED)}"
        percentile, colon, name = self.name.partition(":")
        if colon:
            return f"{name} {percentile}"
        if self == OUTPUT_TOKENS:
            return "output tokens per request"
        return f"{self.name} mean" if self.name in compared() else self.name


OUTPUT_TOKENS = Quantity("output_tokens", "tokens", "higher", "ratio")
"""Output tokens per request, which are compared before any speed (`harness.experiments.compare.lengths`)."""


@dataclass(frozen=True, slots=True)
class Gate:
    """A quantity that decides. Losses up to `min_effect` are of no interest, `must_detect` has to be found; shares."""

    quantity: Quantity
    min_effect: float
    must_detect: float

    @property
    def limits(self) -> Limits:
        """The same in the unit of losses."""
        return Limits(self.quantity.loss_of(self.min_effect), self.quantity.loss_of(self.must_detect))


def quantity(name: str) -> Quantity:
    """The quantity of a name."""
    percentile, colon, metric = name.partition(":")
    if name in _SHARES or name.startswith("attainment of "):
        return Quantity(name, "share", _SHARES.get(name, "higher"), "difference")
    if name.startswith(MISSED):
        return Quantity(name, "share", "lower", "difference")
    measured = compared().get(metric if colon and _is_percentile(percentile) else name)
    if measured is not None:
        return Quantity(name, measured.unit, measured.better, "ratio")
    return Quantity(name, "tokens/s" if name.endswith("_tps") else "req/s", "higher", "ratio")


def defaults(names: Iterable[str]) -> tuple[Gate, ...]:
    """The gates that stand where the user names none, of the quantities that are there."""
    present = set(names)
    return tuple(Gate(quantity(name), *limits) for name, limits in _DEFAULTS.items() if name in present)


def exact(ignored: float) -> tuple[Gate, ...]:
    """The gates on simulators, whose numbers have no noise: any loss above the share `ignored` counts.

    A request that fails counts always. What must be found plays a part only where one seed is better and another worse.
    """
    must_detect = {name: _DEFAULTS.get(name, _USUAL)[1] for name in _EXACT}
    least = {name: 0.0 if name == "failed" else ignored for name in _EXACT}
    return tuple(Gate(quantity(name), least[name], max(least[name], must_detect[name])) for name in _EXACT)


def few_requests(requests: int) -> float:
    """The loss that one or two of the requests of a run make: another order makes one late, as it makes others early.

    The traffic of a seed decides which, so such a loss is shown and does not count.
    """
    return FEW_REQUESTS / max(requests, FEW_REQUESTS + 1)


def parse(text: str) -> tuple[Gate, ...]:
    """The gates of 'tpot=2%:5%,failed=0.5%:0.5%'. Raises UsageError for what it cannot take."""
    gates: list[Gate] = []
    for part in text.split(","):
        gate = _gate(part.strip(), text)
        if any(gate.quantity.name == other.quantity.name for other in gates):
            raise UsageError(f"--gate '{text}': {gate.quantity.name} is given twice.")
        gates.append(gate)
    return tuple(gates)


def _gate(part: str, whole: str) -> Gate:
    name, _, losses = (text.strip() for text in part.partition("="))
    if not name:
        raise UsageError(f"--gate '{whole}': a gate has no name; {_FORM}.")
    if not _is_known(name):
        raise no_such("quantity to gate", name, {*_DEFAULTS, *_RATES, *compared(), *_SHARES, "p99:ttft"})
    gated = quantity(name)
    if not losses:
        return Gate(gated, *_DEFAULTS.get(name, _USUAL))
    ignored, _, detected = losses.partition(":")
    least, must = (share_or_zero(loss.strip(), f"A loss in --gate '{part}'") for loss in (ignored, detected or ignored))
    if not (least <= must and 0 < must < 1):
        raise UsageError(f"--gate '{part}': what must be found is above 0%, below 100% and not below what is ignored.")
    return Gate(gated, least, must)


def _is_known(name: str) -> bool:
    percentile, colon, metric = name.partition(":")
    if colon:
        return metric in compared() and _is_percentile(percentile)
    return name in (*compared(), *_RATES, *_SHARES)


def _is_percentile(text: str) -> bool:
    return text in ("p50", "p90", "p99")


def cut_s(pair: Pair, rule: str | None) -> float:
    """Where the measured part of both runs begins: the later of the two cuts, as stored or by another rule."""
    return max((_cut_s(run, rule) for run in (pair.base, pair.head) if not isinstance(run, Searched)), default=0.0)


def of(source: Source, objective: Slo | None, from_s: float) -> Values:
    """Name -> value of a run from a time on, under its own SLO or another; None where nothing was measured."""
    if isinstance(source, Searched):
        return {**source.values}
    if source.info.source and not len(source.requests):
        return dict(_summary(source.info.summary))  # what the other tool computed is all there is
    table = since(source.requests, from_s)
    return dict(_summary(summarize(table, objective or restored_slo(source.info))))


def is_held_back(pair: Pair) -> bool:
    """Whether the stream of a side was held back on its way."""
    return any(not isinstance(s, Searched) and HELD_BACK in s.requests.column_names for s in (pair.base, pair.head))


def both(pair: Pair, objective: Slo | None, from_s: float) -> tuple[Values, Values]:
    """The values of both sides; none on either side of what one cannot tell, as its stream was held back."""
    base, head = (of(source, objective, from_s) for source in (pair.base, pair.head))
    if is_held_back(pair):
        hidden = {metric.name for metric in metrics().values() if metric.needs_token_times}
        for name in {*base, *head}:
            scored = name.startswith(("attainment", MISSED)) or "goodput" in name
            if scored or name.rpartition(":")[2] in hidden:
                base[name] = head[name] = None
    return base, head


def late_alone(pair: Pair) -> bool:
    """Whether nothing but the lateness of its requests makes a run of the pair not valid."""
    runs = [run.info for run in (pair.base, pair.head) if isinstance(run, Run)]
    failed = [failed_checks(info) for info in runs if not info.verdict.valid]
    return bool(failed) and all(checks == {LATENESS} for checks in failed)


def decided_alike(pair: Pair, chosen: Sequence[Gate], objective: Slo | None, from_s: float) -> bool:
    """Whether requests that left late decide no gate: however they are counted, its loss is on one side of what is
    ignored, and the same within that."""

    def losses(view: Callable[[pa.Table], pa.Table]) -> Scores:
        sides = [
            replace(s, requests=view(s.requests), aggregates={}) if isinstance(s, Run) else s
            for s in (pair.base, pair.head)
        ]
        base, head = both(Pair(sides[0], sides[1]), objective, from_s)
        scores = []
        for gate in chosen or defaults({*base, *head}):
            name, least = gate.quantity.name, gate.limits.min_effect or gate.limits.must_detect
            loss = gate.quantity.loss(base.get(name), head.get(name)) or 0.0
            scores.append(((loss > least) - (loss < -least), loss / least))
        return scores

    return decide_alike(losses(lambda requests: requests), losses(from_sent), within=1.0)


def steady(pair: Pair, name: str, from_s: float) -> tuple[float, float] | None:
    """The steady loss of a pair in the mean of a metric of requests, and its scatter: of the requests of both runs.

    None for other quantities, and where too few requests have a value on both sides.
    """
    metric = compared().get(name)
    if metric is None or isinstance(pair.base, Searched) or isinstance(pair.head, Searched):
        return None
    tables = [since(run.requests, from_s) for run in (pair.base, pair.head)]
    _, base_rows, head_rows = np.intersect1d(*(table["request_id"] for table in tables), return_indices=True)
    base, head = (
        np.where(succeeded(table), per_request(metric, table), np.nan)[rows]
        for table, rows in zip(tables, (base_rows, head_rows), strict=True)
    )
    due_s = number(tables[0], "scheduled_s")[base_rows]
    valid = np.flatnonzero((base > 0) & (head > 0))
    valid = valid[np.argsort(due_s[valid], kind="stable")]
    loss = steady_loss(base[valid], head[valid])
    return loss if loss is None or metric.better == "lower" else (-loss[0], loss[1])


def cached_share(source: Source, from_s: float) -> float | None:
    """Share of the prompt tokens that a prefix cache had; None where it is not known."""
    if isinstance(source, Searched):
        return None
    table = since(source.requests, from_s)
    cached, prompts = number(table, "cached_tokens"), number(table, "prompt_tokens")
    reported = ~np.isnan(cached)
    total = float(prompts[reported].sum())
    return float(cached[reported].sum()) / total if total else None


def _cut_s(run: Run, rule: str | None) -> float:
    if rule is not None:
        return steady_state.find(run.requests, rule).at_s
    return float(run.info.warmup.at_s) if run.info.warmup.requests else 0.0


def _summary(summary: Summary) -> Iterator[tuple[str, float | None]]:
    for name in ("goodput_rps", "throughput_rps", "output_tps", "token_goodput_tps", "failed"):
        yield name, getattr(summary, name)
    if summary.bounds:
        yield "attainment", summary.attainment
        yield from ((f"attainment of {bound.text}", bound.attainment) for bound in summary.bounds)
        percentiles = [bound for bound in summary.bounds if bound.percentile is not None and bound.passed is not None]
        yield from ((f"{MISSED}{bound.text}", float(not bound.passed)) for bound in percentiles)
    for name in compared():
        described = summary.metrics.get(name, Described())
        yield name, described.mean
        yield from ((f"{p}:{name}", getattr(described, p)) for p in ("p50", "p90", "p99"))
