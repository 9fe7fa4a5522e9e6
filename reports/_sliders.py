"""Sliders that score stored requests again on the page: bounds on TTFT and on TPOT, and the scale of the whole SLO.

What they show equals what `bench slo` prints for the same bounds, because both count the same requests.
"""

from typing import Any

import numpy as np

from harness.api import Slo
from harness.data.folder import Run
from harness.metrics import slo as slos
from reports import _data, _format, _page, _replay, figures
from reports._format import clean, quoted
from reports._page import Part
from reports._replay import Axis, Cells, Rate, Replay, Scored
from reports.document import Table
from reports.figures import scale
from reports.figures.planes import FOLLOWS
from reports.study.runs import Study

KEY, CURVE = "sliders", "sliders_rate"
TITLE = "Other bounds, scored again"
GROWN = "Where a queue grew all through a run, fewer requests would meet the bounds in a longer one."
FACTORS = (0.5, 0.8, 1.0, 1.2, 1.5, 2.0)
"""SLO scales of the table that needs no script."""
NEAR = (0.5, 0.8, 1.0, 1.5, 2.0)
"""Bounds of that table, as multiples of the SLO's own."""


def of_run(run: Run) -> Part | None:
    """The sliders of a run (without the requests before its cut); None where it tells neither TTFT nor TPOT."""
    found = _replay.of_run(run)
    if isinstance(found, str):
        return None
    places, counted = found
    objective, grown = _data.slo(run), run.info.verdict.grew
    replay = Replay(
        objective, (objective.goal,), places, (Scored("", 1.0, (Rate(1.0, (counted,), int(grown)),)),), "req/s"
    )
    if not _moving(replay):
        return None
    return _part(replay, f"bench slo {quoted(run.path)}", {"plane": {"key": "slo_plane", "name": FOLLOWS}})


def of_study(study: Study, *paths: str) -> tuple[Part, ...]:
    """The sliders of runs at several rates, the curve that follows them, and what else the stored runs tell.

    `paths` is what `bench slo` is to be given for the same runs.
    """
    replay = _replay.of_study(study)
    if isinstance(replay, str):
        return (_page.part(KEY, TITLE, replay),)
    curve = _page.part(CURVE, "Attainment against rate under these bounds", scale.followed(replay))
    rows = figures.of("study")
    more = [_page.part(key, rows[key].title, rows[key].draw(study)) for key in ("capacity_plane", "slo_scale_rates")]
    if not _moving(replay):
        return tuple(more)
    marks: dict[str, object] = {"plane": {"key": "capacity_plane", "name": FOLLOWS}}
    if curve.data:
        marks["curve"] = {"key": CURVE, "traces": scale.followed_traces(replay)}
    command = " ".join(["bench slo", *map(quoted, paths)])
    return (_part(replay, command, marks), *([curve] if curve.data else []), *more)


def _moving(replay: Replay) -> bool:
    return bool(replay.grid.factors) or any(axis.limits_s for axis in replay.grid.axes)


def _part(replay: Replay, command: str, marks: dict[str, object]) -> Part:
    one = len(replay.systems) == 1 and len(replay.systems[0].rates) == 1 and len(replay.systems[0].rates[0].runs) == 1
    found: list[dict[str, object]] = [
        {"name": axis.metric, "label": f"{_data.label(axis.metric)} at most", "last": len(axis.limits_s),
         "start": axis.start}
        for axis in replay.grid.axes if axis.limits_s
    ]  # fmt: skip
    factors = replay.grid.factors
    if factors:
        last = len(factors) - 1
        found.append({"name": "scale", "label": "all bounds of the SLO", "last": last, "start": factors.index(1.0)})
    markup = _page.markup(
        "sliders.html.j2",
        key=KEY,
        sliders=found,
        back="Back to the SLO",
        means="" if one else ", mean over the seeds",
        heads=_heads(replay, one=one),
        few=_few_of_run(replay) if one else _few_of_rates(replay),  # for readers without a script
    )
    caption = _caption(replay)
    return Part(KEY, TITLE, caption, caption, 0, None, {"key": KEY, KEY: _content(replay, command, marks, one)}, markup)


def _heads(replay: Replay, *, one: bool) -> list[str]:
    if one:
        return ["objective", "within", "goodput (req/s)"]
    return ["rate (req/s)", "runs", "within", "goodput (req/s)",
            *(f"{_data.label(axis.metric)} only" for axis in replay.grid.axes)]  # fmt: skip


def _caption(replay: Replay) -> str:
    rest = _rest(replay)
    texts = [
        "The sliders count the stored requests again under other bounds; nothing is run.",
        "At its right end a slider stands for no bound.",
        f"{clean(rest, 200)} stays as it is." if rest else "",
        "Bounds that requests bring along stay as they are; the scale moves them too." if replay.grid.own else "",
        _replay.PERCENTILE if replay.open else "",
        f"{_format.count(replay.invalid, 'run')} not valid: bench slo counts them, this page does not."
        if replay.invalid
        else "",
        GROWN if any(rate.overloaded for system in replay.systems for rate in system.rates) else "",
        f"{_format.count(replay.unread, 'run')} could not be read." if replay.unread else "",
        f"{_format.count(replay.without, 'system')} not here: no runs of it are stored." if replay.without else "",
    ]
    return " ".join(text for text in texts if text)


def _rest(replay: Replay) -> str:
    """What of the SLO no slider moves: bounds of classes, of other metrics, on percentiles."""
    moved = {(axis.metric, axis.own_s) for axis in replay.grid.axes}
    held = tuple(b for b in replay.slo.bounds if b.tag or b.percentile or (b.metric, b.limit) not in moved)
    return slos.text(Slo(held))


def _content(replay: Replay, command: str, marks: dict[str, object], one: bool) -> dict[str, object]:
    """What the script of the page works with."""
    goals = [
        {"share": goal, "text": f"{goal * 100:g}%", "digits": max(1, len(f"{goal * 100:g}".partition(".")[2]))}
        for goal in replay.goals
    ]
    return {
        "one": one,
        "open": replay.open,
        "command": command,
        "named": replay.named,
        "goal_option": "" if len(goals) == 1 else f" --goal {','.join(str(goal['text']) for goal in goals)}",
        "axes": [{"metric": a.metric, "limits": list(a.limits_s), "start": a.start} for a in replay.grid.axes],
        "factors": list(replay.grid.factors),
        "rest": _rest(replay),
        "goals": goals,
        "systems": [
            {
                "name": clean(system.name, 60),
                "share": system.share,
                "points": [
                    {
                        "rate": rate.rate_rps,
                        "requests": rate.requests,
                        "overloaded": rate.overloaded,
                        "runs": [_run(run) for run in rate.runs],
                    }
                    for rate in system.rates
                ],
            }
            for system in replay.systems
        ],
        **marks,
    }


def _run(run: Cells) -> dict[str, Any]:
    """A run as the page holds it: its filled cells, each as the distance from the one before, and their counts."""
    filled = np.flatnonzero(run.counts)
    return {
        "n": run.requests,
        "per": run.per_s if np.isfinite(run.per_s) else None,
        "at": np.diff(filled, prepend=0).tolist(),
        "counts": run.counts.ravel()[filled].tolist(),
        "scaled": run.scaled.tolist(),
        "alone": [
            {"n": alone.requests, "counts": alone.counts.tolist(),
             "scaled": None if alone.scaled is None else alone.scaled.tolist()}
            for alone in run.alone
        ],
    }  # fmt: skip


def _few_of_run(replay: Replay) -> Table:
    run = replay.systems[0].rates[0].runs[0]
    down, across = (_near(axis) for axis in replay.grid.axes)
    ttft, tpot = replay.grid.axes
    rows = []
    for i in down:
        within = [_replay.at(run, i, j) for j in across]
        rows.append((_bound(ttft, i), *(
            f"{_format.number(float(run.goodput_rps(np.array(met))))} "
            f"({_format.share(met / run.requests, replay.goals[0])})" for met in within
        )))  # fmt: skip
    heads = ("TTFT bound, and TPOT bound:", *(_bound(tpot, j) for j in across))
    return Table("Goodput in req/s (requests within) under pairs of bounds", heads, tuple(rows))


def _few_of_rates(replay: Replay) -> Table:
    factors = [i for i, factor in enumerate(replay.grid.factors) if factor in FACTORS]
    heads = ("rate (req/s)", *(f"scale {replay.grid.factors[i]:g}" for i in factors))
    rows = []
    for system in replay.systems:
        head = f"{clean(system.name, 60)}: " if replay.named else ""
        for rate in system.rates:
            shares = [rate.mean(lambda run, i=i: _replay.scaled(run, i) / run.requests) for i in factors]  # type: ignore[misc]
            rows.append((f"{head}{_format.number(rate.rate_rps)}", *map(_format.share, shares)))
    return Table("Requests within every bound of the SLO times a scale, mean over the seeds", heads, tuple(rows))


def _near(axis: Axis) -> list[int]:
    """Positions near multiples of the SLO's own bound, or evenly chosen ones, and none."""
    n = len(axis.limits_s)
    if not n:
        return [0]
    if axis.own_s is None:
        return sorted({*np.linspace(0, n - 1, min(n, len(NEAR))).astype(int).tolist(), n})
    wanted = [axis.own_s * factor for factor in NEAR]
    return sorted({int(np.argmin(np.abs(np.log(np.array(axis.limits_s) / limit_s)))) for limit_s in wanted})


def _bound(axis: Axis, place: int) -> str:
    return _format.limit(axis.limits_s[place]) if place < len(axis.limits_s) else "no bound"
