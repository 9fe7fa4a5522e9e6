"""The traffic of a search without serving it: what each seed draws, and a long draw that tells the long-run mean."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from harness.config import RunSpec
from harness.load import at_rate
from harness.metrics._lists import number
from harness.plan import RECORDED, load_workload
from harness.schedule import Schedule
from harness.spec import parse

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
    if parse(loaded.arrivals_text).name in RECORDED:
        return False
    return not Schedule.draw(loaded.workload, seed=spec.seed, requests=200).has_follow_ups
