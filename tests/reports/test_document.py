"""Renderers of a document: tables that fit, foreign text that stays where it is, and what each form leaves out."""

import pytest

from reports.document import Cell, Command, Document, Figure, Finding, Notice, Section, Table, html, markdown, rendered
from reports.document.text import render

HOSTILE = "<script>x</script> \x1b[31m| ``` [a](https://evil.example)"


def page(*blocks: object, detail: bool = False) -> Document:
    """A document with one section."""
    return Document("Title", "", "MARK", None, (), sections=(Section("a", "A", blocks, detail),), definitions=())  # type: ignore[arg-type]  # any block


def lines(heads: list[str], *rows: list[str]) -> list[str]:
    """A table as text, without the title above it."""
    return render(page(Table("", tuple(heads), tuple(map(tuple, rows))))).splitlines()[2:]


def test_long_specs_are_broken_behind_commas() -> None:
    """The name of a metric would be cut in two, and could not be copied."""
    bounds = [f"p99:normalized_latency={number}.25" for number in range(6)]
    text = render(page(Table("", ("SLO", "met"), ((",".join(bounds), "12.5%"),), 1)))

    assert all(bound in text for bound in bounds)
    assert 4 <= len(text.splitlines()) - 1


def test_a_table_that_fits_has_its_numbers_below_their_heads() -> None:
    """Numbers would be read in the wrong column."""
    shown = lines(["rate (req/s)", "attainment"], ["1", "99.0%"], ["16", "8.5%"])

    assert ["rate (req/s)  attainment", "─" * 24, "1                  99.0%", "16                  8.5%"] == shown


def test_heads_break_before_anything_else() -> None:
    """A column would be cut off at the edge of the terminal."""
    heads = ["system", *(f"TTFT p{p} (ms)" for p in range(90, 99))]
    shown = lines(heads, ["sim", *("1,234.5" for _ in heads[1:])])

    assert max(map(len, shown)) <= 100
    assert 9 == shown[-1].count("1,234.5")


def test_long_names_fold_and_numbers_never_do() -> None:
    """A rate would be read from two lines."""
    name = "sarathi:budget=512,max_seqs=48,reserve=0.05,order=oldest"
    shown = lines(["policy", *"abcdefgh"], [name, *("12,345.6" for _ in "abcdefgh")])

    assert max(map(len, shown)) <= 100
    assert name == "".join(line[: line.index("  ") if "  " in line else None] for line in shown[2:])
    assert 8 == shown[2].count("12,345.6")


def test_numbers_that_need_more_room_get_it() -> None:
    """The last column would be missing, unnoticed."""
    shown = lines(["x", *"abcdefghij"], ["1", *("1,234,567.89" for _ in "abcdefghij")])

    assert 10 == shown[2].count("1,234,567.89")


def test_columns_of_the_same_head_keep_their_own_numbers_where_another_has_no_room() -> None:
    """The interval of a rate stood as that of a ratio, as both are headed "95% interval"."""
    heads, row = ("rate", "interval", "x" * 100, "ratio", "interval"), ("1", "0.9 to 1.1", "-", "2", "1.8 to 2.2")
    shown = render(page(Table("", heads, (row,), narrow=("x" * 100,)))).splitlines()

    assert ["1", "0.9 to 1.1", "2", "1.8 to 2.2"] == [text.strip() for text in shown[-1].split("  ") if text.strip()]


@pytest.mark.parametrize("foreign", ["\x1b[31mred", "a\nb", "a|b"])
def test_foreign_text_stays_in_its_cell(foreign: str) -> None:
    """A model's name would colour the terminal, or add a row to the table."""
    table = Table("", ("model", "rate"), ((foreign, "1"),))
    shown, marked = render(page(table)), markdown.render(page(table))

    assert "\x1b" not in shown + marked
    assert 5 == shown.count("\n") == marked.count("\n")
    assert 3 == marked.splitlines()[-1].replace("\\|", "").count("|")


def test_each_form_leaves_out_what_it_cannot_show() -> None:
    """A pull request would get the text of a button, or the page would lack what a terminal has."""
    figure = Figure("curve", "The curve", lambda: "Nothing was measured.")
    shown = page(
        Table("rates", ("rate",), ((Cell("1", link="runs/1/"),),)), figure, Command("try", "bench run --rate 1")
    )
    detail = page("More of it.", detail=True)

    assert "Nothing was measured." not in render(shown) + markdown.render(shown)
    assert "Nothing was measured." in html.render(shown)
    assert '<a href="runs/1/">' in html.render(shown)
    assert "More of it." not in render(detail) + markdown.render(detail)
    assert "More of it." in html.render(detail)
    assert all("bench run --rate 1" in form for form in (render(shown), markdown.render(shown), html.render(shown)))


def test_findings_warnings_and_foreign_text_in_every_form() -> None:
    """A backend's error could run a script in the reader's browser, or break out of a list."""
    document = Document(
        HOSTILE, HOSTILE, "MARK", True, (Finding(HOSTILE, True, (HOSTILE,)),), (("SLO", HOSTILE),),
        (Notice(HOSTILE, HOSTILE),), (), Command(HOSTILE, HOSTILE), (HOSTILE,), (("used", HOSTILE),),
    )  # fmt: skip
    page, marked = html.render(document), markdown.render(document)

    assert "<script>x" not in page + marked.partition("```")[0]
    assert "[a](https" not in marked.partition("```")[0].replace(r"\[a\]", "")
    assert 2 == marked.count("```")


def test_csv_has_a_column_for_every_name() -> None:
    """A value of the second row would be lost, because the first has none."""
    assert "a,b\n1,\n2,x\n" == rendered.csv_of([{"a": 1}, {"a": 2, "b": "x"}])
