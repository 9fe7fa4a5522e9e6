"""Links between the pages lead somewhere."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
PAGES = [TOP / "README.md", *sorted((TOP / "docs").rglob("*.md"))]


def targets(page: Path) -> Iterator[str]:
    """Where the links of a page lead within the project, without the part after #."""
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if "://" not in target and not target.startswith("#"):
            yield target.partition("#")[0]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(TOP)))
def test_links_of_a_page_lead_to_files(page: Path) -> None:
    """A newcomer would be sent to a page that is not there."""
    assert [] == [target for target in targets(page) if not (page.parent / target).exists()]


def test_every_guide_is_in_the_list_of_guides() -> None:
    """A guide would be missing from the navigation of the site, which only the nightly run builds."""
    listed = {*targets(TOP / "docs" / "index.md")}

    assert {f"guide/{page.name}" for page in (TOP / "docs" / "guide").glob("*.md")} <= listed
