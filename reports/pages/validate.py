"""The page of `bench validate --against`: how far simulated numbers are from measured ones, and where."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from reports import _validated as said
from reports import figures
from reports._format import clean
from reports._page import part
from reports._sheet import Cell, Section, Sheet, Table

Info = Mapping[str, Any]
MOST = 200
"""Rows of the table of pairs."""

_DEFINITIONS = (
    ("error", "simulated against measured: relative, or in points where the number is a percentage"),
    ("scored", "pairs that the calibration did not see; only these count"),
    ("seen by the calibration", "pairs that constants were fitted on; shown, never scored"),
    ("bias", "the mean of the errors with their signs: above 0 the simulator is too slow, or too kind"),
    ("RMSE", "the root of the mean of the squared errors"),
)


def sheet(info: Info, path: Path) -> Sheet:  # noqa: ARG001  # nothing is looked for beside the answer
    """What stands on the page of the answer of `bench validate --against`."""
    found = info["validations"]
    targets = [target for one in found for target in one["targets"]]
    missed = [target for target in targets if not target["holds"]]
    return Sheet(
        title=f"Simulator against {', '.join(clean(one['name'], 60) for one in found)}",
        subtitle="; ".join(clean(one["title"], 200) for one in found),
        mark=f"{len(missed)} OF {len(targets)} MISSED" if missed else "TARGETS HOLD" if targets else "SIDE BY SIDE",
        good=not missed if targets else None,
        answer=" ".join(said.verdict(one) for one in found),
        state="",
        heads=tuple((clean(one["name"], 60), clean(sentence, 400)) for one in found for sentence in one["setting"]),
        warnings=(),
        sections=tuple(_section(place, one) for place, one in enumerate(found, start=1)),
        commands=(clean(info["command"], None),),
        facts=tuple((f"version of {clean(k, 40)}", clean(v, 80)) for k, v in (info.get("versions") or {}).items()),
        definitions=_DEFINITIONS,
    )


def _section(place: int, one: Info) -> Section:
    parts = tuple(
        part(f"{row.key}-{place}", row.title, figure)
        for row in figures.of("validate").values()
        if not isinstance(figure := row.draw(one), str)
    )
    title = clean(one["name"], 80)
    return Section(key=f"against-{place}", title=title, texts=(), tables=tuple(_tables(one)), parts=parts)


def _tables(one: Info) -> Iterator[Table]:
    if one["targets"]:
        rows: list[tuple[str | Cell, ...]] = []
        for row, target in zip(said.target_rows(one), one["targets"], strict=True):
            rows.append((*row[:4], Cell(row[4], good=bool(target["holds"])), row[5]))
        yield Table("targets", said.TARGETS, tuple(rows), left=2, said=2)
    if one["errors"]:
        yield Table(
            "errors by metric, of what the calibration did not see", said.ERRORS, tuple(said.error_rows(one)), left=2
        )
    pairs, more = said.shown(one, MOST)
    if pairs:
        yield Table(
            f"measured and simulated{': ' + more if more else ''}", said.PAIRS, tuple(said.pair_rows(pairs)), left=2
        )
