"""Numbers in the warnings of a run, as people read them."""

import pytest

from harness.validity.rules import digits


@pytest.mark.parametrize(
    ("value", "count", "text"), [(1000.0, 3, "1,000"), (0.0421, 3, "0.0421"), (12345.6, 4, "12,350"), (0.0, 3, "0")]
)
def test_a_rate_of_a_thousand_was_printed_with_an_exponent(value: float, count: int, text: str) -> None:
    """A warning would read '1e+03 req/s were requested'."""
    assert text == digits(value, count)
