"""Which rows of a trace can be used, and in which unit their stamps are: what a reader gives, looked at once more."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from harness.data.lists import Floats, Ints
from harness.errors import UsageError
from workloads.readers._block import HEAD, Block
from workloads.readers._cells import BadRow
from workloads.readers._requests import Reader, Requests
from workloads.readers._sessions import Conversations

PLAUSIBLE_RPS = (0.05, 1000.0)
"""Mean rates of recorded traffic: those of public traces lie between 0.25 and 50 requests/s."""
PER_S = {"seconds": 1, "milliseconds": 1_000, "microseconds": 1_000_000, "nanoseconds": 1_000_000_000}
_EPOCH_S = (1e9, 4.1e9)  # September 2001 to the end of 2099, as seconds since 1970
_EXCEL_DAYS = (36_526, 73_050)  # the same years, as days since the end of 1899
_EXCEL_RPS = 100.0
_WILD_S = 30 * 365.25 * 86_400


class Unusable:
    """Counts the rows of a trace that cannot be used, and gives up where they are `max_share` of all rows or more."""

    def __init__(self, max_share: float, hint: str) -> None:
        self._max_share, self._hint = max_share, hint
        self._first: BadRow | None = None
        self._reasons: dict[str | None, str] = {}
        self.lost: Counter[str] = Counter()  # rows that no reader could make a request of

    def reason(self, error: BadRow) -> str:
        """Why a row is left out, with the first such row of the file."""
        self._first = self._first or error
        what = f"no usable {error.column}" if error.column else "no row of a trace"
        return self._reasons.setdefault(error.column, f"{what} ({error.reason})")

    def check(self, rows: int, dropped: Mapping[str, int]) -> None:
        """Raise the error of the first such row where there are too many among so many `rows` of the file.

        Called once, after the last row: what a part of the file tells depends on where its blocks end.
        """
        rows += self.lost.total()
        unusable = sum(dropped.get(reason, 0) for reason in self._reasons.values())
        if self._first is not None and unusable >= self._max_share * rows:
            many = f" {unusable:,} of {rows:,} rows cannot be used{self._hint}." if rows > 1 else ""
            raise UsageError(f"{self._first}{many}")


class Clock:
    """The unit of the stamps of a file, which the first stamps tell where they count from 1970, and wild stamps."""

    def __init__(self) -> None:
        self._per_s: float | None = None
        self._note: str | None = None
        self._middle_s = 0.0
        self._last_at: int | float | None = None
        self.doubted: str | None = None  # column of stamps whose unit nothing tells

    def read(self, block: Block, requests: Requests, unusable: Unusable) -> Requests | None:
        """The requests in the right unit; bad rows, and rows decades from the others, are among the drops.

        A row that cannot be used has the stamp of the one before. None where no row has one so far: all are lost.
        """
        size = len(requests)
        rows = np.arange(size) if requests.rows is None else requests.rows
        bad = block.bad
        good = ~np.isin(rows, list(bad))
        if self._per_s is None and good.any():
            # The first rows alone tell: how many more there are in a block says nothing about the file.
            head = good & (block.start + rows < HEAD) if block.start < HEAD else good
            head = head if head.any() else good
            self._per_s, self._note = _unit(requests, requests.at[head])
            plain = not (requests.dated or requests.stated or self._note) and requests.lasts is None
            first_s = requests.at[good][0] / self._per_s
            self.doubted = requests.stamp if plain and not _EPOCH_S[0] <= first_s <= _EPOCH_S[1] else None
            self._middle_s = float(np.median(requests.at[head])) / self._per_s
        if self._per_s is not None:
            requests = replace(requests, per_s=self._per_s)
            # From the median: one wild stamp among the first would move a mean, and with it all others.
            wild = good & (np.abs(requests.at / self._per_s - self._middle_s) > _WILD_S)
            bad |= {row: block.refusal(row, requests.stamp, "a stamp decades from the others")
                    for row in rows[wild].tolist()}  # fmt: skip
            good &= ~wild
        rows_of: dict[str, list[int]] = {}
        for row in sorted(bad):
            rows_of.setdefault(unusable.reason(bad[row]), []).append(row)
        reasons = {reason: np.isin(rows, lost) for reason, lost in rows_of.items()}
        if self._last_at is None and not good.any():
            unusable.lost.update({reason: int(mask.sum()) for reason, mask in reasons.items()})
            return requests if not size else None
        if bad:
            at = np.append(requests.at, requests.at[np.argmax(good)] if self._last_at is None else self._last_at)
            before = np.maximum.accumulate(np.where(good, np.arange(size), -1))  # -1: the one behind the last
            # A blank stands in for what cannot be read, and would be a reason of its own.
            others = ((reason, mask & good) for reason, mask in requests.drops)
            requests = replace(requests, at=at[before], drops=(*reasons.items(), *others))
        if size:
            self._last_at = requests.at[-1]
        if self._note is not None:
            requests = replace(requests, notes=(*requests.notes, (self._note, np.ones(size, bool))))
        return requests


def implausible(column: str, rows: int, span_s: float) -> Iterator[str]:
    """The sentence of doubt about the unit of a column of stamps, where a trace has far more or fewer than is usual."""
    low, high = PLAUSIBLE_RPS
    if rows < 10 or not span_s > 0 or low <= rows / span_s <= high:
        return
    rate = f"{rows / span_s:,.0f} requests/s" if rows > span_s else f"one every {span_s / (rows - 1):,.0f} s"
    yield (
        f"{rows:,} rows in {span_s:,.3g} s ({rate}): if {column} is in another unit than this reader takes it for, "
        f"name it: --reader at_ms={column},prompt=...,output=... (or at_us, at_ns, at_days), or NAME:unit=..."
    )


def _unit(requests: Requests, at: Ints | Floats) -> tuple[float, str | None]:
    """Units a second of the stamps, and a note where they are others than the reader expects."""
    if requests.dated:
        return requests.per_s, None
    low, high = np.quantile(at, [0.05, 0.95]).tolist()
    for name, per_s in PER_S.items():
        if _EPOCH_S[0] <= low / per_s and high / per_s <= _EPOCH_S[1]:
            same = per_s == requests.per_s or (requests.stated and high / requests.per_s <= _EPOCH_S[1])
            return (requests.per_s, None) if same else (per_s, f"{requests.stamp} is read as {name} since 1970")
    span = high - low
    integral = at.dtype.kind == "i" or bool((at == np.floor(at)).all())
    in_days = _EXCEL_DAYS[0] <= low and high <= _EXCEL_DAYS[1] and not integral
    if in_days and requests.per_s == 1 and not requests.stated and len(at) > _EXCEL_RPS * span:
        return 1 / 86_400, f"{requests.stamp} is read as days since 1899, as Excel counts them"
    return requests.per_s, None


def parsed(
    blocks: Iterator[Block],
    reader: Reader,
    unusable: Unusable,
    clock: Clock,
    conversations: Conversations,
    most_tokens: int,
) -> Iterator[tuple[Block, Requests]]:
    """Each block with its requests; rows that cannot be used are dropped ones, or counted as lost."""
    rows, offset = 0, 0.0
    for read in blocks:
        block = replace(read, most_tokens=most_tokens)
        requests = conversations.take(block, reader.requests(block))
        if requests.lasts is not None:
            requests = requests.behind(rows, offset)
        usable = clock.read(block, requests, unusable)
        if usable is not None:
            rows, offset = rows + len(requests), offset + (requests.lasts or 0.0)
            yield block, usable
