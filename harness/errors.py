"""Every error that a user can meet, and the exit code that goes with it.

    BenchError                 exit 3   something the user can act on went wrong
    ├── UsageError             exit 2   the command line, a spec, a configuration or an input file is wrong
    │   └── NothingDue                  no request is due in the time that a run lasts
    ├── BackendError           exit 3   the system under test, or the model it needs, failed
    │   └── NotReady                    it is not there yet, is loading, or limits requests: --wait waits for it
    ├── NotValid               exit 4   the run (or a pair of runs) proves nothing, and the reason
    │   └── Unresolved         exit 5   nothing tells whether a bound is met
    ├── Crashed                exit 70  a process of bench crashed, or was killed for lack of memory
    └── Interrupted            exit 130 Ctrl-C ended the command before its report; what was measured stays

Any other exception is a bug, or exhausted memory: exit 70, and a file with the traceback.
A message is one sentence: what was given, what is allowed, the nearest known name, what to do next.
A request that fails is not an error: it is a row with a status.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

from harness.removed import REMOVED

CRASHED, FAILED, TERMINATED, INTERRUPTED = 70, 3, 4, 130
"""70 is EX_SOFTWARE of <sysexits.h>, 130 what a shell expects of a command that Ctrl-C ended."""
_LONG_WORD = re.compile(r"(\S{100})\S{300,}")  # a path may have 400 characters, a number has not
_PRECEDENCE = (CRASHED, 2, FAILED, TERMINATED, 1, 5)


def first_of(*codes: int) -> int:
    """The exit code that wins where several apply; 0 where none does."""
    return next((code for code in _PRECEDENCE if code in codes), 0)


class BenchError(Exception):
    """Something the user can act on; the message is one sentence."""

    exit_code = FAILED


class UsageError(BenchError):
    """The command line, a spec, a configuration or an input file is wrong."""

    exit_code = 2

    def __str__(self) -> str:
        return _LONG_WORD.sub(r"\1...", super().__str__())


class NothingDue(UsageError):
    """No request is due in the time that a run lasts."""


class BackendError(BenchError):
    """The system under test, or the model it needs, failed as a whole."""

    exit_code = 3


class NotReady(BackendError):
    """A server that may answer later. Made of what it lacks, without a full stop; `str` adds the remedy."""

    def __str__(self) -> str:
        text = str(self.args[0])  # an error made of another has its sentence
        return text if text.endswith(".") else f"{text}; --wait 10min waits for it."


class NotValid(BenchError):
    """A run proves nothing, or two runs cannot be compared."""

    exit_code = 4


class Unresolved(NotValid):
    """Nothing tells whether a bound is met."""

    exit_code = 5


class Crashed(BenchError):
    """A process of bench crashed or was killed. `of` adds the traceback of that process, where it left one."""

    exit_code = CRASHED

    @classmethod
    def of(cls, message: str, traceback: str | None) -> Crashed:
        """The error with the traceback as a note, which travels between processes and is printed with it."""
        error = cls(message)
        if traceback is not None:
            error.add_note(traceback)
        return error


class Interrupted(BenchError):
    """Ctrl-C ended a run before it was reported; the message says where its rows are."""

    exit_code = INTERRUPTED


def no_such(what: str, given: str, known: Iterable[str], hint: str = "") -> UsageError:
    """The error for an unknown name: the nearest known name, then all known names; or what replaced a removed one.

    >>> str(no_such("arrivals", "gama", ["gamma", "poisson"]))
    "No arrivals named 'gama'. Did you mean 'gamma'? Known: gamma, poisson."
    """
    if (instead := REMOVED.get((what, given))) is not None:
        return UsageError(f"The {what} '{given}' was removed: {instead}.")
    names = sorted(known)
    guess = nearest(given.lower(), names)
    return UsageError(f"No {what} named '{given}'.{guess} Known: {', '.join(names)}.{' ' + hint if hint else ''}")


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the question whether a known name like this one was meant, to be added to a sentence; empty of none."""
    matches = get_close_matches(name, known, n=1, cutoff=0.5)
    return f" Did you mean '{matches[0]}'?" if matches else ""
