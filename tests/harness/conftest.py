"""Records, tables and a workload, made small by hand."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from harness.api import Request, RequestRecord
from harness.data.records import scheduled_table, to_table


def _record(i: int = 0, **changes: Any) -> RequestRecord:
    """A request due at i seconds with four tokens: TTFT 0.1 s, TPOT 0.05 s."""
    tokens = changes.pop("tokens", None)
    due = changes.get("scheduled_s", float(i))
    token_s: Sequence[float] = tokens if tokens is not None else [due + 0.1 + 0.05 * k for k in range(4)]
    counts = changes.get("token_n")
    n = len(token_s) if counts is None else sum(counts)
    values: dict[str, Any] = {
        "request_id": i,
        "scheduled_s": due,
        "sent_s": due,
        "token_s": token_s,
        "token_n": None,
        "prompt_tokens": 10,
        "output_tokens": n,
        "output_tokens_asked": n,
        "status": "ok",
        **changes,
    }
    return RequestRecord(**values)


@pytest.fixture(scope="session")
def record() -> Callable[..., RequestRecord]:
    """`record(i, **changes)`: a request due at i seconds; `tokens` are its stamps."""
    return _record


@pytest.fixture(scope="session")
def table() -> Callable[..., pa.Table]:
    """`table(n, **changes)`: n such requests; a list in the changes has one value per request."""

    def make(n: int, **changes: Any) -> pa.Table:
        def row(i: int) -> dict[str, Any]:
            return {k: v[i] if isinstance(v, list) else v for k, v in changes.items()}

        return to_table([_record(i, **row(i)) for i in range(n)])

    return make


class Traffic:
    """Poisson requests of two classes, every third with a shared prefix, every fifth in a session."""

    def __init__(self, rate_rps: float = 2.0, requests: int | None = None) -> None:
        self.rate_rps = rate_rps
        self.requests = requests

    def start(self, rng: np.random.Generator) -> Iterator[pa.Table]:
        requests = self.requests_of(rng)
        while rows := list(islice(requests, 64)):
            yield scheduled_table(rows)

    def requests_of(self, rng: np.random.Generator) -> Iterator[Request]:
        at, i = 0.0, 0
        while self.requests is None or i < self.requests:
            at += rng.exponential(1 / self.rate_rps)
            yield Request(
                i,
                at,
                int(rng.integers(1, 1000)),
                int(rng.integers(1, 100)),
                prefix_ids=(7, i) if i % 3 == 0 else (),
                session=i // 5 if i % 5 == 0 else None,
                tag="long" if i % 2 else None,
                slo_ttft_s=0.5 if i % 7 == 0 else None,
                priority=i % 2,
            )
            i += 1

    def describe(self) -> dict[str, object]:
        return {}


@pytest.fixture(scope="session")
def traffic() -> type[Traffic]:
    """A small workload class: `traffic(rate_rps, requests)`; endless without `requests`."""
    return Traffic
