"""The report of `bench compare`: a row for each gate, what differs, where simulations part, and the pairs."""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from msgspec import UnsetType, structs

from harness.data.codec import from_facts
from harness.data.run_json import Workload
from harness.experiments.compare import gates, wording
from harness.experiments.compare.compare_json import CachedShares, CompareAnswer, ComparedPair, Difference, GateRow, Row
from harness.metrics.measure import placed
from harness.stats.paired import ALPHA
from reports import _format
from reports._format import clean, number, option, quoted, share, with_unit
from reports._system import Facts, first, flat, in_use, source, system, versions
from reports.comparison import Comparison
from reports.document import Cell, Document, Finding, Section, Table, figures_of, listed, notices, page_of

MARKS = {
    "regressed": ("REGRESSED", False),
    "improved": ("IMPROVED", True),
    "equivalent": ("EQUIVALENT", True),
    "inconclusive": ("INCONCLUSIVE", None),
    "refused": ("NOT COMPARABLE", None),
    "invalid": ("NOT VALID", False),
}
NUMBERS = 4
"""Gates whose change stands large on a page."""
MOST_ROWS, MOST_PRINTED = 200, 40
"""Rows of a table on a page and in a text; all are in the JSON and in CSV."""
RESTS_ON = {
    "exact": "Simulators repeat themselves to the last bit, so any difference is real and no test is needed. "
    "Of one seed, a loss that one or two of its requests make does not fail the gate.",
    "paired": "Each pair sent the same requests to both sides; one p decides, adjusted for the number of gates.",
    "unknown": "One p over the pairs decides, adjusted for the number of gates.",
}
"""What a verdict rests on."""
NOTHING_RECORDED = "Nothing that is recorded differs between the two sides"
DEFINITIONS = (
    (
        "change",
        "of the mean over the pairs, head against base, in percent (of shares in points); ~ where it could be chance",
    ),
    ("loss", "the change turned so that above 0 is worse, for what should be high and for what should be low"),
    ("bounds", "with this confidence the true change is above the first, and with the same below the second"),
    ("MDE", "minimum detectable effect: the loss that these pairs find in 95 of 100 cases"),
    ("pairs needed", "pairs with which a loss of what must be found is found in 95 of 100 cases"),
    ("regressed", "the loss is surely there, and above what is ignored"),
    ("improved", "the same with the other sign"),
    ("equivalent", "the loss is surely below what must be found"),
    ("inconclusive", "neither follows from these pairs; no significant difference is not called equal"),
)
FIGURE_SECTIONS = {"losses": "Losses", "pairs": "Pairs and their requests"}
R = TypeVar("R", bound=Row)


def document(info: CompareAnswer, path: Path | None = None) -> Document:
    """The report of a comparison; its runs are looked for from `path`, where it is stored."""
    compared = None
    if path is not None:
        from reports import comparison  # reads the runs

        compared = comparison.of(info, path)
    mark, good = MARKS[info.verdict]
    text = clean(info.text, 4000)
    rests = (_rests_on(info),) if info.gates else ()
    # Of how many pairs in which order the verdict is.
    valid = [pair for pair in info.pairs if pair.valid]
    pair_ids = {pair.pair for pair in info.pairs}
    order = " ".join(" ".join(pair.order) for pair in valid[:2] if pair.order)
    parts = [
        f"pairs: {len(pair_ids)}",
        f"valid: {len({pair.pair for pair in valid})}",
        f"order: {clean(order, 60)}{' ...' if len(valid) > 2 else ''}" if order else "",
        "exact" if info.mode == "exact" else f"alpha {100 * info.alpha:g}%",
    ]
    return Document(
        title=f"{clean(info.head.label, 80)} against {clean(info.base.label, 80)}",
        subtitle=", ".join(filter(None, parts)),
        mark=mark,
        good=good,
        findings=(Finding(text[:1].upper() + text[1:], good, rests),),
        numbers=tuple(_numbers(info.gates, exact=info.mode == "exact")),
        key_facts=tuple(_key_facts(info)),
        warnings=notices(info.warnings),
        sections=tuple(_sections(info, compared)),
        commands=() if compared is None else (_repeat(info, compared.folder),),
        used=_used(info),
        definitions=(*DEFINITIONS, *in_use()),
    )  # fmt: skip


def _numbers(gates: Sequence[GateRow], *, exact: bool) -> Iterator[tuple[str, str]]:
    """The changes of four gates, of those that regressed first."""
    for row in sorted(gates, key=lambda gate: [*MARKS].index(gate.verdict))[:NUMBERS]:
        point_text = f" at {wording.where(row.point)}" if row.point else ""
        yield clean(f"{row.label}{point_text}", 60), _change(row, exact=exact)


def _rests_on(info: CompareAnswer) -> str:
    if info.mode == "exact":
        return RESTS_ON["exact"]
    paired = info.same_requests and all(pair.schedule_hash for pair in info.pairs if pair.valid)
    return RESTS_ON["paired" if paired else "unknown"]


def _key_facts(info: CompareAnswer) -> Iterator[tuple[str, str]]:
    for side in ("base", "head"):
        yield side.capitalize(), clean(info.on(side).label, 300)
    yield "SLO", f"{clean(info.slo, 300)}, goal {option(100 * info.goal)}%" if info.slo else ""
    workload = {key: value for key, value in (info.workload or {}).items() if key != "rate_rps"}
    yield "Workload", ", ".join(filter(None, (first(workload, "name"), *source(from_facts(Workload, workload), {}))))
    backends = [info.base.system, info.head.system]
    systems = [system(backend, {}) or first(backend, "backend", "name") or "" for backend in backends]
    names = ("System",) if systems[0] == systems[1] else ("System of the base", "System of the head")
    yield from zip(names, systems, strict=False)


def _sections(info: CompareAnswer, found: Comparison | None) -> Iterator[Section]:
    most = MOST_PRINTED if found is None else MOST_ROWS
    shows = found is not None and info.gates
    drawn = {key: figures_of("compare", found, section=key) if shows else [] for key in FIGURE_SECTIONS}
    refused = [(clean(stop.field, 40), clean(stop.message, 600)) for stop in info.refused]
    yield Section("refusals", "Why the runs cannot be compared",
                  listed("refused because", ("field", "what was found"), refused, most, left=2))  # fmt: skip
    yield Section("losses", FIGURE_SECTIONS["losses"], (*_measured(info, info.gates, most), *drawn["losses"]))
    yield Section("limits", "Limits of the gates", _limits(info, most), detail=True)
    if found is not None:
        yield Section("pairs", FIGURE_SECTIONS["pairs"], (*_changed(found), *drawn["pairs"]), detail=True)
    yield Section("parting", "Where the simulations part", tuple(_parting(info)))
    yield Section("differences", "What differs", tuple(_differences(info, most)))
    yield Section("shown", "Not gated", tuple(_measured(info, shown(info), most, gated=False)))
    yield Section("notes", "Notes", (*(clean(note, 600) for note in info.notes), *_invalid(info, most)))
    if found is not None:
        yield Section("runs", "Pairs", tuple(_pairs(info, found.folder)), detail=True)


def _measured(info: CompareAnswer, rows: Sequence[Row], most: int, *, gated: bool = True) -> tuple[Table, ...]:
    """Rows of metrics; of simulators the range over the pairs, of all others bounds and what would have been found."""
    exact, several = info.mode == "exact", any(len(row.losses) > 1 and any(row.losses) for row in rows)
    columns: dict[str, Callable[[Row], str | Cell]] = {
        "base": lambda row: with_unit(row.base, row.unit),
        "head": lambda row: with_unit(row.head, row.unit),
        "change": lambda row: _change(row, exact=exact),
    }
    if exact and several:
        columns["over the pairs"] = lambda row: (
            (wording.spread(row) or "-").replace(" points", " pts") if any(row.losses) else "-"
        )
    if not exact:
        if any(row.bounds_pct for row in rows):
            columns[f"{100 * (1 - info.alpha):.4g}% bounds"] = _bounds
        columns["MDE"] = _mde
    if gated:
        columns["verdict"] = _verdict
    return _by_metric("gates" if gated else "not gated", columns, rows, most)


def _verdict(row: Row) -> Cell:
    assert isinstance(row, GateRow)
    return Cell(row.verdict, good=MARKS[row.verdict][1])


def _limits(info: CompareAnswer, most: int) -> tuple[Table, ...]:
    """The limits of each gate, and what it would take to know more."""
    columns: dict[str, Callable[[GateRow], str | Cell]] = {
        "ignored up to": lambda row: f"{row.min_effect_pct:g}{wording.points(row)}",
        "must be found from": lambda row: f"{row.must_detect_pct:g}{wording.points(row)}",
        "pairs needed": lambda row: "-" if row.mde_pct is None else wording.needed(row),
        "p (decides)": lambda row: "-" if row.p is None else _format.probability(row.p),
    }
    return _by_metric("limits of the gates", columns, info.gates, most) if info.mode == "paired" else ()


def _by_metric(
    caption: str, columns: Mapping[str, Callable[[R], str | Cell]], rows: Sequence[R], most: int
) -> tuple[Table, ...]:
    """A row per metric, and per point where there are several."""
    names: dict[str, Callable[[R], str]] = {}
    if any(row.point for row in rows):
        names["at"] = lambda row: clean(wording.where(row.point), 120)
    names["metric"] = lambda row: clean(row.label, 120)
    printed = [tuple(cell(row) for cell in (*names.values(), *columns.values())) for row in rows]
    return listed(caption, (*names, *columns), printed, most, len(names), words=int("verdict" in columns))


def _change(row: Row, *, exact: bool) -> str:
    return "-" if row.change_pct is None or row.endless else wording.short(row, row.change_pct, exact=exact)


def _bounds(row: Row) -> str:
    """The bounds of the change; none where nothing changed at all."""
    if row.bounds_pct is None or not any(row.losses):
        return "-"
    low, high = (wording.percent(end, signed=True) for end in row.bounds_pct)
    return f"{low} .. {high}{wording.points(row)}"


def _mde(row: Row) -> str:
    if row.mde_pct is None or not any(row.losses):
        return "-"
    large = row.mde_pct > wording.MOST_PCT
    return f"{f'>{wording.MOST_PCT:,}' if large else number(row.mde_pct, 2)}{wording.points(row)}"


def shown(info: CompareAnswer) -> list[Row]:
    """The rows that decide nothing, where there is one point; those of a sweep are in the JSON.

    Of all that is in the JSON the rates, what each metric has `compared`, and every number that a command printed.
    """
    rows = [row for row in info.shown if not row.point]
    latencies = [
        metric.name if key == "mean" else f"{key}:{metric.name}" for metric in placed() for key in metric.compared or ()
    ]
    names = ("output_tokens", "attainment", "goodput_rps", "throughput_rps", "output_tps", *latencies, "failed")
    beginnings = ("p50:", "p90:", "p99:", *gates.compared(), "token_goodput_tps", "attainment of ")  # of names we know
    foreign = [row for row in rows if not row.metric.startswith(beginnings) and row.metric not in names]
    return [*(row for name in names for row in rows if row.metric == name), *foreign]


def _parting(info: CompareAnswer) -> Iterator[Table]:
    """The first request and the first step that differ between two simulated runs."""
    exact = info.exact
    if not exact or exact.identical:
        return
    rows = []
    for name, diff in (("request", exact.first_request), ("step", exact.first_step)):
        if diff is not None:
            place, due_s = (diff.request_id, diff.scheduled_s) if name == "request" else (diff.step, diff.start_s)
            when = option(due_s, 9) if isinstance(due_s, int | float) else "-"
            column = clean(diff.column) + ("" if isinstance(diff.item, UnsetType) else f"[{diff.item}]")
            rows.append((f"first {name}", clean(place), when, column, clean(diff.base, 60), clean(diff.head, 60)))
    caption = f"{exact.requests_differ:,} of {exact.requests:,} requests differ; where pair {exact.pair} parts"
    yield Table(caption, ("what differs", "id", "due or begun at (s)", "column", "base", "head"), tuple(rows), left=6)


def _differences(info: CompareAnswer, most: int) -> Iterator[Table | str]:
    """Everything recorded in which the sides differ; what must be equal and was allowed to differ first."""
    noted = {**{_difference(entry): "-" for entry in info.differences}}
    allowed = {_difference(entry): "allowed by --allow-different" for entry in info.allowed_differences}
    rows = [(*fact, note) for fact, note in {**allowed, **noted, **allowed}.items()]
    heads = ("field", "base", "head", "note")
    yield from listed("facts that are not the same on both sides", heads, rows, most, left=4)
    if not rows and info.pairs:
        code = info.exact and not info.exact.identical
        yield f"{NOTHING_RECORDED}{'; the code or the data files of bench have changed' if code else ''}."


def _difference(each: Difference) -> tuple[str, str, str]:
    return clean(each.field, 80), clean(each.base, 300), clean(each.head, 300)


def _changed(found: Comparison) -> tuple[Table, ...]:
    """How many requests met the SLO on both sides, on one, on none; a row for each pair."""
    if not (found.contrasts and found.contrasts[0].met and found.info.same_requests):
        return ()
    rows = [
        (f"pair {contrast.pair}", f"{contrast.requests:,}",
         *(f"{contrast.met[which]:,} ({share(contrast.met[which] / contrast.requests)})" if contrast.requests else "-"
           for which in ("both", "base", "head", "neither")))
        for contrast in found.contrasts
    ]  # fmt: skip
    heads = ("pair", "requests", "met on both", "by the base only", "by the head only", "on neither")
    return listed(
        f"requests by where they met the SLO{f' at {found.point}' if found.point else ''}", heads, rows, MOST_ROWS
    )


def _invalid(info: CompareAnswer, most: int) -> tuple[Table, ...]:
    """Attempts at a pair that do not count."""
    remade = {pair.pair for pair in info.pairs if pair.valid}
    rows = [
        (clean(pair.pair, 40), "made again" if pair.pair in remade else "not valid", _why(pair))
        for pair in info.pairs
        if not pair.valid
    ]
    return listed("pairs that do not count", ("pair", "state", "reason"), rows, most, left=3)


def _why(pair: ComparedPair) -> str:
    return clean("; ".join(pair.problems or ["a run is not valid"]), 400)


def _pairs(info: CompareAnswer, folder: Path) -> tuple[Table, ...]:
    """Every pair, or attempt at one, with links to its runs where they are still there; columns without values go."""
    columns: dict[str, Callable[[ComparedPair], str | Cell]] = {
        "pair": lambda pair: clean(pair.pair, 40),
        "at": lambda pair: clean(wording.where(pair.point or {}), 120) or "-",
        "seed": lambda pair: "-" if pair.seed is None else clean(pair.seed, 40),
        "order": lambda pair: clean(pair.order or "-", 20),
        "base run": lambda pair: _run(info, pair, "base", folder),
        "head run": lambda pair: _run(info, pair, "head", folder),
        "state": _state,
        "schedule": lambda pair: clean(str(pair.schedule_hash or "-")[:12], 20),
        "measured from (s)": lambda pair: number(pair.cut_s) if isinstance(pair.cut_s, int | float) else "-",
        "cached prompt tokens, base": lambda pair: share((pair.cached or CachedShares()).base),
        "cached prompt tokens, head": lambda pair: share((pair.cached or CachedShares()).head),
    }
    cells = {head: [cell(pair) for pair in info.pairs] for head, cell in columns.items()}
    used = {head: column for head, column in cells.items() if set(column) - {"-"}}
    names = sum(head in used for head in [*columns][:8])
    return listed("pairs of runs", tuple(used), [*zip(*used.values(), strict=True)], MOST_ROWS, left=names)


def _state(pair: ComparedPair) -> Cell:
    if not pair.valid:
        return Cell(f"not valid: {_why(pair)}", good=False)
    return Cell(f"valid{', made again' if pair.repeated else ''}")


def _run(info: CompareAnswer, pair: ComparedPair, side: str, folder: Path) -> Cell:
    """The path of a run, with a relative link to its page where it has one, else to its folder, if it is there."""
    from reports.comparison import folder_of

    run_folder = folder_of(info, pair, side, folder)
    link = None if run_folder is None else page_of(run_folder, folder)
    return Cell(clean(pair.run(side) or "-", 120), link=link)


def _repeat(info: CompareAnswer, folder: Path) -> str:
    """What gives the same answer again from stored runs; of pairs that were made, their folder."""
    if any(pair.order for pair in info.pairs):
        return f"bench report {quoted(folder)}"
    words = ["bench", "compare", *(clean(side.label, None) for side in (info.base, info.head))]
    if info.rescored and info.slo:
        words += ["--slo", clean(info.slo, None), "--goal", f"{option(100 * info.goal)}%"]
    for name, text in (("--warmup", info.warmup), ("--gate", _gates(info))):
        words += [name, clean(text, None)] if text else []
    words += ["--alpha", f"{100 * info.alpha:g}%"] if info.alpha != ALPHA else []
    allowed = dict.fromkeys(entry.field for entry in info.allowed_differences)
    words += ["--allow-different", ",".join(map(str, allowed))] if allowed else []
    return shlex.join(words)


def _gates(info: CompareAnswer) -> str:
    """The gates as an option takes them, where they are not the default ones."""
    once = {row.metric: row for row in info.gates}
    names = [*once, *(row.metric for row in info.shown)]
    ignored = max((row.min_effect_pct for row in info.gates), default=0.0) / 100
    usual = gates.exact(ignored) if info.mode == "exact" else gates.defaults(names)
    limits = {gate.quantity.name: (100 * gate.min_effect, 100 * gate.must_detect) for gate in usual}
    same = all(limits.get(name) == (row.min_effect_pct, row.must_detect_pct) for name, row in once.items())
    if same and limits.keys() & set(names) == once.keys():
        return ""
    return ",".join(f"{name}={row.min_effect_pct:g}%:{row.must_detect_pct:g}%" for name, row in once.items())


def _used(info: CompareAnswer) -> Facts:
    rows = [("alpha, one-sided", f"{100 * info.alpha:g}%")]
    if info.interim:
        rows.append(("interim analyses after", f"{', '.join(map(str, info.interim))} pairs"))
    rows += versions(info.versions)
    rows += [(f"workload: {name}", text) for name, text in flat(info.workload or {})]
    for side in ("base", "head"):
        rows += [(f"{side}, system: {name}", text) for name, text in flat(info.on(side).system)]
    return tuple(rows)


def rows(info: CompareAnswer) -> Iterator[dict[str, Any]]:
    """A row per metric at each point, times in seconds, shares from 0 to 1, changes in percent: the form csv."""
    fields = (
        "base", "head", "change_pct", "low_pct", "high_pct", "mde_pct", "p", "p_signflip", "pairs", "pairs_needed",
        "min_effect_pct", "must_detect_pct", "verdict",
    )  # fmt: skip
    for row in info.rows:
        values = structs.asdict(row)
        yield {**row.point, **{name: values.get(name) for name in ("metric", "unit", *fields)}}
