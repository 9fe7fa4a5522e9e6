"""Reads a ServeGen client pool: a folder with, per client, the rate and gap law of every window and token counts.

Source of the format: alibaba/ServeGen, `data/<category>/<model>/` (paper arXiv 2505.09999). `chunk-N-trace.csv` has no
header: window start in seconds (0 = midnight), requests/s, CV of the gaps, Gamma, Weibull or nothing, shape, scale in
seconds. `chunk-N-dataset.json` maps a window start to fields, each the text of a dict {value: probability}.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from harness import untrusted
from harness.errors import UsageError
from workloads.readers import _lines

FAMILIES = ("Gamma", "Weibull")
_TRACE = re.compile(r"chunk-(\d+)-trace\.csv", re.ASCII)
_COLUMNS = ("window start", "rate", "CV", "family", "shape", "scale")
_SUM_TOLERANCE = 1e-3  # of probabilities; those of the published pools sum to 1 within 1e-6

Floats = NDArray[np.float64]


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
    """One client in (W,) windows: requests/s, CV and law of the gaps (None where no law is given), scale in seconds."""

    number: int
    start_s: Floats
    rate_rps: Floats
    gap_cv: Floats
    family: tuple[str | None, ...]
    shape: Floats
    scale_s: Floats
    lengths: tuple[Lengths, ...]


@dataclass(frozen=True, slots=True)
class Clients:
    """All clients of a pool, by number; every one has the same windows of `window_s` seconds."""

    folder: str
    window_s: float
    clients: tuple[Client, ...]
    sha256: str

    @property
    def span_s(self) -> float:
        """Seconds from the start of the first window to the end of the last."""
        start_s = self.clients[0].start_s
        return float(start_s[-1] - start_s[0]) + self.window_s

    @property
    def mean_rate_rps(self) -> float:
        """Requests per second of all clients together, over the whole span."""
        return float(sum(c.rate_rps.mean() for c in self.clients))


def read_clients(folder: str) -> Clients:
    """The clients of a pool; raises UsageError naming the file, and the line or field, for whatever is wrong.

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
    return Clients(folder, float(first.start_s[1] - first.start_s[0]), tuple(clients), digest.hexdigest())


def _trace_files(folder: str) -> dict[int, Path]:
    path = Path(folder)
    try:
        if not path.is_dir():
            what = "is a file" if path.exists() else "does not exist"
            raise UsageError(f"ServeGen folder '{folder}' {what}; name a folder of chunk-N-trace.csv files.")
        names = sorted(path.iterdir())
    except (OSError, ValueError) as error:
        raise UsageError(f"ServeGen folder '{folder}' cannot be read: {_lines.reason(error)}.") from None
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
    return Client(number, start_s, numbers[:, 1], numbers[:, 2], families, numbers[:, 3], numbers[:, 4], lengths)


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
    try:
        windows = untrusted.read_json(_lines.checked(str(file)))
    except (ValueError, OSError) as error:
        raise UsageError(f"ServeGen file '{file}' is not complete JSON: {str(error)[:80]}.") from None
    if not isinstance(windows, dict) or not windows:
        raise UsageError(f"ServeGen file '{file}': an object of windows expected.")
    found = []
    for start, fields in windows.items():
        if not isinstance(fields, dict):
            raise UsageError(f"ServeGen file '{file}', window {start[:20]!r}: an object of fields expected.")
        laws = {name[:40]: _histogram(file, start, name[:40], text) for name, text in fields.items()}
        start_s = _number(file, 1, "window start", start)
        found.append(Lengths(start_s, {name: law for name, law in laws.items() if law is not None}))
    return tuple(sorted(found, key=lambda w: w.start_s))


def _histogram(file: Path, window: str, field: str, given: object) -> LengthHistogram | None:
    where = f"ServeGen file '{file}', window {window[:20]!r}, field {field!r}"
    text = given if isinstance(given, str) else json.dumps(given).replace('"', "")
    body = text.strip().removeprefix("{").removesuffix("}")
    if not body.strip():
        return None
    try:
        pairs = np.array([float(cell) for cell in body.replace(":", ",").split(",")]).reshape(-1, 2)  # (K, 2)
    except ValueError:
        raise UsageError(f"{where}: a dict of value and probability expected, got {text[:40]!r}.") from None
    values, weights = pairs[np.argsort(pairs[:, 0], kind="stable")].T
    total = float(weights.sum())
    if not (np.isfinite(pairs).all() and (weights >= 0).all() and abs(total - 1) <= _SUM_TOLERANCE):
        raise UsageError(f"{where}: probabilities must be 0 or more and sum to 1, they sum to {total:g}.")
    if values[0] < 0:
        raise UsageError(f"{where}: values must not be negative, got {values[0]:g}.")
    return LengthHistogram(values, weights / total)


def _fail(file: Path, line: int, column: str | None, message: str) -> NoReturn:
    where = f", column '{column}'" if column else ""
    raise UsageError(f"ServeGen file '{file}', line {line}{where}: {message}.")
