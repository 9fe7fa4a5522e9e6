"""The table of acceptance: rows as they come, misses as misses."""

from collections.abc import Iterator

import pytest

from acceptance import page, table
from acceptance.rows import Place, Row
from acceptance.run import main

HELD = Row("S08.a", "Sarathi-Serve", "simulated", "0.14 s", "0.148 s", "+-25%", True, "bench run")


def one_topic(monkeypatch: pytest.MonkeyPatch, *rows: Row, error: Exception | None = None) -> dict[str, object]:
    """The answer where the only topic has these rows, and then raises."""

    def found(place: Place) -> Iterator[Row]:
        assert place.work.is_dir()
        yield from rows
        if error is not None:
            raise error

    monkeypatch.setattr(table, "rows_of", lambda _: found)
    return table.answer(["placement"], [], None, workers=1, say=lambda _: None)


def test_a_miss_is_reported_as_a_miss_and_costs_the_exit_code(monkeypatch):
    """A published number that we do not reach would look reached."""
    missed = Row("S08.b", "Sarathi-Serve", "real", "0.7 s", "2 s", "+-60%", False, "bench run", "slow")
    result = one_topic(monkeypatch, missed, HELD)
    text = page.markdown(result)

    assert 1 == result["exit_code"]
    assert ["S08.a", "S08.b"] == [row["id"] for row in result["rows"]]
    assert "1 of 2 gated rows hold; missed: S08.b." in text
    assert "| **misses** | `bench run` |" in text
    assert "- **S08.b** slow" in text


def test_a_note_cannot_break_the_table(monkeypatch):
    """A published text with a pipe or a tag would cut the table of docs/systems.md."""
    row = Row("E5", "M/D/1", "exact", "1 | 2", "2", "exact", False, "bench theory | x", "a <b>note</b>")
    text = page.markdown(one_topic(monkeypatch, row))

    assert "| E5 | M/D/1 | exact | 1 \\| 2 | 2 | exact | **misses** | `bench theory \\| x` |" in text
    assert "- **E5** a &lt;b&gt;note" in text


def test_a_topic_that_fails_does_not_take_the_others_along(monkeypatch):
    """One defect would hide the whole table; a row that was not obtained would look like none."""
    result = one_topic(monkeypatch, HELD, error=ValueError("no such thing"))

    assert 3 == result["exit_code"]
    assert 1 == len(result["rows"])
    assert "Topic placement failed: ValueError: no such thing." in page.text(result)


def test_a_row_without_a_gate_is_no_miss(monkeypatch):
    """A number printed for information would fail the table."""
    result = one_topic(monkeypatch, Row("S10.c", "x", "simulated", "1", "2", "none", None, "bench theory slo"))

    assert 0 == result["exit_code"]
    assert "0 of 0 gated rows hold; 1 printed without a gate or not run." in page.text(result)


def test_two_rows_of_one_id_are_refused(monkeypatch, capsys):
    """One of two facts would be taken for the other."""
    monkeypatch.setattr(table, "rows_of", lambda _: lambda _: iter([HELD, HELD]))

    assert 2 == main(["--topic", "placement", "--workers", "1"])
    assert "Two rows of acceptance have the id S08.a" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "S99"], "No row of acceptance named 'S99'"),
        (["--topic", "placemnt"], "No topic named 'placemnt'. Did you mean 'placement'?"),
        (["--out", "table.csv"], "--out 'table.csv' must end in .md, .json, .txt"),
        (["--data", "nowhere"], "--data names 'nowhere', which is no folder"),
    ],
)
def test_wrong_usage_is_one_sentence(capsys, arguments, message):
    """A mistyped name would run for minutes, or end in a traceback."""
    assert 2 == main(arguments)
    assert message in capsys.readouterr().err


def test_every_topic_can_be_loaded():
    """A topic that names what the product no longer has would be missing from the page until someone runs it all."""
    assert all(callable(table.rows_of(name)) for name in table.names())


def test_every_topic_names_its_ids():
    """`--only` would not find a row whose topic does not spell out its id."""
    for name in table.names():
        assert table.ids_of(name), name
