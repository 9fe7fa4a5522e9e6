"""Fixtures of the comparisons of engine and simulator."""

import pytest

from harness.registry import names
from replay._drawn import HALVES, LIMITS


@pytest.fixture(params=[f"{n}:{LIMITS[n]}" if n in LIMITS else n for n in names("policies") if n not in HALVES])
def each_policy(request):
    """The spec of a policy: every one that runs by itself."""
    return request.param
