"""What `bench trace fit` and `bench trace generate` do, as plain functions of plain arguments."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from harness.errors import UsageError, no_such
from workloads import traces, transforms
from workloads.fit import _draw, _services, _verdict, _whole, quality
from workloads.fit.model import Model
from workloads.trace_rows import series

Mode = Literal["parametric", "rate-following"]

SOURCE = ("file", "sha256", "known", "source", "licence", "reader", "tokenizer", "rows", "requests", "dropped")
SLICE = ("start_s", "stop_s", "limit")
NO_WHOLE = (
    "its trace names neither sessions (of half of its requests) nor blocks of prompts (of nine in ten), or has too few "
    "sessions (20 of two turns or more are needed, and 100 turns after another)"
)
"""Why a model has no whole sessions."""
PICTURE_SEED = 0
_NOTHING = (np.zeros(0), np.zeros(0, np.int8), np.zeros(0, np.int64), np.zeros(0, np.int64))
_GAPS = "gamma gaps in operational time, their shape from the local variation of neighbouring gaps"
_HOW = {
    "parametric": "log-Gaussian Cox process: the log-rate is a sum of Ornstein-Uhlenbeck processes (sd, tau_s), fitted "
    "by least squares to the log of the dispersion curve against its closed form, corrected for a typical draw; "
    + _GAPS,
    "rate-following": "rate of the trace in equal windows, the differences of halves shrunk level by level so that the "
    "noise of counting is not counted twice; " + _GAPS,
}
_LENGTHS = "quantiles of prompt and output, and a copula of their ranks (10 x 10 deciles and a tilt)"


def fit(trace: traces.Trace, *, mode: Mode | None = None, window_s: float | None = None, seeds: int = 20) -> Model:
    """A generator of requests like those of the trace, with its quality measured on that many seeds (`model.quality`).

    Without a `mode` it is parametric, and rate-following where that fits better and parametric does not fit; `seeds` 0
    leaves the quality out, and chooses no mode. `window_s` is the narrowest window of mode rate-following; None chooses
    it. Raises UsageError for a trace that is too short to fit (it says how many requests it has and needs).
    """
    if mode is None and window_s is None and seeds:
        first = fit(trace, mode="parametric", seeds=seeds)
        own_clocks = first.whole is not None and first.whole["own_clocks"]  # its arrivals say nothing
        if (off := _verdict.misfit(first.quality)) == 0 or own_clocks:
            return first
        second = fit(trace, mode="rate-following", seeds=seeds)
        if _verdict.misfit(second.quality) >= off:
            return first
        chosen = "mode rate-following was chosen, since parametric does not fit; --mode sets it."
        return replace(second, method={**second.method, "notes": [*second.method["notes"], chosen]})
    check(mode, window_s)
    mode = mode or "parametric"
    work = _services.Work(mode, window_s, transforms.grain_s(trace.at_s))
    services = _services.fit(trace, work)
    source = {name: trace.facts[name] for name in SOURCE + SLICE if name in trace.facts}
    if "prefix_ids" in trace.table.column_names:
        blocks = pc.list_flatten(trace.table["prefix_ids"])  # of all prompts; the share that repeats an earlier one
        source["prefix_reuse"] = 1 - pc.count_distinct(blocks).as_py() / len(blocks) if len(blocks) else 0.0
    ends_s = None if traces.clock(trace.facts) == "session" else float(trace.at_s[-1])
    sessions = _whole.measure(_whole.chains_of(_whole.with_blocks(trace)), ends_s)
    source |= {} if sessions is None else {"whole_left_out": _left_out(trace, sessions)}
    work.notes += [*dropped(source), *_few_sessions(trace)] if sessions is None else left_out(source)
    method = {"mode": mode, "how": _HOW[mode], "lengths": _LENGTHS, "grain_s": work.grain_s, "notes": work.notes}
    model = Model(services, source, method, whole=sessions)
    return replace(model, quality=quality.measure(model, trace, seeds)) if seeds else model


def _left_out(trace: traces.Trace, whole: Mapping[str, Any]) -> list[str]:
    """What the trace has and whole sessions do not have, in sentences."""
    notes, missing = [], len(trace) - whole["requests"]
    if missing:
        who = "too few sub-agents" if "agent" in trace.table.column_names else "too few branches, or of no session,"
        notes.append(f"{who} are left out of whole sessions: {missing:,} requests, {missing / len(trace):.1%}.")
    if "prefix_ids" not in trace.table.column_names:
        notes.append("prompts of a session are taken to begin with all of the one before, as the trace does not tell.")
    rows = trace.table.filter(trace.table["agent"].is_null()) if "agent" in trace.table.column_names else trace.table
    if "tag" in rows.column_names and len(kinds := pc.unique(rows["tag"]).drop_null()) > 1:
        notes.append(f"whole sessions have no tags; those of the trace are {', '.join(kinds.to_pylist()[:5])}.")
    if whole["own_clocks"]:
        notes.append(
            "sessions have clocks of their own and follow one another in the trace, so its arrivals are those of no "
            "service: --arrivals starts sessions of users (closed:users=16) or at random (poisson, with --rate)."
        )
    return notes


def left_out(source: Mapping[str, object]) -> list[str]:
    """What whole sessions of a model do not have of its trace, in sentences."""
    notes = source.get("whole_left_out")
    return [str(note) for note in notes] if isinstance(notes, list) else []


def _few_sessions(trace: traces.Trace) -> list[str]:
    """A note on a trace with sessions from which none are drawn."""
    if "session" not in trace.table.column_names:
        return []
    known = trace.table["session"].drop_null()
    note = f"no sessions are fitted, so every request stands by itself: {NO_WHOLE}."
    return [note] if len(known) > len(known.unique()) else []


def dropped(source: Mapping[str, object]) -> list[str]:
    """What the trace has and requests drawn one by one from its model do not have, in sentences."""
    reuse = source.get("prefix_reuse")
    if not (isinstance(reuse, float) and reuse > 0):
        return []
    share = f"{reuse:.1%} of the prompt blocks of the trace repeat an earlier one"
    return [f"shared prefixes are dropped: {share}, and no prompt that is drawn shares any."]


def tables(
    model: Model,
    *,
    rate_rps: float | None = None,
    requests: int | None = None,
    duration_s: float | None = None,
    seed: int = 0,
) -> Iterator[pa.Table]:
    """Independent requests drawn from the model; `rate_rps` None keeps the rate of the trace.

    Tables of at most 65,536 rows in the columns of a trace (`at_s`, `prompt_tokens`, `output_tokens`, and `tag` where
    the model has several services), for writing 10 million rows in bounded memory. One of `requests` and `duration_s`
    must be given, or both (whatever ends first). Equal arguments give equal bytes.
    """
    limits = _draw.DrawLimits(requests, duration_s)
    tags = pa.array([service.tag for service in model.services], pa.string())
    return (
        pa.table(
            {"at_s": block.at_s, "prompt_tokens": block.prompt_tokens, "output_tokens": block.output_tokens}
            | ({"tag": tags.take(pa.array(block.service))} if tags.null_count < len(tags) else {})
        )
        for block in _draw.blocks(model, rate_rps, limits, seed)
    )


def check(mode: str | None, window_s: float | None) -> None:
    """Raise UsageError for a mode that there is not, or a window that does not go with it."""
    if mode is not None and mode not in get_args(Mode):
        raise no_such("mode of fitting", mode, get_args(Mode))
    if window_s is not None and mode != "rate-following":
        raise UsageError("--window is the narrowest window of --mode rate-following; leave one of them out.")
    if window_s is not None and not window_s > 0:
        raise UsageError(f"The window must be longer than 0 s, got {window_s:g} s.")


def picture(model: Model, trace: traces.Trace) -> dict[str, Any]:
    """The facts that `reports.answers.trace.page` takes: the trace of a fit, a draw as long, dispersion curves."""
    limits = _draw.DrawLimits(None, float(model.quality["span_s"]))
    blocks = list(_draw.blocks(model, None, limits, PICTURE_SEED))
    at_s, _, prompt, output = (np.concatenate(column) for column in zip(*blocks, strict=True)) if blocks else _NOTHING
    drawn = {"name": "drawn", "times_s": at_s, "prompt_tokens": prompt, "output_tokens": output}
    page_facts = {**series(trace), "other": drawn, "curves": _curves(model.quality),
                  "grain_s": model.quality["grain_s"]}  # fmt: skip
    return {name: value for name, value in page_facts.items() if value is not None}


def _curves(quality: Mapping[str, Any]) -> dict[str, Any] | None:
    if not quality.get("widths_s"):
        return None
    curves = quality["dispersion"]
    return {
        "widths_s": quality["widths_s"],
        "found": _numbers(curves["trace"]),
        "band_low": _numbers(curves["low"]),
        "band_high": _numbers(curves["high"]),
        "band": f"90% of {quality['seeds']} draws",
    }


def _numbers(values: list[float | None]) -> list[float]:
    return [np.nan if value is None else value for value in values]
