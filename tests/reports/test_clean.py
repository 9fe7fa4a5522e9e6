"""Foreign text and numbers as the reports print them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports import _format
from reports._format import clean, in_figure, in_markdown


@pytest.mark.parametrize(
    ("given_text", "expected"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]8;;https://evil.example\x07link\x1b]8;;\x07", "link"),
        ("\x1b]0;title\x1b\\text", "text"),
        ("\x9b31mred", "red"),
        ("a\nb\tc\r\nd", "a b c d"),
        ("bell\x07 null\x00 back\x08", "bell null back"),
        ("\u202egnp.exe", "gnp.exe"),
        ("\u05e9\u05dc\u05d5\u05dd", "\u05e9\u05dc\u05d5\u05dd"),
        ("\ud800", ""),
    ],
)
def test_clean(given_text: str, expected: str) -> None:
    """A server's error text could move the cursor, set a title or reverse what follows it."""
    assert expected == clean(given_text)


@given(st.text(max_size=400))
def test_clean_text_never_controls(text: str) -> None:
    """Some sequence of characters would still reach the terminal as a command."""
    cleaned = clean(text)

    assert not any(ord(c) < 32 or 127 <= ord(c) < 160 for c in cleaned)
    assert len(cleaned) <= 200


def test_long_text_says_that_it_was_cut() -> None:
    """A reader would take a cut text for the whole."""
    assert clean("x" * 10_000).endswith("... (10,000 characters)")


def test_figure_text_has_no_markup() -> None:
    """Plotly would make a link of it, or fill in a value."""
    assert in_figure("<a href=x> %{x}") == "&lt;a href=x&gt; %&#123;x}"


def test_markdown_text_has_no_markup() -> None:
    """A model name would break the table, become a link or mention a user."""
    assert in_markdown("a|b `c` *d* [e] @f <g> https://h") == r"a\|b \`c\` \*d\* \[e\] \@f &lt;g&gt; https\://h"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.0942, "0.0942"),
        (94.2, "94.2"),
        (1234.5, "1,234"),
        (0, "0"),
        (9.996, "10.0"),
        (None, "-"),
        (math.nan, "-"),
        (1e-5, "0.0000100"),
    ],
)
def test_number(value: float | None, expected: str) -> None:
    """Digits would be made up, or lost."""
    assert expected == _format.number(value)


@pytest.mark.parametrize(
    ("value", "goal", "expected"),
    [
        (0.9996, None, "99.9%"),
        (1.0, None, "100.0%"),
        (0.8996, 0.9, "89.9%"),
        (0.8996, None, "90.0%"),
        (0.9, 0.9, "90.0%"),
        (0.9004, 0.9, "90.0%"),
        (0.04975, 0.9, "5.0%"),
        (0.99954, 0.9995, "99.95%"),
        (0.99946, 0.9995, "99.94%"),
        (0.0004, None, "<0.1%"),
        (0.0, None, "0.0%"),
    ],
)
def test_share_is_rounded_but_never_flatters(value: float, goal: float | None, expected: str) -> None:
    """89.96 % would be shown as the goal of 90 %, 99.96 % as all; 4.975 % would be shown as 4.9 %."""
    assert expected == _format.share(value, goal)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(1e9, "1,000,000,000"), (2000.0, "2,000"), (0.25, "0.25"), (12.0, "12"), (1e-5, "0.00001"), (math.inf, "-")],
)
def test_chosen_numbers_have_no_exponent(value: float, expected: str) -> None:
    """A rate of 2,000 would read '2e+03'."""
    assert expected == _format.plain(value)
    assert expected.replace(",", "") == _format.option(value)


@pytest.mark.parametrize(
    ("value_s", "expected"),
    [(7.82e-9, "<0.001 ms"), (1.53e-5, "0.0153 ms"), (1.18e-6, "0.0012 ms"), (0, "0 ms"), (3540, "3,540 s")],
)
def test_short_and_long_times_stay_readable(value_s: float, expected: str) -> None:
    """A time would read '0.00000782 ms' or '3.54e+03 s'."""
    assert expected == _format.seconds(value_s)


@pytest.mark.parametrize(("value", "expected"), [(0.25, "250 ms"), (1.2, "1.20 s"), (51.2, "51.2 s"), (None, "-")])
def test_seconds(value: float | None, expected: str) -> None:
    """A time would be printed without its unit, or in an odd one."""
    assert expected == _format.seconds(value)
