"""Quantities and gates: names, scales and directions, and the errors of mistyped ones."""

import math

import pytest

from harness.experiments.compare import gates


def test_a_loss_is_positive_in_either_direction():
    """A sign turned the wrong way round would call every improvement a regression."""
    assert gates.quantity("tpot").loss(1.0, 1.1) == pytest.approx(math.log(1.1))
    assert gates.quantity("goodput_rps").loss(1.0, 0.9) == pytest.approx(-math.log(0.9))
    assert gates.quantity("failed").loss(0.0, 0.01) == 0.01
    assert gates.quantity("attainment").loss(0.9, 0.8) == pytest.approx(0.1)


@pytest.mark.parametrize("name", ["tpot", "goodput_rps", "failed", "attainment", "p99:ttft"])
def test_percent_and_loss_are_inverse(name):
    """A limit of 5 % that is held against 5.3 % would not be the requested one."""
    quantity = gates.quantity(name)

    assert quantity.loss_pct(quantity.loss_of(0.05)) == pytest.approx(5.0)


def test_a_change_keeps_the_sign_of_the_quantity():
    """'Goodput -5.6 %' is a loss, 'TPOT +5.6 %' too."""
    goodput, tpot = gates.quantity("goodput_rps"), gates.quantity("tpot")

    assert goodput.change_pct(goodput.loss_of(0.056)) == pytest.approx(-5.6)
    assert tpot.change_pct(tpot.loss_of(0.056)) == pytest.approx(5.6)


def test_who_cannot_be_measured_any_more_is_worse_than_anybody():
    """A candidate that never answers has no TPOT; that must not read as 'no difference'."""
    tpot, goodput = gates.quantity("tpot"), gates.quantity("goodput_rps")

    assert tpot.loss(0.03, None) == math.inf
    assert tpot.loss(None, 0.03) == -math.inf
    assert goodput.loss(2.0, 0.0) == math.inf
    assert goodput.loss(0.0, 0.0) == 0.0
    assert tpot.loss(None, None) is None


def test_gates_are_read():
    """The grammar of --gate: shares in percent or plain, a name alone takes its defaults."""
    found = gates.parse("tpot=1%:3%, p99:ttft=0.1:20%,failed,e2e=2%:5%,goodput_rps=1%")

    assert [g.quantity.name for g in found] == ["tpot", "p99:ttft", "failed", "e2e", "goodput_rps"]
    assert [(g.min_effect, g.must_detect) for g in found] == [
        (0.01, 0.03), (0.1, 0.2), (0.005, 0.005), (0.02, 0.05), (0.01, 0.01),
    ]  # fmt: skip
    assert [g.quantity.better for g in found] == ["lower", "lower", "lower", "lower", "higher"]
