"""The answer of `bench compare`: a line with the verdict, a row for each gate, then what else must be known."""

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from harness.experiments.compare import wording
from harness.experiments.compare.gates import compared
from harness.metrics.measure import placed
from reports._format import clean, clean_line, in_markdown, number, option, seconds, share
from reports.answers import _curve
from reports.answers._curve import PLAIN, Look

Row = Mapping[str, Any]

GOOD = {"regressed": False, "refused": False, "improved": True, "equivalent": True, "identical": True}
"""Verdicts that are good or bad news; others leave it open."""

MOST_BYTES = 60_000
"""A comment on a pull request holds 64 KB, and more than this nobody reads."""

MOST_ROWS = 40
"""Rows of a part of the text; all of them are in the JSON."""


def text(info: Mapping[str, Any], look: Look = PLAIN) -> str:
    """The answer, ending with a newline: the verdict first, on a terminal last, where it is seen."""
    verdict = [look.judged(clean_line(heading(info)), GOOD.get(info["verdict"])), _wrapped(info["text"])]
    told = [
        "\n".join(map(_wrapped, _sides(info))),
        _rows_text(info["gates"], info, look, gated=True),
        _rows_text(shown(info), info, look, gated=False),
        "\n".join(map(_wrapped, parting(info))),
        "\n".join(map(_wrapped, _facts(info))),
    ]
    blocks = [*told, *verdict] if look.terminal else [*verdict, *told]
    return "\n\n".join(block.rstrip("\n") for block in blocks if block) + "\n"


def markdown(info: Mapping[str, Any]) -> str:
    """The answer for a job summary or a pull request: at most 60 KB, foreign text without effect."""
    name, _, rest = heading(info).partition(" (")
    others = _rows_markdown(shown(info), info, gated=False)
    blocks = [
        f"**{in_markdown(name)}**" + (f" ({in_markdown(rest, None)}" if rest else ""),
        in_markdown(info["text"], None),
        _rows_markdown(info["gates"], info, gated=True),
        f"<details><summary>Not gated</summary>\n\n{others}\n</details>" if others else "",
        "\n".join(f"- {in_markdown(line, None)}" for line in (*parting(info), *_sides(info), *_facts(info))),
    ]
    return _at_most("\n\n".join(block.rstrip("\n") for block in blocks if block) + "\n")


def value(row: Row, side: str) -> str:
    """A value with its unit."""
    found = row[side]
    if found is None:
        return "-"
    if row["unit"] == "s":
        return seconds(found)
    return share(found) if row["unit"] == "share" else f"{number(found)} {row['unit']}".rstrip()


def change(row: Row, *, exact: bool) -> str:
    """The change in percent or points; '~' where it is not significant, which a simulator does not know."""
    if row["change_pct"] is None or row.get("endless"):
        return "-"
    if exact:
        return _signed(row, row["change_pct"]) if any(row["losses"]) else "same"
    if row["low_pct"] is None or row["low_pct"] <= 0 <= row["high_pct"]:
        return "~"
    return _signed(row, row["change_pct"])


def interval(row: Row) -> str:
    """The bounds of the change; none where nothing changed at all."""
    if row["low_pct"] is None or not any(row["losses"]):
        return "-"
    return f"{wording.percent(row['low_pct'], signed=True)} .. {_signed(row, row['high_pct'])}"


def _wrapped(line: str) -> str:
    """A line for a terminal, its continuation indented."""
    return textwrap.fill(clean_line(line, 4000), _curve.TABLE_WIDTH, subsequent_indent="    ", break_on_hyphens=False)


def _signed(row: Row, pct: float) -> str:
    return f"{wording.percent(pct, signed=True)}{_unit(row)}"


def _unit(row: Row) -> str:
    return " pts" if row["scale"] == "difference" else "%"


def _mde(row: Row) -> str:
    if row["mde_pct"] is None or not any(row["losses"]):
        return "-"
    large = row["mde_pct"] > wording.MOST_PCT
    return f"{f'>{wording.MOST_PCT:,}' if large else number(row['mde_pct'], 2)}{_unit(row)}"


def heading(info: Mapping[str, Any]) -> str:
    """The first line: the verdict, and of how many pairs in which order it is."""
    valid = [pair for pair in info["pairs"] if pair["valid"]]
    every = {pair["pair"] for pair in info["pairs"]}
    count = f"{len(every)} pair{'s' if len(every) != 1 else ''}" + (f", {len(valid)} valid" * (len(valid) < len(every)))
    if info["mode"] == "exact":
        return f"bench compare: {info['verdict']} ({count}, exact)"
    order = " ".join(" ".join(pair["order"]) for pair in valid[:2] if pair.get("order"))
    parts = [
        count,
        *([f"{order}{' ...' if len(valid) > 2 else ''}"] if order else []),
        f"alpha {100 * info['alpha']:g}%",
    ]
    return f"bench compare: {info['verdict']} ({', '.join(parts)})"


def heads(info: Mapping[str, Any], rows: Sequence[Row], *, gated: bool) -> tuple[str, ...]:
    """The column heads of a table of rows."""
    point = ("at",) if any(row["point"] for row in rows) else ()
    return (*point, "metric", "base", "head", "change", *_spread_heads(info, rows), *(("verdict",) if gated else ()))


def _spread_heads(info: Mapping[str, Any], rows: Sequence[Row]) -> tuple[str, ...]:
    """Of simulators the range over the pairs, of all others bounds and what would have been found."""
    if info["mode"] == "exact":
        return ("over the pairs",) if any(len(row["losses"]) > 1 and any(row["losses"]) for row in rows) else ()
    bounds = (f"{100 * (1 - info['alpha']):.4g}% bounds",) if any(row["low_pct"] is not None for row in rows) else ()
    return (*bounds, "MDE")


def cells(names: Sequence[str], row: Row, info: Mapping[str, Any]) -> list[str]:
    """A row under the heads of these names, printed."""
    read: dict[str, Callable[[], str]] = {
        "at": lambda: wording.where(row),
        "metric": lambda: str(row["label"]),
        "base": lambda: value(row, "base"),
        "head": lambda: value(row, "head"),
        "change": lambda: change(row, exact=info["mode"] == "exact"),
        "over the pairs": lambda: (
            (wording.spread(row) or "-").replace(" points", " pts") if any(row["losses"]) else "-"
        ),
        "MDE": lambda: _mde(row),
        "verdict": lambda: str(row["verdict"]),
    }
    return [read[head]() if head in read else interval(row) for head in names]


def _rows_text(rows: Sequence[Row], info: Mapping[str, Any], look: Look, *, gated: bool) -> str:
    if not rows:
        return ""
    names = heads(info, rows, gated=gated)
    told = rows[:MOST_ROWS]
    tones = [GOOD.get(row["verdict"]) for row in told] if gated else []
    left = names.index("metric") + 1
    table = _curve.text(names, [cells(names, row, info) for row in told], left=left, look=look, tones=tones)
    more = f"... and {len(rows) - MOST_ROWS} more rows in the JSON\n" if len(rows) > MOST_ROWS else ""
    return ("" if gated else "not gated\n") + table + more


def _rows_markdown(rows: Sequence[Row], info: Mapping[str, Any], *, gated: bool) -> str:
    if not rows:
        return ""
    names = heads(info, rows, gated=gated)
    return _curve.markdown(names, [cells(names, row, info) for row in rows], left=names.index("metric") + 1)


def shown(info: Mapping[str, Any]) -> list[Row]:
    """The rows that decide nothing, where there is one point; those of a sweep are in the JSON.

    Of all that is in the JSON the rates, what each metric has `compared`, and every number that a command printed.
    """
    rows = [row for row in info["shown"] if not row["point"]]
    latencies = [
        metric.name if at == "mean" else f"{at}:{metric.name}" for metric in placed() for at in metric.compared or ()
    ]
    ours = ("output_tokens", "attainment", "goodput_rps", "throughput_rps", "output_tps", *latencies, "failed")
    beginnings = ("p50:", "p90:", "p99:", *compared(), "token_goodput_tps", "attainment of ")  # of names we know
    foreign = [row for row in rows if not row["metric"].startswith(beginnings) and row["metric"] not in ours]
    return [*(row for name in ours for row in rows if row["metric"] == name), *foreign]


def _sides(info: Mapping[str, Any]) -> Iterator[str]:
    for side in ("base", "head"):
        yield f"{side}  {clean(info[side]['label'])}"
    if info["slo"]:
        yield f"SLO   {clean(info['slo'])}, goal {option(100 * info['goal'])}%"
    for each in info["differences"][:12]:
        yield f"differs  {clean(each['field'])}: {clean(each['base'], 60)} -> {clean(each['head'], 60)}"
    if info["mode"] == "exact" and info["exact"] and not info["exact"]["identical"] and not info["differences"]:
        yield "differs  nothing that is recorded: the code or the data files of bench have changed"


def parting(info: Mapping[str, Any]) -> Iterator[str]:
    """Where two simulated runs part, a sentence each."""
    exact = info["exact"]
    if not exact or exact["identical"]:
        return
    where = f" in pair {exact['pair']}" if len(info["pairs"]) > 1 else ""
    yield f"{exact['requests_differ']:,} of {exact['requests']:,} requests differ"
    if exact["first_request"]:
        first = exact["first_request"]
        due = f", due at {option(first['scheduled_s'], 9)} s" if first.get("scheduled_s") is not None else ""
        yield f"first request that differs{where}: {first['request_id']}{due}: {_both(first)}"
    if exact["first_step"]:
        first = exact["first_step"]
        at = f", begun at {option(first['start_s'], 9)} s" if first.get("start_s") is not None else ""
        yield f"first step that differs{where}: {first['step']}{at}: {_both(first)}"


def _both(first: Mapping[str, Any]) -> str:
    place = f"[{first['item']}]" if "item" in first else ""
    base, head = (clean(first[side], 60) for side in ("base", "head"))
    return f"{clean(first['column'])}{place} is {base} in the base, {head} in the head"


def _facts(info: Mapping[str, Any]) -> Iterator[str]:
    for stop in info["refused"] if len(info["refused"]) > 1 else ():
        yield f"refused: {clean(stop['message'], None)}"
    again = {pair["pair"] for pair in info["pairs"] if pair["valid"]}
    for pair in info["pairs"]:
        if not pair["valid"]:
            reasons = "; ".join(pair.get("reasons") or [pair.get("why") or "a run is not valid"])
            what = "made again" if pair["pair"] in again else "not valid"
            yield f"{what}: pair {pair['pair']}: {clean(reasons, None)}"
    for sentence in info["notes"]:
        yield f"note: {clean(sentence, None)}"
    for warning in info["warnings"]:
        remedy = f"; {warning['remedy']}" if warning.get("remedy") else ""
        yield f"warning: {clean(warning['message'] + remedy, None)}"


def _at_most(whole: str) -> str:
    """The text cut at a line, where it is longer than GitHub takes."""
    if len(whole.encode()) <= MOST_BYTES:
        return whole
    kept, left = [], MOST_BYTES
    for line in whole.splitlines(keepends=True):
        left -= len(line.encode())
        if left < 0:
            break
        kept.append(line)
    return "".join(kept) + "\nThe rest is in the JSON.\n"
