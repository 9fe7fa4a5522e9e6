"""Measured traffic simulated again: the same arrivals and lengths, and the simulated times of each request."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from harness.api import Request, RequestRecord, Simulator

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


def times(traffic: Traffic, simulator: Simulator) -> Times:
    """The times of the simulated requests, in order of arrival."""
    return _times(list(sent_again(simulator, traffic.requests(), traffic.users)))


def sent_again(simulator: Simulator, requests: list[Request], users: int | None) -> Iterator[RequestRecord]:
    """The records of the requests: sent when they arrived, or of a closed loop, the next one whenever one is over."""
    if users is None:
        return simulator.simulate(requests)
    left = iter(requests[users:])

    def next_one(record: RequestRecord) -> Iterable[Request]:
        ends_s = [record.scheduled_s, *record.token_s[-1:], *([] if record.ended_s is None else [record.ended_s])]
        return [replace(request, scheduled_s=max(ends_s)) for request in (next(left, None),) if request is not None]

    return simulator.simulate(requests[:users], next_one)


def _times(records: list[RequestRecord]) -> Times:
    ended = sorted((r for r in records if r.status == "ok"), key=lambda r: r.request_id)
    spans_s = np.array([r.token_s[-1] - r.token_s[0] for r in ended])
    gaps = sum(r.output_tokens - 1 for r in ended)
    ttft_s, tpot_s = (np.array(times, dtype=np.float64)  # None is NaN there
                      for times in ([r.ttft_s for r in ended], [r.tpot_s for r in ended]))  # fmt: skip
    return Times(ttft_s, tpot_s, float(spans_s.sum()) / gaps if gaps else 0.0, len(records) - len(ended))
