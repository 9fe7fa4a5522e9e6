"""Tables of answers on a terminal of 100 columns."""

import importlib

import pytest

table = importlib.import_module("reports.answers._curve")


def test_table_that_fits_is_left_alone() -> None:
    """Numbers would not stand below their heads."""
    lines = table.text(["rate (req/s)", "attainment"], [["1", "99.0%"], ["16", "8.5%"]]).splitlines()

    assert "rate (req/s)  attainment" == lines[0]
    assert "1                  99.0%" == lines[2]
    assert "16                  8.5%" == lines[3]


def test_heads_break_before_anything_else() -> None:
    """A column would be cut off at the edge of the terminal."""
    heads = ["system", *(f"TTFT p{p} (ms)" for p in range(90, 99))]
    lines = table.text(heads, [["sim", *("1,234.5" for _ in heads[1:])]]).splitlines()

    assert max(map(len, lines)) <= 100
    assert 9 == lines[-1].count("1,234.5")
    assert "TTFT" in lines[0]
    assert lines[0].startswith(" ")  # heads stand at the bottom
    assert "system" in lines[2]


def test_long_names_fold_and_numbers_never_do() -> None:
    """A rate would be read from two lines."""
    name = "sarathi:budget=512,max_seqs=48,reserve=0.05,order=oldest"
    lines = table.text(["policy", *"abcdefgh"], [[name, *("12,345.6" for _ in "abcdefgh")]]).splitlines()

    assert max(map(len, lines)) <= 100
    assert name == "".join(line[: line.index("  ") if "  " in line else None] for line in lines[2:])
    assert 8 == lines[2].count("12,345.6")


def test_numbers_that_need_more_room_get_it() -> None:
    """The last column would be missing, which nobody would notice."""
    lines = table.text(["x", *"abcdefghij"], [["1", *("1,234,567.89" for _ in "abcdefghij")]]).splitlines()

    assert 10 == lines[2].count("1,234,567.89")


@pytest.mark.parametrize("foreign", ["\x1b[31mred", "a\nb", "a|b"])
def test_foreign_text_stays_in_its_cell(foreign: str) -> None:
    """A model's name would colour the terminal, or add a row to the table."""
    shown = table.text(["model", "rate"], [[foreign, "1"]])
    marked = table.markdown(["model", "rate"], [[foreign, "1"]])

    assert "\x1b" not in shown + marked
    assert 3 == shown.count("\n") == marked.count("\n")
    assert 3 == marked.splitlines()[2].replace("\\|", "").count("|")
