"""What a picture of a fit shows: the trace, a draw of the model beside it, and dispersion curves with their bands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from workloads.fit import _draw

if TYPE_CHECKING:
    from workloads.fit.model import Model

LENGTHS = 50_000  # pairs shown, evenly spaced
MOST_ROWS = 2_000_000  # of a stream whose single arrivals are given; of a longer one the first so many
SEED = 0
_NOTHING = (np.zeros(0), np.zeros(0, np.int8), np.zeros(0, np.int64), np.zeros(0, np.int64))


def facts(model: Model, table: pa.Table | None) -> dict[str, Any]:
    """The facts that `reports.answers.trace.page` takes; without the trace (a stored model) the draw stands alone."""
    quality = model.quality
    span_s = float(quality.get("span_s") or MOST_ROWS / model.rate_rps)
    drawn = _drawn(model, span_s)
    series = drawn if table is None else {**_recorded(table), "other": drawn}
    page_facts = {
        **series,
        "curves": _curves(quality),
        "grain_s": quality.get("grain_s"),
    }
    return {name: value for name, value in page_facts.items() if value is not None}


def _recorded(table: pa.Table) -> dict[str, Any]:
    few = slice(None, None, -(-table.num_rows // LENGTHS))
    return {
        "name": "recorded",
        "times_s": np.asarray(table["at_s"])[:MOST_ROWS],
        "prompt_tokens": np.asarray(table["prompt_tokens"])[few],
        "output_tokens": np.asarray(table["output_tokens"])[few],
    }


def _drawn(model: Model, span_s: float) -> dict[str, Any]:
    blocks = list(_draw.blocks(model, None, _draw.DrawLimits(MOST_ROWS, span_s), SEED))
    at_s, _, prompt, output = (np.concatenate(column) for column in zip(*blocks, strict=True)) if blocks else _NOTHING
    few = slice(None, None, max(-(-len(at_s) // LENGTHS), 1))
    return {"name": "drawn", "times_s": at_s, "prompt_tokens": prompt[few], "output_tokens": output[few]}


def _curves(quality: Mapping[str, Any]) -> dict[str, Any] | None:
    if not quality.get("widths_s"):
        return None
    curves = quality["dispersion"]
    return {
        "widths_s": quality["widths_s"],
        "found": _numbers(curves["trace"]),
        "band_low": _numbers(curves["low"]),
        "band_high": _numbers(curves["high"]),
        "band": f"90% of {quality['seeds']} draws",
    }


def _numbers(values: list[float | None]) -> list[float]:
    return [np.nan if value is None else value for value in values]
