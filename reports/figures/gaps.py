"""Gaps between requests as planned and as sent, against the law that the arrivals declare."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import plotly.graph_objects as go

from harness.data.folder import Run
from reports import _data, _format
from reports._system import part
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
    told, times = part(run.info, "fidelity"), _data.sending(run)
    if times.closed:
        return CLOSED
    tick_s = told.get("tick_s")
    if isinstance(tick_s, int | float):
        return _gaps.on_grid(float(tick_s))
    law = _law(told)
    if law is not None and told.get("law") == "operational":
        drawn, declared = law
        said = f"Once the declared changes of the rate are taken out, gaps are {_distance(told)}."
        return _gaps.figure([drawn], declared, said, [], operational=True)
    gaps = [(name, np.diff(values)) for name, values in (("planned", times.planned), ("sent", times.sent))]
    gaps = [(name, found) for name, found in gaps if np.sum(found > 0) >= _gaps.FEWEST]
    if not gaps:
        return _gaps.FEW
    tails = [_gaps.survival(name, found) for name, found in gaps]
    end = f"; they are {_distance(told)}" if law is not None else f". {NO_LAW}" if told.get("law") == "none" else ""
    said = _gaps.told(gaps[0][1], operational=False) + end + "."
    notes = [_reduce.note(sum(len(g) for _, g in gaps), sum(len(t.gaps) for t in tails), "gaps", _reduce.RANKS)]
    return _gaps.figure(tails, None if law is None else law[1], said, notes, operational=False)


def _law(told: Mapping[str, Any]) -> tuple[Tail, Tail] | None:
    """What was drawn and what was declared, where both were kept."""
    kept = part(told, "gaps")
    columns = [values for name in ("at", "drawn", "declared") if isinstance(values := kept.get(name), list) and values]
    if len(columns) < 3 or len({len(values) for values in columns}) > 1:
        return None
    at, drawn, declared = (np.asarray(values, np.float64) for values in columns)
    return Tail("planned", at, drawn), Tail("declared law", at, declared)


def _distance(told: Mapping[str, Any]) -> str:
    ks, p = told.get("ks"), told.get("ks_p")
    if not isinstance(ks, int | float) or not isinstance(p, int | float):
        return "at an unknown distance from their declared law"
    return f"{_format.number(ks, 2)} from their declared law (KS, p {_format.probability(p)})"
