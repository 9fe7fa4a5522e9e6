"""Which phase made the requests miss the SLO: a cause for every miss, by one rule."""

import plotly.graph_objects as go

from harness.data.folder import Run
from reports import _data, _format, _stages, _tables
from reports._format import in_figure
from reports.figures import _phases
from reports.figures import _style as style

ORDER = 13
OF = "run"
SECTION = "figures"
TITLE = "What made requests miss the SLO"
UNBOUND = "The run had no bound on single requests; give --slo ttft=0.25,tpot=0.1 to see what makes requests miss it."
NONE = "No request missed the SLO, so there are no causes to tell apart; a higher --rate or a tighter --slo shows them."
_LOOK = {_tables.PREEMPTED: "preempted", _tables.UNKNOWN: "unknown (no stamps)"}
_FAILED = _phases.Look("", style.GREY, "-")


def figure(run: Run) -> go.Figure | str:
    """Bars of the share of the misses that each cause has (%), the greatest first."""
    if run.requests.num_rows == 0:
        return _data.EMPTY
    found = _tables.causes(run)
    if found is None:
        return UNBOUND
    if not found:
        return NONE
    total = sum(found.values())
    drawn = style.new(130 + 42 * len(found))
    names = [name(cause) for cause in found]
    shares = _format.shares(list(found.values()))
    drawn.add_bar(
        x=[count / total * 100.0 for count in found.values()], y=names, orientation="h", name="share of the misses",
        text=[f"{share} ({count:,})" for share, count in zip(shares, found.values(), strict=True)],
        textposition="outside", textfont={"size": 12}, cliponaxis=False, meta=style.MARKS,
        marker={"color": style.faint(style.VERMILLION), "line": {"color": style.VERMILLION, "width": 1.5}},
        hovertemplate="%{y}: %{text}",
    )  # fmt: skip
    room = 1.35 * max(found.values()) / total * 100.0  # for the text behind the longest bar
    drawn.update_layout(showlegend=False, bargap=0.35)
    drawn.update_xaxes(
        style.axis("share of the requests that missed (%)", range=[0, room], tickvals=[0, 20, 40, 60, 80, 100])
    )
    drawn.update_yaxes(style.axis("cause", type="category", categoryorder="array", categoryarray=names[::-1]))
    rows = [[cause, f"{count:,}", share] for cause, count, share in zip(names, found.values(), shares, strict=True)]
    table = ["cause", "requests", "share of the requests that missed"], rows, len(rows), f"all {len(rows)} causes"
    apart = [] if _stages.QUEUE in found or _stages.FIRST not in found else [_stages.UNTOLD]
    parts = [f"{cause} {share}" for cause, share in zip(names, shares, strict=True)][:4]
    all_requests = f"{run.requests.num_rows:,}"
    finding = f"{_format.count(total, 'request')} of {all_requests} missed the SLO, because of: {', '.join(parts)}."
    return style.done(drawn, finding, [_tables.RULE, *apart], table)


def name(cause: str) -> str:
    """How a cause is called: a phase, preemption, or how the request failed."""
    if cause in _phases.LOOKS:
        return _phases.LOOKS[cause].name
    return _LOOK.get(cause) or f"failed ({in_figure(cause)})"
