"""What trials send: the draws of the released planner, scaled or drawn anew."""

import numpy as np
import pytest

from harness.experiments.place.task import traffic
from harness.options import RunSpec


def spec(**changes: str) -> RunSpec:
    """Forty requests of the example of DistServe, with these parts changed."""
    return RunSpec(backend="sim", requests=40, **{"workload": "distserve-fig1", **changes})  # type: ignore[arg-type]  # texts


def test_the_released_planner_draws_as_its_code_does() -> None:
    """Its rates would not come out: 300 requests decide by what was drawn (GN3)."""
    sent = traffic(spec(), (0, 7))
    gaps_s = np.random.RandomState(7).gamma(1, 1 / 4.0, size=39)

    assert np.cumsum([0.0, *gaps_s]) == pytest.approx(sent.at(7, 4.0).table["scheduled_s"].to_numpy())
    assert [7, 0] == sorted(sent.drawn, reverse=True)


def test_other_arrivals_stay_what_they_are() -> None:
    """Requested bursts would be smoothed into Poisson arrivals in silence."""
    bursty = {"arrivals": "gamma:cv=4"}
    times_s = traffic(spec(**bursty), (0,)).at(0, 1.0).table["scheduled_s"].to_numpy()

    assert not np.allclose(times_s, traffic(spec(), (0,)).at(0, 1.0).table["scheduled_s"].to_numpy())
    assert times_s == pytest.approx(traffic(spec(**bursty), (0,)).at(0, 1.0).table["scheduled_s"].to_numpy())


@pytest.mark.parametrize("changes", [{"workload": "chatbot-multi-turn"}, {"arrivals": "onoff"}], ids=str)
def test_what_lasts_in_real_time_is_drawn_at_each_rate(changes: dict[str, str]) -> None:
    """Think times and bursts would be squeezed with the rate."""
    sent = traffic(spec(**changes), (0,))

    assert {} == sent.drawn
    assert 40 == len(sent.at(0, 3.0))
