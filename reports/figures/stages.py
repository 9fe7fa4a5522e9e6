"""Where the time of the requests went, by how long their first token took: seconds and percent per phase."""

import numpy as np
import plotly.graph_objects as go

from harness.data.folder import Run
from reports import _data, _format, _stages
from reports.figures import _phases
from reports.figures import _style as style

ORDER = 9
OF = "run"
SECTION = "figures"
TITLE = "Where the time of the requests went"
NONE = (
    "No request ended well with the times of its sending, first and last token, of which phases are told; the counts "
    "by status and the errors say more."
)
_GROUPS = (("fastest half", 0.0, 0.5), ("next 40%", 0.5, 0.9), ("next 9%", 0.9, 0.99), ("slowest 1%", 0.99, 1.0))
_LEAST = 100
"""From this many requests on they are grouped, so that one stands for the slowest hundredth."""


def figure(run: Run) -> go.Figure | str:
    """Bars of mean seconds before the first token, above bars of percent of the whole time, stacked by phase."""
    if run.requests.num_rows == 0:
        return _data.EMPTY
    found = _stages.of(run)
    if found is None:
        return NONE
    seconds = found.of_known()
    groups = _groups(_data.metric(run, "ttft")[found.known])
    shares = [_stages.shares_of(found.keys, seconds[:, chosen]) for chosen in groups.values()]
    names = [f"{name}<br>n = {s.requests:,}" for name, s in zip(groups, shares, strict=True)]
    drawn = style.panels([0.5, 0.5], 600, spacing=0.08)
    for i, key in enumerate(found.keys):
        percent = [s.percent[i] for s in shares]
        if not any(value > 0 for value in percent):
            continue
        before = key not in (_stages.HANDOFF, _stages.STALL, _stages.DECODE)
        if before:
            _bars(drawn, 1, names, [s.mean_s[i] for s in shares], key, legend=False)
        _bars(drawn, 2, names, percent, key, legend=True)
    drawn.update_layout(barmode="stack", bargap=0.35)
    drawn.update_yaxes(style.axis("mean time before<br>the first token (s)", rangemode="tozero"), row=1, col=1)
    drawn.update_yaxes(style.axis("time of a request (%)", range=[0, 100.5]), row=2, col=1)
    drawn.update_xaxes(style.axis("", type="category"), row=1, col=1)
    drawn.update_xaxes(style.axis("requests by their TTFT (n = requests)", type="category"), row=2, col=1)
    notes = ["Percentages are means of those of the single requests."]
    notes.append(_stages.RULE if found.apart else _stages.UNTOLD)
    return style.done(drawn, _finding(found.keys, _stages.shares_of(found.keys, seconds), shares[-1]), notes)


def _groups(ttft: np.ndarray) -> dict[str, np.ndarray]:
    """Indices of the requests of each group, the fastest first."""
    order = np.argsort(ttft, kind="stable")
    if len(order) < _LEAST:
        return {"all requests": order}
    return {name: order[round(a * len(order)) : round(b * len(order))] for name, a, b in _GROUPS}


def _bars(drawn: go.Figure, row: int, names: list[str], values: list[float], key: str, *, legend: bool) -> None:
    look = _phases.LOOKS[key]
    unit = " s" if row == 1 else "%"
    drawn.add_bar(
        x=names, y=values, row=row, col=1, name=look.name, legendgroup=key, showlegend=legend,
        marker=_phases.marker(key), hovertemplate=f"{look.name}: %{{y:.3r}}{unit}",
    )  # fmt: skip


def _finding(keys: tuple[str, ...], whole: _stages.Shares, slowest: _stages.Shares) -> str:
    order = sorted(range(len(keys)), key=lambda i: -whole.summed_percent[i])
    text = ", ".join(f"{_share(whole.summed_percent[i])} is {_phases.LOOKS[keys[i]].name}"
                     for i in order if whole.summed_percent[i] >= 0.05)  # fmt: skip
    before = [
        i for i, key in enumerate(keys) if key in (_stages.LATENESS, _stages.QUEUE, _stages.FIRST, _stages.PREFILL)
    ]
    most = max(before, key=lambda i: slowest.mean_s[i])
    if slowest.requests == whole.requests:
        return f"Of all time of the requests {text}."
    ttft = sum(slowest.mean_s[i] for i in before)
    part = _share(slowest.mean_s[most] / max(ttft, 1e-12) * 100)
    return (
        f"Of all time of the requests {text}; of the slowest hundredth of the first tokens, {_format.seconds(ttft)} "
        f"in the mean, {part} is {_phases.LOOKS[keys[most]].name}."
    )


def _share(percent: float) -> str:
    return _format.share(percent / 100.0)
