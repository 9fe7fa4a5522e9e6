"""Warnings of a run against a remote server: its client or network may have distorted it, and what its answers tell.

The thresholds are choices of this project unless a source is named; each warning has its remedy.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import UnsetType

from harness.api import Bound, RunWarning, Slo
from harness.data.folder import Run
from harness.data.lists import lateness, number, streamed_tokens, tokens_each
from harness.data.run_json import Described, Fidelity, RunInfo
from harness.metrics.measure import first_last, succeeded
from harness.metrics.objective import score
from harness.metrics.quantiles import quantile
from harness.validity import server_metrics
from harness.validity.checks import LATENESS
from harness.validity.fidelity import LATE_S
from harness.validity.remote import (
    Floats,
    Senders,
    column,
    floors_s,
    most,
    ms,
    of_each,
    of_held_back,
    ratio,
    shared_share,
    stamps_of,
    total,  # fmt: skip
)
from harness.validity.rules import Rule, applying, digits, plural
from harness.validity.server_metrics import not_streamed
from harness.validity.steady_state import started
from harness.validity.work_done import by

LATE_BOUND_SHARE = 0.05
"""Lateness (p99) above this share of the tightest bound on TTFT or E2E, of which it is a part, is a warning."""

SPOILT_BOUND_SHARE, SPOILT_SHARE = 0.10, 0.01
"""A request that left later than this share of its TTFT bound is spoilt; more than the second share: not valid."""

LATE_FIRST_S, LATE_FIRST_SHARE = 0.001, 0.005
"""An answer whose first token has the time of a later one, read so late, has a wrong TTFT; half of what moves p99."""

TOGETHER_S = 0.0002
"""Two tokens that come within less have left in one go."""

LEAST_RATE = 0.99
"""Share of the drawn rate that the sending must reach."""

LAG_SHARE = 0.10
"""Read lag (p99) above this share of the median ITL is a warning."""

SHARED_SHARE = 0.05
"""Share of token events that may be read together with a later one, whose time they then get."""

CPU_SHARE, RUN_WAIT_SHARE = 0.80, 0.05
"""Share of a core that a sender may use in any second, and share of the time that it may wait for one."""

STALL_S, PAUSE_S = 0.020, 0.005
"""Longest time that an event loop may be late, and that a collection of garbage may take."""

OTHER_CORES = 0.2
"""Cores that other processes may use, per sender."""

CONNECT_S = 0.010
RETRANSMITS = 0.001
FILES_SHARE = 0.80
SLOPE_PPM = 100.0
HOST_CLOCK_S = 0.001
FLOOR_SHARE = 0.10


FELL_BACK_SHARE = 0.01

QUIETER = "quiet the machine, or send from another one"
HELD_BACK = "held-back"
"""Code of the warning of a run in which most answers, or some, were held back on their way (`data.held_back`)."""

APART_S = 0.005
"""Median gap from which the first event, the first token and the first text of the answer count as different."""

LENGTH_SHARE = 0.02
"""Share by which the prompts that the server counted may differ from those that were planned."""

TOKENS_PER_EVENT = 1.05

UNSEEN_SHARE = 0.01
"""Share of the tokens from which on those that were never streamed are reported."""


def warnings(run: Run, objective: Slo, fidelity: Fidelity) -> Iterator[RunWarning]:
    """Warnings of a run against a remote server."""
    senders = run.info.client.per_sender
    remedy = _remedy(run.info, senders)
    unstreamed, held = not_streamed(run.info), of_held_back(run)
    first = [_held_back(run, held)] if held is not None else [] if unstreamed else _first(run)
    yield from applying((
        *_sending(run, objective, fidelity, remedy), *_reading(run, senders, remedy), *_busy(senders, remedy),
        *_network(run, senders), *_clock(run, senders), *_floor(run.info, objective, remedy, held=held is not None),
        *_counted(run), *_unseen(run), *first,
        Rule(unstreamed and held is None, "not-streamed",
             "answers were not streamed on request (stream=false), so TTFT is the time to the whole answer, and TPOT "
             "and ITL are unknown", "leave out stream=false to measure TTFT, TPOT and ITL"),
        *_lengths(run), *_server(run.info),
    ))  # fmt: skip
    yield from server_metrics.warnings(run.info.server.compared or [])


def _remedy(info: RunInfo, senders: Senders) -> str:
    """What helps a client that is too slow: more processes only where one is busy, not waiting, and cores are free."""
    if most(senders, "cpu_share_max") <= CPU_SHARE:
        return QUIETER
    waits = most(senders, "run_wait_share") > RUN_WAIT_SHARE
    if any(sender.host for sender in senders):
        return "lower --rate, or send from more hosts"
    count, cores = info.client.senders or len(senders), info.host.get("cores")
    cores = cores if isinstance(cores, int) else os.cpu_count() or 1
    if waits or count >= cores:
        return "lower --rate, quiet the machine, or send from another one"
    return "take more senders (--senders), or lower --rate"


def reasons(run: Run, objective: Slo) -> Iterator[RunWarning]:
    """Why a run against a remote server is not valid."""
    bounds = (replace(bound, percentile=None) for bound in objective.bounds if bound.metric in ("ttft", "ttft_sent"))
    scored = score(run.requests, replace(objective, bounds=tuple(bounds)))
    limit_s = np.minimum(*(scored.limits_s(metric) for metric in ("ttft", "ttft_sent")))
    late_s = _late_s(run.requests)
    share = float((late_s > SPOILT_BOUND_SHARE * limit_s).mean()) if len(late_s) else 0.0
    merged = _late_first_share(run)
    return applying([
        Rule(merged > LATE_FIRST_SHARE, "late-first-tokens",
             f"The client read the first token of {merged:.1%} of the answers late, together with a later one whose "
             f"time it has (allowed: {LATE_FIRST_SHARE:.1%}), so TTFT measures the client and not the server.",
             _remedy(run.info, run.info.client.per_sender)),
        Rule(share > SPOILT_SHARE, LATENESS,
             f"The client sent {share:.1%} of the requests later than {SPOILT_BOUND_SHARE:.0%} of their TTFT bound "
             f"(allowed: {SPOILT_SHARE:.0%}), so TTFT measures the client and not the server.",
             _remedy(run.info, run.info.client.per_sender)),
    ])  # fmt: skip


def _late_first_share(run: Run) -> float:
    """Share of the answers whose first token may be stamped late: the kernel stamps bytes that wait by the last ones.

    Those that were held back on their way have no TTFT, and where a server sends its first two tokens together, as
    those that were read in time show, one time is right for both.
    """
    if run.http is None or "token_s" not in run.requests.column_names:
        return 0.0
    held = of_held_back(run)
    table = run.requests if held is None else run.requests.filter(pa.array(~held))
    late_ids = run.http.filter(pc.greater(run.http["read_lag_s"], LATE_FIRST_S))["request_id"]
    late = pc.is_in(table["request_id"], late_ids).to_numpy()
    events = table["events"] if "events" in table.column_names else pc.list_value_length(table["token_s"])
    gap_s = np.where(events.to_numpy() > 2, started(table) - first_last(table)[0], np.nan)
    if quantile(gap_s[~late], 0.5) <= TOGETHER_S:
        return 0.0
    return ratio(float((gap_s[late] == 0).sum()), float(len(table)))


def _late_s(requests: pa.Table) -> Floats:
    """(requests,) lateness; a request that never left is not late."""
    return np.nan_to_num(lateness(requests), nan=0.0)


def _sending(run: Run, objective: Slo, fidelity: Fidelity, remedy: str) -> Iterator[Rule]:
    bounds = [bound for bound in objective.bounds if bound.metric in ("ttft", "e2e")]
    tightest = min(bounds, key=lambda bound: bound.limit, default=Bound("ttft", np.inf))
    p99_s = quantile(_late_s(run.requests), 0.99)
    drawn, sent = fidelity.drawn_rps or 0.0, fidelity.achieved_rps
    complete = fidelity.scheduled == fidelity.sent and sent is not None
    return iter([
        Rule(LATE_BOUND_SHARE * tightest.limit < p99_s <= LATE_S,  # above LATE_S the warning `late-client` covers it
             "late-for-bound",
             f"lateness p99 is {ms(p99_s)}, {p99_s / tightest.limit:.0%} of the bound {tightest}, which counts from "
             "the time a request was due", remedy),
        Rule(complete and (sent or 0.0) < LEAST_RATE * drawn and run.info.spec.get("max-in-flight") is None,
             "achieved-rate",
             f"{digits(sent or 0.0, 4)} req/s left of {digits(drawn, 4)} in the schedule ({ratio(sent, drawn):.1%})",
             remedy),
    ])  # fmt: skip


def _reading(run: Run, senders: Senders, remedy: str) -> Iterator[Rule]:
    gaps = run.info.summary.metrics.get("itl", Described())
    lag_s, shared, late_s = most(senders, "read_lag_p99_s"), shared_share(run), most(senders, "stall_p90_s")
    yield Rule(
        gaps.p50 and lag_s > LAG_SHARE * gaps.p50, "slow-reader",
        f"bytes were read {ms(lag_s)} after they came (p99 of the slowest sender), {ratio(lag_s, gaps.p50):.0%} of the "
        "median gap between tokens", remedy,
    )  # fmt: skip
    text = f"{shared or 0.0:.1%} of the token events were read together with a later one and have its time"
    if of_each(senders, "stall_p90_s") and late_s < (gaps.mean or 0.0):
        text += f", although the client was late by no more than {ms(late_s)} (p90)"
        remedy = "read ITL as the time between groups of events: the server sends several at once, or a proxy does"
    yield Rule(shared is not None and shared > SHARED_SHARE, "shared-reads", text, remedy)


def _busy(senders: Senders, remedy: str) -> Iterator[Rule]:
    cpu, wait = most(senders, "cpu_share_max"), most(senders, "run_wait_share")
    stall_s, pause_s = most(senders, "stall_max_s"), most(senders, "gc_max_s")
    other = most(senders, "other_load_cores") / max(1, len(senders))
    excess, worst = max([
        (cpu / CPU_SHARE, f"a sender used {cpu:.0%} of a core in its busiest second"),
        (wait / RUN_WAIT_SHARE, f"a sender was ready and waited for a core {wait:.1%} of the time"),
        (stall_s / STALL_S, f"the event loop of a sender was {ms(stall_s)} late once"),
        (pause_s / PAUSE_S, f"a sender collected garbage for {ms(pause_s)} while it was sending"),
        (other / OTHER_CORES, f"other processes used {other:.2g} cores per sender (a server that runs here too)"),
    ])  # fmt: skip
    yield Rule(excess > 1, "busy-client", f"this machine was too busy to time a server: {worst}", remedy)


def _network(run: Run, senders: Senders) -> Iterator[Rule]:
    waited_s, resent = column(run.http, "connect_s"), total(senders, "resent")
    p99_s = quantile(waited_s, 0.99)
    lost = max((ratio(sender.retransmits, sender.segments) for sender in senders), default=0.0)
    full = [s for s in senders if ratio(s.open_files, s.open_files_limit) > FILES_SHARE]
    files, limit = max(zip(of_each(full, "open_files"), of_each(full, "open_files_limit"), strict=True), default=(0, 0))
    return iter([
        Rule(p99_s > CONNECT_S, "slow-connect",
             f"{len(waited_s):,} of {len(run.requests):,} requests had to open a connection first, which took "
             f"{ms(p99_s)} (p99) and is part of their TTFT", "look at the network, and at the backlog of the server"),
        Rule(lost > RETRANSMITS, "retransmits", f"{lost:.2%} of the segments were sent again by the network stack",
             "look at the network between client and server"),
        Rule(resent > 0.01 * len(run.requests), "resent",
             f"{resent:,.0f} {plural(resent, 'request was', 'requests were')} sent again because the server had just "
             "closed the connection", "let the server keep idle connections for longer than 2 s"),
        Rule(full, "open-files", f"a sender had {files:,.0f} files open of the {limit:,.0f} that it may have",
             "raise the limit (ulimit -n), or take more senders (--senders)"),
    ])  # fmt: skip


def _clock(run: Run, senders: Senders) -> Iterator[Rule]:
    steps, slope = total(senders, "clock_steps"), max(map(abs, of_each(senders, "clock_slope_ppm")), default=0.0)
    error_s, by_process = most(senders, "clock_error_s"), stamps_of(run.info) == "process"
    fell_back = total(senders, "process_stamps") or float(column(run.http, "process_stamps").sum())
    share = ratio(fell_back, float(column(run.http, "reads").sum()))
    return iter([
        Rule(steps or slope > SLOPE_PPM, "clock",
             f"the clock of this machine was set {steps:,.0f} times during the run and ran {slope:,.0f} ppm off; "
             "stamps taken at a step are those of the process",
             "let the clock be slewed, not stepped, while measuring"),
        Rule(error_s > HOST_CLOCK_S, "host-clocks",
             f"the clocks of the hosts that sent are known to {ms(error_s)} only: requests of two hosts may be "
             "in another order; times within a request are not affected",
             "send from hosts with shorter round trips, and have their clocks synchronized"),
        Rule(by_process, "process-stamps",
             "this platform does not report when bytes arrived, so tokens are stamped when the process reads them",
             "measure from Linux, or keep this machine idle and check the client's own error (client-floor)"),
        Rule(not by_process and share > FELL_BACK_SHARE, "fallen-back-stamps",
             f"{share:.1%} of the reads had no plausible kernel time and are stamped by the process",
             "keep the clock of this machine from being set while measuring"),
    ])  # fmt: skip


def _floor(info: RunInfo, objective: Slo, remedy: str, *, held: bool) -> Iterator[Rule]:
    errors_s = floors_s(info.floor)
    for bound in objective.bounds:
        error_s = errors_s.get(bound.metric, 0.0)
        yield Rule(
            error_s > FLOOR_SHARE * bound.limit, "floor",
            f"the client's own error ({ms(error_s)}, p99) is more than {FLOOR_SHARE:.0%} of the bound {bound}", remedy,
        )  # fmt: skip
    unresolved = info.resolution.unresolved
    yield Rule(
        unresolved and not held, "unresolved",
        f"the client's own error leaves open whether {' and '.join(unresolved)} {plural(len(unresolved), 'is', 'are')} "
        "met", f"{remedy}; or choose a looser bound",
    )  # fmt: skip


def _counted(run: Run) -> Iterator[Rule]:
    """How the tokens of the answers were counted, and how many an event holds."""
    if run.http is not None and len(run.http):
        uncounted = run.http.filter(pc.is_null(run.http["refused_tokens"]))["counted_by"]
        by_events = int(pc.sum(pc.equal(uncounted, "events")).as_py() or 0)
        fields = run.http["unknown_text"].drop_null().unique().to_pylist()
        names = ", ".join(dict.fromkeys(name for text in fields for name in text.split(", ")))
        yield Rule(
            by_events, "counted-by-chunks",
            f"the tokens of {by_events:,} {plural(by_events, 'answer', 'answers')} are counted by chunks, because the "
            "server did not say how many there are; a chunk may hold none, one or several",
            "let the server send usage, or name its tokenizer (tokenizer=FOLDER)",
        )  # fmt: skip
        yield Rule(
            fields, "unknown-text",
            f"the server sends text in a field that bench does not know ({names}); it is counted as reasoning",
            "check whether that is right, and report the field and the server to the authors of bench",
        )  # fmt: skip
    per_event = tokens_per_event(run.requests)
    yield Rule(
        per_event > TOKENS_PER_EVENT and not not_streamed(run.info), "tokens-per-event",
        f"ITL is per event of {per_event:.3g} tokens: the server sends several at once",
        "compare TPOT, which counts tokens, with other systems",
    )  # fmt: skip


def _held_back(run: Run, held: npt.NDArray[np.bool_]) -> Rule:
    """What holds a stream back cannot be seen from here; that it does, and for how long, can."""
    assert run.http is not None
    events = run.http.filter(pc.is_in(run.http["request_id"], pa.array(run.requests["request_id"].to_numpy()[held])))
    silence_s = quantile(column(events, "held_s"), 0.5)
    late_s = most(run.info.client.per_sender, "stall_p90_s")  # 0: not known, as of a run that was killed
    late = f", and the client was late by no more than {ms(late_s)} (p90)" if late_s else ""
    which = f"{'the' if held.all() else f'{int(held.sum()):,} of'} {len(held):,} answers"
    hidden = "TTFT, TPOT and ITL are unknown" if held.all() else "their TTFT, TPOT and ITL are unknown and left out"
    bounds = run.info.resolution.unresolved
    met = f", and so is whether {' and '.join(bounds)} {plural(len(bounds), 'is', 'are')} met" if bounds else ""
    return Rule(
        True, HELD_BACK,
        f"something between buffers the stream: the tokens of {which} came in few pieces, after {ms(silence_s)} of "
        f"silence (median){late}; {hidden}{met}",
        "let the proxy pass events on (nginx: proxy_buffering off and gzip off, or a header X-Accel-Buffering: no from "
        "the server), or measure the server directly; a server that sends its answers whole, or from a cache, has no "
        "other times",
    )  # fmt: skip


def _unseen(run: Run) -> Iterator[Rule]:
    """Tokens that the server counted and never streamed."""
    ok = run.requests.filter(pc.equal(run.requests["status"], "ok"))
    output, streamed = number(ok, "output_tokens"), streamed_tokens(ok)
    unseen = float((output - streamed).sum())
    if unseen <= UNSEEN_SHARE * float(output.sum()):
        return
    reasoning = 0.0 if run.http is None else float(np.nansum(number(run.http, "reasoning_tokens")))
    how = "such as hidden reasoning" if reasoning >= unseen else "which it does not name: its events hold fewer"
    yield Rule(
        True, "unseen-tokens",
        f"{tokens_text(output.mean(), streamed.mean())} (mean of an answer): the server counts tokens that it does not "
        f"stream, {how}; TPOT and ITL are those of the streamed tokens, throughput is of all, and the time of unseen "
        "tokens is in TTFT, or in a gap",
        "let the server stream its reasoning to see it, and compare with runs that stream as many tokens",
    )  # fmt: skip


def tokens_text(output: float, streamed: float) -> str:
    """'40 tokens: 10 streamed, 30 unseen'."""
    parts = (digits(value, 4) for value in (output, streamed, output - streamed))
    return "{} tokens: {} streamed, {} unseen".format(*parts)


def tokens_per_event(requests: pa.Table) -> float:
    """Streamed tokens of an answer per token event, of the requests that ended well; NaN without one."""
    ok = requests.filter(pc.equal(requests["status"], "ok"))
    of_each = ok["events"] if "events" in ok.column_names else pc.list_value_length(ok["token_s"])
    events = int(pc.sum(of_each).as_py() or 0)
    return float(tokens_each(ok).sum()) / events if events else float("nan")


def _first(run: Run) -> Iterator[Rule]:
    """What comes before the first token, and between it and the first text of the answer (medians)."""
    if run.http is None or not len(run.http):
        return
    ids = run.requests["request_id"].to_numpy()
    order = np.argsort(ids, kind="stable")
    place = np.searchsorted(ids, run.http["request_id"].to_numpy(), sorter=order)
    matched = place < len(ids)
    first_s = np.full(len(run.http), np.nan)
    first_s[matched] = first_last(run.requests)[0][order[place[matched]]]
    before_s = quantile(first_s - number(run.http, "first_event_s"), 0.5)
    after_s = quantile(number(run.http, "first_content_s") - first_s, 0.5)
    yield Rule(
        before_s > APART_S, "early-event",
        f"the server sends an event without any text {ms(before_s)} before the first token (median); a client that "
        "counts it as the first token reports too low a TTFT", "compare with clients that wait for text",
    )  # fmt: skip
    yield Rule(
        after_s > APART_S, "late-answer",
        f"the first text of the answer comes {ms(after_s)} after the first token, which is reasoning (median); TTFT "
        "counts to the first token of either",
    )  # fmt: skip


def _lengths(run: Run) -> Iterator[Rule]:
    """Prompts and answers that are longer or shorter than requested."""
    counted, planned = number(run.requests, "prompt_tokens_server"), number(run.requests, "prompt_tokens")
    valid = ~np.isnan(counted)
    delta = float(counted[valid].sum() / sent - 1) if valid.any() and (sent := planned[valid].sum()) > 0 else 0.0
    remedy = "send token ids (api=completions) where the server takes them"
    if recorded_prompts(run.info):
        remedy = "the server's count holds for recorded prompts; give the trace's --reader the model's tokenizer"
    yield Rule(
        abs(delta) > LENGTH_SHARE, "prompt-lengths",
        f"the prompts that the server counted are {abs(delta):.1%} {'longer' if delta > 0 else 'shorter'} than those "
        "of the schedule", remedy,
    )  # fmt: skip
    short = short_answers(run.requests)
    yield Rule(
        short > 0 and by(run.info) == "request", "short-answers",
        f"{short:.1%} of the answers are shorter than requested, although the server accepts ignore_eos",
        "look at its context length (max_model_len) and at its log",
    )  # fmt: skip


def recorded_prompts(info: RunInfo) -> bool:
    """Whether prompts were sent as they were recorded, so that only the server knows their tokens."""
    return not isinstance(info.content, UnsetType) and info.content.get("counted_by") == "the server"


def short_answers(requests: pa.Table) -> float:
    """Share of the answers that ended well with fewer tokens than requested; 0 without any."""
    ok = succeeded(requests)
    fewer = number(requests, "output_tokens") < number(requests, "output_tokens_asked")
    return float(fewer[ok].mean()) if ok.any() else 0.0


def _server(info: RunInfo) -> Iterator[Rule]:
    """What the server refused, what was switched off by the user, and what was sent in place of recorded prompts."""
    recorded, backend, dropped = recorded_prompts(info), info.backend, info.capabilities.get("dropped")
    yield Rule(
        info.workload.provenance.get("prompts") == "recorded" and not recorded, "made-up-prompts",
        "the trace holds the text of its prompts, but made-up prompts of these lengths were sent",
        "send the text by --content recorded",
    )  # fmt: skip
    for what in dropped if isinstance(dropped, Sequence) else ():
        if isinstance(what, Mapping):
            yield Rule(True, "dropped-field", f"the server refuses {what.get('field')}: {what.get('cost')}")
    yield Rule(
        backend.get("insecure") is True, "insecure",
        "the certificate of the server was not checked (insecure=true)", "name its authority with ca=FILE",
    )  # fmt: skip
    yield Rule(
        backend.get("salt") in ("none", None) and "salt" in backend, "no-salt",
        "prompts have no salt of their run, so a prefix cache warmed by an earlier run may shorten TTFT",
        f"restart the server between runs{'' if recorded else ', or leave the salt on'}",
    )  # fmt: skip
