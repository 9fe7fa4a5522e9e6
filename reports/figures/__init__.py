"""The figures of pages, in families: a function each, which gives a Drawing, or the sentence on what is missing.

    from harness import results
    from reports.figures import caption
    from reports.figures.timeline import timeline

    (run,) = results.open("bench-runs/...")
    figure = timeline(run)
    print(caption(figure))
    figure.plotly().show()

`of("run")` gives the rows of all figures of a subject. To add one: a function in its family, and a row here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from reports.figures.drawing import Drawing

FIDELITY = "fidelity"
"""The section of figures about the sending."""
Subject = Literal["run", "study", "compare", "trend", "validate"]
"""What figures are made of: a `harness.data.folder.Run`, a `reports.study.Study` (systems over the rate, from sweeps,
searches or several runs), a `reports.comparison.Comparison`, a `TrendAnswer` with the runs of each series to draw, one
comparison of `bench validate --against` (its name, pairs, errors and targets), or the answer of `bench agents`."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of a page: its anchor, which is the name of its function too, what it is drawn of, the section that it
    stands in, its heading, and the family: the module that holds the function.

    Of a run, one `over_time` shows the requests before the cut of the warm-up too, as those about the sending do, and
    one of a `part` of the backend stands only where the facts of the backend have that.
    """

    key: str
    of: Subject
    section: str
    title: str
    family: str
    over_time: bool = False
    part: str = ""

    def draw(self, *subject: Any) -> Drawing | str:
        """The figure, or the sentence on what is missing; what draws it is loaded only here."""
        function: Callable[..., Drawing | str] = getattr(import_module(f"reports.figures.{self.family}"), self.key)
        return function(*subject)


FIGURES = (
    Figure("slo_scale", "run", "figures", "Attainment against SLO scale", "scale"),
    Figure("latency_cdf", "run", "figures", "Latency of the requests", "cdf"),
    Figure("itl_over_time", "run", "figures", "Gaps between tokens over the run", "timeline", True),
    Figure("latency_over_time", "run", "figures", "Time to first token over the run", "timeline", True),
    Figure("stages", "run", "figures", "Where the time of the requests went", "stages"),
    Figure("timeline", "run", "figures", "Batches, queue and memory over time", "timeline", True),
    Figure("tiers", "run", "figures", "Tiers of KV memory", "tiers", True, "tiers"),
    Figure("misses", "run", "figures", "What made requests miss the SLO", "stages"),
    Figure("arrivals", "run", FIDELITY, "Planned and sent requests", "timeline", True),
    Figure("burstiness", "run", FIDELITY, "How bursty the requests came", "traffic", True),
    Figure("lengths", "run", FIDELITY, "Lengths requested and received", "cdf", True),
    Figure("attainment_rate", "study", "figures", "Attainment against rate", "curves"),
    Figure("interactivity", "study", "latency", "Throughput against interactivity", "curves"),
    Figure("latency_rate", "study", "latency", "TTFT and TPOT against rate", "curves"),
    Figure("stages_rate", "study", "time", "Where the time of a request goes, by rate", "stages_rate"),
    Figure("misses_rate", "study", "time", "What made requests miss the SLO, by rate", "stages_rate"),
    Figure("forest", "compare", "losses", "Losses of the gated metrics", "compare"),
    Figure("cdf_difference", "compare", "pairs", "Latency of the requests on both sides", "compare"),
    Figure("trend", "trend", "series", "Judged metrics, night by night", "history"),
    Figure("real_plane", "validate", "figures", "Simulated against measured", "compare"),
)


def of(subject: Subject = "run") -> dict[str, Figure]:
    """All figures of a subject by their key, in the order of the page."""
    return {row.key: row for row in FIGURES if row.of == subject}


def caption(figure: Drawing) -> str:
    """The finding, and how the points were reduced, if they were."""
    return " ".join([figure.finding, *figure.notes])
