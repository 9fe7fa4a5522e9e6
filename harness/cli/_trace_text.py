"""Facts about traces as text for the terminal.

Lines, tables and numbers of `bench trace` on the terminal.
"""

import io
import math
import shlex
import shutil
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from harness.cli import _terminal

WIDTH_NAMES = {60: "1 min", 300: "5 min", 600: "10 min", 1200: "20 min", 3600: "1 h", 21600: "6 h", 86400: "1 d"}


def info(facts: Mapping[str, Any]) -> str:
    """All that `bench trace info` tells."""
    about = facts["file"]
    rate = "all at one instant" if facts["rate_rps"] is None else f"{number(facts['rate_rps'])} requests/s"
    blocks = [
        f"{about.get('file')}: {_requests(facts['requests'])} in {duration(facts['span_s'])}, {rate}",
        named(_origin(about)),
        _lengths(facts["lengths"]),
        _burstiness(facts),
        named([*_gaps(facts), *_minutes(facts["counts"])]),
    ]
    if "classes" in facts:
        blocks.append(_classes(facts["classes"]))
    if "conversations" in facts:
        blocks.append(named(_conversations(facts["conversations"])))
    if "prefixes" in facts:
        blocks.append(_prefixes(facts["prefixes"]))
    return "\n\n".join(block for block in blocks if block)


def _requests(count: int) -> str:
    return f"{count:,} request{'' if count == 1 else 's'}"


def _origin(about: Mapping[str, Any]) -> list[tuple[str, str]]:
    more = [f"{name} {about[name]}" for name in ("stamps", "tokenizer") if about.get(name)]
    form = ", ".join([str(about.get("reader")), *more])
    lines = [
        ("file", f"{about.get('known')}"),
        ("SHA-256", str(about.get("sha256"))),
        ("format", form),
    ]
    if "source" in about and isinstance(about["source"], str):
        lines.append(("source", f"{about['source']}; licence {about.get('licence')}"))
    if made_from := about.get("made_from"):
        lines.append(("made from", _made_from(made_from)))
    dropped = {**(about.get("dropped") or {}), **(about.get("left_out") or {})}
    added = "".join(f"; added: {count:,} {what}" for what, count in (about.get("added") or {}).items())
    rows, requests = about.get("rows", 0), about.get("requests", 0)
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in dropped.items())
    left_out = f"; left out: {reasons}" if dropped else ""
    lines.append(("rows", f"{rows:,} in the file{added}{left_out}; {_requests(requests)}"))
    lines += [("scaled", f"{step['step']}: {step['law']}") for step in about.get("scale") or ()]
    lines += [(name, str(about[name])) for name in ("where", "jitter", "seed") if about.get(name) is not None]
    odd = [text for text in about.get("oddities") or () if " left out: " not in text]  # the line above tells
    return lines + [("odd" if i == 0 else "", text) for i, text in enumerate(odd)]


def _made_from(origin: Mapping[str, Any]) -> str:
    """Where the rows of a converted or generated file come from, and what was done to them."""
    if "made_by" in origin:
        return f"{origin['made_by']}, seed {origin.get('seed')}"
    steps = [str(step["step"]) for step in origin.get("scale") or ()]
    done = [*([f"where {origin['where']}"] if origin.get("where") else []), *steps]
    seed = [f"seed {origin['seed']}"] if "seed" in origin else []
    return "; ".join([f"{origin.get('file')}, SHA-256 {origin.get('sha256')} ({origin.get('known')})", *done, *seed])


def _lengths(lengths: Mapping[str, Any]) -> str:
    heads = ("mean", "p50", "p90", "p99", "max")
    rows = [
        (name, *(number(lengths[key][head], whole=True) for head in heads))
        for name, key in (("prompt", "prompt_tokens"), ("output", "output_tokens"))
    ]
    text = table(("tokens", *heads), rows)
    joint = lengths["spearman"]
    return (
        text
        if joint is None
        else f"{text}\n{named([('together', f'rank correlation (Spearman) {round(joint, 2) + 0:.2f}')])}"
    )


def _burstiness(facts: Mapping[str, Any]) -> str:
    """Dispersion by width; of ticks where stamps are shared."""
    ticks = facts["ticks"]
    spread = ticks["dispersion"] if ticks else facts["counts"]["dispersion"]
    if not spread:
        return "Too short to tell how bursty it is: fewer than 10 seconds."
    heads = ("burstiness", *(_width(float(width)) for width in spread))
    rows = [("dispersion", *map(number, spread.values())), ("Poisson", *["1"] * len(spread))]
    return table(heads, rows)


def _width(width_s: float) -> str:
    return WIDTH_NAMES.get(round(width_s), f"{width_s:g} s")


def _gaps(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    ticks, gaps = facts["ticks"], facts["gaps"]
    memory = ", ".join(
        f"{_width(float(width))} {value:.2f}" for width, value in facts["counts"]["acf"].items() if value is not None
    )
    if ticks:
        acf = " / ".join("-" if value is None else f"{value:.2f}" for value in ticks["acf"])
        per = f"{ticks['ticks']:,}, {number(ticks['mean'])} requests each (most {ticks['most']})"
        zero = share(gaps["zero_share"])
        return [
            ("ticks", f"stamps sit on ticks of {ticks['tick_s']:.3g} s: {per}; counts are per tick"),
            ("gaps", f"say more about the ticks than about the traffic ({zero} are 0 s), so they are not shown"),
            ("memory", f"autocorrelation of the counts after 1 / 2 ticks: {acf} (Poisson 0)"),
        ]
    lines = []
    if gaps["cv"] is not None:
        lines.append(
            ("gaps", f"CV {number(gaps['cv'])} (Poisson 1), longest {duration(gaps['longest_s'])}{_zero(facts)}")
        )
    for width, cv in gaps["window_cv"].items():
        spread = " / ".join(number(cv[q]) for q in ("p10", "p50", "p90"))
        lines.append(("", f"CV inside windows of {_width(float(width))}: p10 / p50 / p90 {spread}"))
    return [*lines, ("memory", f"lag-1 autocorrelation of counts: {memory} (Poisson 0)")] if memory else lines


def _zero(facts: Mapping[str, Any]) -> str:
    grain = facts["grain_s"]
    rounded = f"; stamps are rounded to {grain:g} s" if grain else ""
    return (
        f"{rounded}, {share(facts['gaps']['zero_share'])} of gaps are 0 s" if facts["gaps"]["zero_share"] else rounded
    )


def _minutes(counts: Mapping[str, Any]) -> list[tuple[str, str]]:
    if not counts["minutes"]:
        return []
    empty = f"{share(counts['empty_minutes'])} empty (Poisson {share(counts['empty_minutes_poisson'])})"
    return [("minutes", f"{counts['minutes']:,}: {empty}, the busiest has {number(counts['peak_minute'])} x the mean")]


def _classes(found: Mapping[str, Mapping[str, Any]]) -> str:
    heads = ("class", "requests", "rate (1/s)", "CV in 20 min", "dispersion 1 min", "prompt", "output")
    rows = [
        (name, f"{one['requests']:,}", number(one["rate_rps"]), number(one["window_cv_p50"]),
         number(one["dispersion_60s"]), number(one["prompt_mean"], whole=True), number(one["output_mean"], whole=True))
        for name, one in found.items()
    ]  # fmt: skip
    return table(heads, rows)


def _conversations(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    if not facts["conversations"]:
        return [("sessions", "no request names one")]
    turns, think = facts["turns"], facts["think_s"]
    count = f"{facts['conversations']:,} with {facts['requests']:,} requests"
    spread = ", ".join(f"{q} {turns[q]:.0f}" for q in ("p50", "p90", "p99", "max"))
    lines = [
        ("sessions", f"{count}; one request only: {share(facts['single_share'])}"),
        ("turns", f"mean {number(turns['mean'])}, {spread}"),
    ]
    if think:
        times = " / ".join(duration(think[q]) for q in ("p10", "p50", "p90", "p99"))
        below = share(facts["think_below_300_s"])
        lines.append(("think", f"from a request to the next, p10 / p50 / p90 / p99: {times}; {below} below 5 min"))
    return lines


def _prefixes(facts: Mapping[str, Any]) -> str:
    blocks = f"{facts['blocks']:,} blocks of {facts['block_tokens']} tokens named, {facts['distinct']:,} different"
    head = named([("prefixes", blocks)])
    endless = facts["endless_hit_ratio"]
    rows = [("without end", "-", f"{endless:.4f}", "1")]
    for spec, found in facts["caches"].items():
        of_all = "-" if found["share_of_endless"] is None else f"{found['share_of_endless']:.3f}"
        rows.append((spec, f"{found['capacity_blocks']:,}", f"{found['hit_ratio']:.4f}", of_all))
    return f"{head}\n{table(('prefix cache', 'blocks', 'hits/blocks', 'of the most'), rows)}"


def check(facts: Mapping[str, Any]) -> str:
    """The findings of `bench trace check`, and the verdict."""
    rows = f"{facts['rows']:,} rows, {facts['requests']:,} requests"
    lines = [(name, text) for name, texts in (("odd", facts["odd"]), ("note", facts["notes"])) for text in texts]
    verdict = "clean" if not facts["odd"] else f"{len(facts['odd'])} finding{'s' if len(facts['odd']) > 1 else ''}"
    return "\n".join(part for part in (f"{facts['file']}: {rows}", named(lines), named([("verdict", verdict)])) if part)


def written(target: str, rows: int, facts: Mapping[str, Any]) -> str:
    """What was written, and what was done on the way."""
    lines = [(name, text) for name, text in _origin(facts) if name not in ("SHA-256", "source")]
    rates = [step["rate_rps"] for step in facts.get("scale") or ()]
    if rates:
        lines.append(("rate", f"{number(rates[0][0])} -> {number(rates[-1][1])} requests/s"))
    return f"{target}: {_requests(rows)}\n{named(lines)}"


def sources(known: Iterable[Any]) -> str:
    """The public traces that can be fetched."""
    rows = [(s.name, "-" if s.rows is None else f"{s.rows:,}", s.size or "-", "yes" if s.sha256 else "no", s.about)
            for s in known]  # fmt: skip
    text = table(("name", "rows", "size", "hash known", "what"), rows, left=(0, 4))
    return f"{text}\n\nbench trace download NAME fetches one from its owner; licences differ, and are shown then."


def fetched(done: Any, source: Any) -> str:
    """The file, its hash, and whether that is the official one."""
    if source.sha256 == done.sha256:
        state = f"that of the official file ({source.hash_from})"
    elif done.known:
        state = f"that of an official file: {done.known}"
    else:
        state = "unverified: no hash of the official file is known"
    was = "" if done.new else " was there already"
    next_step = f"bench trace info {shlex.quote(str(done.path))}"
    lines = [
        ("file", f"{done.path}{was}, {size(done.size)}"),
        ("SHA-256", done.sha256),
        ("", state),
        ("next", next_step),
    ]
    return named(lines)


def fitted(lines: Sequence[tuple[str, str]], target: str) -> str:
    """The model and its quality, and where it is."""
    model = shlex.quote(target)
    draw = f"bench trace generate {model} --duration 10min -o drawn.parquet"
    return named([*lines, ("written", target), ("next", draw)])


def generated(
    target: str, rows: int, origin: str, seed: int, follow_ups: bool = False, dropped: Sequence[str] = ()
) -> str:
    """What was drawn from what, what was `dropped`; where requests wait for answers, that a trace cannot know when
    those come.
    """
    waits = "follow-ups come as if answers took no time; replay with --turns answered, and they wait for theirs"
    lines = [
        ("drawn from", f"{origin}, seed {seed}"),
        ("turns", waits if follow_ups else ""),
        *(("warning", sentence) for sentence in dropped),
        ("next", f"bench trace info {shlex.quote(target)}"),
    ]
    lines = [(name, text) for name, text in lines if text]
    return f"{target}: {_requests(rows)}\n{named(lines)}"


WIDEST, NARROWEST, NAME = 110, 60, 12


def named(lines: Sequence[tuple[str, str]]) -> str:
    """Names in a column of their own; long texts go on in the next line, in theirs."""
    width = min(max(shutil.get_terminal_size((WIDEST, 24)).columns, NARROWEST), WIDEST) - NAME
    shown = []
    for name, text in lines:
        parts = textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]
        shown += [f"{name if i == 0 else '':<{NAME}}{part}" for i, part in enumerate(parts)]
    return "\n".join(shown)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> str:
    """A table without lines around it; numbers to the right, the columns `left` to the left."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    color = _terminal.colored()
    drawn = Table(box=box.SIMPLE_HEAD if color else None, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False)
    for i, head in enumerate(heads):
        drawn.add_column(
            head, justify="left" if i in left else "right", no_wrap=True, min_width=NAME - 2 if i == 0 else 0
        )
    for row in rows:
        drawn.add_row(*row)
    file = io.StringIO()
    console = Console(
        file=file, width=400, color_system="standard" if color else None, force_terminal=color, no_color=not color,
        highlight=False, markup=False, emoji=False, _environ={},
    )  # fmt: skip
    console.print(drawn)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


def number(value: float | None, *, whole: bool = False) -> str:
    """Three significant digits and no exponent; `whole` leaves out decimals of large numbers only from 100 on."""
    if value is None or not math.isfinite(value):
        return "-"
    if value == 0:
        return "0"
    if whole and value == int(value):
        return f"{value:,.0f}"
    exponent = int(f"{value:.2e}".partition("e")[2])
    return f"{value:,.{min(max(0, 2 - exponent), 9)}f}"


def share(value: float | None) -> str:
    """A share in percent; what may happen is not shown as 0."""
    if value is None:
        return "-"
    return "<0.1%" if 1e-6 < value < 0.0005 else f"{100 * value:.1f}%"


def duration(value_s: float) -> str:
    """Seconds in the unit that people would use: '0.25 s', '58 min 22 s', '3 h 5 min', '61 d 2 h'."""
    if value_s < 120:
        return f"{number(value_s)} s"
    total = round(value_s)
    for unit, part, long, short in ((86400, 3600, "d", "h"), (3600, 60, "h", "min"), (60, 1, "min", "s")):
        if total >= unit:
            rest = total % unit // part
            return f"{total // unit} {long}" + (f" {rest} {short}" if rest else "")
    return f"{total} s"


def size(count: float) -> str:
    """Bytes as '3.0 MB'."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"
