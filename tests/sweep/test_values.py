"""How lists of values are written."""

import pytest

from harness.errors import UsageError
from harness.experiments.sweep.axes import valued, values


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("1,2,4", ("1", "2", "4")),
        ("1:4:0.5", ("1", "1.5", "2", "2.5", "3", "3.5", "4")),
        ("0.1:0.5:0.1", ("0.1", "0.2", "0.3", "0.4", "0.5")),
        ("1:16:x2", ("1", "2", "4", "8", "16")),
        ("1:3:0.7", ("1", "1.7", "2.4")),
        ("1:2:1, 5", ("1", "2", "5")),
        ("2.50", ("2.5",)),
        ("1e6", ("1000000",)),
        ("sarathi,vllm-v0", ("sarathi", "vllm-v0")),
        ("sarathi:budget=256,sarathi:budget=512", ("sarathi:budget=256", "sarathi:budget=512")),
        ("fixed:prompt=9,output=8|sharegpt", ("fixed:prompt=9,output=8", "sharegpt")),
        ("fixed:prompt=9,output=8|", ("fixed:prompt=9,output=8",)),
    ],
)
def test_list_means_what_it_says(text: str, wanted: tuple[str, ...]) -> None:
    """A curve would have other points than the requested ones, or miss its last one."""
    assert wanted == values(text, "--rate")


def test_a_list_that_lacks_a_value_is_refused() -> None:
    """A typing error would become hours of unwanted runs."""
    with pytest.raises(UsageError, match=r"^--over x: a value is missing"):
        values("", "--over x")


def test_slo_with_commas_is_one_value() -> None:
    """The bound on TPOT would be taken for a second SLO."""
    assert ("ttft=0.25,tpot=0.1", "ttft=1,tpot=1") == values("ttft=0.25,tpot=0.1|ttft=1,tpot=1", "slo", whole=True)
    assert ("ttft=0.25,tpot=0.1",) == values("ttft=0.25,tpot=0.1", "slo", whole=True)


@pytest.mark.parametrize(("text", "wanted"), [("2", 2), ("2.5", 2.5), ("-1", -1), ("vllm-v0", "vllm-v0"), ("2x", "2x")])
def test_numbers_are_stored_as_numbers(text: str, wanted: object) -> None:
    """Who draws the curve from sweep.json would sort 10 before 2."""
    assert (wanted, type(wanted)) == (valued(text), type(valued(text)))
