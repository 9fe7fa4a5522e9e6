"""How often the pairs may be looked at before the verdict: each look is another chance to be wrong."""

from __future__ import annotations

from collections.abc import Sequence

LOOKS = (3, 5, 7, 10)
"""Numbers of pairs after which `--pairs auto` looks, and stops where the answer is clear."""

ALPHA = 0.01
"""One-sided chance of a wrong call, over all looks together."""

ALPHA_LOOK = 0.003
"""The same at each of up to four looks: together 0.99 % (200,000 draws of normal losses, tests/perf/pair_looks.py)."""


def alpha(looks: Sequence[int]) -> float:
    """One-sided alpha at each of these looks (numbers of pairs): `ALPHA` for one, so that all keep it together.

    More looks than those of `--pairs auto` share it evenly (Bonferroni).
    """
    count = len(set(looks))
    if count <= 1:
        return ALPHA
    return ALPHA_LOOK if count <= len(LOOKS) else ALPHA / count
