"""A comparison as its figures draw it: the answer of `bench compare`, and the requests of its stored runs.

from harness import answers
from reports import comparison
from reports.figures.compare import forest

forest(comparison.of(answers.of("pairs"), "pairs")).show()
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.errors import UsageError
from harness.experiments.capacity.capacity_json import CapacityAnswer
from harness.experiments.compare import wording
from harness.experiments.compare.compare_json import CompareAnswer, Row
from reports._format import clean
from reports._system import Facts
from reports.comparison import _contrast, _runs
from reports.comparison._contrast import Contrast

__all__ = ["Comparison", "Contrast", "of"]


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """The answer `info`, which stands in `folder`.

    `contrasts` are the pairs at one point whose runs could be read, request by request; `point` names that point and
    says why it was chosen (empty where there is one point only), `missing` why there are no contrasts. `searches` has
    the answers of both searches, by side, where searches were compared and both are still there.
    """

    info: CompareAnswer
    folder: Path
    contrasts: tuple[Contrast, ...]
    point: str
    missing: str
    searches: Mapping[str, CapacityAnswer]

    @property
    def floors(self) -> Facts:
        """The client floor of the first readable run of each side, where it was measured."""
        return _runs.floors(self.info, self.folder)

    @property
    def bounds(self) -> Facts:
        """The bounds of the SLO that have an attainment of their own, as (name of the row, text of the bound)."""
        names = dict.fromkeys(row.metric for row in self.info.rows)
        return tuple((name, name.removeprefix(_OF)) for name in names if name.startswith(_OF))

    def of_metric(self, name: str) -> list[Row]:
        """The rows of one metric, a point each, in the order of the points."""
        return [row for row in self.info.rows if row.metric == name]


_OF = "attainment of "
_NOTHING = "The figure needs the runs that were compared; put their folders where the comparison found them."
_SEARCHED = "Searches keep no requests of their trials; compare two sweeps to see what the requests of both sides did."

_INVALID = "No pair is valid, so nothing is drawn of its requests; make the pairs again that are named below."
_PRINTED = (
    "The commands printed numbers and left no requests; let them leave a run at {out} to see what its requests did."
)


def of(info: CompareAnswer, path: str | Path) -> Comparison:
    """The comparison `info` that stands at `path` (its folder or file), with what can be read of its runs."""
    given = Path(path)
    folder = given if given.is_dir() else given.parent
    point, why = _point(info)
    contrasts: tuple[Contrast, ...] = ()
    searches = _runs.searches(info, folder)
    if searches:
        missing = _SEARCHED
    elif not any(pair.valid for pair in info.pairs):
        missing = _INVALID
    else:  # what would bring the requests of the runs
        missing = _PRINTED if _runs.only_numbers(info, folder) else _NOTHING
    try:
        contrasts = tuple(_contrasts(info, folder, point))
    except UsageError as error:
        missing = f"The runs that were compared cannot be read: {error}"
    return Comparison(info, folder, contrasts, why, "" if contrasts else missing, searches)


def _contrasts(info: CompareAnswer, folder: Path, point: Mapping[str, str]) -> Iterator[Contrast]:
    if info.refused or not info.gates:
        return
    for pair in info.pairs:
        if pair.valid and (pair.point or {}) == point:
            sides = [_runs.source(info, pair, side, folder) for side in ("base", "head")]
            if sides[0] is not None and sides[1] is not None:
                yield _contrast.of(pair, sides[0], sides[1], info)


def _point(info: CompareAnswer) -> tuple[Mapping[str, str], str]:
    """The point whose requests are drawn: where the two sides differ most in what the SLO asks."""
    point, why = next((pair.point or {} for pair in info.pairs), {}), "the first point"
    for name in ("attainment", "goodput_rps"):
        apart = [
            (abs(row.head - row.base), row.point)
            for row in info.rows
            if row.metric == name and row.base is not None and row.head is not None
        ]
        if apart:
            point = max(apart, key=lambda one: one[0])[1]
            why = f"where the {name.removesuffix('_rps')} of the two sides differs most"
            break
    return point, f"{clean(wording.where(point))}, {why}" if point else ""
