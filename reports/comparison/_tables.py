"""Tables of a comparison's page: rows of the gates, refusals, what differs, the pairs with links to their runs."""

import os
from collections.abc import Mapping, Sized
from pathlib import Path
from typing import Any
from urllib.parse import quote

from harness.experiments.compare import wording
from reports import _format
from reports._format import clean
from reports._sheet import Cell, Table
from reports.answers import compare as told
from reports.comparison import Comparison, _runs

Info = Mapping[str, Any]

MOST = 200
"""Rows of a table; all of them are in the JSON of the answer."""

_GOOD = {"regressed": False, "improved": True, "equivalent": True}


def gated(info: Info) -> Table:
    """The rows that decide, with what each gate asks and what it would take to know more."""
    rows = info["gates"][:MOST]
    names = told.heads(info, info["gates"], gated=True)
    paired = info["mode"] == "paired"
    more = ("ignored up to", "must be found from", "pairs needed", "p (paired t)", "p (sign flips)") if paired else ()
    printed = [
        (*(_cell(name, text, row) for name, text in zip(names, told.cells(names, row, info), strict=True)),
         *(_limits(row) if paired else ()))
        for row in rows
    ]  # fmt: skip
    return Table(f"gates{_of(rows, info['gates'])}", (*names, *more), tuple(printed), names.index("metric") + 1)


def shown(info: Info) -> tuple[Table, ...]:
    """The rows that decide nothing."""
    rows = told.shown(info)
    if not rows:
        return ()
    names = told.heads(info, rows, gated=False)
    printed = tuple(tuple(clean(text, 120) for text in told.cells(names, row, info)) for row in rows[:MOST])
    return (Table(f"not gated{_of(printed, rows)}", names, printed, names.index("metric") + 1),)


def refusals(info: Info) -> Table:
    """What must be equal and is not."""
    rows = tuple((clean(stop["field"], 40), clean(stop["message"], 600)) for stop in info["refused"][:MOST])
    return Table("refused because", ("field", "what was found"), rows, left=2)


def differences(info: Info) -> tuple[Table, ...]:
    """Everything recorded in which the sides differ; what must be equal and was allowed to differ first."""
    allowed = [(each, "allowed by --allow-different") for each in info["allowed_differences"]]
    others = [(each, "-") for each in info["differences"]]
    known = {(each["field"], each["base"], each["head"]) for each, _ in allowed}
    every = [*allowed, *(one for one in others if (one[0]["field"], one[0]["base"], one[0]["head"]) not in known)]
    rows = tuple(
        (clean(each["field"], 80), clean(each["base"], 300), clean(each["head"], 300), why)
        for each, why in every[:MOST]
    )
    return (
        (
            Table(
                f"facts that are not the same on both sides{_of(rows, every)}",
                ("field", "base", "head", "note"),
                rows,
                left=4,
            ),
        )
        if rows
        else ()
    )


def changed(found: Comparison) -> tuple[Table, ...]:
    """How many requests met the SLO on both sides, on one, on none; a row for each pair."""
    if not (found.contrasts and found.contrasts[0].sides[0].bounds and found.same_requests):
        return ()
    rows = tuple(
        (f"pair {each.pair}", f"{each.requests:,}",
         *(f"{each.met[which]:,} ({_format.share(each.met[which] / each.requests)})" if each.requests else "-"
           for which in ("both", "base", "head", "neither")))
        for each in found.contrasts[:MOST]
    )  # fmt: skip
    where = f" at {found.point}" if found.point else ""
    heads = ("pair", "requests", "met on both", "by the base only", "by the head only", "on neither")
    return (Table(f"requests by where they met the SLO{where}", heads, rows),)


def pairs(found: Comparison) -> tuple[Table, ...]:
    """Every pair, or attempt at one, with links to its runs where they are still there."""
    info = found.info
    rows = tuple(_pair(info, pair, found.folder) for pair in info["pairs"][:MOST])
    heads = ("pair", "at", "seed", "order", "base run", "head run", "state", "schedule", "measured from (s)",
             "cached prompt tokens, base", "cached prompt tokens, head")  # fmt: skip
    kept = [place for place in range(len(heads)) if any(row[place] != "-" for row in rows)]
    printed = tuple(tuple(row[place] for place in kept) for row in rows)
    names = sum(place < NAMES for place in kept)
    title = f"pairs of runs{_of(rows, info['pairs'])}"
    return (Table(title, tuple(heads[place] for place in kept), printed, names),) if rows else ()


NAMES = 8
"""Columns of the pairs that are names; the others are numbers."""


def _cell(name: str, text: str, row: Info) -> str | Cell:
    printed = clean(text, 120)
    return Cell(printed, good=_GOOD.get(row["verdict"])) if name == "verdict" else printed


def _limits(row: Info) -> tuple[str, ...]:
    needed = (
        "-"
        if row["mde_pct"] is None
        else "more than 1,000"
        if row["pairs_needed"] is None
        else f"{row['pairs_needed']:,}"
    )
    chances = ("-" if row[key] is None else _format.probability(row[key]) for key in ("p", "p_signflip"))
    limits = (f"{row[key]:g}{wording.unit(row)}" for key in ("min_effect_pct", "must_detect_pct"))
    return (*limits, needed, *chances)


def _pair(info: Info, pair: Info, folder: Path) -> tuple[str | Cell, ...]:
    why = "; ".join(pair.get("reasons") or [pair.get("why") or "not valid"])
    cached = pair.get("cached") or {}
    cut_s = pair.get("cut_s")
    again = ", made again" if pair.get("repeated") else ""
    return (
        clean(pair["pair"], 40),
        clean(wording.where({"point": pair.get("point") or {}}), 120) or "-",
        "-" if pair.get("seed") is None else clean(pair["seed"], 40),
        clean(pair.get("order") or "-", 20),
        *(
            Cell(clean(pair.get(f"{side}_run") or "-", 120), link=link(info, pair, side, folder))
            for side in ("base", "head")
        ),
        Cell(
            f"valid{again}" if pair["valid"] else clean(f"not valid: {why}", 400), good=None if pair["valid"] else False
        ),
        clean(str(pair.get("schedule_hash") or "-")[:12], 20),
        "-" if cut_s is None else _format.number(cut_s),
        *("-" if cached.get(side) is None else _format.share(cached[side]) for side in ("base", "head")),
    )


def link(info: Info, pair: Info, side: str, folder: Path) -> str | None:
    """The relative address of a run: its page where it has one, else its folder; None where it is gone."""
    found = _runs.folder_of(info, pair, side, folder)
    if found is None or not found.is_dir():
        return None
    page = "report.html" if (found / "report.html").is_file() else ""
    return f"./{quote(os.path.relpath(found, folder), safe='/=,+')}/{page}"


def _of(shown: Sized, every: Sized) -> str:
    """Of a table that was cut, of how many rows it shows so many."""
    few, all_ = len(shown), len(every)
    return f" (the first {few:,} of {all_:,}; all are in the JSON)" if few < all_ else ""
