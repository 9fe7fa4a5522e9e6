"""Where the time of a request goes as the rate grows: phases stacked to 100%, from the stored requests.

After figure 10 of DistServe (OSDI 2024).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import plotly.graph_objects as go

from reports import _format, _stages
from reports.figures import _phases, _stacked, _systems
from reports.figures import _style as style
from reports.figures._systems import Group
from reports.study import runs

if TYPE_CHECKING:
    from reports.study import Study

ORDER = 9
OF = "study"
SECTION = "time"
TITLE = "Where the time of a request goes, by rate"
NONE = "No run has ended, so there is no time to tell apart."


def figure(study: Study) -> go.Figure | str:
    """Percent of the time of the requests in each phase, by rate with a panel for each system, or by system."""
    groups = _systems.groups(study)
    found = []
    for group in groups:
        told = {name: runs.phases(runs.of(study, point)) for name, point in group.points.items()}
        if shares := {name: one for name, one in told.items() if one is not None}:  # whose runs can be read
            found.append((group, shares))
    if not found:
        return runs.GONE if groups else NONE
    percents = [
        (group, {name: dict(zip(one.keys, one.summed_percent, strict=True)) for name, one in shares.items()})
        for group, shares in found
    ]
    drawn = _stacked.figure(study, percents, "time (%)", _phases.LOOKS.__getitem__, top=100.5)
    apart = all(_stages.QUEUE in one.keys for _, shares in found for one in shares.values())
    notes = ["Time of all requests taken together.", _stages.RULE if apart else _stages.UNTOLD,
             runs.seeds_note(study, [p for group in groups for p in group.points.values()]),
             _systems.no_panel(study, [group for group, _ in found])]  # fmt: skip
    return style.done(drawn, _finding(*found[0]), notes)


def _finding(group: Group, shares: dict[str, _stages.Shares]) -> str:
    [(low, first), (high, last)] = [list(shares.items())[i] for i in (0, -1)]
    most = max(last.keys, key=lambda key: _of(last, key) - (_of(first, key) if len(shares) > 1 else 0.0))
    if not group.unit or len(shares) == 1:
        texts = [f"{_format.share(_of(one, most))} at {label}" for label, one in shares.items()]
        return f"{_phases.LOOKS[most].name.capitalize()} is {', '.join(texts[:4])} of all time of the requests."
    ends = f"{_format.share(_of(first, most))} to {_format.share(_of(last, most))} of all time of the requests"
    prefix = f"{group.name}: from" if group.name else "From"
    return f"{prefix} {low} to {high} {group.unit} {_phases.LOOKS[most].name} grows most: from {ends}."


def _of(shares: _stages.Shares, key: str) -> float:
    return shares.summed_percent[shares.keys.index(key)] / 100 if key in shares.keys else 0.0
