"""Faults on purpose, for testing clients: `KIND:every=10,token=5`, several at once, each for every nth request.

    delay:seconds=1,token=0     everything from token k on leaves `seconds` later than it would
    stall:token=5,seconds=30    silence from token k on for `seconds` (for ever without), then all at once
    reset:token=5               the connection is reset instead of token k
    close:token=5               the connection is closed in good order instead of token k
    malformed:token=5           the event of token k is cut in the middle of its JSON; the rest follows
    slow=5%                     every token leaves 5 % later after its request came than it would; slow=5%:from=60s
                                only for requests that come 60 s after the start or later
    429:retry_after=1           refused at once, with Retry-After (seconds)
    503:retry_after=1           the same with the other status

`token` counts from 1; 0 (the default) is before anything of the answer, its head included.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from harness.errors import UsageError, no_such
from harness.spec import Spec, build, parse
from harness.values import share

Kind = Literal["delay", "stall", "reset", "close", "malformed", "slow", "429", "503"]


@dataclass(frozen=True, slots=True)
class _Cut:
    """reset, close, malformed."""

    every: int = 1
    token: int = 0


@dataclass(frozen=True, slots=True)
class _Wait:
    """delay, stall."""

    every: int = 1
    token: int = 0
    seconds_s: float | None = None


@dataclass(frozen=True, slots=True)
class _Slow:
    """slow."""

    by: str
    every: int = 1
    from_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Refusal:
    """429, 503."""

    every: int = 1
    retry_after_s: float = 1.0


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong with every `every`-th request; `seconds` is infinite for a stall without end.

    `slow` is the share by which times since the request came grow, for requests `from_s` after the start or later.
    """

    kind: Kind
    every: int
    token: int
    seconds: float
    text: str
    slow: float = 0.0
    from_s: float = 0.0

    def hits(self, nth: int) -> bool:
        """Whether request `nth` (from 1) is one of them."""
        return nth % self.every == 0


def parse_fault(text: str) -> Fault:
    """A fault from its spec. Raises UsageError."""
    if text.startswith("slow="):
        return _slow(text)
    spec = parse(text)
    if spec.name not in get_args(Kind):
        raise no_such("fault", spec.name, get_args(Kind))
    if spec.name == "slow":
        raise UsageError(f"'{text}': slow needs a share: slow=5%, or slow=5%:from=60s.")
    kind: Kind = spec.name  # type: ignore[assignment]  # one of the names, as just checked
    every, token, seconds = _values(kind, spec)
    if every < 1 or token < 0 or not seconds >= 0:
        raise UsageError(f"'{text}': every must be at least 1; token, seconds and retry_after not negative.")
    if kind == "malformed":
        token = max(token, 1)
    return Fault(kind, every, token, seconds, text)


def _slow(text: str) -> Fault:
    by, _, rest = text.removeprefix("slow=").partition(":")
    found = build(_Slow, parse(f"slow:by={by}{',' if rest else ''}{rest}"))
    if found.every < 1 or not found.from_s >= 0:
        raise UsageError(f"'{text}': every must be at least 1; from not negative.")
    return Fault("slow", found.every, 1, 0.0, text, share(found.by, f"'{text}': slow"), found.from_s)


def _values(kind: Kind, spec: Spec) -> tuple[int, int, float]:
    if kind in ("429", "503"):
        refusal = build(_Refusal, spec)
        return refusal.every, 0, refusal.retry_after_s
    if kind in ("delay", "stall"):
        wait = build(_Wait, spec)
        default_s = 1.0 if kind == "delay" else math.inf
        return wait.every, wait.token, default_s if wait.seconds_s is None else wait.seconds_s
    cut = build(_Cut, spec)
    return cut.every, cut.token, 0.0


class Faults:
    """Counts requests for tokens and picks the faults of each."""

    __slots__ = ("_began_s", "_faults", "_requests")

    def __init__(self, faults: Sequence[Fault] = ()) -> None:
        self._faults = tuple(faults)
        self._requests = 0
        self._began_s = time.monotonic()

    def of_next(self) -> tuple[Fault, ...]:
        """The faults of the request that has come now, in the order in which they were named."""
        self._requests += 1
        run_s = time.monotonic() - self._began_s
        return tuple(fault for fault in self._faults if fault.hits(self._requests) and run_s >= fault.from_s)
