"""The answer of `bench sweep`: attainment at each point with its spread over seeds, latencies, crossings."""

import csv as tables
import io
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from reports._format import clean, in_markdown
from reports.answers import _curve
from reports.answers import _sweep_said as words
from reports.answers._curve import PLAIN, Look

Info = Mapping[str, Any]

WIDTH = _curve.TABLE_WIDTH

CURVES = 3
"""Most curves that are drawn."""


def text(info: Info, look: Look = PLAIN) -> str:
    """The sweep for a terminal, at most 100 columns: tables, then where goals are crossed and what to do next."""
    head = "\n".join([*map(look.bold, _wrapped(words.title(info))), *_wrapped(words.asked(info))]) + "\n"
    tables = [_curve.text(t.heads, t.rows, left=t.left, look=look) for t in words.tables(info)]
    curves = [f"{one}\n" for curve in _curves(info) if (one := _curve.drawn(curve, blocks=look.blocks))]
    said = [line for note in words.notes(info) for line in _wrapped(f"note: {note}")]
    said += [look.bold(line) for sentence in words.crossings(info) for line in _wrapped(sentence)]
    tail = "".join(f"{line}\n" for line in said)
    return "\n".join([head, *tables, *(curves if look.curve else []), *([tail] if tail else [])])


def _curves(info: Info) -> Iterator[_curve.Curve]:
    """Attainment over the rate, for each of the first values of other axes."""
    lines: dict[tuple[tuple[str, Any], ...], list[tuple[float, float]]] = {}
    for point in info["points"]:
        where = tuple((name, value) for name, value in point["values"].items() if name != "rate")
        rate, share = point["values"].get("rate"), point["attainment"]
        if share is not None and isinstance(rate, int | float):
            lines.setdefault(where, []).append((float(rate), share["mean"]))
    for where, points in [*lines.items()][:CURVES]:
        of = "".join(f", {clean(name, 30)} {clean(value, 40)}" for name, value in where)
        crossed = [c["at"] for c in info["crossings"] if c["at"] and c["along"] == "rate" and c["where"] == dict(where)]
        yield _curve.Curve(points, info["goals"], f"attainment by rate{of}", "req/s", crossed)


def markdown(info: Info) -> str:
    """The sweep for a job summary or an issue."""
    head = f"**{in_markdown(words.title(info), None)}**\n\n{in_markdown(words.asked(info), None)}\n"
    tables = [_curve.markdown(t.heads, t.rows, left=t.left) for t in words.tables(info)]
    said = "".join(f"- {in_markdown(sentence, None)}\n" for sentence in (*words.crossings(info), *words.notes(info)))
    return "\n".join([head, *tables, *([said] if said else [])])


def csv(info: Info) -> str:
    """A row per point, times in seconds and shares from 0 to 1; empty where there is no value."""
    axes = [axis["name"] for axis in info["axes"]]
    file = io.StringIO()
    rows = [{**point["values"], **_flat(point)} for point in info["points"]]
    heads = [*axes, *dict.fromkeys(name for row in rows for name in row if name not in axes)]
    writer = tables.DictWriter(file, heads, lineterminator="\n")
    writer.writerow({head: clean(head) for head in heads})
    writer.writerows({k: clean(v) if isinstance(v, str) else v for k, v in row.items()} for row in rows)
    return file.getvalue()


def _flat(point: Info) -> dict[str, Any]:
    found: dict[str, Any] = {name: point[name] for name in ("slo", "valid", "invalid", "overloaded")}
    found["measured_requests"] = point["requests"]  # `requests` may be an axis
    found |= _columns("attainment", point["attainment"])
    for bound in point["bounds"]:
        name = f"p{bound['percentile']:g}_{bound['metric']}_s" if bound["percentile"] is not None else bound["metric"]
        tag = "" if bound["tag"] is None else f"@{bound['tag']}"
        value = bound["value_s"] if bound["percentile"] is not None else bound["attainment"]
        found |= _columns(f"{name}{tag}" if bound["percentile"] is not None else f"attainment_{name}{tag}", value)
    for name in ("goodput_rps", "throughput_rps", "output_tps", "failed"):
        found |= _columns(name, point[name])
    for metric, parts in point["metrics"].items():
        for part, spread in parts.items():
            found |= _columns(f"{metric}_{part}_s", spread)
    return found


def _columns(name: str, spread: Info | None) -> dict[str, Any]:
    parts = {"": "mean", "_low": "low", "_high": "high", "_least": "least", "_most": "most"}
    return {f"{name}{end}": None if spread is None else spread[part] for end, part in parts.items()}


def _wrapped(sentence: str) -> list[str]:
    return textwrap.wrap(sentence, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False) or [
        ""
    ]
