"""What a reader must know that the table alone does not tell: cut answers, rows left out, requests too long.

What a reader must know of the answers of a remote server: how tokens were counted, what came first, what
it refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from harness.api import Caution, Slo
from harness.data.lists import number
from harness.metrics.measure import first_last, metrics, succeeded
from harness.metrics.quantiles import quantile
from harness.metrics.slo import bound_text
from harness.validity.checks import less_traffic
from harness.validity.remote import ms, part
from harness.validity.server_metrics import not_streamed
from harness.validity.work_done import by

if TYPE_CHECKING:
    from harness.api import Outcome
    from harness.data.folder import Run


BEFORE = "before the slice"
"""The reason for rows that --start leaves out: the user asked for it, so nobody is warned."""


LOOSE_S = 60.0
"""A bound above this on the wait for one token was probably meant in milliseconds: nobody waits a minute."""

LIVELOCK = 5
"""Preemptions of one request from which on it is told; a rule of admission that leaves room to grow needs 1 or 2."""


def cautions(run: Run, objective: Slo, outcome: Outcome | None) -> Iterator[Caution]:
    """Warnings from how a run ended, from its SLO, and from what `run.json` says of its workload and backend."""
    yield from loose(objective)
    workload = _part(run.info, "workload")
    recorded = bool(workload.get("recorded"))
    yield from _cut(run, outcome, less_traffic(recorded, is_closed(workload)))
    yield from of_source(_part(workload, "provenance"))
    yield from _left_out(_part(workload, "provenance"))
    yield from _cut_tasks(run, objective)
    yield from _not_shared(run)
    yield from _too_long(run, recorded=recorded)
    yield from _thrown_out_again(run)


def is_closed(workload: Mapping[str, Any]) -> bool:
    """Whether the workload of a run.json is one of users who ask again, so that nobody can ask for its rate."""
    return str(workload.get("arrivals") or "").partition(":")[0] == "closed"


def loose(objective: Slo) -> Iterator[Caution]:
    """Bounds that were probably meant in milliseconds."""
    for bound in objective.bounds:
        if metrics()[bound.metric].one_token and bound.limit > LOOSE_S:
            name = bound_text(bound).rpartition("=")[0]
            yield Caution(
                "loose-bound",
                f"the bound {bound_text(bound)} is {bound.limit:g} s",
                f"write {name}={bound.limit:g}ms for milliseconds",
                {"limit_s": bound.limit},
            )


def of_source(provenance: Mapping[str, Any]) -> Iterator[Caution]:
    """What lengths or arrivals say against themselves; those of arrivals stand one level deeper."""
    for facts in (provenance, _part(provenance, "arrivals")):
        if "warning" in facts:
            yield Caution("unlike-the-data", str(facts["warning"]), str(facts.get("remedy", "")))


def _part(info: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = info.get(name)
    return found if isinstance(found, Mapping) else {}


def _cut(run: Run, outcome: Outcome | None, less: str) -> Iterator[Caution]:
    waited = run.info.get("clock") != "virtual"  # a simulation is never cut: requests without an end have no record
    if outcome is not None and outcome.cut and outcome.ended == "finished" and waited:
        drain_s = run.info["spec"]["drain"]
        yield Caution(
            "cut",
            f"{outcome.cut:,} requests had no end {drain_s:g} s after the last one had left and were given up; "
            "they miss the SLO, and the latencies leave them out",
            f"wait longer with --drain, or {less}",
            {"cut": outcome.cut},
        )


def _cut_tasks(run: Run, objective: Slo) -> Iterator[Caution]:
    """Sessions that are bound as a whole and were not sent as a whole."""
    if run.schedule is None or not any(bound.metric == "task" for bound in objective.bounds):
        return
    missing = np.setdiff1d(run.schedule["id"].to_numpy(), run.requests["request_id"].to_numpy())
    unsent = run.schedule.filter(pc.is_in(run.schedule["id"], pa.array(missing)))["session"].drop_null().unique()
    begun = run.requests["session"].drop_null().unique()
    cut = int(pc.sum(pc.is_in(begun, unsent)).as_py() or 0)
    if cut:
        yield Caution(
            "cut-tasks",
            f"{cut:,} of {len(begun):,} sessions were cut by the end of the run; the bound on task sees only what was "
            "sent of them, and finds them quicker than they are",
            "give the tasks a deadline of their own (--sessions ...:deadline=30s), which lets each be finished",
            {"cut": cut, "sessions": len(begun)},
        )


def _not_shared(run: Run) -> Iterator[Caution]:
    """Prompts that share their beginnings, on a system that computes each whole."""
    if run.schedule is None or _part(run.info, "backend").get("prefix_cache") is not False:
        return
    named = int(pc.sum(pc.greater(pc.list_value_length(run.schedule["prefix_ids"]), 0)).as_py() or 0)
    if named:
        yield Caution(
            "no-prefix-cache",
            f"{named:,} of {len(run.schedule):,} prompts begin with blocks that others may share, and this system "
            "computes each whole",
            "read TTFT as that of a system without a prefix cache",
            {"prompts": named},
        )


def _thrown_out_again(run: Run) -> Iterator[Caution]:
    """Requests that were let in and thrown out over and over: the work that was lost is done by nobody else."""
    preemptions = run.requests["preemptions"].drop_null()
    often = preemptions.filter(pc.greater_equal(preemptions, LIVELOCK))
    if len(often):
        yield Caution(
            "livelock",
            f"{len(often):,} of {len(run.requests):,} requests lost their memory {LIVELOCK} times or more, one of them "
            f"{pc.max(often).as_py():,} times: they are let in, thrown out and let in again",
            "admit fewer (--admission past-future, or a lower overcommit or watermark), or give the system more memory",
            {"requests": len(often), "most": int(pc.max(often).as_py())},
        )


def _left_out(provenance: Mapping[str, Any]) -> Iterator[Caution]:
    """Rows of a trace that are no requests; those of a trace of arrivals stand one level deeper."""
    for facts in (provenance, _part(provenance, "arrivals")):
        reasons = {str(why): n for why, n in _part(facts, "dropped").items() if isinstance(n, int) and why != BEFORE}
        left_out = sum(reasons.values())
        if left_out:
            told = ", ".join(f"{n:,} because {why}" for why, n in reasons.items())
            of = f"{facts.get('rows', left_out):,} rows of {facts.get('file', 'the trace')}"
            yield Caution(
                "dropped-rows",
                f"{left_out:,} of {of} are not sent: {told}",
                "failures of the recorded system are rightly left out; mend the file where it is something else",
                {"dropped": left_out},
            )


def _too_long(run: Run, *, recorded: bool) -> Iterator[Caution]:
    """Requests that a simulated model served although they are longer than the context it was made for."""
    backend = _part(run.info, "backend")
    limit = backend.get("max_tokens")
    if not isinstance(limit, int):
        return
    total = (number(run.requests, "prompt_tokens") + number(run.requests, "output_tokens"))[succeeded(run.requests)]
    over = int((total > limit).sum())
    if over:
        shorter = "take a part of the trace without them" if recorded else "limit the lengths (--lengths)"
        yield Caution(
            "context",
            f"{over:,} of {len(run.requests):,} requests are longer than the context of {backend.get('model')} "
            f"({limit:,} tokens; the longest has {int(total.max()):,}) and were served all the same, which the real "
            "model cannot do",
            f"take a --model with a longer context, or {shorter}",
            {"requests": over, "limit": limit},
        )


APART_S = 0.005
"""From here on the first event, the first token and the first text of the answer are told apart, at the median."""

LENGTH_SHARE = 0.02
"""Share by which the prompts that the server counted may differ from those that were planned."""

TOKENS_PER_EVENT = 1.05


def answer_warnings(run: Run) -> Iterator[Caution]:
    """Warnings from the answers, and from what the server said of itself before the run."""
    whole = not_streamed(run.info)
    yield from _counted(run)
    yield from _whole() if whole else _first(run)
    yield from _lengths(run)
    yield from _server(run.info)


def _counted(run: Run) -> Iterator[Caution]:
    """How the tokens of the answers were counted, and how many an event carries."""
    if run.http is not None and len(run.http):
        by_events = int(pc.sum(pc.equal(run.http["counted_by"], "events")).as_py() or 0)
        if by_events:
            yield Caution(
                "counted-by-chunks",
                f"the tokens of {by_events:,} answer{'' if by_events == 1 else 's'} are counted by chunks, because the "
                "server did not say how many there are; a chunk may hold none, one or several",
                "let the server send usage, or name its tokenizer (tokenizer=FOLDER)",
                {"answers": by_events},
            )
    per_event = tokens_per_event(run.requests)
    if per_event > TOKENS_PER_EVENT and not not_streamed(run.info):
        yield Caution(
            "tokens-per-event",
            f"ITL is per event of {per_event:.3g} tokens: the server sends several at once",
            "compare TPOT, which counts tokens, with other systems",
            {"tokens_per_event": per_event},
        )


def _whole() -> Iterator[Caution]:
    """What answers that were not streamed leave unknown."""
    yield Caution(
        "not-streamed",
        "answers were not streamed on request (stream=false), so TTFT is the time to the whole answer, and TPOT and "
        "ITL are unknown",
        "leave out stream=false to measure TTFT, TPOT and ITL",
    )


def tokens_per_event(requests: pa.Table) -> float:
    """Output tokens of the requests that ended well per token event; NaN without one."""
    ok = requests.filter(pc.equal(requests["status"], "ok"))
    of_each = ok["events"] if "events" in ok.column_names else pc.list_value_length(ok["token_s"])
    events = int(pc.sum(of_each).as_py() or 0)
    return float(pc.sum(ok["output_tokens"]).as_py() or 0) / events if events else float("nan")


def first_gaps_s(run: Run) -> tuple[float, float]:
    """Median of first token minus first event, and of first text of the answer minus first token; NaN without any."""
    if run.http is None or not len(run.http):
        return float("nan"), float("nan")
    ids = run.requests["request_id"].to_numpy()
    order = np.argsort(ids, kind="stable")
    place = np.searchsorted(ids, run.http["request_id"].to_numpy(), sorter=order)
    known = place < len(ids)
    first_s = np.full(len(run.http), np.nan)
    first_s[known] = first_last(run.requests)[0][order[place[known]]]
    event_s, content_s = number(run.http, "first_event_s"), number(run.http, "first_content_s")
    return quantile(first_s - event_s, 0.5), quantile(content_s - first_s, 0.5)


def _first(run: Run) -> Iterator[Caution]:
    before_s, after_s = first_gaps_s(run)
    if before_s > APART_S:
        yield Caution(
            "early-event",
            f"the server sends an event without any text {ms(before_s)} before the first token (median); a client "
            "that takes it for the first token tells a TTFT that is none",
            "compare with clients that wait for text",
            {"median_s": before_s},
        )
    if after_s > APART_S:
        yield Caution(
            "late-answer",
            f"the first text of the answer comes {ms(after_s)} after the first token, which is reasoning (median); "
            "TTFT counts to the first token of either",
            "",
            {"median_s": after_s},
        )


def _lengths(run: Run) -> Iterator[Caution]:
    """Prompts and answers that are longer or shorter than asked."""
    counted, planned = number(run.requests, "prompt_tokens_server"), number(run.requests, "prompt_tokens")
    known = ~np.isnan(counted)
    if known.any() and (sent := planned[known].sum()) > 0:
        apart = float(counted[known].sum() / sent - 1)
        if abs(apart) > LENGTH_SHARE:
            yield Caution(
                "prompt-lengths",
                f"the prompts that the server counted are {abs(apart):.1%} {'longer' if apart > 0 else 'shorter'} than "
                "those of the schedule",
                "send token ids (api=completions) where the server takes them",
                {"share": apart},
            )
    short = short_answers(run.requests)
    if short > 0 and by(run.info) == "request":
        yield Caution(
            "short-answers",
            f"{short:.1%} of the answers are shorter than requested, although the server accepts ignore_eos",
            "look at its context length (max_model_len) and at its log",
            {"share": short},
        )


def short_answers(requests: pa.Table) -> float:
    """Share of the answers that ended well with fewer tokens than were asked for; 0 without any."""
    ok = succeeded(requests)
    fewer = number(requests, "output_tokens") < number(requests, "output_tokens_asked")
    return float(fewer[ok].mean()) if ok.any() else 0.0


def _server(info: Mapping[str, Any]) -> Iterator[Caution]:
    """What the server refused, and what was switched off by the user."""
    backend = part(info, "backend")
    dropped = part(backend, "capabilities").get("dropped")
    for what in dropped if isinstance(dropped, Sequence) else ():
        if isinstance(what, Mapping):
            yield Caution("dropped-field", f"the server refuses {what.get('field')}: {what.get('cost')}")
    if backend.get("insecure") is True:
        yield Caution(
            "insecure",
            "the certificate of the server was not checked (insecure=true)",
            "name its authority with ca=FILE",
        )
    if backend.get("salt") in ("none", None) and "salt" in backend:
        yield Caution(
            "no-salt",
            "prompts carry no salt of their run, so that a prefix cache warmed by an earlier run may help",
            "restart the server between runs, or leave the salt on",
        )
