"""The work a run did: whether the model can do it, whether answers are as long as requested, and how many requests
failed because of the backend.

Rejections, and timeouts while the queue grows, are effects of load and thus a result. Errors, truncated answers and
requests that hang are failures of the backend; a run with too many of them fails.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from harness.api import RunWarning
from harness.data.folder import Run
from harness.data.lists import number, pieces
from harness.data.run_json import Failures, OutputLengths, RunInfo
from harness.metrics.measure import ended_well
from harness.spec import parse
from harness.validity.rules import Rule, applying, digits

LENGTHS = "output-lengths"
"""Name of the check, as run.json lists it."""

CONTEXT = "context"
"""Code of the reason that requests are longer than the model takes."""

BY_SERVER = "server-output-lengths"
"""Code of the warning of a run in which the server decides the lengths of the answers."""

LEAST_SHARE = 0.99
"""Mean output below this share of what was requested makes a run not valid: less work was done than is reported."""

SERVER_COUNTS = ("usage", "continuous usage")
"""Token counts that come from the server; counts of re-tokenized text or of chunks may be off by more than 1%."""

ENFORCING = frozenset({"ignore_eos", "min_tokens", "generation_config"})
"""Fields of a request that make answers as long as is requested."""

By = Literal["request", "server"]


MAX_FAILED = 0.01
"""Share of the requests that may fail for another reason than load, unless --max-failed says so."""
FAULTS = ("error", "truncated", "timeout")
"""Statuses that are the backend's fault; not `rejected` (load), `dropped` (what follows a failure), `cancelled` (the
user ended the run)."""
UNDER_LOAD = "timeout"
"""The status that is load and no fault where the queue grew all through the run."""


def is_short(found: OutputLengths) -> bool:
    """Whether the mean output is below 99 % of what was requested."""
    return found.share is not None and found.share < LEAST_SHARE


def lengths_text(found: OutputLengths) -> str:
    """'60.0 of 60.0 requested output tokens a request (100.0%)'."""
    if found.share is None:
        return "no request ended well"
    return (
        f"{digits(found.output_tokens or 0.0, 4)} of {digits(found.requested_tokens or 0.0, 4)} requested output "
        f"tokens a request ({found.share:.1%})"
    )


def by(info: RunInfo) -> By:
    """Whether the request or the server decides how long answers are; for another tool's run the server is assumed."""
    backend = info.backend
    if info.source or backend.get("output_lengths") == "server":
        return "server"
    accepted = info.capabilities.get("accepted")
    if backend.get("output_lengths") == "exact" or not isinstance(accepted, Sequence):
        return "request"
    return "server" if ENFORCING.isdisjoint(accepted) else "request"


def measured(run: Run) -> OutputLengths:
    """The lengths of a run's answers, by the counts of the server where it gave any."""
    requests, counted = run.requests, True
    if run.http is not None and len(run.http):
        by_server = run.http.filter(pc.is_in(run.http["counted_by"], pa.array(SERVER_COUNTS)))
        counted = bool(len(by_server))
        if counted:
            requests = requests.filter(pc.is_in(requests["request_id"], by_server["request_id"].combine_chunks()))
    ok = ended_well(requests)
    count = int(ok.sum())
    output, total = (float(number(requests, name)[ok].sum()) for name in ("output_tokens", "output_tokens_asked"))
    return OutputLengths(
        by=by(run.info),
        requests=count,
        output_tokens=output / count if count else None,
        requested_tokens=total / count if count else None,
        share=output / total if total else None,
        counted=counted,
    )


def reasons(found: OutputLengths, *, remote: bool) -> Iterator[RunWarning]:
    """The reason that makes a run with too short answers not valid; the remedy depends on whether it was `remote`."""
    remedy = "let the backend make as many tokens as are requested"
    if remote:
        remedy = (
            "check whether the server ignores ignore_eos or its context is too short (max_model_len); to let it decide "
            "the lengths, write 'URL,output-lengths=server'"
        )
    return applying([Rule(
        is_short(found) and found.counted and found.by == "request", LENGTHS,
        f"The answers are shorter than requested: {lengths_text(found)}, below {LEAST_SHARE:.0%}, so less work was "
        "measured than the workload has.", remedy,
    )])  # fmt: skip


def refused(run: Run) -> Iterator[RunWarning]:
    """The reason that makes a run not valid whose server counts more tokens than were requested."""
    if run.http is None or not (count := len(run.http) - run.http["refused_tokens"].null_count):
        return
    first = run.http.filter(pc.is_valid(run.http["refused_tokens"]))
    requested = run.requests.filter(pc.equal(run.requests["request_id"], first["request_id"][0]))["output_tokens_asked"]
    yield RunWarning(
        LENGTHS,
        f"The server counts more output tokens than were requested, for {count:,} of {len(run.http):,} requests: "
        f"{first['refused_tokens'][0].as_py():,} for request {first['request_id'][0]}, of which "
        f"{requested[0].as_py():,} were requested. Its counts of these answers are not used.",
        "find out which server or gateway writes this usage",
    )


def too_long(
    table: pa.Table, output: str, backend: Mapping[str, object], *, recorded: bool, virtual: bool
) -> Iterator[RunWarning]:
    """The reason that makes a run not valid whose model does not take prompt and `output` of every row of a table."""
    limit = backend.get("max_tokens")
    if not isinstance(limit, int) or not len(table):
        return
    over, longest = 0, 0
    for piece in pieces(table):
        answers = np.fmax(number(piece, "answers"), 1) if "answers" in piece.column_names else 1
        total = number(piece, "prompt_tokens") + number(piece, output) / answers
        over, longest = over + int((total > limit).sum()), max(longest, int(total.max()))
    if over:
        shorter = "take a part of the trace without them" if recorded else "limit --lengths"
        ask = f", or ask for it with --backend sim:max_model_len={longest}" if virtual else ""
        yield RunWarning(
            CONTEXT,
            f"{over:,} of {len(table):,} requests are longer than the context of {backend.get('model')} ({limit:,} "
            f"tokens; the longest has {longest:,}), and a server would refuse them.",
            f"{shorter}, take a --model with a longer context{ask}",
        )


def warnings(found: OutputLengths) -> Iterator[RunWarning]:
    """Warnings where the server decides the lengths of the answers, and where token counts are unreliable."""
    by_server = found.share is not None and found.by == "server"
    return applying([
        Rule(by_server, BY_SERVER, f"output lengths by the server: {lengths_text(found)}",
             "compare it only with runs whose answers are as long (bench compare checks that first); a server that "
             "accepts ignore_eos gives answers of exactly the requested length"),
        Rule(not by_server and is_short(found) and not found.counted, LENGTHS,
             "the server reports no usable token counts; by the client's count its answers have "
             f"{lengths_text(found)}", "let the server send usage, so that the lengths can be checked"),
    ])  # fmt: skip


def check(found: OutputLengths) -> tuple[Literal["ok", "unknown"], str]:
    """State and text of the check, before reasons and warnings are applied."""
    if found.share is None:
        return "unknown", lengths_text(found)
    if not found.counted:
        return "unknown", "the server reports no usable token counts"
    return "ok", lengths_text(found)


def failures(requests: pa.Table, backend: str, *, overloaded: bool, at_most: float | None = None) -> Failures:
    """How many requests failed because of the backend; `at_most` is the share that may.

    By default all may of a simulation whose failures are planned (`fail`): they are what it is about.
    """
    if at_most is None:
        at_most = 1.0 if "fail" in parse(backend).args else MAX_FAILED
    counts = {row["values"]: row["counts"] for row in pc.value_counts(requests["status"]).to_pylist()}
    faults = {name: counts[name] for name in FAULTS if name in counts and not (overloaded and name == UNDER_LOAD)}
    failed, total = sum(faults.values()), len(requests)
    exceeded = total > 0 and failed / total > at_most
    return Failures(
        requests=failed,
        share=failed / total if total else None,
        at_most=at_most,
        exceeded=exceeded,
        text=_text(faults, total, at_most, requests) if exceeded else None,
    )


def exceeded(info: RunInfo) -> str | None:
    """The message of a run in which too many requests failed; None where it did not."""
    return info.failures.text if info.failures.exceeded else None


def _text(faults: Mapping[str, int], total: int, at_most: float, requests: pa.Table) -> str:
    failed = sum(faults.values())
    kinds = ", ".join(f"{count:,} {status}" for status, count in sorted(faults.items()))
    errors = requests.filter(pc.is_in(requests["status"], pa.array([*faults])))["error"].drop_null()
    first = f" The first: {errors[0].as_py()!r}." if len(errors) else " See the errors, or allow more."
    return (
        f"{failed:,} of {total:,} requests ({failed / total:.1%}) failed for another reason than load ({kinds}); "
        f"--max-failed allows {100 * at_most:g}%.{first}"
    )
