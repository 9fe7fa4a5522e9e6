"""The page of a folder of nights: an index of its series, then each with its metrics, steps, gaps and nights."""

from collections.abc import Iterator, Mapping, Sized
from pathlib import Path
from typing import Any

from harness.experiments.compare.history import METRICS
from reports import figures
from reports._format import clean, count, option, sentence
from reports._page import Part, part
from reports._sheet import Cell, Section, Sheet, Table
from reports.figures import history
from reports.trend import wording as said
from reports.trend.index import EXPLAINED, anchor, links, table
from reports.trend.wording import Room, room

Info = Mapping[str, Any]
JUDGED = "trend_judged"

_MARKS = {
    "regressed": ("REGRESSED", False),
    "steady": ("STEADY", True),
    "invalid": ("NO VALID NIGHT", False),
    "few": ("TOO FEW NIGHTS", None),
    "longer": ("NOT COMPARABLE, ANSWERS ARE LONGER", False),
    "incomparable": ("NOTHING TO COMPARE", None),
    "missing": ("NO VALUE ON THE LAST NIGHT", False),
}
_DEFINITIONS = (
    ("night", "one run, search or folder of runs; of several runs the mean over them"),
    ("reference", "the median of the nights before; frozen while a step is suspected, for a week after one is called"),
    ("step", "a value worse (better) than its reference by more than the rule allows, on as many nights in a row"),
    ("scatter", "robust standard deviation from night to night, as a share of the middle value"),
    ("not compared across", "a night from which on something differs that must not: schedule, SLO, model, hardware"),
)


def sheet(info: Info, path: Path) -> Sheet:
    """The page of the answer of `bench compare --trend`; `path` is the file or folder it will stand in."""
    found, there = links(info, path), room(info)
    series = info["series"]
    mark, good = _MARKS.get(info["state"], (str(info["state"]).upper(), None))
    line = said.state_line(info)
    firsts, lasts = ([str(one[end])[:10] for one in series] for end in ("first", "last"))
    nights = f"{count(sum(one['nights'] for one in series), 'night')} from {min(firsts)} to {max(lasts)}"
    return Sheet(
        title=f"Trend of {clean(Path(str(info['folder'])).name or info['folder'], 80)}",
        subtitle=f"{count(len(series), 'series', 'series')}, {nights}",
        mark=mark,
        good=good,
        answer=f"{line[0].upper()}{line[1:]}.",
        state=said.end(info),
        heads=_heads(info),
        warnings=tuple(_warnings(info)),
        sections=(
            Section("index", "All series", texts=(EXPLAINED,), tables=(table(info, found),)),
            *(_section(place, one, info, found, there) for place, one in enumerate(series, start=1)),
        ),
        commands=(f"bench compare --trend {clean(info['folder'], None)}",),
        facts=tuple((f"version of {clean(k, 40)}", clean(v, 80)) for k, v in (info.get("versions") or {}).items()),
        definitions=_DEFINITIONS,
    )


def _heads(info: Info) -> tuple[tuple[str, str], ...]:
    rule = info["rule"]
    least, sds = f"{option(100 * rule['least'])}%", option(rule["sds"])
    reference = f"held to the median of the {rule['reference']} nights before it"
    worse = f"worse by more than {least} and {sds} robust standard deviations on {rule['nights']} nights in a row"
    told = {f"a value is {reference}; {worse} is a step" for one in info["series"] if not one["exact"]}
    told |= {
        "of a virtual clock any difference from the night before is a step" for one in info["series"] if one["exact"]
    }
    nights = count(sum(one["nights"] for one in info["series"]), "night")
    return (
        ("rule", "; ".join(sorted(told))),
        ("judged", f"{', '.join(m.name for m in METRICS if m.judged)}; all else is shown and decides nothing"),
        ("valid", f"{sum(one['valid'] for one in info['series']):,} of {nights}"),
    )


def _warnings(info: Info) -> Iterator[tuple[str, str]]:
    """What keeps a series from telling anything, with its remedy."""
    for series in info["series"]:
        name = clean(series["name"], 80)
        if series["missing"]:
            yield f"{name}: the last night has no valid run: {clean(series['gaps'][-1]['why'])}.", "bench report NIGHT"
        if noise := said.noise_of(series):
            yield f"{name}: {noise[0]}.", noise[1]


def _section(place: int, series: Info, info: Info, found: Mapping[str, str], there: Room) -> Section:
    tables = (*_metrics(series), *_changes(series, there), *_gaps(series, there), *_each(series, found, there))
    return Section(
        key=anchor(place),
        title=clean(series["name"], 80),
        texts=(said.title(series), *(sentence(text, 400) for text in said.steps_of(series)[-said.MOST_LINES :])),
        tables=tables,
        parts=tuple(_parts(place, series, info, there)),
    )


def _parts(place: int, series: Info, info: Info, there: Room) -> Iterator[Part]:
    """The figures of one series; where no night is valid none, because its table says so."""
    if not series["metrics"]:
        return
    drawn = {**info, "series": [series], "drawn": there.nights}
    for row in figures.of("trend").values():
        figure = row.draw(drawn) if there.shown or row.key == JUDGED else _left_out(info)
        yield part(f"{row.key}-{place}", row.title, figure, rows=there.rows)


def _left_out(info: Info) -> str:
    folder = clean(info["folder"], 200)
    return (
        f"Of {len(info['series'])} series only what is judged is drawn; a page of fewer draws these too: "
        f"bench compare --trend {folder}/WORKLOAD --html FILE."
    )


def _metrics(series: Info) -> Iterator[Table]:
    if not series["metrics"]:
        return
    notes = " ".join(f"{note}." for note in said.footnotes(series))
    rows = tuple(
        (*row[:-1], Cell(row[-1], good=False) if said.is_open(metric) else row[-1])
        for row, metric in zip(said.rows(series), series["metrics"], strict=True)
    )
    yield Table(f"Each metric on the last night. {notes}", said.HEADS, rows)


def _changes(series: Info, there: Room) -> Iterator[Table]:
    """What the vertical lines stand for."""
    drawn = {str(night["night"]) for metric in series["metrics"] for night in metric["nights"][-there.nights :]}
    rows = [
        (label, night, clean(one["what"], 60), clean(one["before"], 80), clean(one["after"], 80))
        for label, night, changed in history.marked(series, drawn)
        for one in changed
    ]
    if rows:
        caption = (
            "What changed: across a capital letter nothing is compared, a small one is a version. "
            f"{_latest(rows, there.rows, 'changes')}"
        )
        yield Table(caption, ("line", "night", "what", "before", "after"), tuple(rows[-there.rows :]), left=5)


def _gaps(series: Info, there: Room) -> Iterator[Table]:
    rows = [(str(gap["night"]), clean(gap["why"])) for gap in series["gaps"]]
    if rows:
        caption = f"Nights without a valid run. {_latest(rows, there.rows, 'nights')}"
        yield Table(caption, ("night", "why"), tuple(rows[-there.rows :]), left=2)


def _each(series: Info, found: Mapping[str, str], there: Room) -> Iterator[Table]:
    """The nights with their judged values and the reports of their runs."""
    judged = [metric for metric in series["metrics"] if metric["judged"]]
    if not judged:
        return
    together = list(zip(*(metric["nights"] for metric in judged), strict=True))
    rows = [_night(judged, nights, found) for nights in reversed(together[-there.rows :])]
    heads = ("night", "commit", "report", *(f"{clean(m['name'], 60)} (95 % interval)" for m in judged))
    yield Table(f"The nights, the latest first. {_latest(together, there.rows, 'nights')}", heads, tuple(rows), left=3)


def _night(judged: list[Info], nights: tuple[Info, ...], found: Mapping[str, str]) -> tuple[str | Cell, ...]:
    first = nights[0]
    link = found.get(first["path"])
    report = Cell("report", link=link) if link else "-"
    values = (_value(metric, night) for metric, night in zip(judged, nights, strict=True))
    return (str(first["night"]), clean(first["commit"] or "-", 60), report, *values)


def _value(metric: Info, night: Info) -> Cell | str:
    """The value with its interval; suspect ones and those after a step are marked."""
    if night["value"] is None:
        return "overloaded" if night["overloaded"] else "-"
    text = said.value_of(metric, night["value"])
    if night.get("low") is not None:
        text += f" ({said.value_of(metric, night['low'])} to {said.value_of(metric, night['high'])})"
    if night["state"] == "suspect":
        return f"{text}, suspect"
    return Cell(text, good=night["state"] == "better") if night["state"] in ("worse", "better") else text


def _latest(rows: Sized, most: int, what: str) -> str:
    return f"The latest {most} of {len(rows):,} {what}; all: --format json." if len(rows) > most else ""
