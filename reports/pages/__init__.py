"""One module per kind of answer with `sheet(info, path)`: the page of a sweep, a search, a comparison, a series.

from harness import answers
from reports import pages

html = pages.page(answers.of("curve"), "curve")
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.errors import UsageError
from reports import _sheet

__all__ = ["kinds", "page"]


def kinds() -> list[str]:
    """The kinds of answers that have a page."""
    return sorted(p.stem for p in Path(__file__).parent.glob("*.py") if not p.stem.startswith("_"))


def page(
    info: Mapping[str, Any], path: str | Path, *, bundle: str | None = None, plain: bool = False,
    sections: Sequence[str] = (),
) -> str:  # fmt: skip
    """One offline HTML file of a stored answer; `path` is its folder (or file), where its runs are looked for.

    The same answer gives the same bytes. Raises UsageError for a kind that has no page.
    """
    if info["kind"] not in kinds():
        raise UsageError(f"An answer of bench {info['kind']} has no page; take --format text, or of {kinds()} html.")
    module = importlib.import_module(f"{__name__}.{info['kind']}")
    return _sheet.render(module.sheet(info, Path(path)), bundle=bundle, plain=plain, sections=sections)
