"""The report of a closed form: what was given, what was simulated, and no section without content."""

from pathlib import Path
from typing import Any

import pytest

from harness.experiments.theory import tables
from reports.answers import policy, theory
from reports.document import Figure, csv, html, text

GIVEN = {"rates_rps": [5.0, 10.0], "tp_pp": [[1, 1], [2, 1]], "control_s": 1e-05, "simulate": False, "seed": 123456789,
         "memory": None}  # fmt: skip


def _info(head: str = "step", form: str = "knee", **given: object) -> dict[str, Any]:
    return tables.answer(
        form, GIVEN | given, ["A sentence."], [tables.table("Numbers", [(head, "s"), (head, "s")], [(1.0, None)])],
        ["A note."], [tables.Picture("A picture", "x", "y", (tables.Line("a line", ((0.0, 1.0), (1.0, 2.0))),))],
    )  # fmt: skip


def test_what_was_given_reads_like_an_option() -> None:
    """A reader would have to know how Python prints a list."""
    assert (
        ("rates (req/s)", "5, 10"), ("(tp,pp)", "(1,1), (2,1)"), ("control (s)", "0.00001"), ("simulate", "no"),
        ("seed", "123456789"),
    ) == theory.document(_info()).key_facts  # fmt: skip


@pytest.mark.parametrize(
    ("mark", "head", "modes"),
    [("BY FORMULA", "step", None), ("BY FORMULA AND SIMULATION", "simulated mean", None),
     ("BY FORMULA AND SIMULATION", "used", "paged")],
)  # fmt: skip
def test_the_badge_tells_of_a_simulation(mark: str, head: str, modes: str | None) -> None:
    """Simulated numbers would be taken for exact ones."""
    assert mark == theory.document(_info(head, kv=modes)).mark


def test_policies_are_not_a_formula() -> None:
    """A measurement would be taken for arithmetic."""
    assert "MEASURED AND SIMULATED" == policy.document(_info(form="policy")).mark


def test_a_page_has_figures_and_no_section_without_content() -> None:
    """A reader would look below 'Repeat it' for a command that was not stored."""
    document = theory.document(_info(), Path("knee.json"))
    page = html.render(document)

    assert ["A picture"] == [block.title for block in document.sections[0].blocks if isinstance(block, Figure)]
    assert [] == [title for title in ("Repeat it", "Definitions in use") if title in page]
    assert "What was used" in page


def test_tables_and_notes_stand_in_text_and_in_csv() -> None:
    """A value of a second column with the same head would be lost."""
    shown = text.render(theory.document(_info()))

    assert [True] * 4 == [each in shown for each in ("A sentence.", "A note.", "Numbers", "1.00 s")]
    assert "table,step,step 2\nNumbers,1.0,\n" == csv.render(theory.rows(_info()))
