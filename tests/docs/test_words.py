"""The table of words finds them in names, strings, comments and pages, and lets public keys be."""

import pytest

import words


@pytest.fixture
def table():
    """Two rows and a public key."""
    rows = [
        {"words": ["told", "decks?"], "write": "report"},
        {"words": ["kept the SLO", "carry_out"], "write": "meet, run"},
    ]
    return words.Words({"public": ["told", "deck-"], "word": rows})


@pytest.mark.parametrize(
    "line",
    ["told = 1", "def was_told(): ...", "class ToldOf: ...", "x = 'it is told'", "# told", "def carry_out(): ...",
     '"""They kept the SLO."""', "f'{told}'", "_carry_out()", "x = 'a deck'"],
)  # fmt: skip
def test_a_word_is_found_wherever_it_stands(table, line):
    """It would come back in the next file."""
    assert [1] == sorted({line_number for line_number, _, _ in table.of_python(f"{line}\n")})


def test_the_project_has_none_of_the_words():
    """A private vocabulary would grow again, and outsiders could not read the code."""
    assert [] == sorted({f"{place.file}:{place.line}: {place.word}" for place in words.places(words.tracked([]))})


@pytest.mark.parametrize("line", ["x['told']", "x = '--workload deck-orca'", "stolid = 'a toldo'", "kept = the_slo"])
def test_public_keys_and_other_words_are_none(table, line):
    """Files of yesterday could not be read, or plain English could not be written."""
    assert [] == list(table.of_python(f"{line}\n"))
