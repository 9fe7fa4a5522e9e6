"""Every fact of the specification of serving systems is a row of the table of acceptance, or is listed without one."""

from acceptance import page, table
from acceptance.rows import Row
from harness.experiments.reproduce import chosen


def test_an_id_without_a_row_was_not_listed():
    """A published number without a comparison would appear to hold."""
    rows = {table.base(one) for topic in table.names() for one in table.ids_of(topic)}
    rows |= {table.base(row.id) for _, row in chosen([])}
    listed = {one["id"] for one in table.without_row()}

    assert set() == listed & rows
    assert table.specified() == rows | (listed - {"GN4"})


def test_every_id_has_a_section():
    """A row of an id without one would be in the counts and nowhere on the page."""
    rows = [{"id": one} for one in table.specified()]
    shown = [row["id"] for _, found in page.sections(rows) for row in found]

    assert sorted(shown) == sorted(table.specified())


def test_the_table_lists_ids_without_a_row(monkeypatch):
    """The table would look complete: 130 of 140 rows hold, and 31 systems are not there."""
    row = Row("S08.a", "Sarathi-Serve", "simulated", "0.14 s", "0.148 s", "+-25%", True, "bench run")
    monkeypatch.setattr(table, "rows_of", lambda topic: lambda _: iter([row] if topic == "placement" else []))
    whole = table.answer(table.names(), [], None, workers=1, say=lambda _: None)
    part = table.answer(["placement"], [], None, workers=1, say=lambda _: None)

    missing = len(table.without_row())
    assert missing == len(whole["without_row"]) > 1
    assert [] == part["without_row"]
    assert f"1 of 1 gated rows hold; {missing} ids have no row." in page.text(whole).replace("\n", " ")
    assert "| GN4 | OPT-66B, synthetic requests: attainment of vLLM and DistServe | no row:" in page.markdown(whole)
