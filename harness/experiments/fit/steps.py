"""Step logs as columns: what each step had to do, and how long it took.

Which prompts ran in which step: found again from the stamps of the requests, where a policy takes them in order.

Tables that others wrote: parquet or CSV.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from harness import untrusted
from harness.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

    from harness.data.folder import Run


COLUMNS: Mapping[str, tuple[str, ...]] = {
    "prefill_tokens": ("prefill_tokens", "n_pf", "num_prefill_tokens"),
    "decode_seqs": ("decode_seqs", "B", "num_decode_seqs", "batch_size"),
    "context_tokens": ("context_tokens", "ctx", "num_context_tokens"),
    "seconds": ("seconds", "duration_s", "step_s"),
    "prefill_pairs": ("prefill_pairs", "pairs"),
}
"""What a column of an imported table may be called; `prefill_pairs` is optional."""

LEAST_KNOWN = 0.5
"""Share of the steps with prompts whose `pairs` must be known for a square term; the others are then left out."""


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """One row a step, all (steps,) float64: prompt tokens, decodes, cached tokens that they read, seconds.

    `pairs` is the sum of (p+n)^2 - p^2 over the pieces of n prompt tokens after p stored ones, nan where unknown.
    `left_out` counts rows that no model can be fitted to.
    """

    tokens: np.ndarray
    seqs: np.ndarray
    context: np.ndarray
    pairs: np.ndarray
    seconds: np.ndarray
    left_out: int = field(default=0, kw_only=True)

    def __len__(self) -> int:
        return len(self.seconds)

    def take(self, which: np.ndarray) -> Rows:
        """The rows that `which` (a mask or places) names."""
        return Rows(*(column[which] for column in self.columns))

    @property
    def columns(self) -> tuple[np.ndarray, ...]:
        """The five columns, in their order."""
        return self.tokens, self.seqs, self.context, self.pairs, self.seconds


def joined(parts: Iterable[Rows]) -> Rows:
    """The rows of several logs, one after another."""
    logs = [*parts]
    columns = zip(*(part.columns for part in logs), strict=True)
    return Rows(*map(np.concatenate, columns), left_out=sum(part.left_out for part in logs))


def read(paths: Iterable[str | Path]) -> Rows:
    """The rows of run folders and of tables (parquet or CSV). Raises UsageError for what holds no steps.

    A step of a run lasts until the next one while sequences run: simulated steps follow at once.
    """
    rows = joined(_rows_of(Path(path)) for path in paths)
    if not len(rows):
        raise UsageError("No step can be fitted: every row is empty or takes no time.")
    return rows


def _rows_of(path: Path) -> Rows:
    if not path.is_dir():
        return _usable(*_imported(table(path), path))
    from harness.experiments import imports

    return joined(_of_run(run) for run in imports.open(path))


def _of_run(run: Run) -> Rows:
    if run.steps is None or not run.steps.num_rows:
        raise UsageError(f"'{run.path}' has no steps table; its backend logs none, or log_steps=false was given.")
    steps = run.steps.sort_by([("replica", "ascending"), ("start_s", "ascending")])
    columns = {name: steps[name].to_numpy() for name in steps.column_names}
    tokens, seqs = columns["prefill_tokens"], columns["decode_seqs"]
    pairs = pairs_of_run(columns, run.requests)
    return _usable(tokens, seqs, columns["context_tokens"], pairs, _until_next(columns, run.requests))


def _until_next(columns: Mapping[str, np.ndarray], requests: pa.Table) -> np.ndarray:
    """(steps,) seconds to the next step where that has decodes of this one, else to the end and a usual gap.

    A replica whose next decodes were all handed to it since this step began may have been idle in between.
    """
    replica, start_s, end_s = columns["replica"], columns["start_s"], columns["end_s"]
    continued = columns["decode_seqs"][1:] - _landed(replica, start_s, requests)
    busy = np.zeros(len(start_s), bool)
    busy[:-1] = (continued > 0) & (replica[1:] == replica[:-1])
    gap_s = np.zeros(len(start_s))
    gap_s[:-1] = start_s[1:] - end_s[:-1]
    usual_s = float(np.median(gap_s[busy])) if busy.any() else 0.0
    seconds: np.ndarray = end_s - start_s + np.where(busy, gap_s, usual_s)
    return seconds


def _landed(replica: np.ndarray, start_s: np.ndarray, requests: pa.Table) -> np.ndarray:
    """(steps - 1,) sequences whose KV came to the replica of each step between its start and that of the next one."""
    at_s = requests["handoff_end_s"].to_numpy()
    to = requests["replica"].to_numpy()
    counts = np.zeros(len(start_s) - 1)
    for index in np.unique(to[np.isfinite(at_s)]):
        of_replica = np.flatnonzero(replica == index)
        before = np.searchsorted(np.sort(at_s[to == index]), start_s[of_replica], side="right")
        counts[of_replica[:-1]] = np.diff(before)
    return counts


def _imported(held: pa.Table, path: Path) -> list[np.ndarray]:
    values = {}
    for name, spellings in COLUMNS.items():
        col = next((column for column in spellings if column in held.column_names), None)
        if col is not None:
            values[name] = numbers(held, col, path)
    if "seconds" not in values and {"start_s", "end_s"} <= {*held.column_names}:
        values["seconds"] = numbers(held, "end_s", path) - numbers(held, "start_s", path)
    missing = [name for name in COLUMNS if name not in values and name != "prefill_pairs"]
    if missing:
        allowed = ", ".join(COLUMNS[missing[0]])
        raise UsageError(f"'{path}' has no column {missing[0]} ({allowed}); it has {', '.join(held.column_names)}.")
    tokens = values["prefill_tokens"]
    pairs = values.get("prefill_pairs", np.full(len(tokens), np.nan))
    possible = np.isfinite(pairs) & (pairs >= tokens)  # the least is one token a piece
    pairs = np.where(tokens > 0, np.where(possible, pairs, np.nan), 0.0)
    return [tokens, values["decode_seqs"], values["context_tokens"], pairs, values["seconds"]]


def _usable(*columns: np.ndarray) -> Rows:
    rows = Rows(*(column.astype(np.float64) for column in columns))
    counts = (rows.tokens, rows.seqs, rows.context)
    valid = np.isfinite(rows.seconds) & np.all([np.isfinite(column) & (column >= 0) for column in counts], axis=0)
    good = valid & (rows.seconds > 0) & (rows.tokens + rows.seqs > 0)
    usable = rows.take(good)
    return replace(usable, left_out=len(rows) - len(usable))


def pairs_of_run(columns: Mapping[str, np.ndarray], requests: pa.Table) -> np.ndarray:
    """(steps,) sum of (p+n)^2 - p^2 over the pieces of n prompt tokens after p stored ones; nan where it is not sure.

    `columns` are those of the steps, by replica and start. Prompts are laid into the steps in the order in which they
    began; a step is sure if every prompt in it began and ended when its stamps say.
    """
    pairs = np.where(columns["prefill_tokens"] > 0, np.nan, 0.0)
    names = ("replica", "prompt_tokens", "prefill_start_s", "prefill_end_s")
    values = {name: requests[name].to_numpy(zero_copy_only=False) for name in names}
    for replica in np.unique(columns["replica"]):
        places = np.flatnonzero((columns["replica"] == replica) & (columns["prefill_tokens"] > 0))
        begun = np.flatnonzero((values["replica"] == replica) & np.isfinite(values["prefill_start_s"].astype(float)))
        order = begun[np.lexsort((values["prefill_end_s"][begun], values["prefill_start_s"][begun]))]
        steps = [columns[name][places].tolist() for name in ("prefill_tokens", "start_s", "end_s")]
        prompts = [values[name][order].tolist() for name in names[1:]]
        pairs[places] = _laid(steps, prompts)
    return pairs


def _laid(steps: list[list[float]], prompts: list[list[float]]) -> list[float]:
    """The pairs of the steps of one replica: (tokens, start, end) and (prompt, start, end) as columns."""
    step_pairs: list[float] = []
    touched: list[list[int]] = []  # prompts of each step
    sure: dict[int, bool] = {}
    lengths, started, ended = prompts
    index = stored = 0
    for tokens, start_s, end_s in zip(*steps, strict=True):
        index, stored = _resumed(index, stored, started, ended, start_s)
        tokens_left, pairs, laid = int(tokens), 0, []
        while tokens_left > 0 and index < len(lengths) and (stored or started[index] <= start_s):
            if not stored:
                sure[index] = started[index] == start_s
            piece = min(tokens_left, int(lengths[index]) - stored)
            pairs += piece * (piece + 2 * stored)
            tokens_left, stored = tokens_left - piece, stored + piece
            laid.append(index)
            if stored == lengths[index]:
                sure[index] = sure[index] and ended[index] == end_s
                index, stored = index + 1, 0
        step_pairs.append(pairs if not tokens_left else np.nan)
        touched.append(laid)
    return [pairs if all(sure[i] for i in laid) else np.nan for pairs, laid in zip(step_pairs, touched, strict=True)]


def _resumed(index: int, stored: int, started: list[float], ended: list[float], start_s: float) -> tuple[int, int]:
    """Where to go on: after a step that was not understood, at the first prompt that begins now or later."""
    lost = index < len(started) and (ended[index] < start_s if stored else started[index] < start_s)
    if not lost:
        return index, stored
    while index < len(started) and started[index] < start_s:
        index += 1
    return index, 0


def table(path: Path) -> pa.Table:
    """The rows of a file. Raises UsageError where it is not there, or neither parquet nor CSV."""
    from pyarrow import csv  # heavy

    if not path.is_file():
        raise UsageError(f"'{path}' does not exist; name the folder of a run, or a table of steps (parquet or CSV).")
    if path.suffix not in (".parquet", ".csv"):
        raise UsageError(f"'{path}' is no table of steps: its name must end with .parquet or .csv.")
    with untrusted.readable(f"'{path}'"):
        held = untrusted.read_parquet(path) if path.suffix == ".parquet" else csv.read_csv(path)
    twice = next((name for name in held.column_names if held.column_names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"'{path}' has more than one column {twice}; leave one of them.")
    return held


def numbers(held: pa.Table, name: str, path: Path) -> np.ndarray:
    """(rows,) float64 of a column, nan for null. Raises UsageError for text and dates."""
    import pyarrow as pa  # heavy

    kind = held[name].type
    if not (
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind) or pa.types.is_null(kind)
    ):
        raise UsageError(f"'{path}': the column {name} must hold numbers, it holds {kind}.")
    return np.asarray(held[name].cast(pa.float64(), safe=False).to_numpy(), np.float64)
