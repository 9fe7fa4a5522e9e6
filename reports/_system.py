"""What was measured and with what traffic, in a few words: the system, and where times and lengths come from.

Facts of `run.json` as name and printed value: what was used, and how to repeat it.

The definitions in use, as every report prints them.
"""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from harness.data.codec import encode, inner
from harness.data.folder import Run
from harness.data.run_json import StepTimes, Workload
from harness.errors import UsageError
from harness.metrics.measure import placed
from harness.spec import Spec, parse
from harness.validity.step_times import of_backend
from reports import _format
from reports._format import clean

Facts = tuple[tuple[str, str], ...]
part = inner
"""A nested object of an answer, or of free-form facts."""
_OF_ALL = (
    ("percentiles", "linear interpolation on the raw values of the requests that ended well"),
    (
        "attainment",
        "share of all requests that meet every bound; rejected, failed, timed-out and dropped requests miss",
    ),
    ("goodput", "requests within the SLO per second, at the rate of this run"),
    ("throughput", "requests that ended well per second"),
)


def system(backend: Mapping[str, Any], host: Mapping[str, Any]) -> str:
    """'opt-13b on a100-80g, sarathi, paged, 1 GPU'; empty where the backend names no model."""
    model, on = first(backend, "model"), hardware(backend, host)
    if model is None:
        return ""
    return ", ".join([f"{model} on {on}" if on else model, *_parts(backend)])


def hardware(backend: Mapping[str, Any], host: Mapping[str, Any]) -> str | None:
    """What computed the answers: as the backend says, or the host's processor when it ran an executor there."""
    device = first(backend, "hardware", "device", "url", "base_url")
    if device is not None or first(backend, "executor") is None:
        return device
    return first(host, "cpu", "processor", "machine")


def step_times(stored: Sequence[StepTimes], backend: Mapping[str, Any]) -> str:
    """'operators: near (...)': how far the step times of a simulated or paced system were from measurements, as stored,
    or else by its facts. Empty where no latency model decides how long steps take."""
    return "; ".join(dict.fromkeys(map(_off, stored or of_backend(backend))))


def _off(row: StepTimes) -> str:
    name = clean(row.latency, 40)
    if row.badge == "yours":
        return f"{name}: calibrated on your steps; bench validate measures the error"
    if row.badge == "none":
        return f"{name}: not compared with measurements on {clean(row.generation or row.hardware, 40)}"
    pair = f"{clean(row.of_model, 60)} on {clean(row.of_hardware, 40)}"
    if row.rows:
        pair += f", {row.rows:,} rows of {clean(row.engine, 40)} in {clean(row.format, 20)}"
    pairs = (("TPOT off by", row.tpot_error), ("TTFT by", row.ttft_error))
    off = ", ".join(
        f"{metric} {f'a factor of {1 + error:.1f}' if error >= 1 else f'{error:.0%}'}"
        for metric, error in pairs if error is not None
    )  # fmt: skip
    return f"{name}: {row.badge} ({pair}): {f'{off}, median' if off else clean(row.figures, 200)}"


def _parts(backend: Mapping[str, Any]) -> Iterator[str]:
    yield from (text for name in ("policy", "kv") if (text := first(backend, name)) is not None)
    yield from _rules(backend)
    if (latency := first(backend, "latency")) is not None:
        yield f"{latency} latency model"
    replicas, gpus, begun, threads = (backend.get(name) for name in ("replicas", "gpus", "gpus_at_start", "threads"))
    if isinstance(replicas, int) and replicas > 1:
        yield f"{replicas:,} replicas ({first(backend, 'router') or 'one router'})"
    for of in backend.get("groups", ())[1:]:
        yield clean(f"{of['replicas']} of {of['model']} on {of['hardware']}", 120)
    if isinstance(threads, int) and threads:
        yield _format.count(threads, "BLAS thread")
    elif isinstance(begun, int):
        yield f"{_format.count(begun, 'GPU')} at the start"
    elif isinstance(gpus, int) and gpus:
        shape = _shape(backend)
        yield _format.count(gpus, "GPU") + (f" ({shape})" if shape else "")


def _rules(backend: Mapping[str, Any]) -> Iterator[str]:
    """What else decides who gets memory and how many tokens a step gives, where it is not as it is by default."""
    for name, usual in (("admission", "fcfs"), ("preempt", "recompute"), ("lora", None), ("speculate", "off")):
        if (text := first(backend, name)) is not None and text != usual:
            yield f"{name} {text}"
    if (predictor := first(backend, "predictor")) is not None:
        yield f"lengths by {predictor}"
    if backend.get("prefix_cache") is True:
        yield " over ".join(["prefix cache", *(clean(tier["name"], 40) for tier in backend.get("tiers", ()))])


def _shape(backend: Mapping[str, Any]) -> str:
    """How a model is cut over GPUs: 'tp 2, pp 2', or that of the replicas for prefill and for decode."""
    sides = [(f"{role} ", backend[role]) for role in ("prefill", "decode") if isinstance(backend.get(role), dict)]
    shapes = []
    for name, of in sides or [("", backend)]:
        cut = [f"{way} {of[way]}" for way in ("tp", "pp", "dp", "ep") if isinstance(of.get(way), int) and of[way] > 1]
        copies = [f"{of['replicas']:,}"] if sides and isinstance(of.get("replicas"), int) else []
        if parts := copies + cut:
            shapes.append(name + ", ".join(parts))
    return "; ".join(shapes)


def source(workload: Workload, spec: Mapping[str, Any]) -> list[str]:
    """Where arrival times and lengths come from: as they were requested, or one phrase for a trace that has both."""
    arrivals, lengths = (clean(law, 600) if law else None for law in (workload.arrivals, workload.lengths))
    if arrivals is not None and arrivals == lengths:
        return [f"times and lengths {lengths}"]
    rate_rps = workload.rate_rps
    rate = f"{_format.plain(rate_rps, 4)} req/s" if rate_rps is not None and rate_rps > 0 else ""
    trace = _trace(workload.provenance)
    of_trace = trace is not None and lengths == "those of the trace"
    if trace is not None and (arrivals or "").partition(":")[0] == "trace":
        times = f"times {'and lengths ' if of_trace else ''}of {trace}" + (f" ({rate} on average)" if rate else "")
    else:
        law = _without_rate(_requested(arrivals, spec, "arrivals")) + (f" at {rate}" if rate else "")
        times = f"sessions of {trace}, started by {law}" if of_trace else law
    texts = [times if arrivals else None, None if of_trace else _requested(lengths, spec, "lengths", "workload")]
    # what makes requests depend on one another
    more = ((kind, first(workload.provenance, kind)) for kind in ("sessions", "prefixes") if trace is None)
    return [text for text in (*texts, *(f"{kind} {spec}" for kind, spec in more if spec is not None)) if text]


def parsed(text: object) -> Spec | None:
    """The spec, or None of what is none."""
    try:
        return parse(text) if isinstance(text, str) else None
    except UsageError:
        return None


def _requested(used: str | None, spec: Mapping[str, Any], *options: str) -> str:
    """The value of one of the options, which may contain more than the name of what was `used` of it."""
    was = parsed(used)
    for option in options:
        named = parsed(spec.get(option))
        if was is not None and named is not None and named.name == was.name and named.first is None and named.args:
            return clean(named, 200)
    return used or ""


def _without_rate(text: str) -> str:
    spec = parsed(text)
    if spec is None:
        return text
    rest = {key: value for key, value in spec.args.items() if key.replace("-", "_") not in ("rate", "rate_rps")}
    return clean(replace(spec, args=rest), 200)


def _trace(provenance: Mapping[str, Any]) -> str | None:
    """The file name of a trace, the slice that was taken of it, and what was done to it."""
    facts = provenance if "file" in provenance else part(provenance, "arrivals")
    if "file" not in facts:
        return None
    start_s, stop_s = facts.get("start_s"), facts.get("stop_s")
    begin = f" from {_format.plain(start_s)} s" if isinstance(start_s, int | float) and start_s else ""
    end = f" to {_format.plain(stop_s)} s" if isinstance(stop_s, int | float) else ""
    return ", ".join([f"{clean(facts['file'], 80)}{begin}{end}", *_changes(facts)])


def _changes(facts: Mapping[str, Any]) -> Iterator[str]:
    """What makes a replayed trace another one than was recorded."""
    if facts.get("where"):
        yield f"where {clean(facts['where'], 80)}"
    steps = facts.get("scale")
    for step in steps if isinstance(steps, list | tuple) else ():
        yield f"scaled by {clean(part({'step': step}, 'step').get('step'), 40)}"
    if facts.get("jitter"):
        yield f"jitter {clean(facts['jitter'], 80)}"
    turns = facts.get("turns")
    if turns == "answered":
        yield "later turns after the answer"
    elif isinstance(turns, str) and turns != "recorded":
        yield f"turns {clean(turns, 60)}"
    if chosen := part(facts, "chosen"):
        yield f"sessions {', '.join(f'{name} {text}' for name, text in flat(chosen))}"


def account(facts: Mapping[str, Any]) -> str:
    """The rows of a trace and what became of them: rows in = requests + those left out - those added."""
    dropped = {**part(facts, "dropped"), **part(facts, "left_out")}
    added = "".join(f"; added: {count:,} {what}" for what, count in part(facts, "added").items())
    left_out = f"; left out: {', '.join(f'{count:,} {reason}' for reason, count in dropped.items())}" if dropped else ""
    return clean(
        f"{facts.get('rows', 0):,} in the file{added}{left_out}; {_format.count(facts.get('requests', 0), 'request')}",
        600,
    )


def losses(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What became of sessions: those that rows were left out of, shorter contexts, capped think times."""
    if cut := part(facts, "cut_sessions"):
        yield "cut sessions", ", ".join(f"{count:,} left out {how}" for how, count in cut.items())
    if short := part(facts, "context"):
        limit, sessions, requests = (short.get(name, 0) for name in ("limit_tokens", "sessions", "requests"))
        yield (
            "contexts",
            f"at most {limit:,} tokens: prompts of {sessions:,} sessions made shorter, {requests:,} requests",
        )
    if cap := part(facts, "think_cap"):
        hours = f"{cap.get('cut_s', 0.0) / 3600:,.3g} h left out"
        yield (
            "think times",
            f"at most {cap.get('cap_s'):g} s: {cap.get('capped', 0):,} of {cap.get('of', 0):,} capped, {hours}",
        )
    elif first(facts, "think_times"):
        yield "think times", clean(facts["think_times"], 200)


def first(source: Mapping[str, Any], *names: str) -> str | None:
    """The first of these keys that holds something, cleaned."""
    values = (source.get(name) for name in names)
    return next((clean(v, 600) for v in values if v not in (None, "", {}, [])), None)


def flat(source: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """Every value of a nested object with its path as the name."""
    for key, value in source.items():
        name = f"{above} {clean(str(key).replace('_', ' '), 60)}".strip()
        if isinstance(value, Mapping):
            yield from flat(value, name)
        elif isinstance(value, list | tuple):
            yield name, clean(", ".join(plain(v) for v in value), 600)
        elif value not in (None, ""):
            yield name, clean(plain(value), 600)


def versions(found: Mapping[str, Any]) -> Facts:
    """The versions of what made an answer."""
    return tuple((f"version of {clean(name, 40)}", clean(text, 80)) for name, text in found.items())


def used(run: Run) -> Facts:
    """The rows of the table 'What was used'."""
    info, stored = run.info, encode(run.info)
    rows = [(name, clean(text)) for name, text in (("started", info.started), ("clock", info.clock)) if text]
    if info.seed is not None:
        rows.append(("seed", clean(info.seed)))
    for title in ("schedule", "workload", "backend", "versions", "host"):
        rows += [(f"{title}: {name}", value) for name, value in flat(stored.get(title, {}))]
    return tuple(rows)


def commands(run: Run) -> tuple[str, ...]:
    """Commands that repeat the run, as typed and from the run folder; of another tool's file only the report."""
    if run.info.source:
        return (f"bench report {shlex.quote(clean(run.path, None))}",)
    typed = clean(run.info.command or "", None)
    rerun = f"bench run --config {shlex.quote(clean(run.path / 'run.json', None))}"
    return (typed, rerun) if typed else (rerun,)


def plain(value: object, digits: int = 6) -> str:
    """A value as people write it: '5, 10', '(1,1), (2,1)', 'yes'."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return _format.option(value, digits)
    return str(value)


def in_use() -> tuple[tuple[str, str], ...]:
    """Those of the metrics, then of what is made of them."""
    terms: list[tuple[str, str]] = []
    for metric in placed():
        if metric.terms or not metric.in_summary:
            terms += metric.terms
        else:
            terms.append((metric.label, metric.about.strip().split("\n\n")[0].replace("\n", " ")))
    return (*terms, *_OF_ALL)
