"""A module for each kind of answer: `document(info, path)` is its report, `rows(info)` its values, a row each.

from harness.experiments import answers
from harness.experiments.capacity.capacity_json import CapacityAnswer
from harness.experiments.sweep.sweep_json import SweepAnswer
from reports.answers import page

html = page(answers.of("curve"), Path("curve"))
"""

import importlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from harness.data.folder import Run
from harness.experiments import answers
from reports.document import Document

Readable: TypeAlias = "answers.Answer | Mapping[str, Any]"
"""An answer, or its JSON object."""


def document(info: Readable, path: Path | None = None) -> Document:
    """The report of a stored answer. `path` is its folder (or file), where its runs are looked for: for a page.

    Without it there are no figures, and no run is read. Raises UsageError for a damaged answer.
    """
    try:
        report: Document = _module(info).document(answers.decode(info), path)
    except answers.WRONG as error:
        if path is None:  # the caller knows where it came from
            raise
        raise answers.damaged(info, path, error) from error
    return report


def rows(info: Readable) -> Iterator[dict[str, Any]]:
    """The values of an answer, a row each."""
    values: Iterator[dict[str, Any]] = _module(info).rows(answers.decode(info))
    return values


def _module(info: Readable) -> Any:
    return importlib.import_module(f"{__name__}.{answers.kind_of(info)}")


def page(info: Readable, path: Path) -> str:
    """One offline HTML file of a stored answer. The same answer gives the same bytes."""
    from reports.document import html

    return html.render(document(info, path))


def together(found: Sequence[tuple[Readable, Path]], runs: Iterable[Run], home: Path = Path()) -> Document:
    """The report of several sweeps and searches, each with where it is stored, and of several runs.

    Links to the runs are relative to `home`, the folder in which the page will stand.
    """
    from harness.experiments.capacity.capacity_json import CapacityAnswer
    from harness.experiments.sweep.sweep_json import SweepAnswer
    from reports.answers import _together

    typed = [(answers.decode(info), path) for info, path in found]
    curves = [(info, path) for info, path in typed if isinstance(info, SweepAnswer | CapacityAnswer)]
    return _together.document(curves, runs, home)
