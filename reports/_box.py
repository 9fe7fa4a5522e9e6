"""What stands under the answer on the page of a run, for those who decide: how sure it is, and what it speaks of."""

from collections.abc import Iterator

from harness.data.folder import Run
from harness.data.run_json import RunInfo
from harness.metrics.measure import headline
from reports import _format, _sending, _system, _verdict
from reports._format import clean
from reports._system import Facts, first
from reports._view import View

LEAST_WORDS = 160
"""Letters of a preparation that stand in the box; all of it stands below."""


def box(run: Run, view: View) -> Facts:
    """Names and texts in the order of reading; only what is known."""
    heads = dict(view.heads)
    rows = (
        ("Attainment", _attained(run.info) if view.bounded else ""),
        *((name, heads.pop(name, "")) for name in ("SLO", "System", "Rate")),
        ("Workload", ", ".join(_workload(run.info))),
        ("Backend", _backend(run.info)),
        ("Client floor", _floor(run)),
        *heads.items(),
        ("First warning", _first(view)),
    )
    return tuple((name, value) for name, value in rows if value)


def _attained(info: RunInfo) -> str:
    """The share and its interval within the run."""
    told = info.summary.attainment
    share = "-" if told is None else _format.share(told)
    interval = _verdict.attained(info)
    return f"{share}, {interval}" if share and interval else share


def _workload(info: RunInfo) -> Iterator[str]:
    """Name, source of times and lengths, preparation (its first clause) and tokenizer."""
    provenance = info.workload.provenance
    if info.workload.name:
        yield clean(info.workload.name, 600)
    if (preparation := first(provenance, "preparation", "source")) is not None:
        yield f"preparation {clean(preparation.partition(';')[0], LEAST_WORDS)}"
    if (tokenizer := first(provenance, "tokenizer")) is not None:
        yield f"tokenizer {clean(tokenizer, 80)}"


def _backend(info: RunInfo) -> str:
    backend, host = info.backend, info.host
    name = first(backend, "backend", "name")
    if name is None:
        return ""
    model = [] if _system.system(backend, host) else [first(backend, "model"), _system.hardware(backend, host)]
    clock = {"virtual": "simulated time", "wall": "real time"}.get(info.clock or "")
    return ", ".join(text for text in (name, *model, clock) if text)


def _floor(run: Run) -> str:
    """The client's own error, where it was measured, or why there is none."""
    if run.info.virtual:
        return "none: time is simulated, so no client adds to it"
    found = _sending.floors(run.info)
    if not found:
        return "not measured" if _sending.client(run) else ""
    shown = [(metric.label, found[metric.name]) for metric in headline() if metric.name in found]
    texts = (f"{name} {_format.seconds(f.p50_s)} (p50), {_format.seconds(f.p99_s)} (p99)" for name, f in shown)
    return "; ".join(texts)


def _first(view: View) -> str:
    if not view.warnings:
        return ""
    first_one, count = view.warnings[0].message, len(view.warnings)
    return first_one if count == 1 else f"{first_one} (the first of {count})"
