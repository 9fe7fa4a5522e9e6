"""When the clients of a ServeGen pool send: their own rates and gap laws, superposed.

Each client is a renewal process in operational time along its own rate and with its own gap law, so that its counts
vary as those laws say; ServeGen's own generator emits exactly ceil(rate * 600 s) requests in every window instead.
Source: Xiang et al., ServeGen (arXiv 2505.09999), and alibaba/ServeGen @ f891d118, servegen/construct.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count

import numpy as np

from workloads._checks import positive
from workloads.arrivals import _renewal
from workloads.arrivals._operational import Gaps, Piece, chunks_along
from workloads.readers._servegen import Client, read_clients

BLOCK = 65536  # arrivals merged at once, about


@dataclass(frozen=True, slots=True)
class ClientPool:
    """The clients chosen from a pool, and how their time and rate are taken."""

    path: str
    clients: tuple[Client, ...]
    window_s: float
    span_s: float
    start_s: float
    scale: float  # of all rates
    known: int  # clients of the whole pool
    sha256: str
    left_out: tuple[int, ...] = ()  # numbers of clients that send, but cannot be used

    @property
    def mean_rate_rps(self) -> float:
        """Requests per second of all chosen clients together, over the whole span."""
        return self.scale * _mean_rps(self.clients)

    @property
    def facts(self) -> dict[str, object]:
        """Facts of the source, for reports."""
        return {
            "source": f"ServeGen client pool '{self.path}' (alibaba/ServeGen, arXiv 2505.09999)",
            "sha256": self.sha256,
            "clients": f"{len(self.clients)} of {self.known}",
            **({"clients_without_tokens": ", ".join(map(str, self.left_out))} if self.left_out else {}),
        }

    def blocks(self, rng: np.random.Generator) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Endless (times s, index of the client in `clients`), both (n,), in order of time; after the span, again."""
        streams = [
            chunks_along(self._pieces(client, child), child.standard_exponential)
            for client, child in zip(self.clients, rng.spawn(len(self.clients)), strict=True)
        ]
        peak_rps = self.scale * float(np.max(sum(client.rate_rps for client in self.clients)))
        return _merged(streams, min(self.window_s, BLOCK / peak_rps))

    def pool_time_s(self, times_s: np.ndarray) -> np.ndarray:
        """(n,) what the time is in the pool, whose windows start at numbers of their own, for times of a run."""
        return np.asarray(self.clients[0].start_s[0] + (times_s + self.start_s) % self.span_s)

    def _pieces(self, client: Client, rng: np.random.Generator) -> Iterator[Piece]:
        """Endless pieces, one a window; the first may be the rest of one."""
        first, gone_s = divmod(self.start_s % self.span_s, self.window_s)
        running = True
        for i in chain((int(first),), (j % len(client.start_s) for j in count(int(first) + 1))):
            rate = self.scale * float(client.rate_rps[i])
            law = _law(client, i, rng, running) if rate > 0 else None
            yield Piece(self.window_s - gone_s, rate, rate, law)
            gone_s, running = 0.0, running and law is None


def choose(
    path: str, *, rate_rps: float | None, clients: int | None, start_s: float,
    usable: Callable[[Client], bool] | None = None,
) -> ClientPool:  # fmt: skip
    """The `clients` with most requests (None: all that send any) of the pool at `path`, of those that are `usable`.

    Where none is usable all are chosen: who uses them says why not. Raises UsageError for a folder that is no pool,
    ValueError for wrong numbers.
    """
    if rate_rps is not None:
        positive(rate_rps=rate_rps)
    if clients is not None and clients < 1:
        raise ValueError(f"clients must be at least 1, got {clients}.")
    if not 0 <= start_s < math.inf:
        raise ValueError(f"start_s must be >= 0, got {start_s:g}.")
    found = read_clients(path)
    active = [client for client in found.clients if client.rate_rps.any()]
    fit = active if usable is None else [client for client in active if usable(client)] or active
    left_out = tuple(sorted({client.number for client in active} - {client.number for client in fit}))
    active = fit
    if clients is not None and clients > len(active):
        raise ValueError(f"clients must be at most the {len(active)} that send anything in '{path}', got {clients}.")
    largest = sorted(active, key=lambda client: -float(client.rate_rps.mean()))[:clients]
    chosen = tuple(sorted(largest, key=lambda client: client.number))
    scale = 1.0 if rate_rps is None else rate_rps / _mean_rps(chosen)
    known = len(found.clients)
    return ClientPool(path, chosen, found.window_s, found.span_s, start_s, scale, known, found.sha256, left_out)


def _mean_rps(clients: Sequence[Client]) -> float:
    return math.fsum(float(client.rate_rps.mean()) for client in clients)


def _law(client: Client, window: int, rng: np.random.Generator, running: bool) -> Gaps:
    """The gap law of a window, of mean 1; exponential where the pool gives none."""
    family, shape = client.family[window], float(client.shape[window])
    if family == "Weibull":
        return _renewal.weibull(shape, rng, running=running)
    return _renewal.gamma(shape if family else 1.0, rng, running=running)


def _merged(streams: Sequence[Iterator[np.ndarray]], step_s: float) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The endless streams as one, in blocks of `step_s`; of equal times the lower index comes first."""
    held = [np.zeros(0) for _ in streams]
    for end_s in (step_s * i for i in count(1)):
        inside = []
        for i, stream in enumerate(streams):
            parts = [held[i]]
            while not len(parts[-1]) or parts[-1][-1] < end_s:
                parts.append(next(stream))
            times = np.concatenate(parts)
            cut = int(np.searchsorted(times, end_s))
            inside.append(times[:cut])
            held[i] = times[cut:]
        times = np.concatenate(inside)
        order = np.argsort(times, kind="stable")
        if len(order):
            yield times[order], np.repeat(np.arange(len(streams)), [len(part) for part in inside])[order]
