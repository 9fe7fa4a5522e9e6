"""The numbers of the pages about statistics are those that the program computes."""

import math
import re
from pathlib import Path

import pytest

from harness.stats.paired import mde, pairs_needed

DOCS = Path(__file__).resolve().parents[2] / "docs"
OWN_SD = 0.0016
"""What two runs of one trace differ by without any noise (ratio of two knees on the synthetic server)."""


def rows(page: str, head: str) -> list[list[float]]:
    """The numbers of the table whose first line begins with `head`."""
    text = (DOCS / page).read_text(encoding="utf-8")
    lines = text[text.index(head) :].split("\n\n")[0].splitlines()[2:]
    return [[float(cell) for cell in re.findall(r"[\d.]+", line)] for line in lines]


def percent(noise_percent: float, pairs: int) -> float:
    """MDE as a loss in percent."""
    return 100 * (1 - math.exp(-mde(sd(noise_percent), pairs)))


def sd(noise_percent: float) -> float:
    return math.hypot(math.sqrt(2) * noise_percent / 100, OWN_SD)


@pytest.mark.parametrize("row", rows("guide/statistics.md", "| noise of a run |"), ids=lambda row: f"{row[0]:g}%")
def test_detectable_effects_of_the_guide(row: list[float]) -> None:
    """A team would plan for 5 pairs where it needs 8."""
    noise, *effects, needed = row

    assert effects == pytest.approx([percent(noise, pairs) for pairs in (3, 5, 7, 10, 20)], abs=0.06)
    assert needed == pairs_needed(sd(noise), -math.log(0.95))


@pytest.mark.parametrize("row", rows("ci.md", "| noise of a run |"), ids=lambda row: f"{row[0]:g}%")
def test_detectable_effects_of_the_page_on_ci(row: list[float]) -> None:
    """The two pages would contradict each other."""
    noise, needed, effect = row

    assert needed == pairs_needed(sd(noise), -math.log(0.95))
    assert effect == pytest.approx(percent(noise, 5), rel=0.03)
