"""Faults on purpose, for testing clients: `KIND:every=10,token=5`, several at once, each for every nth request.

    reset:token=5               the connection is reset instead of token k
    slow=5%                     every token leaves 5 % later after its request came than it would; slow=5%:from=60s
                                only for requests that come 60 s after the start or later
    429:retry_after=1           refused at once, with Retry-After (seconds)

`token` counts from 1; 0 (the default) is before anything of the answer, its head included.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast, get_args

from harness.errors import UsageError, no_such
from harness.spec import arguments, parse
from harness.values import share

Kind = Literal["reset", "slow", "429"]


@dataclass(frozen=True, slots=True)
class _Reset:
    every: int = 1
    token: int = 0


@dataclass(frozen=True, slots=True)
class _Slow:
    by: str
    every: int = 1
    from_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Refusal:
    every: int = 1
    retry_after_s: float = 1.0


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong with every `every`-th request.

    `slow` is the share by which times since the request came grow, for requests `from_s` after the start or later;
    `retry_after_s` what a refusal says.
    """

    kind: Kind
    text: str
    every: int = 1
    token: int = 0
    retry_after_s: float = 0.0
    slow: float = 0.0
    from_s: float = 0.0

    def hits(self, nth: int) -> bool:
        """Whether request `nth` (from 1) is one of them."""
        return nth % self.every == 0


_ARGUMENTS: Mapping[str, type] = {"reset": _Reset, "slow": _Slow, "429": _Refusal}


def parse_fault(text: str) -> Fault:
    """A fault from its spec. Raises UsageError."""
    is_share = text.startswith("slow=")
    spec = parse(f"slow:by={text.removeprefix('slow=').replace(':', ',', 1)}" if is_share else text)
    if spec.name not in _ARGUMENTS:
        raise no_such("fault", spec.name, get_args(Kind))
    if spec.name == "slow" and not is_share:
        raise UsageError(f"'{text}': slow needs a share: slow=5%, or slow=5%:from=60s.")
    values = arguments(_ARGUMENTS[spec.name], spec)
    if is_share:
        values["slow"] = share(values.pop("by"), f"'{text}': slow")
    fault = Fault(cast("Kind", spec.name), text, **values)
    if fault.every < 1 or min(fault.token, fault.retry_after_s, fault.from_s) < 0:
        raise UsageError(f"'{text}': every must be at least 1; token, retry_after and from not negative.")
    return fault


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
