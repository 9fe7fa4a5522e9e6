"""What really happened to each answer: the truth that clients are compared with, and how late the server itself was."""

from __future__ import annotations

import json
import math
import time
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import IO

import numpy as np

_STEP = 1.01
"""Lateness is kept in classes 1% wide: quantiles of any number of tokens in constant memory."""
_FLOOR_S = 1e-7
_CLASSES = 2500  # the last one ends beyond an hour


def _floats() -> array[float]:
    return array("d")


@dataclass(slots=True)
class AnswerRecord:
    """One request for tokens. Times in seconds of `time.monotonic`; None, of the status too: it never came to that.

    Row i of the arrays is one write: by then `tokens[i]` tokens were sent; the newest of them was due at `due_s[i]`,
    and `left_s[i]` is when the kernel had the bytes (for an answer in one piece: when the token was ready).
    `received_s` is when the head of the request had been read, `read_s` all of it, `submitted_s` when the backend had
    its tokens. What a null backend promises counts from `read_s`.
    """

    id: str
    x_request_id: str | None
    api: str
    stream: bool
    received_s: float
    status: int | None = None
    read_s: float | None = None
    submitted_s: float | None = None
    scheduled_s: float | None = None
    ended_s: float | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    preemptions: int = 0
    output_tokens: int = 0
    finish_reason: str | None = None
    error: str | None = None
    faults: tuple[str, ...] = ()
    tokens: array[int] = field(default_factory=lambda: array("q"))
    due_s: array[float] = field(default_factory=_floats)
    left_s: array[float] = field(default_factory=_floats)

    def line(self) -> str:
        """As a line of the log."""
        names = [name for name in self.__slots__ if name not in ("tokens", "due_s", "left_s")]
        plain = json.dumps({name: getattr(self, name) for name in names})
        tokens = json.dumps(self.tokens.tolist(), separators=(",", ":"))
        return f'{plain[:-1]}, "tokens": {tokens}, "due_s": [{_micro(self.due_s)}], "left_s": [{_micro(self.left_s)}]}}'


def _micro(times_s: array[float]) -> str:
    """To a microsecond, as the clock through a socket is no better. One format is 5 times as fast as `json.dumps`."""
    return ("%.6f," * len(times_s) % tuple(times_s))[:-1]


class Lateness:
    """By how much tokens left after their time."""

    __slots__ = ("_classes", "count", "worst_s")

    def __init__(self) -> None:
        self._classes = np.zeros(_CLASSES, dtype=np.int64)  # class i ends at _FLOOR_S * _STEP**i
        self.count = 0
        self.worst_s = 0.0

    def add(self, due_s: array[float], left_s: array[float]) -> None:
        """The writes of an answer; early ones (there are none but by rounding) count as 0."""
        if not left_s:
            return
        late_s = np.maximum(np.frombuffer(left_s) - np.frombuffer(due_s), _FLOOR_S)
        classes = np.ceil(np.log(late_s / _FLOOR_S) / math.log(_STEP)).astype(np.int64)
        self._classes += np.bincount(np.minimum(classes, _CLASSES - 1), minlength=_CLASSES)
        self.count += len(late_s)
        self.worst_s = max(self.worst_s, float(late_s.max()))

    def quantile_s(self, share: float) -> float:
        """The upper end of the class in which the quantile lies, never above the worst; NaN without any."""
        if not self.count:
            return math.nan
        index = int(np.searchsorted(np.cumsum(self._classes), math.ceil(share * self.count)))
        return float(min(_FLOOR_S * _STEP**index, self.worst_s))

    def line(self) -> str:
        """For the end of the server's life."""
        if not self.count:
            return "No tokens left."
        p50, p99, worst = (s * 1e3 for s in (self.quantile_s(0.5), self.quantile_s(0.99), self.worst_s))
        return (
            f"Tokens left p50 {p50:.2f} ms, p99 {p99:.2f} ms, at worst {worst:.2f} ms after their time ({self.count})."
        )


class TruthLog:
    """Writes the records of answers that have ended, one JSON object a line, and keeps the lateness of all."""

    def __init__(self, file: IO[str] | None, facts: Mapping[str, object]) -> None:
        self._file = file
        self.lateness = Lateness()
        clock = {"monotonic_s": time.monotonic(), "unix_s": time.time()}
        self._write(lambda: json.dumps({"server": dict(facts), "clock": clock}, default=str))

    def ended(self, record: AnswerRecord) -> None:
        """An answer is over; those with faults do not count as late."""
        if not record.faults:
            self.lateness.add(record.due_s, record.left_s)
        self._write(record.line)

    def close(self) -> None:
        """The last line has the lateness of tokens."""
        late = self.lateness
        quantiles = {"p50_s": _number(late.quantile_s(0.5)), "p99_s": _number(late.quantile_s(0.99))}
        self._write(lambda: json.dumps({"lateness": {"tokens": late.count, **quantiles, "max_s": late.worst_s}}))
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, line: Callable[[], str]) -> None:
        if self._file is not None:
            self._file.write(line() + "\n")
            self._file.flush()


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value
