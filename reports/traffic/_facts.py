"""The plain facts that `reports.traffic.page` is given, as arrays with names."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from harness.errors import no_such
from reports._format import in_figure
from reports.figures.traffic import Band, Curves, Law, Rate, Stream

Floats: TypeAlias = npt.NDArray[np.float64]
KEYS = (
    "name", "times_s", "counts", "bin_s", "prompt_tokens", "output_tokens", "other", "rate", "curves", "gap_law",
    "grain_s", "turns", "think_s", "think", "texts", "source",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of the traffic; None or empty where nothing was given."""

    streams: tuple[Stream, ...]
    rate: Rate | None = None
    curves: Curves = field(default_factory=Curves)
    law: Law | None = None
    grain_s: float | None = None
    turns: Floats | None = None
    think_s: Floats | None = None
    think: str = "the answer before"
    texts: tuple[str, ...] = ()
    source: str = ""


def read(facts: Mapping[str, object]) -> Facts:
    """The facts of `page`, checked. Raises ValueError for unknown keys and for arrays that do not go together."""
    for key in facts:
        if key not in KEYS:
            raise ValueError(str(no_such("fact about traffic", key, list(KEYS))))
    given: Mapping[str, Any] = {key: value for key, value in facts.items() if value is not None}
    streams = [_stream(given, "arrivals")]
    if "other" in given:
        streams.append(_stream(given["other"], "other"))
    grain_s, law = given.get("grain_s"), given.get("gap_law")
    if law is not None:
        law = Law(in_figure(law.get("name", "declared law")), law["cdf"], law.get("operational_time"))
    return Facts(
        streams=tuple(streams),
        rate=_rate(given["rate"]) if "rate" in given else None,
        curves=_curves(given.get("curves", {})),
        law=law,
        grain_s=float(grain_s) if grain_s else None,
        turns=_array(given.get("turns")),
        think_s=_array(given.get("think_s")),
        think=in_figure(given.get("think", "the answer before")),
        texts=tuple(str(text) for text in given.get("texts", ())),
        source=str(given.get("source", "")),
    )


def _stream(given: Mapping[str, Any], name: str) -> Stream:
    prompt, output = _array(given.get("prompt_tokens")), _array(given.get("output_tokens"))
    if (prompt is None) != (output is None) or (prompt is not None and len(prompt) != len(output)):  # type: ignore[arg-type]  # both or none
        raise ValueError("prompt_tokens and output_tokens must be arrays of one length, paired.")
    times, counts = _array(given.get("times_s")), _array(given.get("counts"))
    bin_s = given.get("bin_s")
    if counts is not None and not bin_s:
        raise ValueError("counts need bin_s, the width of their bins in seconds.")
    return Stream(
        name=in_figure(given.get("name", name)),
        times_s=None if times is None else np.sort(times),
        counts=counts,
        bin_s=float(bin_s) if bin_s else None,
        prompt_tokens=prompt,
        output_tokens=output,
    )


def _array(values: Any) -> Floats | None:
    """(n,) float64, without what is not known; None for nothing."""
    if values is None:
        return None
    to_numpy: Callable[[], Any] | None = getattr(values, "to_numpy", None)
    found = np.asarray(values if to_numpy is None else to_numpy(), np.float64)
    return found if len(found) else None


def _rate(given: Mapping[str, Any]) -> Rate:
    at_s, rps = np.asarray(given["at_s"], np.float64), np.asarray(given["rps"], np.float64)
    return Rate(in_figure(given.get("name", "declared")), at_s, rps)


def _curves(given: Mapping[str, Any]) -> Curves:
    widths_s = _array(given.get("widths_s"))
    low, high = _array(given.get("band_low")), _array(given.get("band_high"))
    band = None if low is None or high is None else Band(in_figure(given.get("band", "band")), low, high)
    toys = {in_figure(name): np.asarray(curve, np.float64) for name, curve in (given.get("toys") or {}).items()}
    return Curves(widths_s, _array(given.get("found")), band, toys)
