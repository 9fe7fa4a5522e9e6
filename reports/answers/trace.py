"""The reports of `bench trace`: what is in a trace, what is odd about it, and what was written, fitted or fetched."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from harness.data.lists import Floats
from reports import _format
from reports._format import clean, in_figure, number, quoted, share
from reports._system import Facts, account, losses
from reports.document import Block, Command, Document, Figure, Finding, Notice, Section, Table

Info = Mapping[str, Any]

_WIDTHS = {60: "1 min", 300: "5 min", 600: "10 min", 1200: "20 min", 3600: "1 h", 21600: "6 h", 86400: "1 d"}
_MEAN = ("mean", "p50", "p90", "p99", "max")
NOTHING = "There is nothing to draw: neither arrivals nor lengths were given."
_WAITS = "follow-ups come as if answers took 10 ms a token; replay with --turns answered, and they wait for theirs"


def document(info: Info) -> Document:
    """Everything that `bench trace info` finds."""
    about = info["file"]
    rate = "all at one instant" if info["rate_rps"] is None else f"{number(info['rate_rps'])} requests/s"
    sections = (
        Section("lengths", "Lengths", (_lengths(info["lengths"]),)),
        Section("burstiness", "Burstiness", (_burstiness(info),)),
        Section("classes", "Classes", (_classes(info["classes"]),) if "classes" in info else ()),
        Section("prefixes", "Prefixes", (_prefixes(info["prefixes"]),) if "prefixes" in info else ()),
    )
    return _report(
        f"{about.get('file')}: {_format.count(info['requests'], 'request')} in {_format.span(info['span_s'])}, {rate}",
        (*_origin(about), *_spread(info), *_sessions(info.get("conversations")), *_images(info.get("images"))),
        sections=sections,
    )


def check(info: Info) -> Document:
    """The findings of `bench trace check`."""
    odd = info["odd"]
    return _report(
        f"{info['file']}: {info['rows']:,} rows, {info['requests']:,} requests",
        [("note", text) for text in info["notes"]],
        findings=(Finding(f"findings: {len(odd)}" if odd else "clean", not odd),),
        warnings=tuple(Notice(clean(text, None)) for text in odd),
    )


def written(target: str, requests: int, about: Info) -> Document:
    """What was written, and what was done on the way."""
    rates = [step["rate_rps"] for step in about.get("scale") or ()]
    rate = [("rate", f"{number(rates[0][0])} -> {number(rates[-1][1])} requests/s")] if rates else []
    origin = (row for row in _origin(about) if row[0] not in ("SHA-256", "source"))
    return _report(f"{target}: {_format.count(requests, 'request')}", (*origin, *rate))


def fitted(lines: Sequence[tuple[str, str]], target: str) -> Document:
    """A model and its quality, and where it is."""
    requests = f"{Path(target).stem}-drawn.parquet"  # of two models in one folder
    draw = f"bench trace generate {quoted(target)} --duration 10min -o {quoted(requests)}"
    return _report(f"{target}: a model of traffic", lines, next=Command("draw from it", draw))


def generated(target: str, requests: int, origin: str, seed: int, follow_ups: bool, dropped: Sequence[str]) -> Document:
    """What was drawn from what, and what was `dropped`."""
    turns = [("turns", _WAITS)] if follow_ups else []
    return _report(
        f"{target}: {_format.count(requests, 'request')}",
        (("drawn from", f"{origin}, seed {seed}"), *turns),
        warnings=tuple(Notice(clean(text, None)) for text in dropped),
        next=Command("look at it", f"bench trace info {quoted(target)}"),
    )


def sources(known: Iterable[Any]) -> Document:
    """The public traces that can be fetched."""
    rows = tuple(
        (s.name, "-" if s.rows is None else f"{s.rows:,}", s.size or "-", "yes" if s.sha256 else "no", s.about)
        for s in known
    )
    table = Table("", ("name", "rows", "size", "hash known", "what"), rows, words=1)
    get = "Licences differ and are shown by the download; fetch one from its owner"
    sections = (Section("sources", "Public traces", (table,)),)
    return _report("Public traces", (), sections=sections, next=Command(get, f"bench trace download {rows[0][0]}"))


def fetched(done: Any, source: Any) -> Document:
    """The file, its hash, and whether that is the official one."""
    if source.sha256 == done.sha256:
        state = f"that of the official file ({source.hash_from})"
    else:
        state = f"that of an official file: {done.known}" if done.known else "unverified: no official hash is known"
    rows = (
        ("file", f"{done.path}{'' if done.new else ' was there already'}, {done.size:,} bytes"),
        ("SHA-256", done.sha256),
        ("hash", state),
    )
    return _report("Fetched", rows, next=Command("look at it", f"bench trace info {quoted(done.path)}"))


def page(document: Document, facts: Mapping[str, Any]) -> str:
    """One offline HTML file: what a terminal is shown, and how bursty, how fast when, which lengths the traffic is.

    The keys of `facts`, each of which may be left out: `name` of the stream in the legends, `times_s` (n,) of its
    arrivals, `prompt_tokens` and `output_tokens` (m,) of all requests or an even sample; `other`, a second stream;
    `curves`, the dispersion that a fit found (`widths_s`, `found`, `band_low`, `band_high`, `band`); `grain_s`, the
    tick of the stamps, below which no width is drawn. Equal facts give equal bytes.
    """
    from reports.document import html  # heavy

    pictures = Section("figures", "Pictures", tuple(_figures(facts)) or (NOTHING,))
    return html.render(replace(document, sections=(*document.sections, pictures)))


def _figures(facts: Mapping[str, Any]) -> Iterator[Figure]:
    """A figure for each kind of data, in the order of the page."""
    from reports.figures import cdf, traffic

    streams, fitted = [], None
    for stream in (facts, facts.get("other")):
        if stream is not None:
            times_s, prompt, output = (
                _array(stream.get(name)) for name in ("times_s", "prompt_tokens", "output_tokens")
            )
            name = in_figure(stream.get("name", "arrivals"))
            streams.append(traffic.Stream(name, None if times_s is None else np.sort(times_s), prompt, output))
    if curves := facts.get("curves"):
        found, low, high = (_array(curves.get(name)) for name in ("found", "band_low", "band_high"))
        assert low is not None
        assert high is not None
        name = in_figure(curves.get("band", "band"))
        fitted = traffic.Fitted(np.asarray(curves["widths_s"], np.float64), found, low, high, name)
    arrivals = any(stream.arrivals for stream in streams)
    if arrivals:
        draw = partial(traffic.dispersion_of, streams, fitted, facts.get("grain_s"))
        yield Figure("dispersion", "How bursty", draw)
        yield Figure("rate", "Rate over time", partial(traffic.rate, streams))
    if any(stream.prompt_tokens is not None for stream in streams):
        yield Figure("lengths", "Lengths", partial(cdf.lengths_of_traffic, streams))


def _array(values: Any) -> Floats | None:
    """(n,) float64, None for nothing."""
    array = None if values is None else np.asarray(values, np.float64)
    return array if array is not None and len(array) else None


def rows(facts: object, name: str = "") -> Iterator[dict[str, object]]:
    """A row per value with its path, such as `lengths.output_tokens.p90`; of a list of objects a row per object."""
    if isinstance(facts, list) and facts and all(isinstance(entry, Mapping) for entry in facts):
        yield from ({"name": name, **entry} if name else dict(entry) for entry in facts)
    elif isinstance(facts, Mapping | list):
        inner = facts.items() if isinstance(facts, Mapping) else enumerate(facts)
        for key, value in inner:
            yield from rows(value, f"{name}.{key}".strip("."))
    else:
        yield {"name": name, "value": facts}


def _report(title: str, key_facts: Iterable[tuple[str, str]], **more: Any) -> Document:
    rows = tuple((name, clean(text, None)) for name, text in key_facts)
    fields = {"findings": (), "definitions": (), **more}
    return Document(title=clean(title, None), subtitle="", mark="", good=None, key_facts=rows, **fields)


def _origin(about: Info) -> Iterator[tuple[str, str]]:
    more = (f", {name} {about[name]}" for name in ("stamps", "tokenizer") if about.get(name))
    yield "file", f"{about.get('known')}"
    yield "SHA-256", f"{about.get('sha256')}"
    yield "format", f"{about.get('reader')}{''.join(more)}"
    if isinstance(about.get("source"), str):
        yield "source", f"{about['source']}; licence {about.get('licence')}"
    if origin := about.get("made_from"):
        yield "made from", _made_from(origin)
    yield "rows", account(about)
    yield from losses(about)
    yield from (("scaled", f"{step['step']}: {step['law']}") for step in about.get("scale") or ())
    yield from ((name, str(about[name])) for name in ("where", "jitter", "seed") if about.get(name) is not None)
    # rows that were left out stand above
    yield from (("odd", text) for text in about.get("oddities") or () if " left out: " not in text)


def _made_from(origin: Info) -> str:
    """Where the rows of a converted or generated file come from, and what was done to them."""
    if "made_by" in origin:
        return f"{origin['made_by']}, seed {origin.get('seed')}"
    done = [
        f"{origin.get('file')}, SHA-256 {origin.get('sha256')} ({origin.get('known')})",
        *([f"where {origin['where']}"] if origin.get("where") else []),
        *(str(step["step"]) for step in origin.get("scale") or ()),
        *([f"seed {origin['seed']}"] if "seed" in origin else []),
    ]
    return "; ".join(done)


def _lengths(lengths: Info) -> Table:
    rows = tuple(
        (name, *(_tokens(lengths[key][head]) for head in _MEAN))
        for name, key in (("prompt", "prompt_tokens"), ("output", "output_tokens"))
    )
    joint = lengths["spearman"]
    caption = "lengths" if joint is None else f"lengths; rank correlation (Spearman) {round(joint, 2) + 0:.2f}"
    return Table(caption, ("tokens", *_MEAN), rows)


def _images(images: Info | None) -> Iterator[tuple[str, str]]:
    """Requests with images, images of each, and their part of the prompts."""
    if images is None:
        return
    parts = [f"in {share(images['share'])} of the requests"]
    if stats := images["images"]:
        parts.append(f"mean {number(stats['mean'])}, p90 {number(stats['p90'])}, max {number(stats['max'])} of those")
    of_prompt = images["share_of_prompt_tokens"]
    parts.append(
        "their tokens are not counted (--reader azure:image=TOKENS counts so many for each)"
        if of_prompt is None
        else f"{share(of_prompt)} of the prompt tokens"
    )
    yield "images", "; ".join(parts)


def _burstiness(info: Info) -> Block:
    """Dispersion by width; of ticks where stamps are shared."""
    spread = (info["ticks"] or info["counts"])["dispersion"]
    if not spread:
        return "Too short to tell how bursty it is: fewer than 10 seconds."
    rows = (("dispersion", *map(number, spread.values())), ("Poisson", *["1"] * len(spread)))
    return Table("variance over mean of the counts", ("burstiness", *(_width(float(width)) for width in spread)), rows)


def _spread(info: Info) -> Iterator[tuple[str, str]]:
    """Gaps, the memory of the counts, and empty minutes."""
    ticks, gaps, counts = info["ticks"], info["gaps"], info["counts"]
    zero = f"{share(gaps['zero_share'])} of gaps are 0 s"
    if ticks:
        acf = " / ".join("-" if value is None else f"{value:.2f}" for value in ticks["acf"])
        per_tick = f"{number(ticks['mean'])} requests each (most {ticks['most']})"
        yield "ticks", f"{ticks['ticks']:,} ticks of {ticks['tick_s']:.3g} s, {per_tick}; counts are per tick"
        yield "gaps", f"not shown: they say more about the ticks than about the traffic ({zero})"
        yield "memory", f"autocorrelation of the counts after 1 / 2 ticks: {acf} (Poisson 0)"
    else:
        if gaps["cv"] is not None:
            rounded = f"; stamps are rounded to {info['grain_s']:g} s" if info["grain_s"] else ""
            zeros = f"{rounded}, {zero}" if gaps["zero_share"] else rounded
            yield "gaps", f"CV {number(gaps['cv'])} (Poisson 1), longest {_format.span(gaps['longest_s'])}{zeros}"
        for width, cv in gaps["window_cv"].items():
            spread = " / ".join(number(cv[q]) for q in ("p10", "p50", "p90"))
            yield "", f"CV inside windows of {_width(float(width))}: p10 / p50 / p90 {spread}"
        if lags := [f"{_width(float(w))} {value:.2f}" for w, value in counts["acf"].items() if value is not None]:
            yield "memory", f"lag-1 autocorrelation of counts: {', '.join(lags)} (Poisson 0)"
    if counts["minutes"]:
        empty = f"{share(counts['empty_minutes'])} empty (Poisson {share(counts['empty_minutes_poisson'])})"
        busiest = f"the busiest has {number(counts['peak_minute'])} x the mean"
        yield "minutes", f"{counts['minutes']:,}: {empty}, {busiest}"


def _classes(found: Mapping[str, Info]) -> Table:
    heads = ("class", "requests", "rate (1/s)", "CV in 20 min", "dispersion 1 min", "prompt", "output")
    rows = tuple(
        (clean(name), f"{facts['requests']:,}",
         *(number(facts[key]) for key in ("rate_rps", "window_cv_p50", "dispersion_60s")),
         *(_tokens(facts[key]) for key in ("prompt_mean", "output_mean")))
        for name, facts in found.items()
    )  # fmt: skip
    return Table("classes", heads, rows)


def _sessions(found: Info | None) -> Facts:
    if found is None:
        return ()
    if not found["conversations"]:
        return (("sessions", "no request names one"),)
    turns, think = found["turns"], found["think_s"]
    count = f"{found['conversations']:,} with {found['requests']:,} requests"
    spread = ", ".join(f"{q} {turns[q]:.0f}" for q in _MEAN[1:])
    rows = (
        ("sessions", f"{count}; one request only: {share(found['single_share'])}"),
        ("turns", f"mean {number(turns['mean'])}, {spread}"),
    )
    if not think:
        return rows
    times = " / ".join(_format.span(think[q]) for q in ("p10", "p50", "p90", "p99"))
    below = f"{share(found['think_below_300_s'])} below 5 min"
    return (*rows, ("think", f"from a request to the next, p10 / p50 / p90 / p99: {times}; {below}"))


def _prefixes(found: Info) -> Table:
    blocks = f"{found['blocks']:,} blocks of {found['block_tokens']} tokens named, {found['distinct']:,} different"
    rows = [("without end", "-", f"{found['endless_hit_ratio']:.4f}", "1")]
    for spec, cache in found["caches"].items():
        most = "-" if cache["share_of_endless"] is None else f"{cache['share_of_endless']:.3f}"
        rows.append((clean(spec), f"{cache['capacity_blocks']:,}", f"{cache['hit_ratio']:.4f}", most))
    return Table(f"prefixes: {blocks}", ("prefix cache", "blocks", "hits/blocks", "of the most"), tuple(rows))


def _width(width_s: float) -> str:
    return _WIDTHS.get(round(width_s), f"{width_s:g} s")


def _tokens(value: float | None) -> str:
    """Three significant digits; whole numbers in full."""
    integral = value is not None and math.isfinite(value) and value == int(value)
    return f"{value:,.0f}" if integral else number(value)
