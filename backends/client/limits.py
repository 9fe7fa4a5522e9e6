"""How long a request may take, and how many files a process may open."""

import resource
from dataclasses import dataclass
from pathlib import Path

SWEEP_S = 0.25


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds after which a request is given up; None: never.

    `total_s` counts from the sending, `first_token_s` too, `idle_s` from the last bytes.
    """

    connect_s: float = 10.0
    total_s: float | None = 600.0
    first_token_s: float | None = None
    idle_s: float | None = None

    @property
    def sweep_s(self) -> float:
        """How often to look whether one has passed: a quarter of the shortest, 10 ms to `SWEEP_S`."""
        given = [s for s in (self.connect_s, self.total_s, self.first_token_s, self.idle_s) if s is not None]
        return min(SWEEP_S, max(0.01, min(given) / 4))


def open_files(otherwise: int) -> int:
    """Files that this process has open now, and so many more; only the latter where there is no /proc."""
    try:
        return sum(1 for _ in Path("/proc/self/fd").iterdir()) + otherwise
    except OSError:
        return otherwise


def allow_open_files(needed: int) -> int:
    """Raise the soft limit on open files as far as the hard one allows; returns the limit. Never lowers it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return soft
    wanted = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted
