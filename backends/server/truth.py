"""What really happened to each answer: the truth that clients are compared with, and how late the server itself was."""

from __future__ import annotations

import json
import math
import time
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import IO

STEP = 1.01
"""Lateness is kept in classes 1% wide: quantiles of any number of tokens in constant memory."""
_FLOOR_S = 1e-7


def _floats() -> array[float]:
    return array("d")


@dataclass(slots=True)
class Record:
    """One request for tokens. All times in seconds of `time.monotonic`; None: it never came to that.

    Row i of the arrays is one write: by then `tokens[i]` tokens were told; the newest of them was ready at `at_s[i]`
    and due at `due_s[i]`; `left_s[i]` is when the kernel had the bytes. `received_s` is when the head of the request
    had been read, `submitted_s` when the backend had it.
    """

    id: str
    x_request_id: str | None
    api: str
    stream: bool
    received_s: float
    status: int = 200
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
    at_s: array[float] = field(default_factory=_floats)
    due_s: array[float] = field(default_factory=_floats)
    left_s: array[float] = field(default_factory=_floats)

    def row(self) -> dict[str, object]:
        """As a line of the log."""
        names = [name for name in self.__slots__ if name not in ("tokens", "at_s", "due_s", "left_s")]
        plain = {name: getattr(self, name) for name in names}
        return plain | {
            "tokens": self.tokens.tolist(),
            "at_s": _micro(self.at_s),
            "due_s": _micro(self.due_s),
            "left_s": _micro(self.left_s),
        }


def _micro(times_s: array[float]) -> list[float]:
    """Rounded to a microsecond; the clock is no better through a socket."""
    return [round(time_s, 6) for time_s in times_s]


class Lateness:
    """By how much tokens left after their time."""

    __slots__ = ("_classes", "count", "worst_s")

    def __init__(self) -> None:
        self._classes: dict[int, int] = {}
        self.count = 0
        self.worst_s = 0.0

    def add(self, late_s: float) -> None:
        """One write more; early ones (there are none but by rounding) count as 0."""
        late_s = max(late_s, _FLOOR_S)
        index = math.ceil(math.log(late_s) / math.log(STEP))
        self._classes[index] = self._classes.get(index, 0) + 1
        self.count += 1
        self.worst_s = max(self.worst_s, late_s)

    def quantile_s(self, share: float) -> float:
        """The upper end of the class in which the quantile lies, never above the worst; NaN without any."""
        wanted = math.ceil(share * self.count)
        for index in sorted(self._classes):
            wanted -= self._classes[index]
            if wanted <= 0:
                return min(STEP**index, self.worst_s)
        return math.nan

    def line(self) -> str:
        """For the end of the server's life."""
        if not self.count:
            return "No tokens left."
        p50, p99, worst = (s * 1e3 for s in (self.quantile_s(0.5), self.quantile_s(0.99), self.worst_s))
        return (
            f"Tokens left p50 {p50:.2f} ms, p99 {p99:.2f} ms, at worst {worst:.2f} ms after their time ({self.count})."
        )


class Truth:
    """Writes the records of answers that have ended, one JSON object a line, and keeps the lateness of all."""

    def __init__(self, file: IO[str] | None, facts: Mapping[str, object]) -> None:
        self._file = file
        self.lateness = Lateness()
        clock = {"monotonic_s": time.monotonic(), "unix_s": time.time()}
        self._write(lambda: {"server": dict(facts), "clock": clock})

    def ended(self, record: Record) -> None:
        """An answer is over; those with faults do not count as late."""
        if not record.faults:
            add = self.lateness.add
            for due_s, left_s in zip(record.due_s, record.left_s, strict=True):
                add(left_s - due_s)
        self._write(record.row)

    def close(self) -> None:
        """The last line says how late tokens were."""
        late = self.lateness
        self._write(lambda: {"lateness": {"tokens": late.count, "p50_s": _number(late.quantile_s(0.5)),
                                          "p99_s": _number(late.quantile_s(0.99)), "max_s": late.worst_s}})  # fmt: skip
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, row: Callable[[], Mapping[str, object]]) -> None:
        if self._file is not None:
            self._file.write(json.dumps(row(), default=str) + "\n")
            self._file.flush()


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value
