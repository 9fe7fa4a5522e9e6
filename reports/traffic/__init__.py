"""A page of pictures of traffic alone, without a run: a trace, a drawn schedule, or a fit beside its trace.

from reports import traffic

html = traffic.page({"times_s": times_s, "prompt_tokens": prompt, "output_tokens": output}, "my trace")
"""

from collections.abc import Iterator, Mapping

import plotly.graph_objects as go

from reports import _page
from reports._format import clean, clean_line
from reports.figures import bursts, cdf, traffic
from reports.traffic._facts import Facts, read

__all__ = ["page"]


def page(facts: Mapping[str, object], title: str, *, bundle: str | None = None, plain: bool = False) -> str:
    """One offline HTML file of traffic: how bursty, how fast when, which gaps, which lengths, which sessions.

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
    rate            {"at_s": (k,), "rps": (k,), "name": "declared"}: the rate that was wanted, joined by straight lines
    curves          dispersion curves that the caller has: {"widths_s": (w,), "found": (w,), "band_low": (w,),
                    "band_high": (w,), "band": "90% of 20 draws", "toys": {"Poisson": (w,)}}; only widths_s must be
                    there. Without "found" the curve of the stream is taken at widths chosen here
    gap_law         {"name": "gamma:cv=2", "cdf": callable, "operational_time": callable or None}: the declared law
                    of the gaps (s), or of the gaps in operational time
    grain_s         tick of the stamps (3 for Mooncake, 1 for BurstGPT): widths below it are not drawn, nor gaps
    turns           (sessions,) requests per session
    think_s         (pairs,) seconds from an answer (or, in a trace, from a request) to the next request
    think           what think_s is counted from, for the axis (default "the answer before")
    texts           lines of plain text to stand above the pictures: facts, oddities, quality of the fit; as a list
                    of points, or as they are where spaces align them in columns
    source          one line below the title: file, SHA-256, spec

    `bundle` and `plain` are those of the report `html`. Raises ValueError for a key that is not known here.
    """
    known = read(facts)
    parts = [_page.part(key, heading, figure) for key, heading, figure in _figures(known)]
    lines = [clean_line(text) for text in known.texts]
    aligned = any("  " in line.strip() or not line.strip() for line in lines)  # laid out, not plain sentences
    return _page.render(
        "traffic.html.j2",
        parts,
        bundle=bundle,
        plain=plain,
        title=clean(title),
        source=clean(known.source, 400),
        texts=[clean(text, 600) for text in known.texts],
        aligned="\n".join(lines) if aligned else None,
    )


def _figures(facts: Facts) -> Iterator[tuple[str, str, go.Figure | str]]:
    """Key, heading and figure of each picture, in the order of the page."""
    streams = facts.streams
    if any(stream.arrivals for stream in streams) or facts.curves.widths_s is not None:
        yield "dispersion", "How bursty", bursts.dispersion_of(streams, facts.curves, facts.grain_s)
    if any(stream.arrivals for stream in streams):
        yield "rate", "Rate over time", traffic.rate(streams, facts.rate)
        yield "gaps", "Gaps between arrivals", bursts.gaps_of(streams, facts.law, facts.grain_s)
    if any(stream.prompt_tokens is not None for stream in streams):
        yield "lengths", "Lengths", cdf.lengths_of_traffic(streams)
        yield "joint", "Prompt and output together", traffic.joint(streams)
    if facts.turns is not None:
        yield "turns", "Requests per session", traffic.turns(facts.turns)
    if facts.think_s is not None:
        yield "think", "Think times", cdf.think(facts.think_s, facts.think)
