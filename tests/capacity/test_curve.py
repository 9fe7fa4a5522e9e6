"""The curve of attainment over the rate."""

import pytest

from harness.stats.crossing import falling


def test_points_are_pooled_until_they_fall():
    """A drawn curve that rises with the load would make a reader doubt the system, not the noise."""
    assert pytest.approx([0.95, 0.85, 0.85, 0.5]) == falling([0.95, 0.8, 0.9, 0.5], [1, 1, 1, 1])
