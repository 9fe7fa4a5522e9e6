"""A comparison as its figures draw it: the answer of `bench compare`, and what the requests of its stored runs tell.

from harness import answers
from reports import comparison
from reports.figures.compare import forest

forest(comparison.of(answers.of("pairs"), "pairs")).show()
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import UsageError
from harness.experiments.compare import wording
from reports._format import clean
from reports._system import Facts
from reports.comparison import _contrast, _runs
from reports.comparison._contrast import Contrast

__all__ = ["Comparison", "Contrast", "of"]

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """The answer `info`, which stands in `folder`.

    `contrasts` are the pairs at one point whose runs could be read, request by request; `point` names that point and
    says why it was chosen (empty where there is one point only), `missing` why there are no contrasts. `searches` has
    the answers of both searches, by side, where searches were compared and both are still there.
    """

    info: Mapping[str, Any]
    folder: Path
    contrasts: tuple[Contrast, ...]
    point: str
    missing: str
    searches: Mapping[str, Row]

    @property
    def same_requests(self) -> bool:
        """Whether both sides of every pair sent the same requests."""
        return _runs.same_requests(self.info)

    @property
    def floors(self) -> Facts:
        """The client floor of the first readable run of each side, where it was measured."""
        return _runs.floors(self.info, self.folder)

    @property
    def rows(self) -> list[Row]:
        """Every row: those of the gates, then those that decide nothing."""
        return [*self.info["gates"], *self.info["shown"]]

    @property
    def bounds(self) -> Facts:
        """The bounds of the SLO that have an attainment of their own, as (name of the row, text of the bound)."""
        names = dict.fromkeys(str(row["metric"]) for row in self.rows)
        return tuple((name, name.removeprefix(_OF)) for name in names if name.startswith(_OF))

    def of_metric(self, name: str) -> list[Row]:
        """The rows of one metric, a point each, in the order of the points."""
        return [row for row in self.rows if row["metric"] == name]


_OF = "attainment of "
_NOTHING = "The figure needs the runs that were compared; put their folders where the comparison found them."
_SEARCHED = "Searches keep no requests of their trials; compare two sweeps to see what the requests of both sides did."

_INVALID = "No pair is valid, so nothing is drawn of its requests; make the pairs again that are named below."
_PRINTED = (
    "The commands printed numbers and left no requests; let them leave a run at {out} to see what its requests did."
)


def of(info: Mapping[str, Any], path: str | Path) -> Comparison:
    """The comparison `info` that stands at `path` (its folder or file), with what can be read of its runs."""
    given = Path(path)
    folder = given if given.is_dir() else given.parent
    point, why = _point(info)
    contrasts: tuple[Contrast, ...] = ()
    searches = _runs.searches(info, folder)
    if searches:
        missing = _SEARCHED
    elif not any(pair["valid"] for pair in info["pairs"]):
        missing = _INVALID
    else:  # what would bring the requests of the runs
        missing = _PRINTED if _runs.only_numbers(info, folder) else _NOTHING
    try:
        contrasts = tuple(_contrasts(info, folder, point))
    except UsageError as error:
        missing = f"The runs that were compared cannot be read: {error}"
    return Comparison(info, folder, contrasts, why, "" if contrasts else missing, searches)


def _contrasts(info: Mapping[str, Any], folder: Path, point: Mapping[str, str]) -> Iterator[Contrast]:
    if info["refused"] or not info["gates"]:
        return
    for pair in info["pairs"]:
        if pair["valid"] and (pair.get("point") or {}) == point:
            sides = [_runs.source(info, pair, side, folder) for side in ("base", "head")]
            if sides[0] is not None and sides[1] is not None:
                yield _contrast.of(pair, sides[0], sides[1], info)


def _point(info: Mapping[str, Any]) -> tuple[Mapping[str, str], str]:
    """The point whose requests are drawn: where the two sides differ most in what the SLO asks."""
    rows = [row for name in ("attainment", "goodput_rps") for row in (*info["gates"], *info["shown"])
            if row["metric"] == name and None not in (row["base"], row["head"])]  # fmt: skip
    rows = [row for row in rows if row["metric"] == rows[0]["metric"]]
    if not rows:
        first: Mapping[str, str] = next((pair.get("point") or {} for pair in info["pairs"]), {})
        return first, _reason({"point": first}, "the first point") if first else ""
    most = max(rows, key=lambda row: abs(row["head"] - row["base"]))
    name = "the attainment" if most["metric"] == "attainment" else "the goodput"
    return most["point"], _reason(most, f"where {name} of the two sides differs most") if most["point"] else ""


def _reason(row: Row, why: str) -> str:
    return f"{clean(wording.where(row))}, {why}"
