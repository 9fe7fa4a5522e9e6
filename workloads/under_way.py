"""Sessions under way when an open loop begins, so that its requests come at their rate from the first second on.

Let sessions begin at the rate b since ever, independently of one another, each with requests at times o_1 <= ... <= o_n
after its beginning. One that began A seconds before time 0 has sent its requests with o < A, and sends the next one,
o_j, r = o_j - A seconds after 0. Over all A, sessions whose next request comes about r after 0 are a Poisson process
of intensity b E[gaps longer than r], gaps being those between neighbouring o of a session: a gap is met in proportion
to its length, and cut at a uniform point of it (the inspection paradox). With the sessions that begin after 0 requests
come at the rate b E[n] at any time (Campbell's theorem). Sessions before 0 begin as a Poisson process whatever the
arrivals after it: the mean is that of any stationary arrivals. Source: Daley and Vere-Jones, An Introduction to the
Theory of Point Processes, 2003, sections 6.3 and 13.3.

Times r are drawn window after window: in one from a to b a gap weighs min(gap, b) - min(gap, a), so that sessions of
days cost no more than others, and a window as many draws as the sessions that begin in it.
"""

import numpy as np

from harness.api import Arrivals, RateCurve

ANSWER_TOKEN_S = 0.01
"""Nominal seconds a token of the answers before time 0, which no one sees: 100 tokens/s. If answers take longer in the
run, more sessions are under way in its steady state, and requests come more slowly until these have begun: by half of
the time that the answers of a session take longer, of its requests. The rate of the long run does not depend on it."""
SOON_S = 1e-3
"""Over which a rate that changes is that of time 0."""


def begun_rps(arrivals: Arrivals) -> float:
    """The rate at which sessions began before time 0: that of the arrivals at 0 where it is known, else their mean."""
    curve = arrivals.operational_time if isinstance(arrivals, RateCurve) else None
    return arrivals.mean_rate_rps if curve is None else float(curve(np.array([SOON_S]))[0]) / SOON_S


def next_requests(
    at_s: np.ndarray, session: np.ndarray, rate_rps: float, window_s: tuple[float, float], rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, bool]:
    """Rows (K,) of the next requests of sessions under way, when each comes (K,), and whether any gap is longer.

    `at_s` and `session` (M,) are times and numbers, from 0, of the requests of sessions that are alike; sessions begin
    at `rate_rps`, and the times that are drawn are in the window. A session may be drawn more than once.
    """
    begin_s, end_s = window_s
    order = np.lexsort((at_s, session))
    gap_s = np.where(np.diff(session[order]) > 0, 0.0, np.diff(at_s[order]))
    weight_s = np.clip(gap_s, begin_s, end_s) - begin_s
    total_s = float(weight_s.sum())
    if not total_s:
        return order[:0], weight_s[:0], False
    count = rng.poisson(rate_rps * total_s / (session[order[-1]] + 1))
    gaps = rng.choice(len(gap_s), count, p=weight_s / total_s)
    return order[gaps + 1], begin_s + rng.random(count) * weight_s[gaps], bool(gap_s.max() > end_s)
