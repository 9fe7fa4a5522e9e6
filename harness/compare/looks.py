"""How often the pairs may be looked at before the verdict: each look is another chance to be wrong."""

from collections.abc import Sequence

from harness.stats.paired import ALPHA

LOOKS = (3, 5, 7, 10)
"""Numbers of pairs after which `--pairs auto` looks, and stops where the answer is clear."""

ALPHA_LOOK = 0.003
"""Alpha at each of up to four looks that keep 1 % together: 0.99 % in 200,000 draws (tests/perf/pair_looks.py)."""


def alpha(looks: Sequence[int], total: float = ALPHA) -> float:
    """One-sided alpha at each of these looks (numbers of pairs), so that all of them together keep `total`.

    Up to four looks that keep 1 % have the alpha of `--pairs auto`; all others share theirs evenly (Bonferroni).
    """
    count = len(set(looks))
    if 1 < count <= len(LOOKS):
        return ALPHA_LOOK if total == ALPHA else total / len(LOOKS)
    return total / max(count, 1)
