"""The words for the trend of a folder of nights, which its text and its page share.

How much of each series a page of nights has room for: its size stays the same, whatever the number of series.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reports._format import clean, count, in_unit, number, seconds, share, unit_of
from reports.figures.style import MOST_ROWS

HEADS = ("metric", "last value", "reference", "change", "scatter", "state")
SHOWN = "*"
MOST_NIGHTS = 1000
"""Nights of a series that are drawn, the latest, unless the answer has another number of them as `drawn`."""

MOST_BREAKS = 3
MOST_LINES = 10
"""Steps, gaps and breaks of a series that are written out: the latest."""

_WHOLE = {
    "longer": "not comparable, answers are longer",
    "invalid": "no valid night",
    "few": "too few nights",
    "incomparable": "nothing to compare",
    "missing": "no value on the last night",
}
_GOOD = {"regressed": False, "improved": True}
_STATES = {
    "regressed": "REGRESSED",
    "longer": "longer: not comparable",
    "improved": "improved",
    "changed": "changed",
    "suspect": "suspect: the next night decides",
    "steady": "steady",
    "none": "no value on the last night",
}


def head(info: Mapping[str, Any]) -> str:
    """The state of all series in one line, with the metrics that are worse."""
    return f"bench compare --trend: {state_line(info)}"


def state_line(info: Mapping[str, Any]) -> str:
    """The same without the command before it."""
    series = info["series"]
    worse = [f"{one['name']} {m['name']}" for one in series for m in one["metrics"] if is_open(m)]
    state = _WHOLE.get(info["state"], info["state"])
    which = f" ({', '.join(clean(name, 80) for name in worse[:3])}{', ...' if len(worse) > 3 else ''})" if worse else ""
    return f"{state}{which}"


def is_open(metric: Mapping[str, Any]) -> bool:
    """Whether it is judged, and worse since a step that is still news."""
    return bool(metric["judged"]) and metric["state"] == "regressed"


def title(series: Mapping[str, Any]) -> str:
    """Name, nights and their span."""
    gaps = series["nights"] - series["valid"]
    without = f", {gaps:,} of them without a valid run" if gaps else ""
    exact = "; virtual clock: any difference is told" if series["exact"] else ""
    nights = count(series["nights"], "night")
    first, last = (clean(series[end], 40) for end in ("first", "last"))
    return f"{clean(series['name'], 80)}: {nights}{without}, {first} to {last}{exact}"


def rows(series: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """A row of `HEADS` per metric."""
    return [_row(metric) for metric in series["metrics"]]


def tones(series: Mapping[str, Any]) -> list[bool | None]:
    """Whether a row is good or bad news; None: neither."""
    return [_GOOD.get(metric["state"]) for metric in series["metrics"]]


def good(info: Mapping[str, Any]) -> bool | None:
    """Whether the whole is good or bad news."""
    return _GOOD.get(info["state"])


def _row(metric: Mapping[str, Any]) -> tuple[str, ...]:
    sd = metric["sd_pct"]
    return (
        f"{metric['name']}{'' if metric['judged'] else ' ' + SHOWN}",
        "overloaded" if metric["nights"] and last_of(metric)["overloaded"] else value_of(metric, metric["last"]),
        value_of(metric, metric["reference"]),
        change_of(metric),
        "-" if sd is None else f"{number(sd, 2)}%",
        state_of(metric),
    )


def last_of(metric: Mapping[str, Any]) -> Mapping[str, Any]:
    """The last night that has a value."""
    there = [night for night in metric["nights"] if night["state"] != "gap"]
    last: Mapping[str, Any] = there[-1] if there else metric["nights"][-1]
    return last


def state_of(metric: Mapping[str, Any]) -> str:
    """The state of a metric in words."""
    if metric["state"] == "regressed" and not metric["judged"]:
        return "worse"
    if metric["state"] == "few":
        if not metric["needed"]:
            return "first: the next night is judged"
        return f"too few nights: {count(metric['needed'], 'more', 'more')} for a reference"
    return _STATES[metric["state"]]


def value_of(metric: Mapping[str, Any], value: float | None) -> str:
    """A value of the metric with its unit."""
    if value is None:
        return "-"
    if metric["unit"] == "s":
        return seconds(value)
    if metric["unit"] == "share":
        return share(value)
    return f"{number(value)} {'req/s' if metric['unit'] == '1/s' else metric['unit']}"


def change_of(metric: Mapping[str, Any]) -> str:
    """The last value beside its reference; `~` where it is within what the rule allows."""
    change = metric["change_pct"]
    if change is None:
        return "-"
    if metric["state"] in ("steady", "few", "none"):
        return "~"
    return f"{change:+.1f}{'%' if metric['name'] not in ('failed', 'attainment') else ' points'}"


def told(series: Mapping[str, Any]) -> Iterator[str]:
    """Steps, breaks, gaps and advice as sentences, the latest last."""
    yield from _latest(steps_of(series), "steps")
    yield from _breaks(series)
    yield from _latest([f"no value on {gap['night']}: {gap['why']}" for gap in series["gaps"]], "gaps")
    if noise := noise_of(series):
        yield f"advice: {noise[0]}; {noise[1]}"


def noise_of(series: Mapping[str, Any]) -> tuple[str, str] | None:
    """What is wrong with a series that scatters too much to find a step in, and its remedy."""
    noisy = [metric for metric in series["metrics"] if metric["noisy"] and metric["judged"]]
    if not noisy:
        return None
    names = ", ".join(f"{metric['name']} {number(metric['sd_pct'], 2)}%" for metric in noisy)
    return (
        f"more than 3% from night to night ({names}) hides steps",
        "run paired nights instead: bench compare --base SPEC --head SPEC --pairs auto",
    )


def _latest(sentences: Sequence[str], what: str) -> Iterator[str]:
    if len(sentences) > MOST_LINES:
        yield f"the latest {MOST_LINES} of {len(sentences)} {what} (all: --format json)"
    yield from sentences[-MOST_LINES:]


def steps_of(series: Mapping[str, Any]) -> list[str]:
    """A sentence for each night on which something stepped, with all that did."""
    nights: dict[str, list[tuple[Mapping[str, Any], Mapping[str, Any]]]] = {}
    for metric in series["metrics"]:
        for step in metric["steps"]:
            nights.setdefault(step["first"], []).append((metric, step))
    return [_step(nights[night]) for night in sorted(nights)]


def _step(together: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> str:
    step = together[0][1]
    which = ", ".join(moved(metric, one) for metric, one in together)
    changes = ", ".join(f"{one['what']} {one['before']} -> {one['after']}" for one in step["changed"][:4])
    before = night_of(step["night_before"], step["commit_before"])
    return (
        f"from {night_of(step['first'], step['commit'])} on, after {before}:"
        f" {which}{f'; changed with it: {changes}' if changes else ''}"
    )


def night_of(at: str, commit: str | None) -> str:
    """A night with its commit."""
    return f"{at} (commit {commit})" if commit else at


def moved(metric: Mapping[str, Any], step: Mapping[str, Any]) -> str:
    """What a step did to a metric."""
    back = "" if step["ended"] is None else f", back on {step['ended']}"
    return f"{metric['name']} {_by(metric, step)} ({_levels(metric, step)}{back})"


def _by(metric: Mapping[str, Any], step: Mapping[str, Any]) -> str:
    loss = step["loss_pct"]
    if loss is None:
        return "overloaded" if step["side"] == "worse" else "no longer overloaded"
    unit = " points" if metric["unit"] == "share" else "%"
    return f"{number(abs(loss), 2)}{unit} {step['side']}"


def _levels(metric: Mapping[str, Any], step: Mapping[str, Any]) -> str:
    values = [step["before"], step["after"]]
    if metric["unit"] == "s" and None not in values:
        unit = unit_of(values)
        return f"{in_unit(values[0], unit)} -> {in_unit(values[1], unit)} {unit}"
    return " -> ".join("overloaded" if value is None else value_of(metric, value) for value in values)


def _breaks(series: Mapping[str, Any]) -> Iterator[str]:
    """Where the series is not connected; in one sentence where that is nearly everywhere."""
    if len(series["breaks"]) <= MOST_BREAKS:
        yield from (break_of(one) for one in series["breaks"])
        return
    times = Counter(change["what"] for one in series["breaks"] for change in one["changed"])
    which = ", ".join(f"{what} {count(n, 'time')}" for what, n in times.most_common(4))
    yield (
        f"{len(series['breaks'])} of {series['nights']} nights cannot be compared with the one before ({which}): "
        "give every night the same options and --seed, and the same machine"
    )


def break_of(one: Mapping[str, Any]) -> str:
    """What changed on a night across which nothing is compared."""
    changes = ", ".join(f"{c['what']} {c['before']} -> {c['after']}" for c in one["changed"][:4])
    return f"not compared across {one['night']}: {changes}"


def footnotes(series: Mapping[str, Any]) -> Iterator[str]:
    """What the marks of a table mean."""
    if any(not metric["judged"] for metric in series["metrics"]):
        yield f"{SHOWN} shown, never judged: it says little far below capacity, or scatters much"


def end(info: Mapping[str, Any]) -> str:
    """What follows from the state, and what to do next."""
    if info["state"] == "regressed":
        if all(series["exact"] for series in info["series"] if any(map(is_open, series["metrics"]))):
            return (
                "A virtual clock has no noise, so the step is one of the system; its cause: bench compare NIGHT NIGHT"
            )
        return (
            "A step was called after two nights in a row. Runs of different nights differ by more than the systems; "
            "to be sure, compare both commits side by side: bench compare --base SPEC --head SPEC --pairs auto"
        )
    if info["state"] == "longer":
        return "Answers became longer, which is more work: no speed is comparable with the nights before."
    if info["state"] == "invalid":
        return "No night has a valid run, so nothing can be told; see its report: bench report NIGHT"
    if info["state"] == "missing":
        return "The last night has no valid run, or not every value; see its report: bench report NIGHT"
    if info["state"] == "incomparable":
        return "No night could be held to the nights before it, because something changed that must not (see above)."
    if info["state"] == "few":
        return (
            f"Nothing can be told yet: a value is held to the median of {info['rule']['reference']} nights before it."
        )
    return "No step that lasts: worse by more than 5% and 3 robust standard deviations on two nights in a row."


_SERIES = 12
_DRAWN, _DRAWN_OF_MANY = 10_000, 5_000
"""Values that are drawn on a page of at most `_SERIES` series, and of more, whose tables take the rest of its room."""
_ROWS = 160
_WEEK, _MONTH = 7, 31


@dataclass(frozen=True, slots=True)
class Room:
    """Nights that are drawn of a series, rows of each table of nights, and whether unjudged metrics are drawn."""

    nights: int
    rows: int
    shown: bool


def room(info: Mapping[str, Any]) -> Room:
    """What a page has room for. Of many series the last month and a week of rows are always there."""
    series = info["series"]
    shown = len(series) <= _SERIES
    panels = sum(shown or bool(metric["judged"]) for one in series for metric in one["metrics"])
    return Room(
        nights=min(MOST_NIGHTS, max(_MONTH, (_DRAWN if shown else _DRAWN_OF_MANY) // max(1, panels))),
        rows=min(MOST_ROWS, max(_WEEK, _ROWS // max(1, len(series)))),
        shown=shown,
    )
