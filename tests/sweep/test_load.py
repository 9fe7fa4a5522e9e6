"""Common random numbers: the same traffic at another rate."""

import numpy as np
import pytest

from harness.experiments.trial import at_rate
from harness.options import Given, run_spec
from harness.runner.plan import plan


@pytest.mark.parametrize("arrivals", ["poisson", "constant", "gamma:cv=2", "weibull:shape=0.7"])
def test_seed_at_another_rate_is_the_same_schedule_closer_together(arrivals: str) -> None:
    """Two points of a curve would differ by their traffic, not by their rate alone."""
    spec = run_spec(Given({"backend": "sim", "requests": 300, "arrivals": arrivals, "seed": 3}))
    slow, fast = (plan(at_rate(spec, rate)).schedule.table for rate in (1.0, 4.0))

    assert slow["prompt_tokens"].to_pylist() == fast["prompt_tokens"].to_pylist()
    assert slow["output_tokens"].to_pylist() == fast["output_tokens"].to_pylist()
    np.testing.assert_allclose(slow["scheduled_s"].to_numpy() / 4, fast["scheduled_s"].to_numpy(), rtol=1e-12)
