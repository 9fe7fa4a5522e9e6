"""The posterior of a crossing is that of its model, computed by brute force, and its scatter is what it says."""

import math

import numpy as np
import pytest
from scipy.special import ndtri

from harness.stats import knee as model
from harness.stats.crossing import falling, logit
from harness.stats.knee import Block, Most, knee

SOME = (Block(6.0, 196.0, 200.0, 200.0), Block(9.0, 184.0, 200.0, 200.0), Block(12.0, 130.0, 200.0, 150.0))


def _by_force(blocks: tuple[Block, ...], goal: float, most: Most) -> tuple[float, ...]:
    """Median and 95 % interval in req/s, standard deviation of ln(rate), slope: no grid that zooms, no quadrature."""
    x = np.linspace(math.log(3.0), math.log(50.0), 500)[:, None]
    load = ndtri((np.arange(60) + 0.5) / 60)  # as likely as one another
    above = np.maximum(0, x[:, 0] - math.log(most.rate_rps)) / most.sd
    total, slopes = np.zeros(len(x)), 0.0
    for floor in (0.0, 0.35, 0.7):
        for slope in np.geomspace(2, 200, 18):
            chance = np.zeros(len(x))
            for block in blocks:
                away = np.log(block.rate_rps) - x + np.sqrt(1.5 / block.requests) * load
                top = 1 - floor * (1 - goal)
                p = top / (1 + (top / goal - 1) * np.exp(np.minimum(300, slope * away)))
                low, high = (1 / (1 + math.exp(-logit(goal) - by)) for by in (-2.0, 2.5))
                p, share = np.clip(p, low, high), min(max(block.met / block.of, low), high)
                found = block.of / 4 * (share * np.log(p) + (1 - share) * np.log(1 - p))
                chance += np.log(np.exp(found).mean(axis=1))
            weight = np.exp(chance - above**2 / 2)
            total += weight
            slopes += float(weight.sum()) * math.log(slope)
    slopes /= total.sum()
    total /= total.sum()
    ends = np.interp([0.5, 0.025, 0.975], total.cumsum(), np.exp(x[:, 0]))
    sd = math.sqrt(total @ (x[:, 0] - total @ x[:, 0]) ** 2)
    return (*(float(end) for end in ends), sd, math.exp(slopes))


@pytest.mark.parametrize(
    ("blocks", "goal", "most"),
    [
        (SOME, 0.9, Most()),
        (SOME[:2], 0.9, Most(9.5, 0.1)),
        ((*SOME, Block(7.0, 30.0, 30.0, 30.0)), 0.95, Most(20.0, 0.3)),
    ],
)
def test_the_posterior_is_that_of_its_model(blocks: tuple[Block, ...], goal: float, most: Most) -> None:
    """An interval would hold another share than 95 % wherever the model is right."""
    found = knee(blocks, goal, most=most, scatter=1.0)

    assert pytest.approx(_by_force(blocks, goal, most), rel=0.02) == (
        found.rate_rps, found.low_rps, found.high_rps, found.sd, found.slope,
    )  # fmt: skip


def test_twice_the_scatter_is_half_the_evidence() -> None:
    """Blocks that scatter would be as sure as blocks that agree."""
    halves = tuple(Block(b.rate_rps, b.met / 2, b.of / 2, b.requests / 2) for b in SOME)

    assert knee(halves, 0.9, scatter=1.0).sd == pytest.approx(knee(SOME, 0.9, scatter=2.0).sd, rel=1e-6)


@pytest.mark.parametrize("times", [2.0, 4.0])
def test_blocks_that_scatter_more_than_assumed_say_by_how_much(times: float) -> None:
    """The interval of a server whose misses come in clumps would be too narrow."""
    spread = times * math.sqrt(model.CLUMP * 0.9 * 0.1 / 4000)
    blocks = [Block(10.0, 4000 * (0.9 + spread * (-1) ** i), 4000.0, 1e9) for i in range(12)]

    assert pytest.approx((4 + 12 * times**2) / (4 + 12 - 2), rel=0.03) == knee(blocks, 0.9).scatter


@pytest.mark.parametrize("times", [2.0, 6.0])
def test_parts_of_a_block_that_scatter_say_by_how_much(times: float) -> None:
    """A queue that fills and empties within a block would look like one that is steady."""
    spread = times * math.sqrt(model.CLUMP * 0.9 * 0.1 / 4000)
    parts = tuple(0.9 + spread * (-1) ** i for i in range(8))
    blocks = [Block(10.0, 3600.0, 4000.0, 1e9, parts) for _ in range(6)]

    assert pytest.approx(max(1.0, (4 + 6 * times**2) / (4 + 6 * 7)), rel=0.01) == knee(blocks, 0.9).scatter


def test_blocks_on_their_curve_scatter_no_more_than_assumed() -> None:
    """Agreement by chance would make an interval narrower than its model."""
    assert 1.0 == knee(SOME, 0.9).scatter
    assert knee(SOME, 0.9).sd == knee(SOME, 0.9, scatter=1.0).sd


def test_points_are_pooled_until_they_fall():
    """A drawn curve that rises with the load would make a reader doubt the system, not the noise."""
    assert pytest.approx([0.95, 0.85, 0.85, 0.5]) == falling([0.95, 0.8, 0.9, 0.5], [1, 1, 1, 1])
