"""The table of definition profiles: a row per quantity, a column per tool, and how far they lie apart."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from reports import _numbers
from reports._clean import clean
from reports.answers._slo_tables import Rows

Info = Mapping[str, Any]

ROWS = {
    "ttft_mean_s": "TTFT mean",
    "ttft_p50_s": "TTFT p50",
    "ttft_p99_s": "TTFT p99",
    "tpot_mean_s": "TPOT mean",
    "tpot_p50_s": "TPOT p50",
    "tpot_p99_s": "TPOT p99",
    "itl_p50_s": "ITL p50",
    "itl_p99_s": "ITL p99",
    "e2e_mean_s": "E2E mean",
    "e2e_p99_s": "E2E p99",
    "good": "good",
    "of": "of requests",
    "attainment": "attainment",
    "goodput_rps": "goodput (req/s)",
}
WIDE = 5
"""Columns of tools that fit side by side."""


def profiles(run: Info) -> Iterator[Rows]:
    """The table in parts of a few tools, each beside ours; nothing where no profile was asked for."""
    found = run["profiles"]
    if found is None:
        return
    ours, *others = found["columns"]
    parts = [others[at : at + WIDE] for at in range(0, len(others), WIDE)] or [[]]
    for number, part in enumerate(parts):
        last = number == len(parts) - 1
        title = "definitions of other tools, from the same tokens" if number == 0 else ""
        yield _part([ours, *part], found, title, tuple(_notes(found)) if last else (), apart=last)


def _part(columns: Sequence[Info], found: Info, title: str, notes: tuple[str, ...], *, apart: bool) -> Rows:
    heads = ["", *(clean(column["name"], 20) for column in columns), *(["apart"] if apart else [])]
    rows = []
    for key, name in ROWS.items():
        values = [column["values"].get(key) for column in columns]
        if any(value is not None for value in values):
            far = [_apart(found["apart"].get(key))] if apart else []
            rows.append([name, *(_value(key, value, values) for value in values), *far])
    said = dict.fromkeys(name for column in columns for name in column["said"])
    for name in said:
        cells = []
        for value in (column["said"].get(name) for column in columns):
            word = "yes" if value else "no"
            cells.append("" if value is None else word if "within" in name else _numbers.share(value))
        rows.append([name, *cells, *([""] if apart else [])])
    return Rows(heads, rows, title=title, notes=notes)


def _value(key: str, value: float | None, row: Sequence[float | None]) -> str:
    if value is None:
        return "-"
    if key.endswith("_s"):
        unit = _numbers.unit_of(row)
        return f"{_numbers.in_unit(value, unit)} {unit}"
    if key == "attainment":
        return _numbers.share(value)
    return f"{value:,.0f}" if key in ("good", "of") else _numbers.number(value)


def _apart(value: float | None) -> str:
    return "" if value is None else "0" if value < 5e-5 else f"{value * 100:.2g}%"


def _notes(found: Info) -> Iterator[str]:
    worst = max(found["apart"].items(), key=lambda item: item[1], default=None)
    if worst is not None and worst[1] >= 5e-5:
        yield f"largest relative difference: {_apart(worst[1])}, of {ROWS.get(worst[0], worst[0])}"
    if found["left_out"]:
        left_out = clean(", ".join(found["left_out"]))
        yield f"these tools know bounds on ttft, tpot and e2e of every request; not used: {left_out}"
    if not found["limits"]:
        yield "no bound on ttft, tpot or e2e, so there is no attainment to compare: give --slo ttft=0.25,tpot=0.1"
    for column in found["columns"]:
        if column["notes"]:
            yield f"{clean(column['name'], 20)} ({clean(column['tool'], 40)}): {'; '.join(column['notes'])}"
