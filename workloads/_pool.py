"""A ServeGen client pool: a folder with, per client, the rate and gap law of every window and token counts.

Source of the format: alibaba/ServeGen, `data/<category>/<model>/` (paper arXiv 2505.09999). `chunk-N-trace.csv` has no
header: window start in seconds (0 = midnight), requests/s, CV of the gaps, Gamma, Weibull or nothing, shape, scale in
seconds. `chunk-N-dataset.json` maps a window start to fields, each the text of a dict {value: probability}.

Each client is a renewal process in operational time along its own rate and with its own gap law, so that its counts
vary as those laws say; ServeGen's own generator emits exactly ceil(rate * 600 s) requests in every window instead.
Source: Xiang et al., ServeGen (arXiv 2505.09999), and alibaba/ServeGen @ f891d118, servegen/construct.py.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from pathlib import Path
from typing import NoReturn

import numpy as np

from harness import untrusted
from harness.data.lists import Floats
from harness.errors import UsageError
from workloads.arrivals import _operational
from workloads.arrivals._operational import Gaps, Piece, chunks_along, merged
from workloads.readers import _lines

BLOCK = 65536  # arrivals merged at once, about

FAMILIES = ("Gamma", "Weibull")
_TRACE = re.compile(r"chunk-(\d+)-trace\.csv", re.ASCII)
_COLUMNS = ("window start", "rate", "CV", "family", "shape", "scale")
_SUM_TOLERANCE = 1e-3  # of probabilities; those of the published pools sum to 1 within 1e-6


@dataclass(frozen=True, slots=True)
class ClientPool:
    """The clients chosen from a pool, all in the same windows, and how their time and rate are taken."""

    path: str
    clients: tuple[Client, ...]
    window_s: float
    span_s: float
    known: int  # clients of the whole pool
    sha256: str
    start_s: float = 0.0
    scale: float = 1.0  # of all rates
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
        return merged(streams, min(self.window_s, BLOCK / peak_rps))

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
    path: str, *, rate_rps: float | None, clients: int | None, start_s: float, usable: Callable[[Client], bool]
) -> ClientPool:
    """The `clients` with most requests (None: all that send any) of the pool at `path`, of those that are `usable`.

    Where none is usable all are chosen: who uses them says why not. Raises UsageError for a folder that is no pool,
    ValueError for more clients than send anything.
    """
    pool = read_clients(path)
    sending = [client for client in pool.clients if client.rate_rps.any()]
    active = [client for client in sending if usable(client)] or sending
    left_out = tuple(sorted({client.number for client in sending} - {client.number for client in active}))
    if clients is not None and clients > len(active):
        raise ValueError(f"clients must be at most the {len(active)} that send anything in '{path}', got {clients}.")
    largest = sorted(active, key=lambda client: -float(client.rate_rps.mean()))[:clients]
    chosen = tuple(sorted(largest, key=lambda client: client.number))
    scale = 1.0 if rate_rps is None else rate_rps / _mean_rps(chosen)
    return replace(pool, clients=chosen, start_s=start_s, scale=scale, left_out=left_out)


def _mean_rps(clients: Sequence[Client]) -> float:
    return math.fsum(float(client.rate_rps.mean()) for client in clients)


def _law(client: Client, window: int, rng: np.random.Generator, running: bool) -> Gaps:
    """The gap law of a window, of mean 1; exponential where the pool gives none."""
    family, shape = client.family[window], float(client.shape[window])
    if family == "Weibull":
        return _operational.weibull(shape, rng, running=running)
    return _operational.gamma(shape if family else 1.0, rng, running=running)


@dataclass(frozen=True, slots=True)
class LengthHistogram:
    """A law on numbers: `values` rise, `probabilities` sum to 1; both (K,)."""

    values: Floats
    probabilities: Floats


@dataclass(frozen=True, slots=True)
class Lengths:
    """The laws of one window from `start_s` on; fields are input_tokens, output_tokens, reason_ratio and others.

    A field that the pool leaves empty (no request in the window) is not in `fields`.
    """

    start_s: float
    fields: Mapping[str, LengthHistogram]


@dataclass(frozen=True, slots=True)
class Client:
    """One client in (W,) windows: requests/s, CV and law of the gaps (None where none is given) with its shape."""

    number: int
    start_s: Floats
    rate_rps: Floats
    gap_cv: Floats
    family: tuple[str | None, ...]
    shape: Floats
    lengths: tuple[Lengths, ...]


def read_clients(folder: str) -> ClientPool:
    """All clients of a pool; raises UsageError naming the file, and the line or field, for whatever is wrong.

    `sha256` is that of the list 'file hash' of all files read, in the order of the clients.
    """
    files = _trace_files(folder)
    digest = hashlib.sha256()
    clients = [_client(number, files[number], digest) for number in sorted(files)]
    first = clients[0]
    if not any(c.rate_rps.any() for c in clients):
        raise UsageError(f"ServeGen folder '{folder}': every client has rate 0 in every window; name another pool.")
    for client in clients[1:]:
        if not np.array_equal(client.start_s, first.start_s):
            what = f"its {len(client.start_s)} windows are not those of chunk-{first.number}-trace.csv"
            raise UsageError(f"ServeGen file '{files[client.number]}': {what}; all clients must share their windows.")
    start_s = first.start_s
    window_s = float(start_s[1] - start_s[0])
    span_s = float(start_s[-1] - start_s[0]) + window_s
    return ClientPool(folder, tuple(clients), window_s, span_s, len(clients), digest.hexdigest())


def _trace_files(folder: str) -> dict[int, Path]:
    path = Path(folder)
    with untrusted.readable(f"ServeGen folder '{folder}'"):
        if not path.is_dir():
            what = "is a file" if path.exists() else "does not exist"
            raise UsageError(f"ServeGen folder '{folder}' {what}; name a folder of chunk-N-trace.csv files.")
        names = sorted(path.iterdir())
    files = {int(m[1]): f for f in names if (m := _TRACE.fullmatch(f.name))}
    if not files:
        below = [f for f in names if f.is_dir()]
        hint = f"; it holds {', '.join(f.name for f in below[:5])}: name one pool" if below else ""
        raise UsageError(f"ServeGen folder '{folder}' holds no chunk-N-trace.csv{hint}.")
    return files


def _client(number: int, file: Path, digest: hashlib._Hash) -> Client:
    rows = [_row(file, line, text) for line, text in _lines.numbered(_lines.checked(str(file)))]
    if len(rows) < 2:
        raise UsageError(f"ServeGen file '{file}': at least 2 windows expected, got {len(rows)}.")
    numbers = np.array([r[0] for r in rows])  # (W, 5)
    start_s = numbers[:, 0]
    steps = np.diff(start_s)
    if steps[0] <= 0 or not np.allclose(steps, steps[0], rtol=1e-9, atol=0):
        line = 2 + int(np.argmax((steps <= 0) | ~np.isclose(steps, steps[0], rtol=1e-9, atol=0)))
        _fail(file, line, "window start", "windows must follow one another at equal steps")
    digest.update(f"{file.name} {_lines.sha256(file)}\n".encode())
    dataset = file.with_name(f"chunk-{number}-dataset.json")
    lengths: tuple[Lengths, ...] = ()
    if dataset.exists():
        lengths = _lengths(dataset)
        digest.update(f"{dataset.name} {_lines.sha256(dataset)}\n".encode())
    families = tuple(r[1] for r in rows)
    return Client(number, start_s, numbers[:, 1], numbers[:, 2], families, numbers[:, 3], lengths)


def _row(file: Path, line: int, text: str) -> tuple[list[float], str | None]:
    cells = [c.strip() for c in text.split(",")]
    if len(cells) != len(_COLUMNS):
        _fail(file, line, None, f"{len(_COLUMNS)} columns expected ({', '.join(_COLUMNS)}), got {len(cells)}")
    family = cells.pop(3)
    if family and family not in FAMILIES:
        _fail(file, line, "family", f"{' or '.join(FAMILIES)} or nothing expected, got {family[:40]!r}")
    names = [c for c in _COLUMNS if c != "family"]
    numbers = [_number(file, line, name, cell) for name, cell in zip(names, cells, strict=True)]
    if family and min(numbers[1], numbers[3], numbers[4]) <= 0:
        _fail(file, line, None, f"a window with a {family} law needs a rate, a shape and a scale above 0")
    return numbers, family or None


def _number(file: Path, line: int, column: str, cell: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        value = np.nan
    if not (np.isfinite(value) and value >= 0) or "_" in cell:
        _fail(file, line, column, f"a finite number of 0 or more expected, got {cell[:40]!r}")
    return value


def _lengths(file: Path) -> tuple[Lengths, ...]:
    with untrusted.readable(f"ServeGen file '{file}'"):
        windows = untrusted.read_json(_lines.checked(str(file)))
    if not isinstance(windows, dict) or not windows:
        raise UsageError(f"ServeGen file '{file}': an object of windows expected.")
    lengths = []
    for start, fields in windows.items():
        if not isinstance(fields, dict):
            raise UsageError(f"ServeGen file '{file}', window {start[:20]!r}: an object of fields expected.")
        laws = {name[:40]: _histogram(file, start, name[:40], text) for name, text in fields.items()}
        start_s = _number(file, 1, "window start", start)
        lengths.append(Lengths(start_s, {name: law for name, law in laws.items() if law is not None}))
    return tuple(sorted(lengths, key=lambda w: w.start_s))


def _histogram(file: Path, window: str, field: str, given: object) -> LengthHistogram | None:
    place = f"ServeGen file '{file}', window {window[:20]!r}, field {field!r}"
    text = given if isinstance(given, str) else json.dumps(given).replace('"', "")
    body = text.strip().removeprefix("{").removesuffix("}")
    if not body.strip():
        return None
    try:
        pairs = np.array([float(cell) for cell in body.replace(":", ",").split(",")]).reshape(-1, 2)  # (K, 2)
    except ValueError:
        raise UsageError(f"{place}: a dict of value and probability expected, got {text[:40]!r}.") from None
    values, weights = pairs[np.argsort(pairs[:, 0], kind="stable")].T
    total = float(weights.sum())
    if not (np.isfinite(pairs).all() and (weights >= 0).all() and abs(total - 1) <= _SUM_TOLERANCE):
        raise UsageError(f"{place}: probabilities must be 0 or more and sum to 1, they sum to {total:g}.")
    if values[0] < 0:
        raise UsageError(f"{place}: values must not be negative, got {values[0]:g}.")
    return LengthHistogram(values, weights / total)


def _fail(file: Path, line: int, column: str | None, message: str) -> NoReturn:
    place = f", column '{column}'" if column else ""
    raise UsageError(f"ServeGen file '{file}', line {line}{place}: {message}.")
