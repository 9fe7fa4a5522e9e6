"""The traffic of a search without serving it: what each seed draws, and a long draw that tells the long-run mean.

Attainment corrected for what each seed happened to draw: the expected part of it is exchanged, the rest is kept.

A trial draws a few thousand requests, and whether those hold many long prompts close together decides more about its
attainment than the rate does. Therefore a *proxy* is made of the drawn traffic alone, one number per request that
tells who is likely to miss: how long a queue with one server would take for its first token (`Queue`), or how much
work arrives while it is answered (`Meanwhile`). The share of requests that met at each level of the proxy is read off
the trials; its mean over a trial's own requests is what its traffic made us expect, and its mean over a long draw that
is never sent is what this kind of traffic is like in the long run. The difference is added to what the trial found.

This is a control variate (regression estimator) whose mean is known: a proxy that fits badly costs precision and no
truth, because what the trials found is kept. Source: Särndal, Swensson, Wretman, "Model Assisted Survey Sampling",
1992, chapter 6; Lindley's recursion for the queue (1952).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from harness.data.lists import number
from harness.data.schedule import Schedule
from harness.experiments.capacity.estimate import Shares, measured_shares
from harness.experiments.trial import at_rate
from harness.options import RunSpec
from harness.runner.plan import load_workload

if TYPE_CHECKING:
    from harness.experiments.capacity.conditions import Condition
    from harness.experiments.capacity.trials import Key, Trial


Floats: TypeAlias = npt.NDArray[np.float64]

LONG = 400_000
"""Requests of the long draw: its means are about 15 times as certain as those of a trial of 2,000."""

COMPARED = 2000
"""Requests of the two draws that tell whether a rate does no more than divide the times."""

APART = 2**31
"""Between the seed of a search and that of its long draw, which must share nothing with a trial."""


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """Requests in order: when they are due, their prompt and output tokens; all (requests,)."""

    due_s: Floats
    prompt_tokens: Floats
    output_tokens: Floats

    def __len__(self) -> int:
        return len(self.due_s)

    def part(self, start: int, stop: int) -> Drawn:
        """Some of the requests, with the time of the one before them as time 0."""
        begun_s = self.due_s[start - 1] if start else 0.0
        return Drawn(self.due_s[start:stop] - begun_s, self.prompt_tokens[start:stop], self.output_tokens[start:stop])


class Traffic:
    """Draws of one spec at any rate. Each seed is drawn once where a rate does no more than divide its times."""

    def __init__(self, spec: RunSpec, own_rps: float) -> None:
        self._spec = spec
        self._own_rps = own_rps
        self._unit: dict[tuple[int, int], Drawn] = {}
        self._scales: bool | None = None

    def trial(self, seed: int, rate_rps: float, requests: int) -> Drawn:
        """What a trial of that seed sends at that rate."""
        return self._at(seed, requests, rate_rps)

    def long(self, rate_rps: float, requests: int) -> list[Drawn]:
        """A long draw at that rate, in parts as long as a trial; the same one at every rate.

        Each part begins at time 0, because a trial begins with an empty system: the mean is that of trials.
        """
        whole = self._at(self._spec.seed + APART, LONG, rate_rps)
        starts = range(0, len(whole) - requests + 1, requests)
        return [whole.part(start, start + requests) for start in starts]

    def _at(self, seed: int, requests: int, rate_rps: float) -> Drawn:
        if self._scales is None:  # twice the rate gives half the times: not so for bursts that last in real time
            one, two = (self._draw(self._spec.seed, COMPARED, rate) for rate in (1.0, 2.0))
            self._scales = bool(np.allclose(one.due_s, 2 * two.due_s, rtol=1e-9))
        if not self._scales:
            return self._draw(seed, requests, rate_rps)
        if (seed, requests) not in self._unit:
            self._unit[seed, requests] = self._draw(seed, requests, 1.0)
        unit = self._unit[seed, requests]
        return replace(unit, due_s=unit.due_s / rate_rps)

    def _draw(self, seed: int, requests: int, rate_rps: float) -> Drawn:
        spec = at_rate(replace(self._spec, seed=seed, requests=requests), rate_rps, self._own_rps)
        table = Schedule.draw(load_workload(spec).workload, seed=seed, requests=requests).table
        return Drawn(*(number(table, name) for name in ("scheduled_s", "prompt_tokens", "output_tokens")))


def adjustable(spec: RunSpec) -> bool:
    """Whether seeds draw the traffic, and all of it beforehand: not a recording, no turns that wait for answers."""
    if spec.trace is not None:
        return False
    loaded = load_workload(spec)
    if loaded.timing == "recorded":
        return False
    return not Schedule.draw(loaded.workload, seed=spec.seed, requests=200).has_follow_ups


Ints: TypeAlias = npt.NDArray[np.int64]

LEVELS = 40
"""Levels of the proxy, of equally many requests each."""

FEWEST_MISSES = 20
"""Of fewer misses no proxy is made: it would fit their accidents."""

BUSY = (0.0, 0.02, 0.05, 0.1, 0.17, 0.25, 0.35, 0.5, 0.65, 0.8, 0.9, 0.97)
"""Shares of its time, near the capacity, that the proxy's server works: for prompts, and for outputs."""

ARRIVALS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
"""Requests that arrive, on average, while one is answered."""

LOOKED_AT = 4
"""Trials by which the proxy is chosen; its levels are then filled from all of them."""


class Proxy(Protocol):
    """A number for each request of a draw that goes with its chance to miss."""

    def of(self, drawn: Drawn) -> Floats:
        """(requests,) the number."""
        ...


@dataclass(frozen=True, slots=True)
class Queue:
    """The queue of one server: seconds of work per token of a prompt and of an output. It tells who waits."""

    per_prompt_token_s: float
    per_output_token_s: float

    def of(self, drawn: Drawn) -> Floats:
        """(requests,) seconds from when each is due until its prompt would be done."""
        own_s = self.per_prompt_token_s * drawn.prompt_tokens
        work_s = own_s + self.per_output_token_s * drawn.output_tokens
        behind_s = np.cumsum(work_s) - work_s - drawn.due_s  # work that came before, less the time that has passed
        return behind_s - np.minimum.accumulate(behind_s) + own_s


@dataclass(frozen=True, slots=True)
class Meanwhile:
    """Prompts that arrive while a request is answered, at so many seconds a token. It tells whose tokens are late."""

    per_output_token_s: float

    def of(self, drawn: Drawn) -> Floats:
        """(requests,) prompt tokens that arrive in the time of its answer, per token of the answer."""
        end_s = drawn.due_s + self.per_output_token_s * drawn.output_tokens
        before = np.concatenate([[0.0], np.cumsum(drawn.prompt_tokens)])
        after = before[np.searchsorted(drawn.due_s, end_s, side="right")] - before[1:]
        return np.asarray(after / np.maximum(1.0, drawn.output_tokens))


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """The part of a trial that is measured: who met, and where each request stands on the levels of the proxy."""

    met: npt.NDArray[np.bool_]
    level: Ints

    def counts(self) -> tuple[Floats, Floats]:
        """Requests and those that met, by level; both (LEVELS,)."""
        return (
            np.bincount(self.level, minlength=LEVELS).astype(float),
            np.bincount(self.level, self.met, minlength=LEVELS).astype(float),
        )


class Adjusted:
    """Measures the attainment of trials in a condition, less the luck of their draw."""

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        self._proxies: dict[str, tuple[Proxy, Floats]] = {}
        self._counted: dict[tuple[str, Key], tuple[Floats, Floats]] = {}
        self._long: dict[tuple[str, float, int], Floats] = {}
        self._kept = 0

    def fit(self, trials: Sequence[Trial], condition: Condition) -> None:
        """Choose the proxy that tells best who met a condition, from all trials so far."""
        known = [t for t in trials if t.share(condition.text).mask is not None][-LOOKED_AT:]
        self._counted = {key: v for key, v in self._counted.items() if key[0] != condition.text}
        self._long = {key: v for key, v in self._long.items() if key[0] != condition.text}
        self._proxies.pop(condition.text, None)
        if sum(t.share(condition.text).of - t.share(condition.text).met for t in known) < FEWEST_MISSES:
            return
        self._kept = round(float(np.mean([t.kept for t in known])))
        drawn = [self._drawn(t) for t in known]
        met = np.concatenate([_mask(t, condition) for t in known])
        best: tuple[float, Proxy, Floats] | None = None
        for proxy in candidates(drawn):
            values = np.concatenate([proxy.of(d)[-t.kept :] for d, t in zip(drawn, known, strict=True)])
            edges = np.quantile(values, np.arange(1, LEVELS) / LEVELS)
            level = np.searchsorted(edges, values)
            sent, hits = np.bincount(level, minlength=LEVELS), np.bincount(level, met, minlength=LEVELS)
            explained = float((hits**2 / np.maximum(sent, 1)).sum())  # of the scatter of `met`: variance between levels
            if best is None or explained > best[0]:
                best = explained, proxy, edges
        if best is not None:
            self._proxies[condition.text] = best[1], best[2]

    def __call__(self, trials: Sequence[Trial], condition: Condition) -> Shares:
        """The attainment of each trial (trials,), with the long-run traffic in the place of its own."""
        if condition.text not in self._proxies or any(t.share(condition.text).mask is None for t in trials):
            return measured_shares(trials, condition)
        counts = [self._counts(t, condition) for t in trials]
        sent, met = (np.sum(part, axis=0) for part in zip(*counts, strict=True))
        expected = met / np.maximum(sent, 1)
        own = np.array([(n * expected).sum() / n.sum() for n, _ in counts])
        long_run = np.array([(self._long_run(t, condition) * expected).sum() for t in trials])
        found = np.array(measured_shares(trials, condition).values)
        error = float(np.std(own - long_run, ddof=1)) if len(trials) > 2 else 0.0
        runs = len(self._traffic.long(trials[0].key.rate_rps, trials[0].key.planned))
        return Shares(tuple((found + long_run - own).tolist()), error / np.sqrt(runs))

    def _counts(self, tried: Trial, condition: Condition) -> tuple[Floats, Floats]:
        key = condition.text, tried.key
        if key not in self._counted:
            proxy, edges = self._proxies[condition.text]
            level = np.searchsorted(edges, proxy.of(self._drawn(tried))[-tried.kept :])
            self._counted[key] = _Part(_mask(tried, condition), level).counts()
        return self._counted[key]

    def _long_run(self, tried: Trial, condition: Condition) -> Floats:
        """(LEVELS,) the share of requests at each level in the long run, at the rate of a trial."""
        rate_rps, planned = tried.key.rate_rps, tried.key.planned
        key = condition.text, rate_rps, planned
        if key not in self._long:
            proxy, edges = self._proxies[condition.text]
            parts = [proxy.of(part)[-self._kept :] for part in self._traffic.long(rate_rps, planned)]
            level = np.searchsorted(edges, np.concatenate(parts))
            self._long[key] = np.bincount(level, minlength=LEVELS) / len(level)
        return self._long[key]

    def _drawn(self, tried: Trial) -> Drawn:
        return self._traffic.trial(tried.key.seed, tried.key.rate_rps, tried.key.planned)


def candidates(drawn: Sequence[Drawn]) -> Iterable[Proxy]:
    """Servers that are busy for shares of their time with prompts and outputs, and answers of many lengths."""
    span_s = sum(float(d.due_s[-1] - d.due_s[0]) for d in drawn)
    prompts = sum(float(d.prompt_tokens.sum()) for d in drawn) / span_s
    outputs = sum(float(d.output_tokens.sum()) for d in drawn) / span_s
    for prompt in BUSY:
        for output in BUSY:
            if 0 < prompt + output < 1:
                yield Queue(prompt / prompts, output / outputs)
    yield from (Meanwhile(arrivals / outputs) for arrivals in ARRIVALS)


def _mask(tried: Trial, condition: Condition) -> npt.NDArray[np.bool_]:
    mask = tried.share(condition.text).mask
    assert mask is not None
    return mask
