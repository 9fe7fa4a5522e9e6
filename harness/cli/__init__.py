"""The command line: from the first line on, SIGTERM and unexpected errors end it with a sentence and a code."""

import contextlib
import errno
import gc
import os
import signal
import sys
import threading
from collections.abc import Sequence

from harness import termination
from harness.errors import CRASHED, FAILED, INTERRUPTED, TERMINATED, BenchError, Interrupted, first_of

_NO_THREAD = (
    "the operating system refused a new thread; allow more processes ('ulimit -u', or --pids-limit of a container) or "
    "more memory, or take fewer --workers."
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code. What the user can act on is one sentence on standard error.

    A bug, and memory that is exhausted, give 70 and a file with the traceback.
    """
    if arguments is None:  # the process is ours; collections among what imports leave took a tenth of a short run
        gc.set_threshold(250_000)
        os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # pyarrow's own takes 25 MB more for a few rows
    unwatched: list[BaseException] = []
    before = threading.excepthook
    threading.excepthook = lambda raised: _keep(raised, unwatched)
    try:
        with termination.Command().guarding() as command:
            code = _ended(arguments, command, unwatched)
            if command.received:
                code = first_of(code, TERMINATED)
    finally:
        threading.excepthook = before
    if arguments is None:  # the process ends now, and its exit code is known
        gc.freeze()  # else all that is left would be collected once more, as long as a twentieth of a short run
        for number in termination.ENDING:
            signal.signal(number, signal.SIG_IGN)
        # `python -m` ends with SIGINT, whatever the code, where the last text that Python executed, such as the methods
        # of a dataclass in an import, was left by a KeyboardInterrupt. This is another text.
        eval("None")  # noqa: S307
    return code


def _ended(arguments: Sequence[str] | None, command: termination.Command, unwatched: Sequence[BaseException]) -> int:
    """The exit code of the command; one sentence says why, where it did not end as it should."""
    try:
        try:
            from harness.cli import _commands  # with click, and so not before signals are handled

            code = _commands.run(arguments)
            sys.stdout.flush()  # a disk that is full is met here, and not by an interpreter that is about to end
        finally:
            command.over = True
            if arguments is None:  # the process is about to end, and a second Ctrl-C must not take its exit code
                signal.signal(signal.SIGINT, signal.SIG_IGN)
    except Interrupted as error:
        sentence = f"terminated by {command.received.name}: {error}" if command.received else str(error)
        return _complain(sentence, error.exit_code)
    except BenchError as error:
        return _complain(str(error), error.exit_code) if error.exit_code != CRASHED else _crashed(error, arguments)
    except KeyboardInterrupt:
        what = f"terminated by {command.received.name}" if command.received else "interrupted"
        return _complain(f"{what} before there was anything to report.", INTERRUPTED)
    except BrokenPipeError:  # a reader who has left is no failure
        _detach()
        return 0
    except OSError as error:
        if error.errno == errno.ENOMEM:
            return _crashed(error, arguments)
        _detach()  # what standard output has not taken, as on a full disk, is not tried again
        why = os.strerror(error.errno) if error.errno else str(error)
        what = f"'{error.filename}': {why}" if error.filename else why
        return _complain(f"the operating system refused: {what}.", FAILED)
    except BaseException as error:  # noqa: BLE001  # a bug, whatever it is
        if command.received and isinstance(error, ImportError):  # an import that SIGTERM cut in two
            return _complain(f"terminated by {command.received.name} before there was anything to report.", TERMINATED)
        if command.swallowed or isinstance(error.__context__, KeyboardInterrupt):  # a library made another error of it
            return _complain("interrupted before there was anything to report.", INTERRUPTED)
        return _crashed(error, arguments)
    if unwatched and not command.received:  # a thread or a task broke that was not waited for
        return _crashed(unwatched[0], arguments)
    if command.received and first_of(code, TERMINATED) == TERMINATED:
        _complain(f"exit code {TERMINATED}: terminated by {command.received.name}.", TERMINATED)
    return code


def _keep(raised: threading.ExceptHookArgs, unwatched: list[BaseException]) -> None:
    """Keep what broke a thread; not that a terminal or a disk takes nothing more, which the command meets too."""
    if raised.exc_value is not None and not isinstance(raised.exc_value, OSError):
        unwatched.append(raised.exc_value)


def _crashed(error: BaseException, arguments: Sequence[str] | None) -> int:
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):  # what Python makes of EAGAIN
        return _complain(_NO_THREAD, FAILED)
    try:
        from harness.cli import _crash

        sentence = _crash.describe(error, arguments)
    except Exception as failure:  # noqa: BLE001  # no memory, or no file handle, even for that
        sentence = f"{type(error).__name__}; its traceback could not be written ({type(failure).__name__})."
    return _complain(sentence, CRASHED)


def _complain(sentence: str, code: int) -> int:
    from harness.cli import _terminal

    with contextlib.suppress(OSError):  # the terminal is gone
        _terminal.complain(sentence)
    return code


def _detach() -> None:
    from harness.cli import _terminal

    with contextlib.suppress(OSError, ValueError):
        _terminal.detach()
