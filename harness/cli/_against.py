"""What `bench validate --against` does: simulated numbers beside measured ones, printed or written."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from harness import public_data, validate
from harness.cli import _terminal, _written
from harness.errors import UsageError, no_such
from harness.validate import Validation, conduct

ALL = "all"


def tell(
    against: Sequence[str], *, backend: str | None, slo: str | None, data: str | None, form: str, out: str | None
) -> int:
    """Compare, print the answer or write it to `out` in the form that its ending names; returns the exit code."""
    if out is not None:
        _written.check(out)
    names, runs = _divided(against)
    if runs and backend is None:
        raise UsageError("--against RUN needs the simulator that repeats it: --backend sim:latency=..., with a latency "
                         "model fitted on other runs (bench fit).")  # fmt: skip
    if names and not runs and (backend is not None or slo is not None):
        raise UsageError("--backend and --slo go with --against RUN; public measurements bring their own.")
    found = [*_measured(names, data), *_stored(runs, backend or "", slo)]
    given = [("--backend", backend), *(("--against", one) for one in against), ("--slo", slo), ("--data", data)]
    info = conduct.answer(found, _written.command("bench validate", given))
    if out is None:
        _terminal.tell(form, info)
    else:
        _written.put(info, out)
        _written.tell_verdict(info)
    return int(info["exit_code"])


def _divided(against: Sequence[str]) -> tuple[list[str], list[str]]:
    """Names of measurements, and paths of runs. Raises UsageError for what is neither."""
    known = validate.names()
    names: dict[str, None] = {}
    runs: dict[str, None] = {}
    for one in against:
        if one == ALL:
            names |= dict.fromkeys(known)
        elif one.lower() in known:
            names[one.lower()] = None
        elif Path(one).exists():
            runs[one] = None
        else:
            raise no_such("measurements or run", one, [*known, ALL])
    return [*names], [*runs]


def _measured(names: Sequence[str], data: str | None) -> Iterator[Validation]:
    if not names:
        return
    folder = public_data.folder(data)
    if folder is None:
        raise UsageError("The public measurements are not here; name their folder with --data DIR, or in $BENCH_DATA.")
    for name in names:
        yield validate.source(name)(folder)


def _stored(runs: Sequence[str], backend: str, slo: str | None) -> Iterator[Validation]:
    if runs:
        from harness.validate import replay  # heavy, and only for stored runs

        yield replay.validate(runs, backend, slo)
