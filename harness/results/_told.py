"""What another tool's file tells of one run, and how that becomes a `Run` like ours."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from harness import slo as slos
from harness.api import VERSION, RequestRecord, Slo, Status
from harness.folder import Run
from harness.metrics._lists import lists, number
from harness.missing import marked
from harness.records import to_table
from harness.results._judged import judged

Json: TypeAlias = Mapping[str, Any]
Stamps: TypeAlias = Sequence[float] | npt.NDArray[np.float64]


LONGEST_S = 1e8
"""Three years: no run is longer, and a stamp further away is a broken one."""


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
class Told:
    """One run of another tool. `missing` are the columns and metrics that its file cannot tell, beside the reasons
    in `notes`; `aggregates` are the tool's own, in seconds and per second, by its own definitions.
    """

    tool: str
    answers: Sequence[Answer]
    version: str | None = None
    workload: str | None = None
    model: str | None = None
    url: str | None = None
    started: str | None = None
    rate_rps: float | None = None
    seed: int | None = None
    closed: bool = False
    per_request: bool = True
    missing: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()
    aggregates: Mapping[str, Any] = field(default_factory=dict)
    slo: Slo = field(default_factory=Slo)


def as_run(told: Told, path: Path, name: str) -> Run:
    """The run, judged as far as its file allows. `name` tells it from others of that file."""
    missing = told.missing | {"lateness"} if "scheduled_s" in told.missing else told.missing
    table = marked(_table(told.answers), missing)
    # What was asked, as far as every file tells it: rate and prompt lengths, in no order, because the order of sending
    # differs from run to run by chance and the planned one is not in the files.
    lengths = np.sort(table["prompt_tokens"].to_numpy()).astype("<i8")
    sha256 = hashlib.sha256(f"{told.rate_rps}".encode() + lengths.tobytes()).hexdigest()
    info: dict[str, Any] = {
        "schema": VERSION,
        "state": "finished",
        "clock": "wall",
        "started": told.started,
        "spec": {"backend": told.tool, "seed": told.seed, "rate": told.rate_rps},
        "workload": {
            "name": told.workload or f"requests of {told.tool}",
            "rate_rps": told.rate_rps,
            "arrivals": "closed" if told.closed else None,
        },
        "backend": {k: v for k, v in {"name": told.tool, "model": told.model, "url": told.url}.items() if v},
        "slo": slos.stored(told.slo),
        "schedule": {"sha256": sha256, "requests": len(table)},
        "source": {
            "tool": told.tool,
            "version": told.version,
            "missing": sorted(missing),
            "per_request": told.per_request,
            "file": str(path),
            "name": name,
            "notes": list(told.notes),
        },
        "aggregates": dict(told.aggregates),
    }
    run = Run(path=path, info=info, requests=table, steps=None, schedule=None, complete=True)
    return Run(path, {**info, **judged(run, told.slo)}, table, None, None, complete=True)


def _table(answers: Sequence[Answer]) -> pa.Table:
    """Their `requests` table, in order of sending, from time 0 on; what was asked for is taken to be what came."""
    origin_s = min((at for a in answers if (at := _due(a)) is not None), default=0.0)
    talks = [a.session for a in answers if a.session is not None] if any(a.turn for a in answers) else []
    sessions = {name: i for i, name in enumerate(dict.fromkeys(talks))}
    last_s = max((_due(a) or origin_s for a in answers), default=0.0)
    ordered = sorted(answers, key=lambda a: last_s if (at := _due(a)) is None else at)
    table = to_table([_record(i, a, origin_s, sessions) for i, a in enumerate(ordered)])
    _check_times(table)
    return table


def _check_times(table: pa.Table) -> None:
    """Raises ValueError for times that no clock gives, which arithmetic would make nonsense of."""
    event_s = lists(table, "token_s").values
    for name, at_s in (("token", event_s), ("sending", number(table, "sent_s")), ("due", number(table, "scheduled_s"))):
        known = at_s if name == "token" else at_s[~np.isnan(at_s)]
        if not (np.abs(known) < LONGEST_S).all():
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
