"""Tails of Student's t and of binomial counts, both by the incomplete beta function.

Note: scipy has them too, and takes longer to load than a short run.
"""

import math
from functools import cache

CONFIDENCE = 0.95
"""Of intervals: chance that one holds the truth, where what it rests on is about normal."""


def beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function I_x(a, b), to about 12 digits.

    Source: continued fraction 8.17.22 of the NIST Digital Library of Mathematical Functions, by the method of Lentz.
    """
    if not 0 < x < 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):  # where it converges fast
        return 1.0 - beta(1.0 - x, b, a)
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1))
    fraction, m = d, 0
    while abs(c * d - 1) > 1e-15:
        m += 1
        for term in (m * (b - m) / (a + 2 * m - 1), -(a + m) * (a + b + m) / (a + 2 * m + 1)):
            d = 1 / (1 + term * x / (a + 2 * m) * d)
            c = 1 + term * x / (a + 2 * m) / c
            fraction *= c * d
    scale = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return fraction * math.exp(scale) / a


@cache
def student(n: int) -> float:
    """Half the width of the interval of a mean of n values, in standard errors."""
    low, high = 1.0, 13.0  # 12.7 of two values, 1.96 of many
    while low < (middle := (low + high) / 2) < high:
        beyond = beta((n - 1) / (n - 1 + middle**2), (n - 1) / 2, 0.5)
        low, high = (middle, high) if beyond > 1 - CONFIDENCE else (low, middle)
    return high


def at_least(count: int, of: int, share: float) -> float:
    """Chance of `count` or more of independent ones that are met with chance `share` each."""
    return beta(share, count, of - count + 1) if count > 0 else 1.0
