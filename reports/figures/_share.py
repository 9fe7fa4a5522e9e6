"""The axis of a share of requests: from 0, or from nearer where all of it is high, which the title then says."""

from collections.abc import Iterable

import numpy as np

from reports.figures import _style as style

HIGH = 60.0
"""Percent above which the least share has to be for the axis to begin further up."""


def axis(title: str, values: Iterable[float]) -> dict[str, object]:
    """The axis of shares in percent, whose `title` ends with its unit in brackets: 'requests within the SLO (%)'."""
    known = [value for value in values if np.isfinite(value)]
    least = min(known, default=0.0)
    if least <= HIGH:
        return style.axis(title, range=[-2, 104])
    start = 10.0 * np.floor((least - 3.0) / 10.0)
    return style.axis(f"{title.removesuffix(')')}, from {start:g})", range=[float(start), 100 + 0.04 * (100 - start)])
