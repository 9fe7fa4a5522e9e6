"""The page of a closed form: what was given, what was simulated, and no section without content."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.experiments.theory import tables
from reports import pages

if TYPE_CHECKING:
    from reports._sheet import Sheet

GIVEN = {"rates_rps": [5.0, 10.0], "tp_pp": [[1, 1], [2, 1]], "control_s": 1e-05, "simulate": False, "seed": 123456789,
         "memory": None}  # fmt: skip


def _page(head: str, **given: object) -> tuple[Sheet, str]:
    info = tables.answer("knee", GIVEN | given, ["A sentence."], [tables.table("Numbers", [(head, "s")], [(1.0,)])])
    return pages.sheet(info, Path("knee.json")), pages.page(info, Path("knee.json"))


def test_what_was_given_reads_like_an_option() -> None:
    """A reader would have to know how Python prints a list."""
    sheet, _ = _page("step")

    assert (
        ("rates (req/s)", "5, 10"), ("(tp,pp)", "(1,1), (2,1)"), ("control (s)", "0.00001"), ("simulate", "no"),
        ("seed", "123456789"),
    ) == sheet.heads  # fmt: skip


@pytest.mark.parametrize(
    ("mark", "head", "modes"),
    [("BY FORMULA", "step", None), ("BY FORMULA AND SIMULATION", "simulated mean", None),
     ("BY FORMULA AND SIMULATION", "used", "paged")],
)  # fmt: skip
def test_the_badge_tells_of_a_simulation(mark: str, head: str, modes: str | None) -> None:
    """Simulated numbers would be taken for exact ones."""
    sheet, _ = _page(head, kv=modes)

    assert mark == sheet.mark


def test_sections_without_content_are_left_out() -> None:
    """A reader would look below 'Repeat it' for a command that nobody kept."""
    _, page = _page("step")

    assert [] == [title for title in ("Repeat it", "Definitions in use") if title in page]
    assert "What was used" in page
