"""Gaps between requests as planned and as sent, against the law that the arrivals declare."""

import numpy as np
import plotly.graph_objects as go

from harness.data.folder import Run
from harness.data.run_json import Fidelity
from reports import _data, _format
from reports.figures import _gaps, _reduce
from reports.figures._gaps import Tail

ORDER = 13
OF = "run"
SECTION = "fidelity"
TITLE = "Gaps between the requests"
CLOSED = "No gaps are drawn: in a closed loop requests come when answers come, so their gaps are those of the system."
NO_LAW = "The arrivals declare no law of their gaps"


def figure(run: Run) -> go.Figure | str:
    """Share of gaps that are longer, on two log axes: in seconds, or in operational time where the law is of that."""
    if run.requests.num_rows == 0:
        return _data.EMPTY
    told, times = run.info.fidelity, _data.sending(run)
    if times.closed:
        return CLOSED
    tick_s = told.tick_s
    if isinstance(tick_s, int | float):
        return _gaps.on_grid(float(tick_s))
    law = _law(told)
    if law is not None and told.law == "operational":
        drawn, declared = law
        said = f"Once the declared changes of the rate are taken out, gaps are {_distance(told)}."
        return _gaps.figure([drawn], declared, said, [], operational=True)
    gaps = [(name, np.diff(values)) for name, values in (("planned", times.planned), ("sent", times.sent))]
    gaps = [(name, found) for name, found in gaps if np.sum(found > 0) >= _gaps.FEWEST]
    if not gaps:
        return _gaps.FEW
    tails = [_gaps.survival(name, found) for name, found in gaps]
    end = f"; they are {_distance(told)}" if law is not None else f". {NO_LAW}" if told.law == "none" else ""
    said = _gaps.told(gaps[0][1], operational=False) + end + "."
    notes = [_reduce.note(sum(len(g) for _, g in gaps), sum(len(t.gaps) for t in tails), "gaps", _reduce.RANKS)]
    return _gaps.figure(tails, None if law is None else law[1], said, notes, operational=False)


def _law(told: Fidelity) -> tuple[Tail, Tail] | None:
    """What was drawn and what was declared, where both were kept."""
    kept = told.gaps
    if kept is None or not kept.at or not len(kept.at) == len(kept.drawn) == len(kept.declared):
        return None
    at, drawn, declared = (np.asarray(values, np.float64) for values in (kept.at, kept.drawn, kept.declared))
    return Tail("planned", at, drawn), Tail("declared law", at, declared)


def _distance(told: Fidelity) -> str:
    if told.ks is None or told.ks_p is None:
        return "at an unknown distance from their declared law"
    return f"{_format.number(told.ks, 2)} from their declared law (KS, p {_format.probability(told.ks_p)})"
