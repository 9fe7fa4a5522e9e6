"""What `bench validate --against` does: simulated numbers beside measured ones, printed or written."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from harness.cli import _terminal
from harness.errors import UsageError
from harness.experiments.validate import Validation, answer


def tell(against: Sequence[str], *, backend: str | None, slo: str | None, form: str, out: str | None) -> int:
    """Compare, print the answer or write it to `out` in the form that its ending names; returns the exit code."""
    if out is not None:
        _terminal.check(out)
    given = [("--backend", backend), *(("--against", one) for one in against), ("--slo", slo)]
    info = answer.answer([*_compared(against, backend, slo)], _terminal.command("bench validate", given))
    if out is None:
        _terminal.tell(form, info)
    else:
        _terminal.put(info, out)
        _terminal.tell_verdict(info)
    return int(info["exit_code"])


def _compared(against: Sequence[str], backend: str | None, slo: str | None) -> Iterator[Validation]:
    """Each file of measurements by itself, then all stored runs together."""
    files = [one for one in dict.fromkeys(against) if one.endswith(".toml")]
    runs = [one for one in dict.fromkeys(against) if one not in files]
    for one in [*files, *runs]:
        if not Path(one).exists():
            raise UsageError(f"'{one}' does not exist; --against takes a stored run or a TOML file of measurements.")
    if runs and backend is None:
        raise UsageError("--against RUN needs the simulator that repeats it: --backend sim:latency=..., with a latency "
                         "model fitted on other runs (bench fit).")  # fmt: skip
    if files:
        from harness.experiments.validate import measured_runs  # heavy, and only for tables

        for one in files:
            yield measured_runs.validate(Path(one), backend, slo)
    if runs:
        from harness.experiments.validate import replay  # heavy, and only for stored runs

        yield replay.validate(runs, backend or "", slo)
