"""A page of pictures of traffic alone, without a run: a trace, a drawn schedule, or a fit beside its trace.

from reports import traffic
from reports.answers import trace

html = traffic.page(trace.document(info), {"times_s": times_s, "prompt_tokens": prompt, "output_tokens": output})
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.errors import no_such
from reports._format import in_figure
from reports.document import Document, Figure, Section, html
from reports.figures import cdf, traffic
from reports.figures.traffic import Band, Curves, Stream

KEYS = ("name", "times_s", "prompt_tokens", "output_tokens", "other", "curves", "grain_s")


NOTHING = "There is nothing to draw: neither arrivals nor lengths were given."


def page(
    document: Document, facts: Mapping[str, object], *, bundle: str | None = None, plain: bool = False
) -> str:  # fmt: skip
    """One offline HTML file: what a terminal is shown, and how bursty, how fast when, which lengths the traffic is.

    Every key of `facts` may be left out; a picture whose data are missing is left out too, or says what would
    bring it. Arrays may be numpy arrays, Arrow columns or lists. Equal facts give equal bytes.

    name            what the stream is called in the legends: "recorded", "drawn" (default "arrivals")
    times_s         (n,) when requests arrive, s, in any order
    prompt_tokens   (m,) lengths of prompts; all, or an even sample of them
    output_tokens   (m,) lengths of answers, paired with the prompts
    other           a second stream in the keys name, times_s, prompt_tokens, output_tokens: what a fit generates, drawn
                    beside the first
    curves          dispersion curves that the caller has: {"widths_s": (w,), "found": (w,), "band_low": (w,),
                    "band_high": (w,), "band": "90% of 20 draws", "toys": {"Poisson": (w,)}}; only widths_s must be
                    there. Without "found" the curve of the stream is taken at widths chosen here
    grain_s         tick of the stamps (3 for Mooncake, 1 for BurstGPT): widths below it are not drawn

    `bundle` and `plain` are those of the report `html`. Raises ValueError for a key that is not known here, and for
    arrays that do not go together.
    """
    for key in facts:
        if key not in KEYS:
            raise ValueError(str(no_such("fact about traffic", key, list(KEYS))))
    present = {key: value for key, value in facts.items() if value is not None}
    pictures = Section("figures", "Pictures", tuple(_figures(present)) or (NOTHING,))
    extended = replace(document, sections=(*document.sections, pictures))
    return html.render(extended, bundle=bundle, plain=plain)


def _figures(given: Mapping[str, Any]) -> Iterator[Figure]:
    """A figure for each kind of data that was given, in the order of the page."""
    streams = [_stream(given, "arrivals"), *([_stream(given["other"], "other")] if "other" in given else [])]
    curves, grain_s = _curves(given.get("curves", {})), given.get("grain_s") or None
    arrivals = any(stream.arrivals for stream in streams)
    if arrivals or curves.widths_s is not None:
        yield Figure("dispersion", "How bursty", partial(traffic.dispersion_of, streams, curves, grain_s))
    if arrivals:
        yield Figure("rate", "Rate over time", partial(traffic.rate, streams))
    if any(stream.prompt_tokens is not None for stream in streams):
        yield Figure("lengths", "Lengths", partial(cdf.lengths_of_traffic, streams))


def _stream(given: Mapping[str, Any], name: str) -> Stream:
    prompt, output = _array(given.get("prompt_tokens")), _array(given.get("output_tokens"))
    if (prompt is None) != (output is None) or (prompt is not None and len(prompt) != len(output)):  # type: ignore[arg-type]  # both or none
        raise ValueError("prompt_tokens and output_tokens must be arrays of one length, paired.")
    times = _array(given.get("times_s"))
    return Stream(in_figure(given.get("name", name)), None if times is None else np.sort(times), prompt, output)


def _array(values: Any) -> npt.NDArray[np.float64] | None:
    """(n,) float64, without what is not known; None for nothing."""
    if values is None:
        return None
    to_numpy: Callable[[], Any] | None = getattr(values, "to_numpy", None)
    array = np.asarray(values if to_numpy is None else to_numpy(), np.float64)
    return array if len(array) else None


def _curves(given: Mapping[str, Any]) -> Curves:
    low, high = _array(given.get("band_low")), _array(given.get("band_high"))
    band = None if low is None or high is None else Band(in_figure(given.get("band", "band")), low, high)
    toys = {in_figure(name): np.asarray(curve, np.float64) for name, curve in (given.get("toys") or {}).items()}
    return Curves(_array(given.get("widths_s")), _array(given.get("found")), band, toys)
