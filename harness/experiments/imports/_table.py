"""One run of another tool, and its conversion to a `Run`.

Fields of foreign JSON as the types they should have; what is no number is None, never a guess.

How far a run of another tool can be trusted: the checks that its file allows, and its numbers by our definitions.
"""

import dataclasses
import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import structs

from harness.api import VERSION, Bound, RequestRecord, RunWarning, Slo, Status
from harness.data.codec import encode, from_facts
from harness.data.folder import Run
from harness.data.lists import lists, number
from harness.data.records import to_table
from harness.data.run_json import Described, RunInfo, Summary
from harness.metrics.measure import marked, missing
from harness.metrics.objective import stored_slo
from harness.metrics.summary import served, summarize
from harness.stats.within_run import within
from harness.validity.checks import judge
from harness.validity.conclude import stored, warned
from harness.validity.rules import OVERLOAD, QUEUE_GREW, Rule, Verdict, applying
from harness.validity.warnings import is_closed

Json: TypeAlias = Mapping[str, Any]
Stamps: TypeAlias = Sequence[float] | npt.NDArray[np.float64]


LONGEST_S = 1e8
"""Three years: no run is longer, and a stamp further away is a broken one."""


MISCOUNTED = 0.01
"""Share by which a client's token counts may differ from the server's: a special token a request stays below it."""
_REMEDIES = {
    "few-requests": "send more requests",
    "failed": "see the errors in the file",
    "late-client": "lower the rate that the tool was given, or use more workers",
    OVERLOAD: "lower the rate that the tool was given until the queue stops growing",
    QUEUE_GREW: "send more requests to see whether it does",
}
"""The remedy of a warning, for a run that another tool made."""
DETAILS = {
    "vllm": "run 'vllm bench serve' again with --save-result --save-detailed",
    "sglang": "run it again with --output-details",
    "aiperf": "name the folder that holds profile_export.jsonl too, or that file",
    "llm-d": "name the result file of the harness that the report was made from",
    "inference-perf": "let it write per_request_lifecycle_metrics.json (report.request_lifecycle.per_request: true)",
}
"""What makes a tool write a row per request."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One request as another tool saw it; times in seconds on one clock of any origin, None where it has no such time.

    `token_n` None: one token an event.
    """

    sent_s: float | None
    token_s: Stamps
    prompt_tokens: int
    output_tokens: int
    status: Status = "ok"
    token_n: Sequence[int] | None = None
    scheduled_s: float | None = None
    error: str | None = None
    session: str | None = None
    turn: int = 0
    prompt_tokens_server: int | None = None
    cached_tokens: int | None = None
    ended_s: float | None = None
    slo_ttft_s: float | None = None
    slo_tpot_s: float | None = None


@dataclass(frozen=True, slots=True)
class ToolRun:
    """One run of another tool. `missing` are the columns and metrics that its file does not have, with reasons in
    `notes`; `aggregates` are the tool's own, in seconds and per second, by its own definitions.
    """

    tool: str
    answers: Sequence[Answer]
    version: str | None = None
    workload: str | None = None
    model: str | None = None
    url: str | None = None
    started: str | None = None
    rate_rps: float | None = None
    closed: bool = False
    per_request: bool = True
    missing: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()
    aggregates: Mapping[str, Any] = field(default_factory=dict)
    slo: Slo = field(default_factory=Slo)


def as_run(source: ToolRun, path: Path, name: str) -> Run:
    """The run with summary and verdict, as far as its file allows; `name` distinguishes runs of one file."""
    missing = source.missing | {"lateness"} if "scheduled_s" in source.missing else source.missing
    table = marked(_table(source.answers), missing)
    # The hash stands for the workload. It covers the rate and the sorted prompt lengths, which every tool stores: the
    # planned order is not in the files, and the order of sending differs between runs by chance.
    lengths = np.sort(table["prompt_tokens"].to_numpy()).astype("<i8")
    sha256 = hashlib.sha256(f"{source.rate_rps}".encode() + lengths.tobytes()).hexdigest()
    begun: dict[str, Any] = {
        "schema": VERSION,
        "state": "finished",
        "clock": "wall",
        "started": source.started,
        "spec": {"backend": source.tool, "seed": None, "rate": source.rate_rps},
        "workload": {
            "name": source.workload or f"requests of {source.tool}",
            "rate_rps": source.rate_rps,
            "arrivals": "closed" if source.closed else None,
        },
        "backend": {k: v for k, v in {"name": source.tool, "model": source.model, "url": source.url}.items() if v},
        "slo": encode(stored_slo(source.slo)),
        "schedule": {"sha256": sha256, "requests": len(table)},
        "source": {
            "tool": source.tool,
            "version": source.version,
            "missing": sorted(missing),
            "per_request": source.per_request,
            "file": str(path),
            "name": name,
            "notes": list(source.notes),
        },
        "aggregates": dict(source.aggregates),
    }
    run = Run(path=path, info=RunInfo.of(begun), requests=table, steps=None, schedule=None, complete=True)
    return dataclasses.replace(run, info=_judged(run, source.slo))


def _table(answers: Sequence[Answer]) -> pa.Table:
    """Their `requests` table, in order of sending, from time 0 on; requested output is assumed to equal the output."""
    origin_s = min((due_s for a in answers if (due_s := _due(a)) is not None), default=0.0)
    names = [a.session for a in answers if a.session is not None] if any(a.turn for a in answers) else []
    sessions = {name: i for i, name in enumerate(dict.fromkeys(names))}
    last_s = max((_due(a) or origin_s for a in answers), default=0.0)
    ordered = sorted(answers, key=lambda a: last_s if (due_s := _due(a)) is None else due_s)
    table = to_table([_record(i, a, origin_s, sessions) for i, a in enumerate(ordered)])
    _check_times(table)
    return table


def _check_times(table: pa.Table) -> None:
    """Raises ValueError for times that are too large for arithmetic."""
    event_s = lists(table, "token_s").values
    for name, at_s in (("token", event_s), ("sending", number(table, "sent_s")), ("due", number(table, "scheduled_s"))):
        finite_s = at_s if name == "token" else at_s[~np.isnan(at_s)]
        if not (np.abs(finite_s) < LONGEST_S).all():
            raise ValueError(f"a {name} time is not within {LONGEST_S:g} s of the first one")


def _due(answer: Answer) -> float | None:
    return answer.sent_s if answer.scheduled_s is None else answer.scheduled_s


def _record(i: int, answer: Answer, origin_s: float, sessions: Mapping[str, int]) -> RequestRecord:
    due_s = _due(answer)
    return RequestRecord(
        request_id=i,
        scheduled_s=0.0 if due_s is None else due_s - origin_s,
        sent_s=None if answer.sent_s is None else answer.sent_s - origin_s,
        token_s=(np.asarray(answer.token_s, np.float64) - origin_s).tolist(),
        token_n=answer.token_n,
        prompt_tokens=answer.prompt_tokens,
        output_tokens=answer.output_tokens,
        output_tokens_asked=answer.output_tokens,
        status=answer.status,
        error=answer.error,
        session=None if answer.session is None else sessions.get(answer.session),
        turn=answer.turn,
        prompt_tokens_server=answer.prompt_tokens_server,
        cached_tokens=answer.cached_tokens,
        ended_s=None if answer.ended_s is None else answer.ended_s - origin_s,
        slo_ttft_s=answer.slo_ttft_s,
        slo_tpot_s=answer.slo_tpot_s,
    )


def number_of(value: object) -> float | None:
    """A finite number; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def count(value: object) -> int:
    """A number of tokens or requests; 0 where there is none."""
    number = number_of(value)
    return 0 if number is None or number < 0 else round(number)


def text(value: object) -> str | None:
    """A text with something in it."""
    return value if isinstance(value, str) and value.strip() else None


def part(of: object, *names: str) -> Mapping[str, Any]:
    """A nested object; empty where it is missing."""
    for name in names:
        of = of.get(name) if isinstance(of, Mapping) else None
    return of if isinstance(of, Mapping) else {}


def items(value: object) -> Sequence[Any]:
    """A list; empty where it is missing."""
    return value if isinstance(value, list) else []


def stamps(first_s: float, gaps_s: object) -> npt.NDArray[np.float64]:
    """Times of token events from the first one and the gaps after it. Raises TypeError for gaps that are no list."""
    if not isinstance(gaps_s, list):
        raise TypeError(f"the gaps between tokens must be a list, got {gaps_s!r:.40}")
    return first_s + np.concatenate([[0.0], np.cumsum(np.asarray(gaps_s, np.float64))])


def columns_of(value: Mapping[str, Any], needed: Sequence[str], optional: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Rows of parallel lists, the needed before the optional ones; a missing list gives None.

    Raises ValueError for lists of unequal lengths.
    """
    rows = len(items(value.get(needed[0])))
    lists = [items(value.get(name)) for name in needed] + [items(value.get(n)) or [None] * rows for n in optional]
    for name, column in zip((*needed, *optional), lists, strict=True):
        if len(column) != rows:
            raise ValueError(f"{name} has {len(column)} values where {needed[0]} has {rows}")
    return zip(*lists, strict=True)


def scaled(values: Mapping[str, Any], names: Mapping[str, str], scale: float = 1.0) -> dict[str, float]:
    """The numbers under our names, in seconds; `names` holds theirs by ours."""
    numbers = {name: number_of(values.get(tool_name)) for name, tool_name in names.items()}
    return {name: value * scale for name, value in numbers.items() if value is not None}


def aggregates(
    latencies: Mapping[str, Mapping[str, float]], numbers: Mapping[str, object], counts: Mapping[str, object]
) -> dict[str, Any]:
    """Return the results that a tool has itself: statistics of latencies (s), other numbers, and counts."""
    return (
        {name: dict(statistics) for name, statistics in latencies.items() if statistics}
        | {name: number_of(value) for name, value in numbers.items()}
        | {name: count(value) for name, value in counts.items()}
    )


def last_line(words: object) -> str | None:
    """The last line of an error, which is what a Python traceback is about; None of no words."""
    lines = str(words or "").strip().splitlines()
    return lines[-1].strip()[:500] if lines else None


def spread(output_tokens: int, events: int) -> list[int]:
    """Tokens of each event where only their sum is known: spread evenly, the rest to the first events."""
    per_event, more = divmod(output_tokens, events) if events else (0, 0)
    return [per_event + (i < more) for i in range(events)]


def ended(answer: Answer, *, failed: bool, error: object) -> Answer:
    """Return the answer as it ended: one that failed has no tokens, those of another are spread over its events."""
    events, tokens = len(answer.token_s), answer.output_tokens
    counted = failed or answer.token_n is not None or events == tokens
    return dataclasses.replace(
        answer,
        token_n=answer.token_n if counted else spread(tokens, events),
        output_tokens=0 if failed else tokens,
        status="error" if failed and answer.status == "ok" else answer.status,
        error=last_line(error) or ("no token came" if failed else None),
    )


def miscounted(tool: str, counts: Iterable[tuple[int, object]]) -> Iterator[str]:
    """The note that a tool and the server count differently; `counts` are pairs of output tokens, the tool's first."""
    pairs = [(local, count(server)) for local, server in counts if number_of(server) is not None]
    local, server = sum(a for a, _ in pairs), sum(b for _, b in pairs)
    if server and abs(local - server) > MISCOUNTED * server:
        yield (
            f"the tokenizer of {tool} counted {local:,} output tokens where the server counted {server:,}, so TPOT and "
            f"token rates are off by a factor of {local / server:.3g}"
        )


def objective(bounds: Mapping[str, Any], names: Mapping[str, str], scale: float = 1.0) -> Slo:
    """The SLO that a tool was given; `names` holds our metrics by theirs."""
    limits = [(name, number_of(bounds.get(tool_name))) for tool_name, name in names.items()]
    return Slo(tuple(Bound(metric, limit * scale) for metric, limit in limits if limit is not None))


def _judged(run: Run, objective: Slo) -> RunInfo:
    """The run.json with summary, warnings and verdict."""
    summary, info = summarize(run.requests, objective), run.info
    if info.source.per_request:
        verdict, info = _checked(run, summary.passed), info.change(**served(run.requests))
    else:
        tool = info.source.tool or ""
        message = f"The file holds aggregates of {tool} and no single requests, so nothing can be checked or scored."
        verdict = Verdict(False, [RunWarning("aggregates", message, DETAILS.get(tool, ""))])
        summary = _aggregated(info.aggregates, summary)
    if len(run.requests) and "sent_s" not in missing(run.requests):  # else the order of its requests is not known
        within_run = within(run.requests, objective, overloaded=verdict.queue_grew, valid=verdict.valid)
        info = info.change(within=within_run)
    return info.change(
        summary=summary, warnings=warned(verdict.warnings), verdict=stored(verdict, verdict.text), outcome=None
    )


def _checked(run: Run, met: bool | None) -> Verdict:
    lost, source = missing(run.requests), run.info.source
    timed = "scheduled_s" not in lost
    closed = is_closed(run.info.workload)
    judged = judge(run.requests, None, clock="wall" if timed else "virtual", closed=closed, as_requested=False, met=met)
    relevant = [
        RunWarning(c.code, c.message, _REMEDIES.get(c.code, c.remedy))
        for c in judged.warnings
        if "sent_s" not in lost or c.code not in (OVERLOAD, QUEUE_GREW)
    ]
    of_file = applying([
        Rule(not timed, "from-sending",
             f"the file of {source.tool} does not say when requests were due, so TTFT and E2E count from sending and "
             "leave out the time that a request waited inside the client",
             "compare it only with files of the same tool"),
        *(Rule(True, "imported", note) for note in source.notes),
    ])  # fmt: skip
    return Verdict(judged.valid, judged.reasons, [*of_file, *relevant])


def _aggregated(aggregates: Mapping[str, Any], summary: Summary) -> Summary:
    """The summary with the parts that the tool's own numbers can fill."""
    completed, failed = aggregates.get("completed") or 0, aggregates.get("failed") or 0
    all_of = completed + failed
    return structs.replace(
        summary,
        requests=all_of,
        status={**summary.status, "ok": completed, "error": failed},
        failed=failed / all_of if all_of else None,
        throughput_rps=aggregates.get("throughput_rps"),
        output_tps=aggregates.get("output_tps"),
        goodput_rps=aggregates.get("goodput_rps"),
        metrics={name: from_facts(Described, {"unit": "s", "n": completed, **values})
                 for name, values in aggregates.items() if isinstance(values, dict)},
    )  # fmt: skip
