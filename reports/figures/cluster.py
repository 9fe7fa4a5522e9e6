"""The replicas of a cluster over the run: load, roles and states, migrations, failures, and what the router holds."""

from itertools import groupby, pairwise

import numpy as np
import plotly.graph_objects as go
import pyarrow as pa

from harness.data.folder import Run
from harness.data.lists import number
from harness.data.records import ACTIONS
from reports import _cluster, _data, _format
from reports._cluster import Stay
from reports._format import in_figure
from reports.figures import style
from reports.figures.style import Look
from reports.figures.timeline import NO_STEPS, SINCE
from reports.figures.traffic import stretch

ALIKE = "All replicas are alike, and the router only routes: there are no roles, migrations or failures to draw."
_STRETCHES = 160
_MOST = 32
"""Replicas that are drawn."""

_MIGRATED = ("migrate", "requeue")
_MOVES = 400
"""Migrations that are drawn."""

_ROLES = {"mixed": style.GREEN, "prefill": style.VERMILLION, "decode": style.BLUE, "encode": style.PURPLE}
_DASHES = {"up": "solid", "starting": "dot", "draining": "dash"}
_STRIP = 0.44
"""How far above its middle the role of a lane is drawn, in lanes."""

_GROUND = {"line": {"color": style.HALO, "width": 1.0}}
_MOVED = Look(style.PURPLE, width=1.0)
_ABORTED, _FAILED = Look(style.OCHRE, symbol="cross"), Look(style.VERMILLION, symbol="x")


def cluster(run: Run) -> go.Figure | str:
    """A lane for each replica: requests as shades, its role and state as a line above them, migrations across."""
    if not _cluster.shown(run):
        return ALIKE
    if not _data.has_steps(run):
        return NO_STEPS
    stays, until_s = _cluster.stays(run), _cluster.end_s(run)
    if not stays or until_s <= 0:
        return _data.EMPTY
    replicas, total = _drawn(stays)
    lanes = {replica: lane for lane, replica in enumerate(replicas)}
    held = _cluster.done(run).keys() & {"hold", "reject"}
    lane_px = 30 if len(replicas) <= 12 else 18
    heights = [lane_px * len(replicas), *([110] if held else [])]
    drawn = style.panels(heights, 150 + sum(heights) + 40 * bool(held), spacing=0.12 if held else 0.05)
    edges_s = np.linspace(0.0, until_s, _STRETCHES + 1)
    found = _cluster.load(run, dict.fromkeys(replicas, edges_s))
    load = np.stack([requests for requests, _ in found.values()])  # (lanes, stretches)
    _shades(drawn, edges_s, load, [[s for s in stays if s.replica == replica] for replica in replicas], bool(held))
    _strips(drawn, [stay for stay in stays if stay.replica in lanes], lanes)
    notes = [f"The first {len(replicas)} of {total} replicas are drawn, those that changed before others."
             if len(replicas) < total else "", _moves(drawn, run, lanes, until_s)]  # fmt: skip
    y = style.axis("replica", tickvals=list(lanes.values()), ticktext=[f"{r}" for r in lanes], showgrid=False,
                   range=[len(lanes) - 0.4, -0.75], tickfont={"size": 11})  # fmt: skip
    style.axes(drawn, style.axis("" if held else SINCE, range=[0.0, 1.01 * until_s]), y, 1)
    if held:
        notes.append(_router(drawn, run, until_s))
        style.axes(
            drawn,
            style.axis(SINCE, range=[0.0, 1.01 * until_s]),
            style.axis("requests at<br>the router", rangemode="tozero"),
            2,
        )
    width = _format.seconds(until_s / _STRETCHES)
    notes += [f"Shades: requests, running and waiting, in the mean of a stretch of {width}.", _data.warmed_up(run)]
    return style.done(drawn, _finding(stays, load), notes, _table(run, stays))


def _drawn(stays: list[Stay]) -> tuple[list[int], int]:
    """The replicas to draw, those that change first, and how many there are."""
    several = {a.replica for a, b in pairwise(stays) if a.replica == b.replica}
    every = list(dict.fromkeys(stay.replica for stay in stays))
    return sorted(sorted(every, key=lambda replica: replica not in several)[:_MOST]), len(every)


def _shades(drawn: go.Figure, edges_s: np.ndarray, load: np.ndarray, stays: list[list[Stay]], held: bool) -> None:
    """The load of each lane; nothing where the replica is not up."""
    middle = (edges_s[:-1] + edges_s[1:]) / 2
    up = np.array([
        np.any([(s.from_s <= middle) & (middle < s.to_s) & (s.state != "down") for s in own], axis=0) for own in stays
    ])  # fmt: skip
    z = np.where(up, load, np.nan)
    bar = {"title": {"text": "requests", "side": "top"}, "thickness": 12, "outlinewidth": 0,
           **({"len": 0.62, "y": 1.0, "yanchor": "top"} if held else {"len": 0.9})}  # fmt: skip
    drawn.add_heatmap(
        x=edges_s, y=np.arange(len(stays)), z=z, name="requests", colorscale=style.SHADES, zmin=0.0,
        zmax=max(1.0, float(load.max())), hoverongaps=False, ygap=8, colorbar=bar, row=1, col=1,
        hovertemplate="%{x:.1f} s, replica %{y}: %{z:.3r} requests",
    )  # fmt: skip


def _strips(drawn: go.Figure, stays: list[Stay], lanes: dict[int, int]) -> None:
    """A line for each role and state, at the upper edge of its lanes."""
    for role, state in dict.fromkeys((s.role, s.state) for s in stays if s.state in _DASHES):
        ours = [s for s in stays if (s.role, s.state) == (role, state)]
        x = np.array([[s.from_s, s.to_s, np.nan] for s in ours]).ravel()
        y = np.repeat([lanes[s.replica] - _STRIP for s in ours], 3)
        name = in_figure(role if state == "up" else f"{role}, {state}")
        look = Look(_ROLES.get(role, style.GREY), _DASHES[state], width=4.0)
        style.curve(drawn, x, y, name, look, f"%{{x:.2f}} s: {name}", row=1, mode="lines", meta=style.MARKS)


def _moves(drawn: go.Figure, run: Run, lanes: dict[int, int], until_s: float) -> str:
    """Lines from source to target for migrations, and marks for those aborted and for failures."""
    done = _cluster.done(run)
    note = ""
    moved = [done[kind].rows for kind in _MIGRATED if kind in done]
    if moved:
        stop_s, end_s, source, target = (
            np.concatenate([number(rows, name) for rows in moved]) for name in ("stop_s", "end_s", "replica", "target")
        )
        ours = np.flatnonzero(np.isin(source, [*lanes]) & np.isin(target, [*lanes]))
        kept = ours[np.argsort(stop_s[ours], kind="stable")][style.evenly(len(ours), _MOVES)] if len(ours) else ours
        x = np.column_stack([stop_s[kept], end_s[kept], np.full(len(kept), np.nan)]).ravel()
        ends = [np.array([lanes[int(r)] for r in of[kept]], np.float64) for of in (source, target)]
        y = np.column_stack([*ends, np.full(len(kept), np.nan)]).ravel()
        style.curve(drawn, x, y, "migration", _MOVED, "%{x:.2f} s: migration", row=1,
                    size=np.tile([0.0, 7.0, 0.0], len(kept)), marker=_GROUND, meta=style.MARKS)  # fmt: skip
        reduced = style.reduced(len(ours), len(kept), "migrations", "evenly chosen")
        note = f"A migration ends with a dot. {reduced}".strip()
    for kind, name, look in (("abort", "aborted migration", _ABORTED), ("failed", "failure", _FAILED)):
        if kind in done:
            at_s, replica = number(done[kind].rows, "end_s"), number(done[kind].rows, "replica")
            ours = np.flatnonzero(np.isin(replica, [*lanes]) & (at_s <= until_s))
            y = np.array([lanes[int(r)] for r in replica[ours]])
            style.curve(drawn, at_s[ours], y, name, look, f"%{{x:.2f}} s: {name}", row=1, mode="markers", size=9,
                        marker=_GROUND, meta=style.MARKS)  # fmt: skip
    return note


def _router(drawn: go.Figure, run: Run, until_s: float) -> str:
    """Requests that the router holds at a time, and those that it rejects in stretches of it."""
    done, note = _cluster.done(run), ""
    if "hold" in done:
        from_s, to_s = (number(done["hold"].rows, name) for name in ("at_s", "end_s"))
        at_s = np.concatenate([from_s, to_s])
        order = np.argsort(at_s, kind="stable")
        held = np.cumsum(np.repeat([1, -1], len(from_s))[order])
        kept = style.extremes([held])
        x, y = np.append(np.append(0.0, at_s[order][kept]), until_s), np.append(np.append(0, held[kept]), 0)
        style.curve(drawn, x, y, "held", Look(style.PURPLE, width=1.5), "%{x:.2f} s: %{y:,} held", row=2, mode="lines",
                    step="hv")  # fmt: skip
    if "reject" in done:
        at_s = number(done["reject"].rows, "at_s")
        width = stretch(until_s, 4 * _STRETCHES, _STRETCHES // 2)
        counts = np.bincount((at_s // width).astype(np.int64))
        x, y = np.arange(len(counts) + 1) * width, np.append(counts, 0)
        style.curve(drawn, x, y, "rejected", Look(style.OCHRE, "dash", width=1.5), "%{x:.2f} s: %{y:,} rejected", row=2,
                    mode="lines", step="hv")  # fmt: skip
        note = f"Rejected requests are counted per {_format.limit(width)}."
    return note


def _finding(stays: list[Stay], load: np.ndarray) -> str:
    least, most = (_format.number(float(value)) for value in (load.mean(axis=1).min(), load.mean(axis=1).max()))
    busiest = _format.number(float(load.max()))
    return style.finding({
        "Replicas": [f"{len({stay.replica for stay in stays})}"],
        "requests on one of them": [f"{least} to {most} in the mean of the run", f"{busiest} in a stretch at most"],
    })  # fmt: skip


def _table(run: Run, stays: list[Stay]) -> style.Table:
    """Replicas in their roles and states: how long, with how many requests, and the migrations meanwhile."""
    done = _cluster.done(run)
    moved = pa.concat_tables(done[kind].rows if kind in done else ACTIONS.empty_table() for kind in _MIGRATED)
    at_s = number(moved, "end_s")
    own = {replica: [*of] for replica, of in groupby(stays[: style.MOST_ROWS], key=lambda stay: stay.replica)}
    load = _cluster.load(run, {replica: np.array([of[0].from_s, *(s.to_s for s in of)]) for replica, of in own.items()})
    rows = []
    for replica, of in own.items():
        for stay, requests, busy in zip(of, *load[replica].tolist(), strict=True):
            meanwhile = (at_s >= stay.from_s) & (at_s < stay.to_s)
            away, here = (np.sum(meanwhile & (number(moved, end) == replica)) for end in ("replica", "target"))
            during = map(_format.number, (stay.from_s, stay.to_s))
            ran = ("-", "-") if stay.state == "down" else (_format.number(requests), _format.share(busy))
            rows.append(
                [f"{replica}", _format.clean(stay.role, 40), stay.state, *during, *ran, f"{away:,}", f"{here:,}"]
            )
    heads = ["replica", "role", "state", "from (s)", "to (s)", "requests (mean)", "in steps", "migrated away",
             "migrated here"]  # fmt: skip
    which = f"all {len(stays)}" if len(rows) == len(stays) else f"the first {len(rows)} of {len(stays)}"
    return heads, rows, len(stays), f"{which} roles and states of the replicas"
