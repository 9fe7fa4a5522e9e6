"""The figures: what they compute, what they keep when there are too many points, how they look to everybody."""

import dataclasses
from collections.abc import Callable

import numpy as np
import plotly.graph_objects as go
import pyarrow as pa
import pytest

from harness.api import Bound, Slo
from harness.data.folder import Run
from harness.experiments.rescore.objectives import curve
from harness.metrics.objective import parse_slo, score
from reports import _data, figures
from reports.figures import style
from reports.figures.cdf import latency_cdf
from reports.figures.drawing import Drawing
from reports.figures.scale import slo_scale
from reports.figures.timeline import arrivals, timeline
from reports.figures.traffic import burstiness

MakeRun = Callable[..., Run]


def drawn(figure: Drawing | str) -> go.Figure:
    """As plotly has it, which raises for a property that there is not."""
    assert not isinstance(figure, str), figure
    return figure.plotly()


@pytest.mark.parametrize(
    "slo", ["ttft=0.25,tpot=0.1", "ttft=0.1,ttft@chat=0.4,itl=0.05", "e2e=2", "p99:ttft=1,tpot=0.03"]
)
@pytest.mark.parametrize("scale", [0.5, 1.0, 1.7])
def test_slo_scale_agrees_with_scoring(slo: str, scale: float, make_run: MakeRun) -> None:
    """The curve would promise an attainment that `--slo` with scaled bounds does not give."""
    run = make_run(slo=slo, tags=("chat", "code"))
    bounds = tuple(Bound(b.metric, b.limit * scale, b.tag, b.percentile) for b in parse_slo(slo).bounds)
    expected = score(run.requests, Slo(bounds)).met

    ratios = curve(_data.seen(run), _data.slo(run), []).ratio
    assert expected.tolist() == (ratios <= scale).tolist()


def test_slo_scale_has_the_curves_of_distserve(make_run: MakeRun) -> None:
    """A reader of the paper would mistake one curve for another: joint solid, TTFT dotted, TPOT dashed."""
    figure = drawn(slo_scale(make_run()))

    assert [(t.name, t.line.dash) for t in figure.data] == [
        ("all bounds", "solid"),
        ("TTFT only", "dot"),
        ("TPOT only", "dash"),
    ]


def test_slo_scale_at_one_is_the_attainment(make_run: MakeRun) -> None:
    """Figure and summary would disagree."""
    run = make_run()
    curve = drawn(slo_scale(run)).data[0]

    at_one = float(curve.y[np.flatnonzero(np.asarray(curve.x) == 1.0)[0]])
    assert run.info.summary.attainment * 100 == pytest.approx(at_one)


def test_latency_cdf_holds_the_percentiles(make_run: MakeRun) -> None:
    """The marks of the figure would not be the percentiles of the table."""
    run = make_run()
    figure = drawn(latency_cdf(run))

    marks = {t.name: list(t.x) for t in figure.data if t.meta == style.MARKS}
    measured = run.info.summary.metrics
    assert [getattr(measured["ttft"], p) for p in ("p50", "p90", "p99")] == pytest.approx(marks["TTFT p50, p90, p99"])


def test_arrivals_count_every_request(make_run: MakeRun) -> None:
    """Requests would be missing from the rate over time."""
    run = make_run(500)
    planned = drawn(arrivals(run)).data[0]

    width = float(planned.x[1] - planned.x[0])
    assert round(sum(planned.y[:-1]) * width) == 500


def follow(run: Run, session: bool) -> Run:
    """The run with two of three requests waiting for the one before, as turns of a session or as users."""
    assert run.schedule is not None
    n = run.schedule.num_rows
    columns = {
        "after": [[] if i % 3 == 0 else [i - 1] for i in range(n)],
        "session": [i // 3 if session else None for i in range(n)],
    }
    schedule = run.schedule
    for name, values in columns.items():
        at = schedule.schema.get_field_index(name)
        schedule = schedule.set_column(at, schedule.schema.field(at), pa.array(values, schedule.schema.field(at).type))
    return dataclasses.replace(run, schedule=schedule)


def test_what_waits_for_answers_is_drawn_apart(make_run: MakeRun) -> None:
    """Turns of sessions would stand at times that were not planned."""
    run = follow(make_run(300), session=True)
    rate, curve = drawn(arrivals(run)), drawn(burstiness(run))

    found = {t.name: round(float(np.sum(t.y[:-1] * np.diff(t.x)))) for t in rate.data if t.name != "lateness"}
    assert {"planned": 100, "sent": 100, "sent, follow-ups included": 300} == {k: found[k] for k in list(found)[:3]}
    assert ["planned", "sent", "sent, follow-ups included"] == [t.name for t in curve.data][-3:]
    assert "300 of 300 planned requests" in rate.layout.meta["finding"]


def test_a_closed_loop_has_no_plan_to_draw(make_run: MakeRun) -> None:
    """The first requests of the users would be drawn as the plan."""
    run = follow(make_run(300), session=False)

    assert "planned" not in [t.name for t in drawn(burstiness(run)).data]


def test_a_declared_rate_is_drawn_unless_it_was_recorded(make_run: MakeRun, put) -> None:
    """A reader could not see the requested ramp, or would take what a trace happened to have as requested."""
    run, trace = make_run(300), make_run(300)
    put(run, fidelity={"rate_curve": {"end_s": 20.0, "rps": [1.0, 5.0]}})
    put(trace, workload={"recorded": True})
    declared = [[t for t in drawn(arrivals(r)).data if t.name == "declared"] for r in (run, trace)]

    assert [1.0, 5.0, 5.0] == list(declared[0][0].y)
    assert [] == declared[1]


def test_timeline_keeps_the_extremes_of_many_steps(make_run: MakeRun) -> None:
    """The one step in which the blocks ran out would be lost among thirty thousand."""
    run = make_run(6000, 5)
    assert run.steps is not None
    figure = drawn(timeline(run))

    traces = {t.name: t for t in figure.data}
    assert run.steps.num_rows > 5000
    assert max(run.steps.column("decode_seqs").to_pylist()) == max(traces["decoding, greatest"].y)
    fewest = min(run.steps.column("free_blocks").to_pylist())
    assert (1 - fewest / 512) * 100 == max(traces["KV memory, greatest"].y)


@pytest.mark.nightly
def test_no_trace_has_too_many_points(make_run: MakeRun) -> None:
    """The page would grow with the run."""
    run = make_run(8000, 5)
    notes = ("are drawn", "counts of", "are counted", "Above: 20 requests")
    whole = (
        "slo_scale",
        "burstiness",
        "stages",
        "misses",
        "tiers",
    )  # of scales, widths, groups, causes and tiers, not of requests
    for row in figures.of("run").values():
        figure = drawn(row.draw(run))

        assert all(len(t.x) <= style.MOST for t in figure.data)
        assert (
            any(word in " ".join([figure.layout.meta["finding"], *figure.layout.meta["notes"]]) for word in notes)
            or row.key in whole
        )


@pytest.mark.parametrize("n", [1, 7, 1999, 2001, 50_000])
def test_reductions_keep_ends_and_extremes(n: int) -> None:
    """A reduced figure would hide the worst request."""
    values = np.random.default_rng(n).pareto(1.5, n)
    for kept in (style.extremes([values]), style.sampled(values)):
        assert len(kept) <= style.MOST
        assert {0, n - 1, int(np.argmax(values)), int(np.argmin(values))} <= set(kept.tolist())
    ranks = style.ranks(n)
    assert len(ranks) <= style.MOST
    assert (0, n - 1) == (ranks[0], ranks[-1])


def _luminance(color: str) -> float:
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(a: str, b: str) -> float:
    low, high = sorted((_luminance(a), _luminance(b)))
    return (high + 0.05) / (low + 0.05)


def test_colours_stand_out_on_both_grounds() -> None:
    """Lines would be hard to see on white or on the dark page (WCAG 1.4.11 asks for 3:1)."""
    hexes = {light: dark for light, dark in style.DARK.items() if light.startswith("#")}

    assert all(_contrast(light, "#ffffff") >= 3 for light in hexes)
    assert all(_contrast(dark, "#15181c") >= 3 for dark in hexes.values())


def test_colour_is_never_alone(make_run: MakeRun) -> None:
    """Two lines of one panel would differ in their colour only."""
    for row in figures.of("run").values():
        figure = drawn(row.draw(make_run()))
        styles = [
            (t.yaxis, t.marker.pattern.shape)
            if t.type == "bar"
            else (t.yaxis, t.mode, t.line.dash, t.line.width, t.fill, t.marker.symbol)
            for t in figure.data
            if t.meta is None and t.type != "heatmap"
        ]

        assert len(set(styles)) == len(styles)


def test_figures_explain_missing_data(make_run: MakeRun) -> None:
    """An empty axis would be shown, or a traceback."""
    empty = make_run(0, failed=0, steps=False)

    for row in figures.of("run").values():
        sentence = row.draw(empty)
        assert isinstance(sentence, str)
        assert sentence.endswith(".")


def test_goal_out_of_reach_is_reported(make_run: MakeRun) -> None:
    """A run with many failures would seem to need only a wider SLO."""
    figure = drawn(slo_scale(make_run(100, failed=20)))

    assert "90% meet it: at no scale: 20 of 100 requests failed." in figure.layout.meta["finding"]


@pytest.mark.parametrize("slo", ["ttft=0.07,e2e=0.3", "ttft=2,e2e=30", "ttft=0.25,tpot=0.1"])
def test_names_of_bounds_stand_on_the_side_that_has_room(slo: str, make_run: MakeRun) -> None:
    """The name of the SLO was cut at the right edge of the figure: 'TTFT S'."""
    figure = drawn(latency_cdf(make_run(slo=slo)))
    low, high = figure.layout.xaxis.range

    assert len(figure.layout.annotations) == 2
    for note in figure.layout.annotations:
        room = (high - note.x) if note.xanchor == "left" else (note.x - low)
        assert room >= (high - low) / 2
