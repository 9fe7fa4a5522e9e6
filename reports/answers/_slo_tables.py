"""Tables of `bench slo`: scores, scales, planes, groups, tokens, curves.

The table of definition profiles: a row per quantity, a column per tool, and how far they lie apart.

`bench slo --format csv`: a row per number, with what it is of; times in seconds, shares from 0 to 1.
"""

import csv as tables
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reports import _format
from reports._format import clean

Info = Mapping[str, Any]

COLUMNS = 6
"""Limits of a plane, or rates, that fit side by side."""
ALONE = {
    "class": "the traffic has one class",
    "turn": "no request has a second turn",
    "prefix": "no two requests share a prefix, as far as the run tells",
    "replica": "there is one replica, as far as the run tells",
    "cached": "the run does not tell apart how much of a prompt was cached",
}
"""What a single group means."""
LINES = 60
"""Runs of an overview that are shown."""


@dataclass(frozen=True, slots=True)
class Rows:
    """A table: its first `left` columns name the rows; `notes` stand below it."""

    heads: list[str]
    rows: list[list[str]]
    left: int = 1
    title: str = ""
    notes: tuple[str, ...] = ()


def rate(value: float | None) -> str:
    """Requests per second, without the unit, which stands in the head."""
    return _format.number(value)


def goal_heads(goals: Sequence[float]) -> list[str]:
    """A column per goal."""
    return [f"{goal * 100:g}%" for goal in goals]


def scores(run: Info, info: Info) -> Rows:
    """Each objective with its bounds below it."""
    goals, conditions = run["goals"], info["conditions"]
    several = any(slo["goodput_rps_per_gpu"] not in (None, slo["goodput_rps"]) for slo in run["slos"])
    heads = ["objective", "within", "goodput (req/s)", *(["per GPU"] if several else []), *goal_heads(goals)]
    rows = []
    for slo in run["slos"]:
        kept = ["reached" if yes else "missed" for yes in slo[conditions]]
        per_gpu = [rate(slo["goodput_rps_per_gpu"])] if several else []
        rows.append(
            [clean(slo["text"]), _format.share(slo["attainment"], goals[0]), rate(slo["goodput_rps"]), *per_gpu, *kept]
        )
        several_bounds = [b for b in slo["bounds"] if len(slo["bounds"]) > 1 or b["percentile"] is not None]
        rows += [_bound(b, goals) for b in several_bounds]
        rows += [[f"- class {clean(name, 40)}", _format.share(share, goals[0]), *[""] * (len(heads) - 2)]
                 for name, share in slo["classes"].items() if len(slo["classes"]) > 1]  # fmt: skip
    return Rows(heads, [row + [""] * (len(heads) - len(row)) for row in rows])


def _bound(bound: Info, goals: Sequence[float]) -> list[str]:
    """Name and share of one bound; of a percentile bound also its value, and whether it is kept."""
    name, share = f"- {clean(bound['text'])}", _format.share(bound["attainment"], goals[0])
    if bound["percentile"] is None:
        return [name, share]
    value = "never" if bound["value_s"] is None else _format.seconds(bound["value_s"])
    return [f"{name}: {value}, {'kept' if bound['passed'] else 'broken'}", share]


def differ(bounds: Sequence[Info]) -> bool:
    """Whether one bound can bind more than another; where all keep the same share, only failures may have missed."""
    return any(b["percentile"] is not None for b in bounds[1:]) or len({b["attainment"] for b in bounds}) > 1


def overview(runs: Sequence[Info], info: Info) -> Rows:
    """A line per run and objective."""
    goals = runs[0]["goals"]
    heads = ["run", "objective", "rate", "within", "goodput (req/s)", "binding", *goal_heads(goals)]
    names = _names([run["path"] for run in runs])
    rows = [
        [name, clean(slo["text"], 60), rate(run["rate_rps"] or run["scheduled_rps"]),
         _format.share(slo["attainment"], goals[0]), rate(slo["goodput_rps"]),
         clean(slo["binding"], 40) if slo["binding"] and differ(slo["bounds"]) else "-",
         *("reached" if yes else "missed" for yes in slo[info["conditions"]])]
        for name, run in zip(names, runs, strict=True) for slo in run["slos"]
    ]  # fmt: skip
    one = {row[1] for row in rows}
    title = ""
    if len(one) == 1:  # said once
        title = f"under {next(iter(one))}"
        heads, rows = heads[:1] + heads[2:], [row[:1] + row[2:] for row in rows]
    more = len(rows) - LINES
    notes = (f"{more:,} more lines: --format csv or json\n",) if more > 0 else ()
    return Rows(heads, rows[:LINES], 1 if len(one) == 1 else 2, title, notes)


def _names(paths: Sequence[str]) -> list[str]:
    """The paths without the folders that all have in common."""
    parts = [path.replace("\\", "/").split("/") for path in paths]
    common = 0
    while all(len(p) > common + 1 and p[common] == parts[0][common] for p in parts):
        common += 1
    return [clean("/".join(p[common:]), 60) for p in parts]


def scale(slo: Info) -> Iterator[Rows]:
    """Attainment at each factor; nothing where none was asked for."""
    found = slo["scale"]
    if found is None or not found["factors"]:
        return
    names = list(found["bounds"]) if len(found["bounds"]) > 1 else []
    heads = ["SLO scale", "within", "goodput (req/s)", *(f"{clean(name, 30)} alone" for name in names)]
    rows = [
        [_format.number(factor), _format.share(found["attainment"][i]), rate(found["goodput_rps"][i]),
         *(_format.share(found["bounds"][name][i]) for name in names)]
        for i, factor in enumerate(found["factors"])
    ]  # fmt: skip
    yield Rows(heads, rows, title=f"{clean(slo['text'])}, every bound times the scale")


def tokens(slo: Info, untold: int) -> Iterator[Rows]:
    """Goodput in tokens, per class where there are several; of `untold` failed requests nobody knows what was asked."""
    found = slo["tokens"]
    if found is None:
        return
    heads = ["", "tokens in time", "token goodput (tokens/s)", "service 1:8", "service 0:1"]
    lines = [("all", found), *((f"class {name}", part) for name, part in found["classes"].items())]
    rows = [
        [clean(name, 40), _format.share(part["share"]), rate(part["token_goodput_tps"]),
         rate(part["service"]["1:8"]), rate(part["service"]["0:1"])]
        for name, part in lines
    ]  # fmt: skip
    whole = found["whole_answers_tps"]
    notes = (
        "token k is due at the bound on TTFT + k times that on TPOT; other bounds hold for all tokens of a request",
        "service a:b is a x good prompt tokens + b x good output tokens per second",
        *(() if whole is None else (f"answers that kept everything have {rate(whole)} tokens/s",)),
        *(
            ("the file does not tell how many tokens the failed requests were asked for: none are missing",)
            * bool(untold)
        ),
    )
    yield Rows(heads, rows, title=f"{clean(slo['text'])}, token by token", notes=notes)


def plane(run: Info) -> Iterator[Rows]:
    """Goodput under pairs of bounds, the second metric across."""
    found = run["plane"]
    if found is None:
        return
    (down, across), (down_s, across_s) = found["metrics"], found["limits_s"]
    last = len(across_s) - 1
    shown = sorted({round(i * last / (COLUMNS - 1)) for i in range(COLUMNS)})
    heads = [f"{down} \\ {across}", *(_format.limit(across_s[j]) for j in shown)]
    rows = [
        [
            _format.limit(limit),
            *(
                f"{rate(found['goodput_rps'][i][j])} ({_format.share(found['attainment'][i][j], run['goals'][0])})"
                for j in shown
            ),
        ]
        for i, limit in enumerate(down_s)
    ]
    left_out = len(across_s) - len(shown)
    notes = (f"{left_out} more columns: --format csv or json",) if left_out else ()
    yield Rows(heads, rows, title="goodput in req/s (attainment) under both bounds", notes=notes)


def groups(found: Info) -> Rows:
    """A line per group, a column per objective."""
    one = len(found["slos"]) == 1
    names = list(found["groups"][0]["bounds"][0]) if one and found["groups"] else []
    names = names if len(names) > 1 else []
    heads = [found["by"], "requests", *(["within"] if one else [clean(s, 30) for s in found["slos"]]),
             *(clean(name, 24) for name in names), "goodput (req/s)", "TTFT p50", "p99", "TPOT p99"]  # fmt: skip
    rows = [
        [clean(group["name"], 40), f"{group['requests']:,}", *map(_format.share, group["attainment"]),
         *(_format.share(group["bounds"][0][name]) for name in names),
         rate(group["goodput_rps"][0]),
         _format.seconds(group["latencies"]["ttft"]["p50"]), _format.seconds(group["latencies"]["ttft"]["p99"]),
         _format.seconds(group["latencies"]["tpot"]["p99"])]
        for group in found["groups"]
    ]  # fmt: skip
    alone = len(rows) == 1 and found["by"] in ALONE
    notes = (ALONE[found["by"]],) if alone else ("goodput: what each group adds to that of the run",)
    return Rows(heads, rows, title=f"by {found['by']}", notes=notes)


def curve_tables(curve: Info) -> Iterator[Rows | str]:
    """Attainment over the rate: mean of the runs at each, with its interval where there are enough."""
    label = f" ({clean(curve['label'], 100)})" if curve["label"] else ""
    names = list(curve["points"][0]["bounds"])
    names = names if len(names) > 1 else []
    heads = ["rate (req/s)", "runs", "within", "95% of the mean", "range", "goodput (req/s)",
             *(clean(name, 24) for name in names)]  # fmt: skip
    rows = [
        [_format.number(point["rate_rps"]), runs_at(point), *_spread(point["attainment"]),
         rate((point["goodput_rps"] or {}).get("mean")),
         *(_format.share((point["bounds"][name] or {}).get("mean")) for name in names)]
        for point in curve["points"]
    ]  # fmt: skip
    yield Rows(heads, rows, title=f"{clean(curve['slo'])} over the rate{label}", notes=tuple(crossed(curve)))
    scales = [point for point in curve["points"] if point["scale"] and point["factors"]]
    for at in range(0, len(scales), COLUMNS):
        part = scales[at : at + COLUMNS]
        heads = ["SLO scale", *(f"{_format.number(point['rate_rps'])} req/s" for point in part)]
        rows = [
            [_format.number(factor), *(_format.share(point["scale"][i]) for point in part)]
            for i, factor in enumerate(part[0]["factors"])
        ]
        yield Rows(heads, rows, title="" if at else f"{clean(curve['slo'])}, every bound times the scale{label}")


def runs_at(point: Info) -> str:
    """How many runs stand behind a point, and how many of them are not to be trusted."""
    marks = [f"{point[name]} {name}" for name in ("overloaded", "invalid") if point[name]]
    return f"{point['runs']} ({', '.join(marks)})" if marks else str(point["runs"])


def _spread(found: Info | None) -> list[str]:
    if found is None:
        return ["-", "-", "-"]
    low, high = found["low"], found["high"]
    interval = "-" if low is None else f"{_format.share(low)} to {_format.share(high)}"
    span = "-" if found["n"] < 2 else f"{_format.share(found['least'])} to {_format.share(found['most'])}"
    return [_format.share(found["mean"]), interval, span]


def crossed(curve: Info) -> Iterator[str]:
    """Where the curve crosses each goal."""
    for found in curve["crossings"]:
        goal = f"{found['goal'] * 100:g}%"
        if found["at_rps"] is None:
            where = "above" if found["side"] == "above" else "below"
            yield f"{goal}: all rates lie {where} it"
        else:
            low, high = found["between"]
            yield (
                f"{goal} is crossed near {_format.number(found['at_rps'])} req/s, between {_format.number(low)} and "
                f"{_format.number(high)}; bench capacity gives the rate with its interval"
            )


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
            cells.append("" if value is None else word if "within" in name else _format.share(value))
        rows.append([name, *cells, *([""] if apart else [])])
    return Rows(heads, rows, title=title, notes=notes)


def _value(key: str, value: float | None, row: Sequence[float | None]) -> str:
    if value is None:
        return "-"
    if key.endswith("_s"):
        unit = _format.unit_of(row)
        return f"{_format.in_unit(value, unit)} {unit}"
    if key == "attainment":
        return _format.share(value)
    return f"{value:,.0f}" if key in ("good", "of") else _format.number(value)


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


HEADS = ("run", "rate_rps", "seed", "objective", "what", "of", "at", "at_other", "value")


def csv(info: Info) -> str:
    """The numbers of all runs, one a line."""
    file = io.StringIO()
    writer = tables.writer(file, lineterminator="\n")
    writer.writerow(HEADS)
    for run in info["runs"]:
        for row in _rows(run):
            writer.writerow([clean(cell) if isinstance(cell, str) else cell for cell in row])
    return file.getvalue()


def _rows(run: Info) -> Iterator[list[Any]]:
    first = [run["path"], run["rate_rps"] or run["scheduled_rps"], run["seed"]]
    for slo in run["slos"]:
        for row in _slo(slo, run["goals"]):
            yield [*first, slo["text"], *row]
    for row in _plane(run["plane"]):
        yield [*first, "", *row]
    for found in run["groups"]:
        for group in found["groups"]:
            for i, text in enumerate(found["slos"]):
                yield [
                    *first,
                    text,
                    "attainment",
                    f"{found['by']}: {group['name']}",
                    None,
                    None,
                    group["attainment"][i],
                ]
    for column in (run["profiles"] or {"columns": ()})["columns"]:
        for name, value in column["values"].items():
            yield [*first, "", name, column["name"], None, None, value]


def _slo(slo: Info, goals: Sequence[float]) -> Iterator[list[Any]]:
    yield ["attainment", "all", None, None, slo["attainment"]]
    for goal, joint, separate in zip(goals, slo["joint"], slo["separate"], strict=True):
        yield ["reached", "joint", goal, None, int(joint)]
        yield ["reached", "separate", goal, None, int(separate)]
    yield ["goodput_rps", "all", None, None, slo["goodput_rps"]]
    for bound in slo["bounds"]:
        yield ["attainment", bound["text"], None, None, bound["attainment"]]
    scale = slo["scale"] or {"factors": ()}
    for i, factor in enumerate(scale["factors"]):
        yield ["attainment", "scale", factor, None, scale["attainment"][i]]
        yield ["goodput_rps", "scale", factor, None, scale["goodput_rps"][i]]
    if slo["tokens"] is not None:
        yield ["token_goodput_tps", "all", None, None, slo["tokens"]["token_goodput_tps"]]
        yield ["tokens_in_time", "all", None, None, slo["tokens"]["share"]]


def _plane(found: Info | None) -> Iterator[list[Any]]:
    if found is None:
        return
    for i, limit in enumerate(found["limits_s"][0]):
        for j, other in enumerate(found["limits_s"][1]):
            of = "plane: " + ", ".join(found["metrics"])
            yield ["attainment", of, limit, other, found["attainment"][i][j]]
            yield ["goodput_rps", of, limit, other, found["goodput_rps"][i][j]]
