"""What every report says about a run, as printed text in reading order; each form only lays it out and escapes it."""

from dataclasses import dataclass

from harness.data.folder import Run
from harness.data.run_json import RunInfo
from harness.validity.work_done import exceeded
from reports import _data, _format, _rows, _sending, _system
from reports import _verdict as verdicts
from reports._format import Error, clean, sentence
from reports._rows import Group, Row
from reports._sending import Side
from reports._system import OF_REMOTE, Facts, first, in_use, pairs


@dataclass(frozen=True, slots=True)
class Warned:
    """A caution: what a reader must know, and the remedy."""

    message: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Mark:
    """What became of the goal, in capitals, and whether that is good or bad; None where nothing can be said."""

    text: str
    good: bool | None


@dataclass(frozen=True, slots=True)
class View:
    """The texts of a report, free of control characters but not yet escaped.

    `word` is the state of the run in capitals, `qualified` what its verdict adds to it ('with 2 warnings'); they say
    how far the numbers can be trusted. `mark` says whether the goal was reached.
    """

    title: str
    traffic: str
    mark: Mark
    word: str
    qualified: str
    answer: str
    verdict: str
    heads: Facts
    ran: Facts
    rows: tuple[Row, ...]
    rows_note: str
    overloaded: bool
    classes: tuple[Group, ...]
    bounded: bool
    kept: bool
    met: str
    goal: str
    flow: str
    interval: str
    checks: tuple[verdicts.Checked, ...]
    counts: tuple[tuple[str, str, str], ...]
    errors: tuple[Error, ...]
    fidelity: str
    warnings: tuple[Warned, ...]
    definitions: Facts
    commands: tuple[str, ...]
    facts: Facts
    next: verdicts.Advice
    floors: bool
    client: Facts
    client_line: str
    server: tuple[Side, ...]
    server_note: str
    server_line: str


def view(run: Run) -> View:
    """Everything the reports print about `run`."""
    result = _rows.result(_data.measured(run))
    info = run.info
    word, verdict = _verdict(run)
    # of the verdict 'valid, with 2 warnings (late-client, few)' what stands after the comma
    head, _, rest = clean(info.verdict.text or "", 300).partition(", ")
    qualified = rest.rstrip(".") if word == VALID and head.lower() == "valid" else ""
    left_out = {OVERLOADED: "overload", FAILED: "max-failed"}.get(word)  # what the verdict says already
    warned = [w for w in info.warnings or () if left_out is None or w.code != left_out]
    return View(
        title=_title(info),
        traffic=_traffic(run, result),
        mark=_mark(word, result, unresolved=info.resolution.undecided),
        word=word,
        qualified=qualified,
        answer=_answer(run, result, valid=info.verdict.valid is not False and word != FAILED),
        verdict="" if qualified else verdict,
        heads=_heads(run, result),
        ran=_ran(info),
        rows=result.rows,
        rows_note=_rows_note(result),
        overloaded=result.overloaded,
        classes=result.classes,
        bounded=result.asked,
        kept=result.kept or info.resolution.undecided,
        met=_format.share(result.attainment, result.goal) + (" unresolved" if info.resolution.undecided else ""),
        goal=f"goal {result.goal * 100:g}%" if result.attainment is not None else "",
        flow=result.flow,
        interval="" if result.total == 0 else verdicts.interval(info),
        checks=verdicts.checks(info),
        counts=result.counts,
        errors=result.errors,
        fidelity=_sending.fidelity(info),
        warnings=tuple(Warned(sentence(w.message, 600), sentence(w.remedy, 400)) for w in warned),
        definitions=(*in_use(), *(OF_REMOTE if _sending.client(run) else ())),
        commands=_system.commands(run),
        facts=_system.used(run),
        next=verdicts.advice(run, result),
        floors=any(row.floor for row in result.rows),
        client=_sending.client(run),
        client_line=_sending.line(run),
        server=_sending.server(run),
        server_note=_sending.server_note(run),
        server_line=_sending.server_line(run),
    )


def _title(info: RunInfo) -> str:
    workload = clean(info.source.name or info.workload.name or "", 600) or "workload"
    day = clean(info.started or "")[:10]
    by = "by" if info.source else "on"
    return f"{workload} {by} {_backend_name(info)}" + (f", {day}" if day else "")


def _traffic(run: Run, result: _rows.Result) -> str:
    seed = run.info.seed
    texts = [*_system.source(run.info.workload, run.info.spec), _count(run),
             None if seed is None else f"seed {clean(seed)}", result.span]  # fmt: skip
    return ", ".join(text for text in texts if text)


def _count(run: Run) -> str:
    """How many requests were recorded; of another tool's aggregates how many it says they are of."""
    if run.info.source and not run.info.source.per_request:
        return f"aggregates of {_format.count(run.info.summary.requests or 0, 'request')}"
    return _format.count(run.requests.num_rows, "request")


def _rows_note(result: _rows.Result) -> str:
    if result.overloaded:
        return "No latencies: the queue grew all through the run, so they would tell how long the run was"
    texts = (f"Latencies of {_format.count(result.ok, 'request')} that ended well", result.span)
    return ", ".join(text for text in texts if text)


def _backend_name(info: RunInfo) -> str:
    spec = clean(info.spec.get("backend") or "", 60)
    return first(info.backend, "backend", "name") or spec.partition(":")[0] or "backend"


VALID, OVERLOADED, FAILED = "VALID", "OVERLOADED", "BACKEND FAILED"
_ENDS = {"running": "It was killed, or is still going on", "interrupted": "It was interrupted"}


def _verdict(run: Run) -> tuple[str, str]:
    """The state in capitals and the sentence that goes with it."""
    told = run.info.verdict
    reasons = [clean(r, 400) for r in told.reasons]
    said = sentence(told.text, 600)
    if not run.complete:
        state = clean(run.info.state or "")
        how = _ENDS.get(state, "It ended early")
        planned = _planned(run)
        of = f" of {planned:,} planned" if planned else ""
        were = _format.were(planned or run.requests.num_rows, "request")
        text = f"{how}: {run.requests.num_rows:,}{of} {were} recorded, and all figures speak of these alone."
        told_all = " ".join([text, *(sentence(reason, 400) for reason in reasons)])
        return ("INTERRUPTED" if state == "interrupted" else "NOT FINISHED"), told_all
    if not told:
        return "NOT JUDGED", "The run holds no verdict."
    if told.valid and (failed := exceeded(run.info)) is not None:
        return FAILED, sentence(failed, 600)
    if told.valid:
        grown = run.info.warning("overload")
        if grown is not None:
            grew = clean(grown.message or "", 600).removeprefix("overloaded: ")
            return OVERLOADED, f"{sentence(grew, 600)} {sentence(grown.remedy, 400)}".strip()
        return VALID, "All checks of the run passed."
    return "NOT VALID", " ".join(sentence(reason, 400) for reason in reasons) or said


def _mark(word: str, result: _rows.Result, *, unresolved: bool) -> Mark:
    if word == OVERLOADED:
        return Mark(OVERLOADED, good=False)
    if word != VALID or result.total == 0:
        return Mark("NOTHING PROVEN", None)
    if not result.asked:
        return Mark("NO GOAL GIVEN", None)
    if unresolved:
        return Mark("UNRESOLVED", None)
    short = result.attainment is not None and result.attainment < result.goal
    missed = "GOAL MISSED" if short else "BOUND BROKEN"
    return Mark("GOAL REACHED" if result.kept else missed, result.kept)


def _planned(run: Run) -> int:
    if run.schedule is not None:
        return int(run.schedule.num_rows)
    return run.info.schedule.requests or 0


def _answer(run: Run, result: _rows.Result, *, valid: bool) -> str:
    if result.total == 0:
        return "Nothing can be scored." if run.info.source else "No request was recorded."
    requests = _format.count(result.total, "request")
    one = "request" if result.rate_rps == 1 else "requests"
    rate = f" at {_format.plain(result.rate_rps, 4)} {one} per second" if result.rate_rps else ""
    if not result.asked:
        return f"{result.ok:,} of {requests} ended well{rate}; no SLO was given."
    if result.attainment is None:
        return _of_percentiles(run, result, f"{result.ok:,} of {requests} ended well{rate}", valid=valid)
    reached = "reaches" if result.attainment >= result.goal else "misses"
    joined = "but" if reached == "reaches" else "and"
    broken = f", {joined} breaks {' and '.join(result.broken)}" if result.broken else ""
    end = f"{reached} the goal of {result.goal * 100:g}%{broken}"
    if result.kept and _grew(run.info):
        end += " so far, but the queue was growing: a longer run may miss it"
    if not run.complete:
        end = f"no answer about the goal of {result.goal * 100:g}%, as {_lost(run.info)}"
    elif run.info.resolution.undecided and not result.overloaded:
        end = f"the client's own error leaves open whether that {reached} the goal of {result.goal * 100:g}%{broken}"
    if not valid:
        end = f"this proves nothing about the goal of {result.goal * 100:g}%"
    part_of = "" if run.complete else " recorded so far"
    told = f"{_format.share(result.attainment, result.goal)} of {requests}{part_of} met the SLO{rate}: {end}."
    plain = run.complete and valid and not result.overloaded and not run.info.resolution.undecided
    return f"{told} {verdicts.KNEE}" if plain else told


def _of_percentiles(run: Run, result: _rows.Result, of: str, *, valid: bool) -> str:
    """The answer where all bounds are on percentiles of the run: there is no share of requests that met it."""
    end = f"breaks {' and '.join(result.broken)}" if result.broken else "keeps every bound"
    if result.kept and _grew(run.info):
        end += " so far, but the queue was growing: a longer run may break one"
    if not run.complete:
        end = f"gives no answer about the SLO, as {_lost(run.info)}"
    elif run.info.resolution.undecided and not result.overloaded:
        end = "leaves open whether the SLO is met, within the client's own error"
    if not valid:
        end = "proves nothing about the SLO"
    return f"{of}; the run {end}."


def _grew(info: RunInfo) -> bool:
    """Whether the queue grew though the SLO was met; an older run calls that overload."""
    return any(info.warning(code) is not None for code in ("queue-grew", "overload"))


def _lost(info: RunInfo) -> str:
    """What keeps a run that did not finish from an answer."""
    if info.state == "running":
        return "what was still unanswered has no record"
    return "the run was ended early"


def _heads(run: Run, result: _rows.Result) -> Facts:
    """What the result speaks of: the SLO, the system, the rate, and what was left out."""
    info = run.info
    rows = (
        ("SLO", result.slo_text),
        ("System", _system.system(info.backend, info.host) or _backend_name(info)),
        ("Rate", result.rate),
        ("Warm-up", verdicts.warmup(run)),
    )
    return tuple((name, value) for name, value in rows if value)


def _ran(info: RunInfo) -> Facts:
    """What was run, in full."""
    workload, backend, provenance = info.workload, info.backend, info.workload.provenance
    name = clean(workload.name or "", 600)
    rows = (
        ("Workload", ", ".join(t for t in (name, *_system.source(workload, info.spec)) if t)),
        ("Preparation", first(provenance, "preparation", "source")),
        ("Tokenizer", first(provenance, "tokenizer")),
        ("Backend", ", ".join(t for t in (_backend_name(info), pairs(backend, _APART)) if t)),
        ("Model", first(backend, "model")),
        ("Server" if backend.get("url") else "Hardware", _system.hardware(backend, info.host)),
        ("Clock", {"virtual": "virtual (simulated time)", "wall": "wall"}.get(info.clock or "")),
    )
    return tuple((name, value) for name, value in rows if value)


_APART = ("backend", "name", "model", "hardware", "device", "url")
