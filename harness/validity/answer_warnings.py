"""Warnings about the answers of a remote server: how tokens were counted, what came first, what it refused."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import UnsetType

from harness.api import RunWarning
from harness.data.folder import Run
from harness.data.lists import number, streamed_tokens
from harness.data.run_json import RunInfo
from harness.metrics.measure import first_last, succeeded
from harness.metrics.quantiles import quantile
from harness.validity.remote import column, most, ms, of_held_back
from harness.validity.rules import Rule, applying, plural
from harness.validity.server_metrics import not_streamed
from harness.validity.work_done import by

HELD_BACK = "held-back"
"""Code of the warning of a run in which most answers, or some, were held back on their way (`data.held_back`)."""

APART_S = 0.005
"""Median gap from which the first event, the first token and the first text of the answer count as different."""

LENGTH_SHARE = 0.02
"""Share by which the prompts that the server counted may differ from those that were planned."""

TOKENS_PER_EVENT = 1.05

UNSEEN_SHARE = 0.01
"""Share of the tokens from which on those that were never streamed are reported."""


def answer_warnings(run: Run) -> Iterator[RunWarning]:
    """Warnings from the answers, and from the capabilities that the server reported before the run."""
    whole, held = not_streamed(run.info), of_held_back(run)
    rules = [*_counted(run), *_unseen(run)]
    if held is not None:
        rules.append(_held_back(run, held))
    elif not whole:
        rules += _first(run)
    rules.append(Rule(
        whole and held is None, "not-streamed",
        "answers were not streamed on request (stream=false), so TTFT is the time to the whole answer, and TPOT and "
        "ITL are unknown", "leave out stream=false to measure TTFT, TPOT and ITL",
    ))  # fmt: skip
    return applying((*rules, *_lengths(run), *_server(run.info)))


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
    named = 0.0 if run.http is None else float(np.nansum(number(run.http, "reasoning_tokens")))
    how = "such as hidden reasoning" if named >= unseen else "which it does not name: its events hold fewer"
    yield Rule(
        True, "unseen-tokens",
        f"{tokens_text(output.mean(), streamed.mean())} (mean of an answer): the server counts tokens that it does not "
        f"stream, {how}; TPOT and ITL are those of the streamed tokens, throughput is of all, and the time of unseen "
        "tokens is in TTFT, or in a gap",
        "let the server stream its reasoning to see it, and compare with runs that stream as many tokens",
    )  # fmt: skip


def tokens_text(output: float, streamed: float) -> str:
    """'40 tokens: 10 streamed, 30 unseen'."""
    return f"{output:.4g} tokens: {streamed:.4g} streamed, {output - streamed:.4g} unseen"


def tokens_per_event(requests: pa.Table) -> float:
    """Streamed tokens of the requests that ended well per token event; NaN without one."""
    ok = requests.filter(pc.equal(requests["status"], "ok"))
    of_each = ok["events"] if "events" in ok.column_names else pc.list_value_length(ok["token_s"])
    events = int(pc.sum(of_each).as_py() or 0)
    return float(streamed_tokens(ok).sum()) / events if events else float("nan")


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


def _first(run: Run) -> Iterator[Rule]:
    before_s, after_s = first_gaps_s(run)
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
    known = ~np.isnan(counted)
    apart = float(counted[known].sum() / sent - 1) if known.any() and (sent := planned[known].sum()) > 0 else 0.0
    remedy = "send token ids (api=completions) where the server takes them"
    if recorded_prompts(run.info):
        remedy = "the server's count holds for recorded prompts; give the trace's --reader the model's tokenizer"
    yield Rule(
        abs(apart) > LENGTH_SHARE, "prompt-lengths",
        f"the prompts that the server counted are {abs(apart):.1%} {'longer' if apart > 0 else 'shorter'} than those "
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
