"""The validity checks of a run, as run.json lists them, and the verdict with its reasons.

A check that failed makes the run not valid (exit code 4); a warning does not; `unknown` says why nothing was checked.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from harness.api import ENDED_WELL, RunWarning, Status
from harness.data.folder import Run
from harness.data.lists import lateness, number
from harness.data.records import since
from harness.data.run_json import Check, Cut, Fidelity, OutputLengths, RunInfo
from harness.metrics.measure import ended_well, succeeded
from harness.metrics.quantiles import quantile
from harness.validity import steady_state, work_done
from harness.validity.fidelity import GAP_LAW, LATE_S
from harness.validity.physics import CAUSALITY, LITTLE_S, RECORDS, TOKENS, Laws, impossible, little, without_record
from harness.validity.remote import floors_s, ms
from harness.validity.rules import OVERLOAD, QUEUE_GREW, Rule, Verdict, applying, digits, plural
from harness.validity.steady_state import overload
from harness.validity.work_done import BY_SERVER, LENGTHS

Floats: TypeAlias = npt.NDArray[np.float64]

LATE_SHARE = 0.01
"""Share of requests that may leave late (by more than `LATE_S`) without a warning: the p99 of lateness is below it.

More is a warning and no more than that up to `TOO_LATE_SHARE`, because TTFT and E2E count from the scheduled time: a
late client makes a system look slower, never faster, and by little while it is late by less than `TOO_LATE_S`.
"""

TOO_LATE_S = 0.050
"""Lateness that spoils a request: a fifth of the TTFT bound of 0.25 s that DistServe holds a chat to."""

TOO_LATE_SHARE = 0.05
"""Share of spoilt requests that makes a run not valid: half of the 10% that may miss at the usual goal of 0.9."""

LATE_STEPS_SHARE = 0.01
"""Share of the steps of a paced engine that may end late: more, and the step times are those of this machine too."""

EMPTY: Status = "empty"

LATENESS, ANSWERS, PACE = "lateness", "answers", "pace"
"""Names of the checks made here, as run.json lists them."""

FAILED = "failed"
"""Code of the warning of failed requests, which is not given beside that of too many of them."""

MIN_FOR_P99 = 100
"""Fewest values for which the 99th percentile is more than the largest value."""


_AGAIN = "run it again, and check the output of the backend"
Scores: TypeAlias = Sequence[tuple[object, float]]
"""The side and the value of each condition."""
State = Literal["ok", "warning", "failed", "unknown"]
RATE, FLOOR = "rate", "client-floor"
WARNED = {
    RATE: ("drawn-rate", "achieved-rate"),
    LATENESS: ("late-client", "late-for-bound"),
    FLOOR: ("floor", "unresolved"),
    LENGTHS: (LENGTHS, BY_SERVER),
}
"""Warnings that belong to a check."""


def judge(
    requests: pa.Table,
    schedule: pa.Table | None = None,
    *,
    clock: Literal["wall", "virtual"] = "wall",
    interrupted: bool = False,
    recorded: bool = False,
    closed: bool = False,
    window_s: float | None = None,
    as_requested: bool = True,
    cut: Cut | None = None,
    met: bool | None = None,
    laws: Laws | None = None,
) -> Verdict:
    """The verdict on a table of records, against the schedule that was to be sent where it is given.

    Not valid: physics broken, requests without a record (unless the run was `interrupted`) or with two, a client
    too late to have sent the schedule (wall clock only), no request that ended well. A growing queue, a late
    client, failures, an interruption and few requests are warnings; what they advise depends on whether the requests
    came at `recorded` times or from users in a `closed` loop, whose rate cannot be set. In a run that sent only
    what was due before `window_s`, follow-ups may be missing; in any run those of a request that was given up.
    `as_requested` is off where answers may be shorter or longer than requested. The number of measured
    requests is judged after the `cut` of the warm-up. A growing queue is overload unless the SLO was `met`
    (None: there is none): chance lets the queue of a system below its capacity grow too (docs/design/011).
    `laws` have seen all tokens of the requests where their table has only the first and the last (`broken`).
    """
    if not len(requests):
        return Verdict(False, [RunWarning(RECORDS, "No request has a record, so nothing was measured.", _AGAIN)])
    cut = cut or steady_state.find(requests, None)
    less = less_traffic(recorded, closed)
    late_s = np.zeros(0)
    if clock == "wall":
        late_s = lateness(requests)
        late_s = late_s[~np.isnan(late_s)]
    measured_table = since(requests, cut.since_s)
    measured = int(succeeded(measured_table).sum())
    unsent = len(without_record(requests, schedule)) if schedule is not None and interrupted else 0
    planned = 0 if schedule is None else len(schedule)
    too_late = float((late_s > TOO_LATE_S).mean()) if len(late_s) else 0.0
    late, p99_s = float((late_s > LATE_S).mean()) if len(late_s) else 0.0, quantile(late_s, 1 - LATE_SHARE)
    failed = len(requests) - int(ended_well(requests).sum())
    counts = {row["values"]: row["counts"] for row in pc.value_counts(requests["status"]).to_pylist()}
    kinds = ", ".join(f"{count:,} {status}" for status, count in sorted(counts.items()) if status not in ENDED_WELL)
    reasons = [
        *impossible(
            requests, schedule, interrupted=interrupted, window_s=window_s, as_requested=as_requested, laws=laws
        ),
        *applying([
            Rule(too_late > TOO_LATE_SHARE, LATENESS,
                 f"The client sent {too_late:.1%} of the requests more than {1000 * TOO_LATE_S:.0f} ms late, so the "
                 f"schedule was not what the system saw (allowed: {TOO_LATE_SHARE:.0%}).",
                 f"{less}, quiet the machine, or send from another one"),
            _unanswered(measured_table, measured, cut),
        ]),
    ]  # fmt: skip
    warnings = applying([
        Rule(unsent, "interrupted",
             f"the run was interrupted: {unsent:,} of {planned:,} scheduled requests were not sent",
             "let the run end, or give a smaller --requests or --duration"),
        Rule(p99_s > LATE_S, "late-client",
             f"the client was late by more than {1000 * LATE_S:.0f} ms for {late:.1%} of the requests (p99 "
             f"{1000 * p99_s:.1f} ms, max {1000 * late_s.max(initial=0.0):.1f} ms)",
             f"{less}, or give the client a processor of its own"),
        *steady_state.rules(cut),
        *_overloaded(requests, less, met=met is True),
        Rule(failed, FAILED,
             f"{failed:,} of {len(requests):,} requests failed ({kinds}); they miss the SLO and have no latency",
             "see the columns status and error of requests.parquet"),
        Rule(EMPTY in counts, "empty-answers",
             f"{counts.get(EMPTY, 0):,} of {len(requests):,} answers are empty: they ended well, without any text"
             f"{_first_error(requests)}; they miss the SLO and have no latency", _remedy_of_empty(requests)),
        Rule(0 < measured < MIN_FOR_P99, "few-requests",
             f"p99 of {measured} {plural(measured, 'request', 'requests')} is little more than the largest value",
             f"{'replay a longer part of a trace' if recorded else 'raise --requests or --duration'} to get "
             f"{MIN_FOR_P99} or more"),
    ])  # fmt: skip
    return Verdict(not reasons, reasons, [*warnings])


def _unanswered(requests: pa.Table, ok: int, cut: Cut) -> Rule:
    """The rule that something must have been measured: of the requests after the cut so many ended well."""
    count, text, remedy = len(requests), "No request ended well", "see the errors of the requests"
    if cut.requests:
        text = "No request after the warm-up ended well"
    if count and pc.all(pc.equal(requests["status"], EMPTY)).as_py():
        text = f"Every answer is empty: {count:,} of {count:,} ended well, without any text{_first_error(requests)}"
        remedy = _remedy_of_empty(requests)
    return Rule(not ok, ANSWERS, f"{text}, so nothing was measured.", remedy)


def from_sent(requests: pa.Table) -> pa.Table:
    """The requests with their latencies counted from when each was sent: what they would be with a client in time."""
    due = requests["scheduled_s"]
    sent = pc.subtract(requests["sent_s"], pc.fill_null(requests["cap_wait_s"], 0.0))
    return requests.set_column(
        requests.column_names.index("scheduled_s"), requests.schema.field("scheduled_s"),
        pc.max_element_wise(due, sent).cast(due.type),  # of one that was never sent, when it was due
    )  # fmt: skip


def decide_alike(due: Scores, sent: Scores, within: float = TOO_LATE_SHARE) -> bool:
    """Whether requests that left late decide nothing: sides are the same, and values the same but for `within`.

    `due` is the score of requests counted from when each was due, `sent` that of those of `from_sent`. A system was no
    better than the second and no worse than the first says, so a run that is not valid for its lateness alone still
    tells what both say. Its latencies are no measurement.
    """
    pairs = zip(due, sent, strict=True)
    return all(side == other and (a == b or abs(a - b) <= within) for (side, a), (other, b) in pairs)


def failed_checks(info: RunInfo) -> set[str]:
    """Names of the checks that a run failed."""
    return {check.check or "" for check in info.checks or () if check.state == "failed"}


def less_traffic(recorded: bool, closed: bool = False) -> str:
    """What lowers the load."""
    if closed:
        return "take fewer users (--arrivals closed:users=N)"
    return "replay a quieter part of the trace (--start, --stop)" if recorded else "lower --rate"


def _overloaded(requests: pa.Table, less: str, *, met: bool) -> Iterator[Rule]:
    if (grown := overload(requests)) is None:
        return
    what, until = "all requests were due at once", "so that not all of them are due at once"
    if grown.seconds:
        came_rps, started_rps = grown.arrivals / grown.seconds, (grown.arrivals - grown.requests) / grown.seconds
        what = (
            f"the queue grew by {grown.requests:,} requests in {digits(grown.seconds)} s: {digits(came_rps)} a second "
            f"came and {digits(started_rps)} were started"
        )
        until = "until no more come than are started, or take a faster system"
    yield Rule(
        met, QUEUE_GREW, f"{what}, and the SLO was met all the same; a longer run may miss it",
        "make the run longer to see whether it does (--requests, --duration)",
    )  # fmt: skip
    yield Rule(
        not met, OVERLOAD,
        f"overloaded: {what}, so latencies depend on the length of the run, not on the speed of the system",
        f"{less} {until}",
    )  # fmt: skip


def _first_error(requests: pa.Table) -> str:
    """' (finish_reason stop)' of the first empty answer."""
    errors = requests.filter(pc.equal(requests["status"], EMPTY))["error"].drop_null()
    return f" ({errors[0].as_py().removeprefix('no text: ')})" if len(errors) else ""


def _remedy_of_empty(requests: pa.Table) -> str:
    """Thinking that is not streamed takes all tokens of a short answer; else the model ends at once."""
    table = requests.filter(pc.equal(requests["status"], EMPTY))
    full = number(table, "output_tokens") >= number(table, "output_tokens_asked")
    if full.sum() > 0.5 * len(table):
        return "its tokens are not streamed (hidden reasoning): request more of them (--lengths), or let it reason less"
    return "give it prompts that have an answer (--content recorded), or let it ignore its end token (ignore_eos)"


def late_steps(backend: Mapping[str, object]) -> Iterator[RunWarning]:
    """The reason that makes a run of a paced engine not valid whose steps ended later than its latency model says."""
    late, steps = backend.get("late_steps"), backend.get("paced_steps")
    if isinstance(late, int) and isinstance(steps, int) and late > LATE_STEPS_SHARE * steps:
        text = f"The engine ended {_pace(backend)}, so its step times were not those of the latency model"
        remedy = "quiet the machine, lower --rate, or take a latency model with longer steps"
        yield RunWarning(PACE, f"{text} (allowed: {LATE_STEPS_SHARE:.0%}).", remedy)


def _pace(backend: Mapping[str, object]) -> str:
    """'3 of 1,000 steps (0.3%) more than 1.0 ms late, at most 2.5 ms'."""
    late, steps, after_s, most_s = (
        float(str(backend[name])) for name in ("late_steps", "paced_steps", "late_after_s", "latest_step_s")
    )
    share = late / steps if steps else 0.0
    return f"{late:,.0f} of {steps:,.0f} steps ({share:.2%}) more than {ms(after_s)} late, at most {ms(most_s)}"


def checks(run: Run, verdict: Verdict, sent: Fidelity, lengths: OutputLengths) -> list[Check]:
    """Every check of a run in the order of reading; `sent` is what `fidelity` found."""
    return [_check(name, text, state, verdict) for name, state, text in _passed(run, sent, lengths)]


def _check(name: str, text: str, state: State, verdict: Verdict) -> Check:
    failed: Sequence[RunWarning] = [r for r in verdict.reasons if r.code == name]
    warned: Sequence[RunWarning] = [w for w in verdict.warnings if w.code in WARNED.get(name, ())]
    for worse, findings in (("failed", failed), ("warning", warned)):
        if findings:
            return Check(name, worse, " ".join(w.message for w in findings), findings[0].remedy)
    return Check(name, state, text)


def _passed(run: Run, sent: Fidelity, lengths: OutputLengths) -> Iterator[tuple[str, State, str]]:
    """Name, state and text of each check, before reasons and warnings are applied."""
    n = run.requests.num_rows
    yield RECORDS, "ok", f"each of {n:,} requests has exactly one record"
    yield ANSWERS, "ok", f"{int(succeeded(run.requests).sum()):,} of {n:,} requests ended well"
    yield TOKENS, "ok", "the tokens of all events add up to those of their requests"
    yield LENGTHS, *work_done.check(lengths)
    yield CAUSALITY, "ok", "no request is sent before it is due, no token comes before its request, times never fall"
    yield LITTLE_S, *_littles_law(run)
    yield RATE, *_rate(sent)
    yield GAP_LAW, *_gaps(sent)
    yield LATENESS, *_lateness(run, sent)
    if "late_steps" in run.info.backend:
        yield PACE, "ok", f"the engine ended {_pace(run.info.backend)}"
    yield FLOOR, *_floor(run)


def _littles_law(run: Run) -> tuple[State, str]:
    pair = little(run.requests)
    if pair is None:
        return "unknown", "no request got a token over a time of any length"
    return "ok", f"{digits(pair[0], 4)} requests in the system on average = rate x mean time in the system"


def _rate(sent: Fidelity) -> tuple[State, str]:
    requested, drawn, achieved = sent.requested_rps, sent.drawn_rps, sent.achieved_rps
    if achieved is None:
        return "unknown", "the requests were due at one instant, or fewer than two were sent"
    rates = (("requested", requested), ("drawn", drawn), ("achieved", achieved))
    return "ok", ", ".join(f"{name} {digits(rps, 4)}" for name, rps in rates if rps is not None) + " req/s"


def _gaps(sent: Fidelity) -> tuple[State, str]:
    ks, p = sent.ks, sent.ks_p
    if ks is None or p is None:
        return "unknown", "no law of the gaps is declared, or too few arrivals to compare with one"
    return "ok", f"Kolmogorov-Smirnov {ks:.2g}, p {p:.2g}"


def _lateness(run: Run, sent: Fidelity) -> tuple[State, str]:
    if run.info.virtual:
        return "ok", "the clock is virtual, nothing is sent late"
    p99_s, most_s = sent.lateness_p99_s, sent.lateness_max_s
    if p99_s is None or most_s is None:
        return "unknown", "nothing was sent, or no schedule is stored"
    return "ok", f"p99 {ms(p99_s)}, at most {ms(most_s)}"


def _floor(run: Run) -> tuple[State, str]:
    if run.info.virtual:
        return "ok", "a simulator has no client that could be slow"
    errors_s = floors_s(run.info.floor)
    if not errors_s:
        return "unknown", "the client's own error is measured only in runs against remote endpoints (--calibrate)"
    return "ok", "p99 " + ", ".join(f"{name} {ms(errors_s[name])}" for name in ("ttft", "tpot") if name in errors_s)
