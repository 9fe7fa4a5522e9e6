"""What is in a trace: span, rate, lengths, burstiness, conversations, shared prefixes; and what is odd about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.errors import UsageError
from harness.metrics.quantiles import quantiles, spearman
from harness.stats import arrivals
from workloads import traces
from workloads.readers import _known
from workloads.trace_tools import cache
from workloads.transforms import grain_s

if TYPE_CHECKING:
    import pyarrow as pa

    from workloads.traces import Trace

WIDTHS_S = (1.0, 10.0, 60.0, 300.0, 600.0, 1200.0, 3600.0, 21_600.0, 86_400.0)
"""Widths of the bins of the index of dispersion; those of which the trace has fewer than 10 are left out."""
WINDOWS_S = (300.0, 1200.0)
"""Windows in which the spread of gaps is measured: rate changes between them do not count."""
TICK_WIDTHS_S = (10.0, 30.0, 60.0, 300.0, 600.0, 1200.0, 3600.0, 21_600.0, 86_400.0)
"""The same for stamps on ticks, beside the tick itself; each is taken as the nearest number of whole ticks."""
MOST_RANKED = 1_000_000
"""Rows whose rank correlation is taken; of more, an even sample."""

COARSE_S = 0.01
"""Stamps this coarse are shared by chance, so that equal rows are not odd."""


def of(trace: Trace, caches: Sequence[str] = ()) -> dict[str, Any]:
    """All facts of `bench trace info`, fit for JSON; None where unknown.

    `caches` are specs such as 'lru:tokens=3M' (see `cache.from_spec`). Raises UsageError for a wrong spec.
    """
    at_s = trace.at_s
    grain = grain_s(at_s)
    if caches and "prefix_ids" not in trace.table.column_names:
        raise UsageError("--cache replays prefixes, and this trace names none; leave it out.")
    capacities = {spec: cache.from_spec(spec, trace.block_tokens) for spec in caches}
    coarse = grain is not None and trace.mean_rate_rps * grain > 1  # gaps show the clock rather than the traffic
    facts: dict[str, Any] = {
        "file": dict(trace.facts),
        "requests": len(trace),
        "span_s": float(at_s[-1] - at_s[0]),
        "rate_rps": trace.mean_rate_rps or None,
        "lengths": _lengths(trace),
        "grain_s": grain,
        "ticks": _ticks(at_s, grain) if coarse else None,
        "gaps": _gaps(at_s),
        "counts": _counts(at_s),
    }
    if "tag" in trace.table.column_names and trace.table["tag"].null_count < len(trace):
        facts["classes"] = _classes(trace, grain)
    if "session" in trace.table.column_names:
        facts["conversations"] = conversations(trace.table)
    if "images" in trace.table.column_names:
        facts["images"] = _images(trace.table)
    if "prefix_ids" in trace.table.column_names:
        facts["prefixes"] = _prefixes(trace, capacities)
    return facts


def _lengths(trace: Trace) -> dict[str, Any]:
    prompt, output = (np.asarray(trace.table[name]) for name in ("prompt_tokens", "output_tokens"))
    varied = len(trace) > 2 and np.ptp(prompt) > 0 and np.ptp(output) > 0
    few = slice(None, None, -(-len(trace) // MOST_RANKED))
    return {
        "prompt_tokens": _summary(prompt),
        "output_tokens": _summary(output),
        "spearman": spearman(prompt[few], output[few]) if varied else None,
    }


def _images(table: pa.Table) -> dict[str, Any]:
    """How many requests have images, and how many; their tokens where they are counted."""
    images = np.asarray(table["images"].fill_null(0))
    with_images = images[images > 0]
    tokens = np.asarray(table["image_tokens"].fill_null(0)) if "image_tokens" in table.column_names else None
    return {
        "share": float((images > 0).mean()),
        "images": _summary(with_images) if len(with_images) else None,
        "share_of_prompt_tokens": None
        if tokens is None
        else float(tokens.sum() / np.asarray(table["prompt_tokens"]).sum()),
    }


def _summary(values: np.ndarray) -> dict[str, float]:
    p50, p90, p99, most = quantiles(values.astype(np.float64), [0.5, 0.9, 0.99, 1.0])
    return {"mean": float(values.mean()), "p50": p50, "p90": p90, "p99": p99, "max": most}


def _gaps(at_s: np.ndarray) -> dict[str, Any]:
    span_s = float(at_s[-1] - at_s[0])
    windows = {f"{width:g}": arrivals.window_cvs(at_s, width) for width in WINDOWS_S if 2 * width <= span_s}
    gaps_s = np.diff(at_s)
    return {
        "cv": arrivals.gap_cv(at_s),
        "zero_share": float((gaps_s == 0).mean()) if len(gaps_s) else None,
        "longest_s": float(gaps_s.max()) if len(gaps_s) else None,
        "window_cv": {
            width: dict(zip(("p10", "p50", "p90"), quantiles(cvs, [0.1, 0.5, 0.9]), strict=True))
            for width, cvs in windows.items()
            if len(cvs)
        },
    }


def _counts(at_s: np.ndarray) -> dict[str, Any]:
    """How counts vary, per width; beside the minutes of Poisson arrivals of the same rate."""
    spread = {f"{width:g}": arrivals.dispersion(at_s, width) for width in WIDTHS_S}
    minutes = arrivals.counts(at_s, 60.0)
    return {
        "dispersion": {width: value for width, value in spread.items() if value is not None},
        "acf": {f"{width:g}": arrivals.autocorrelation(arrivals.counts(at_s, width)) for width in (10.0, 60.0)},
        "minutes": minutes.bins,
        "empty_minutes": 1 - len(minutes.index) / minutes.bins if minutes.bins else None,
        "empty_minutes_poisson": float(np.exp(-minutes.mean)) if minutes.bins else None,
        "peak_minute": float(minutes.number.max() / minutes.mean) if minutes.mean > 0 else None,
    }


def _ticks(at_s: np.ndarray, grain: float | None) -> dict[str, Any]:
    """Counts per tick instead of gaps; a tick without a request counts."""
    assert grain is not None
    counts = arrivals.per_tick(at_s, grain)
    ticks = {1, *(round(width / grain) for width in TICK_WIDTHS_S if width >= 2 * grain)}
    spread = {f"{width * grain:g}": arrivals.dispersion(at_s, width * grain, grain) for width in sorted(ticks)}
    return {
        "tick_s": grain,
        "ticks": len(counts),
        "mean": float(counts.mean()),
        "most": int(counts.max()),
        "dispersion": {width: value for width, value in spread.items() if value is not None},
        "acf": [arrivals.autocorrelation(counts, lag) for lag in (1, 2)],
    }


def _classes(trace: Trace, grain: float | None) -> dict[str, dict[str, Any]]:
    """What differs between the classes of traffic, the largest first; None is called 'none'."""
    tags = trace.table["tag"].combine_chunks().dictionary_encode()
    codes = np.asarray(tags.indices.fill_null(len(tags.dictionary)))
    names = [*tags.dictionary.to_pylist(), "none"]
    prompt, output = (np.asarray(trace.table[name]) for name in ("prompt_tokens", "output_tokens"))
    classes: dict[str, dict[str, Any]] = {}
    for code in np.argsort(-np.bincount(codes, minlength=len(names)), kind="stable").tolist():
        rows = codes == code
        if rows.any():
            classes[str(names[code])] = _class(trace.at_s[rows], prompt[rows], output[rows], grain)
    return classes


def _class(at_s: np.ndarray, prompt: np.ndarray, output: np.ndarray, grain: float | None) -> dict[str, Any]:
    span_s = float(at_s[-1] - at_s[0])
    shared = grain is not None and len(at_s) * grain > span_s
    cvs = np.zeros(0) if shared else arrivals.window_cvs(at_s, WINDOWS_S[-1])
    return {
        "requests": len(at_s),
        "rate_rps": (len(at_s) - 1) / span_s if span_s > 0 else None,
        "window_cv_p50": float(np.median(cvs)) if len(cvs) else None,
        "dispersion_60s": arrivals.dispersion(at_s, 60.0),
        "prompt_mean": float(prompt.mean()),
        "output_mean": float(output.mean()),
    }


def _prefixes(trace: Trace, capacities: Mapping[str, int]) -> dict[str, Any]:
    endless = cache.replay(trace.table)
    caches: dict[str, dict[str, Any]] = {}
    for spec, capacity_blocks in capacities.items():
        hits = cache.replay(trace.table, capacity_blocks)
        share = hits.hits / endless.hits if endless.hits else None
        caches[spec] = {"capacity_blocks": capacity_blocks, "hit_ratio": hits.ratio, "share_of_endless": share}
    return {
        "block_tokens": trace.block_tokens,
        "blocks": endless.blocks,
        "distinct": cache.distinct_blocks(trace.table),
        "endless_hit_ratio": endless.ratio,
        "caches": caches,
    }


def conversations(table: pa.Table) -> dict[str, Any]:
    """Number of conversations, their turns, and the time (s) from one request of a conversation to the next."""
    rows = table.select(["session", "at_s"]).filter(table["session"].is_valid())
    session = np.asarray(rows["session"])
    order = np.argsort(session, kind="stable")  # rows of a session stay in order of time
    _, turns = np.unique(session, return_counts=True)
    think_s = np.diff(np.asarray(rows["at_s"])[order])[np.diff(session[order]) == 0]
    return {
        "conversations": len(turns),
        "requests": int(turns.sum()),
        "single_share": float((turns == 1).mean()) if len(turns) else None,
        "turns": _at(turns, (0.5, 0.75, 0.9, 0.99, 1.0)) | {"mean": float(turns.mean())} if len(turns) else None,
        "think_s": _at(think_s, (0.1, 0.5, 0.9, 0.99)) if len(think_s) else None,
        "think_below_300_s": float((think_s < 300).mean()) if len(think_s) else None,
    }


def _at(values: np.ndarray, qs: tuple[float, ...]) -> dict[str, float]:
    percentiles = quantiles(values.astype(np.float64), list(qs))
    return {"max" if q == 1 else f"p{100 * q:g}": value for q, value in zip(qs, percentiles, strict=True)}


def check(path: str, *, reader: str | None = None) -> dict[str, Any]:
    """`odd` and `notes` (sentences) about the trace, and how many rows and requests it has; in bounded memory.

    Odd is an official name without the official hash, rows that are no requests, stamps that fall, and equal rows
    under fine stamps; a note is what the format is known for: coarse stamps, rows equal under them, an idle head, long
    gaps, rows in the order in which calls end. Raises UsageError for a file that cannot be read as a trace.
    """
    facts, disorder = _read(path, reader)
    digest = str(facts["sha256"])
    entry = _known.known(digest)
    # what name, hash and number of rows say against the file: invented rows go round under official names
    doubts = _known.facts(Path(path), digest, int(str(facts["rows"])), whole=True)[1]
    oddities = [str(text) for text in facts["oddities"]]
    dropped = [text for text in oddities if " left out: " in text]
    units = [str(text) for text in facts.get("doubts", [])]
    grain_s, count = facts["grain_s"], int(str(facts["duplicates"]))
    fine = not (isinstance(grain_s, float) and grain_s >= COARSE_S)
    note = f"{count:,} rows are equal to another in every column, although stamps are fine; they are kept."
    duplicates = [note] if count and fine else []
    usual = disorder if "order" in facts else []
    odd = [*([] if usual else disorder), *doubts, *units, *dropped, *duplicates]
    hash_note = [f"SHA-256 {digest} is that of {'no known official file' if entry is None else entry.title}."]
    rest = [text for text in oddities if text not in odd and not (duplicates and text.startswith("equal to "))]
    return {
        "file": path,
        "sha256": digest,
        "reader": facts["reader"],
        "rows": facts["rows"],
        "requests": facts["requests"],
        "odd": odd,
        "notes": [*hash_note, *usual, *rest],
    }


def _read(path: str, reader: str | None) -> tuple[dict[str, Any], list[str]]:
    """Facts of the whole file, and what keeps it from being read in its own order."""
    try:
        return _facts(traces.blocks(path, reader)), []
    except UsageError as error:
        try:
            facts = _facts(traces.blocks(path, reader, sort=True))
        except UsageError:
            raise error from None  # order is not what is wrong with it
        return facts, [f"{str(error).rstrip('.')}."]


def _facts(blocks: traces.Blocks) -> dict[str, Any]:
    for _ in blocks:
        pass
    return dict(blocks.facts)
