"""The answer of `bench sweep`: attainment at each point with its spread over seeds, latencies, crossings."""

from __future__ import annotations

import csv as tables
import io
import textwrap
from collections.abc import Mapping
from typing import Any

from reports._clean import clean, in_markdown
from reports.answers import _sweep_said as words
from reports.answers import _table

Info = Mapping[str, Any]

WIDTH = _table.WIDTH


def text(info: Info) -> str:
    """The sweep for a terminal."""
    head = "\n".join([*_wrapped(words.title(info)), *_wrapped(words.asked(info))]) + "\n"
    tables = [_table.text(t.heads, t.rows, left=t.left) for t in words.tables(info)]
    said = [*words.crossings(info), *(f"note: {note}" for note in words.notes(info))]
    tail = "".join(f"{line}\n" for sentence in said for line in _wrapped(sentence))
    return "\n".join([head, *tables, *([tail] if tail else [])])


def markdown(info: Info) -> str:
    """The sweep for a job summary or an issue."""
    head = f"**{in_markdown(words.title(info), None)}**\n\n{in_markdown(words.asked(info), None)}\n"
    tables = [_table.markdown(t.heads, t.rows, left=t.left) for t in words.tables(info)]
    said = "".join(f"- {in_markdown(sentence, None)}\n" for sentence in (*words.crossings(info), *words.notes(info)))
    return "\n".join([head, *tables, *([said] if said else [])])


def csv(info: Info) -> str:
    """A row per point, times in seconds and shares from 0 to 1; empty where there is no value."""
    axes = [axis["name"] for axis in info["axes"]]
    file = io.StringIO()
    rows = [{**point["values"], **_flat(point)} for point in info["points"]]
    heads = [*axes, *dict.fromkeys(name for row in rows for name in row if name not in axes)]
    writer = tables.DictWriter(file, heads, lineterminator="\n")
    writer.writeheader()
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
