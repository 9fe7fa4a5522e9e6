"""A page of pictures of traffic alone, without a run: a trace, a drawn schedule, or a fit beside its trace.

from reports import traffic

html = traffic.page({"times_s": times_s, "prompt_tokens": prompt, "output_tokens": output}, "my trace")
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from html import escape
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.errors import no_such
from reports._format import clean, clean_line, in_figure
from reports.answers import trace
from reports.document import Block, Document, Figure, Markup, Section, html
from reports.figures import cdf, traffic
from reports.figures.traffic import Band, Curves, Stream

KEYS = (
    "name", "times_s", "counts", "bin_s", "prompt_tokens", "output_tokens", "other", "curves", "grain_s", "turns",
    "think_s", "think", "texts", "info", "source",
)  # fmt: skip


NOTHING = "There is nothing to draw: neither arrivals nor lengths were given."


def page(facts: Mapping[str, object], title: str, *, bundle: str | None = None, plain: bool = False) -> str:
    """One offline HTML file of traffic: how bursty, how fast when, which lengths, which sessions.

    Every key of `facts` may be left out; a picture whose data are missing is left out too, or says what would
    bring it. Arrays may be numpy arrays, Arrow columns or lists. Equal facts give equal bytes.

    name            what the stream is called in the legends: "recorded", "drawn" (default "arrivals")
    times_s         (n,) when requests arrive, s, in any order
    counts, bin_s   instead of times_s, for very many requests: (bins,) arrivals per bin of bin_s seconds, from the
                    first arrival on; then gaps cannot be drawn
    prompt_tokens   (m,) lengths of prompts; all, or an even sample of them
    output_tokens   (m,) lengths of answers, paired with the prompts
    other           a second stream in the keys name, times_s (or counts, bin_s), prompt_tokens, output_tokens: what a
                    fit generates, drawn beside the first
    curves          dispersion curves that the caller has: {"widths_s": (w,), "found": (w,), "band_low": (w,),
                    "band_high": (w,), "band": "90% of 20 draws", "toys": {"Poisson": (w,)}}; only widths_s must be
                    there. Without "found" the curve of the stream is taken at widths chosen here
    grain_s         tick of the stamps (3 for Mooncake, 1 for BurstGPT): widths below it are not drawn
    turns           (sessions,) requests per session
    think_s         (pairs,) seconds from an answer (or, in a trace, from a request) to the next request
    think           what think_s is counted from, for the axis (default "the answer before")
    texts           lines of plain text to stand above the pictures: oddities, quality of a fit, a table of its own
    info            what `bench trace info` found, shown above the pictures
    source          one line below the title: file, SHA-256, spec

    `bundle` and `plain` are those of the report `html`. Raises ValueError for a key that is not known here, and for
    arrays that do not go together.
    """
    return html.render(document(facts, title), bundle=bundle, plain=plain)


def document(facts: Mapping[str, object], title: str) -> Document:
    """The page of `facts`, as `page` takes them."""
    for key in facts:
        if key not in KEYS:
            raise ValueError(str(no_such("fact about traffic", key, list(KEYS))))
    given: Mapping[str, Any] = {key: value for key, value in facts.items() if value is not None}
    found = trace.document(given["info"]) if "info" in given else None
    lines = [clean_line(line) for line in given.get("texts", ())]
    laid_out = any("  " in line.strip() or not line.strip() for line in lines)  # in columns, not plain sentences
    blocks: tuple[Block, ...] = (Markup(f"<pre>{escape(chr(10).join(lines))}</pre>"),) if laid_out else tuple(lines)
    sections = (
        *([Section("facts", "Facts", blocks)] if blocks else []),
        *(found.sections if found else ()),
        Section("figures", "Pictures", tuple(_figures(given)) or (NOTHING,)),
    )
    return Document(
        title=clean(title),
        subtitle=clean(given.get("source", ""), 400),
        mark="",
        good=None,
        findings=(),
        key_facts=found.key_facts if found else (),
        sections=sections,
        definitions=(),
    )


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
        yield Figure("joint", "Prompt and output together", partial(traffic.joint, streams))
    if (turns := _array(given.get("turns"))) is not None:
        yield Figure("turns", "Requests per session", partial(traffic.turns, turns))
    if (think_s := _array(given.get("think_s"))) is not None:
        since = in_figure(given.get("think", "the answer before"))
        yield Figure("think", "Think times", partial(cdf.think, think_s, since))


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


def _array(values: Any) -> npt.NDArray[np.float64] | None:
    """(n,) float64, without what is not known; None for nothing."""
    if values is None:
        return None
    to_numpy: Callable[[], Any] | None = getattr(values, "to_numpy", None)
    found = np.asarray(values if to_numpy is None else to_numpy(), np.float64)
    return found if len(found) else None


def _curves(given: Mapping[str, Any]) -> Curves:
    low, high = _array(given.get("band_low")), _array(given.get("band_high"))
    band = None if low is None or high is None else Band(in_figure(given.get("band", "band")), low, high)
    toys = {in_figure(name): np.asarray(curve, np.float64) for name, curve in (given.get("toys") or {}).items()}
    return Curves(_array(given.get("widths_s")), _array(given.get("found")), band, toys)
