"""A study of a curve that `bench slo` scored again, for the figures of curves over the rate."""

import math

from harness.experiments.sweep.sweep_json import Spread
from reports._format import clean
from reports.study.runs import Capacity, Info, Kept, Point, Study, System


def of_curve(curve: Info) -> Study:
    """The curve as one system."""
    points = tuple(
        Point(
            rate_rps=float(point["rate_rps"]), seeds=point["runs"], requests=point["requests"],
            overloaded=point["overloaded"], invalid=point["invalid"], attainment=Spread.of(point["attainment"]),
            bounds=tuple(_bound(text, Spread.of(of)) for text, of in point["bounds"].items()),
            goodput_rps=Spread.of(point["goodput_rps"]),
        )
        for point in curve["points"]
    )  # fmt: skip
    capacities = tuple(
        Capacity(found["goal"], found["at_rps"], None, None, "interpolated",
                 "" if found["side"] is None else f"all rates lie {found['side']} it")
        for found in curve["crossings"]
    )  # fmt: skip
    slo = clean(curve["slo"], 400)
    system = System(clean(curve["label"] or "the system", 60), None, points, capacities, slo)
    return Study(slo, tuple(found["goal"] for found in curve["crossings"]), (system,), ())


def _bound(text: str, attainment: Spread | None) -> Kept:
    """A bound by its text: 'ttft@long=2'; the limit of a rule that is no bound (fastgen) is NaN."""
    name, _, limit = text.rpartition("=")
    metric, _, tag = name.rpartition(":")[2].partition("@")
    try:
        limit_s = float(limit)
    except ValueError:
        limit_s = math.nan
    return Kept(text, metric or text, limit_s, tag or None, None, attainment)
