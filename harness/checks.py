"""The checks that a run must pass to prove anything, one by one, as run.json lists them.

A check that failed makes the run not valid (exit code 4); a warning does not; `unknown` says why nothing was checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from harness import output_lengths
from harness.api import Caution
from harness.fidelity import GAP_LAW
from harness.measure import succeeded
from harness.output_lengths import BY_SERVER, LENGTHS, OutputLengths
from harness.physics import CAUSALITY, LITTLE_S, TOKENS, little
from harness.remote_facts import ms, part
from harness.resolution import floors_s
from harness.validity import ANSWERS, LATENESS, RECORDS, Verdict

if TYPE_CHECKING:
    from harness.folder import Run

State = Literal["ok", "warning", "failed", "unknown"]
RATE, FLOOR = "rate", "client-floor"

WARNED = {
    RATE: ("drawn-rate", "achieved-rate"),
    LATENESS: ("late-client", "late-for-bound"),
    FLOOR: ("floor", "unresolved"),
    LENGTHS: (LENGTHS, BY_SERVER),
}
"""Warnings that belong to a check."""


@dataclass(frozen=True, slots=True)
class Check:
    """One check: what was found, and what to do where that is not good."""

    check: str
    state: State
    said: str
    remedy: str = ""


def checks(run: Run, verdict: Verdict, sent: Mapping[str, Any], lengths: OutputLengths) -> list[dict[str, str]]:
    """Every check of a run in the order of reading, fit for JSON; `sent` is what `harness.fidelity` found."""
    return [asdict(_check(name, said, state, verdict)) for name, state, said in _found(run, sent, lengths)]


def _check(name: str, said: str, state: State, verdict: Verdict) -> Check:
    failed: Sequence[Caution] = [r for r in verdict.reasons if r.code == name]
    warned: Sequence[Caution] = [w for w in verdict.warnings if w.code in WARNED.get(name, ())]
    for worse, cautions in (("failed", failed), ("warning", warned)):
        if cautions:
            return Check(name, worse, " ".join(c.message for c in cautions), cautions[0].remedy)  # type: ignore[arg-type]  # both are states
    return Check(name, state, said)


def _found(run: Run, sent: Mapping[str, Any], lengths: OutputLengths) -> Iterator[tuple[str, State, str]]:
    """Name, state and words of each check, if nothing speaks against it."""
    n = run.requests.num_rows
    yield RECORDS, "ok", f"each of {n:,} requests has exactly one record"
    yield ANSWERS, "ok", f"{int(succeeded(run.requests).sum()):,} of {n:,} requests ended well"
    yield TOKENS, "ok", "the tokens of all events add up to those of their requests"
    yield LENGTHS, *output_lengths.check(lengths)
    yield CAUSALITY, "ok", "nothing is sent before it is due, no token comes before it is asked for, no stamp falls"
    yield LITTLE_S, *_littles_law(run)
    yield RATE, *_rate(sent)
    yield GAP_LAW, *_gaps(sent)
    yield LATENESS, *_lateness(run, sent)
    yield FLOOR, *_floor(run)


def _littles_law(run: Run) -> tuple[State, str]:
    pair = little(run.requests)
    if pair is None:
        return "unknown", "no request got a token over a time of any length"
    return "ok", f"{pair[0]:.4g} requests in the system on average = rate x mean time in the system"


def _rate(sent: Mapping[str, Any]) -> tuple[State, str]:
    asked, drawn, achieved = (sent.get(f"{name}_rps") for name in ("requested", "drawn", "achieved"))
    if achieved is None:
        return "unknown", "the requests were due at one instant, or fewer than two were sent"
    told = [f"{word} {value:.4g}" for word, value in (("asked", asked), ("drawn", drawn)) if value is not None]
    return "ok", ", ".join([*told, f"achieved {achieved:.4g} req/s"])


def _gaps(sent: Mapping[str, Any]) -> tuple[State, str]:
    ks, p = sent.get("ks"), sent.get("ks_p")
    if ks is None or p is None:
        return "unknown", "no law of the gaps is declared, or too few arrivals to compare with one"
    return "ok", f"Kolmogorov-Smirnov {ks:.2g}, p {p:.2g}"


def _lateness(run: Run, sent: Mapping[str, Any]) -> tuple[State, str]:
    if run.info.get("clock") == "virtual":
        return "ok", "the clock is virtual, nothing is sent late"
    p99_s, most_s = sent.get("lateness_p99_s"), sent.get("lateness_max_s")
    if p99_s is None or most_s is None:
        return "unknown", "nothing was sent, or no schedule is stored"
    return "ok", f"p99 {ms(p99_s)}, at most {ms(most_s)}"


def _floor(run: Run) -> tuple[State, str]:
    if run.info.get("clock") == "virtual":
        return "ok", "a simulator has no client that could be slow"
    errors_s = floors_s(part(run.info, "floor"))
    if not errors_s:
        return "unknown", "the client's own error is measured against servers elsewhere only (--calibrate)"
    return "ok", "p99 " + ", ".join(f"{name} {ms(errors_s[name])}" for name in ("ttft", "tpot") if name in errors_s)
