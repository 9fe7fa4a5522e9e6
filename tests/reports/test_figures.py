"""The figures: what they compute, what they keep when there are too many points, how they look to everybody."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import plotly.graph_objects as go
import pytest

from harness import slo as slos
from harness.api import Bound, Slo
from harness.folder import Run
from reports import _data, figures
from reports.figures import _reduce, _style, arrivals, latency_cdf, slo_scale, timeline

MakeRun = Callable[..., Run]


def drawn(figure: go.Figure | str) -> go.Figure:
    assert isinstance(figure, go.Figure), figure
    return figure


@pytest.mark.parametrize(
    "slo", ["ttft=0.25,tpot=0.1", "ttft=0.1,ttft@chat=0.4,itl=0.05", "e2e=2", "p99:ttft=1,tpot=0.03"]
)
@pytest.mark.parametrize("scale", [0.5, 1.0, 1.7])
def test_slo_scale_agrees_with_scoring(slo: str, scale: float, make_run: MakeRun) -> None:
    """The curve would promise an attainment that `--slo` with scaled bounds does not give."""
    run = make_run(slo=slo, tags=("chat", "code"))
    bounds = tuple(Bound(b.metric, b.limit * scale, b.tag, b.percentile) for b in slos.parse(slo).bounds)
    expected = slos.score(run.requests, Slo(bounds)).met

    ratios = _data.joint(_data.margins(run))
    assert expected.tolist() == (ratios <= scale).tolist()


def test_slo_scale_marks_the_crossing(make_run: MakeRun) -> None:
    """The scale at which 90 % is reached would be read off wrongly."""
    ratio = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 2.0, np.inf])

    assert slo_scale.crossing(ratio, 0.9) == 2.0
    assert slo_scale.crossing(ratio, 0.8) == 0.8
    assert slo_scale.crossing(ratio, 0.95) is None


def test_slo_scale_has_the_curves_of_distserve(make_run: MakeRun) -> None:
    """A reader of the paper would mistake one curve for another: joint solid, TTFT dotted, TPOT dashed."""
    figure = drawn(slo_scale.figure(make_run()))

    assert [(t.name, t.line.dash) for t in figure.data] == [
        ("all bounds", "solid"),
        ("TTFT only", "dot"),
        ("TPOT only", "dash"),
    ]


def test_slo_scale_at_one_is_the_attainment(make_run: MakeRun) -> None:
    """Figure and summary would disagree."""
    run = make_run()
    curve = drawn(slo_scale.figure(run)).data[0]

    at_one = float(curve.y[np.flatnonzero(np.asarray(curve.x) == 1.0)[0]])
    assert run.info["summary"]["attainment"] * 100 == pytest.approx(at_one)


def test_latency_cdf_holds_the_percentiles(make_run: MakeRun) -> None:
    """The marks of the figure would not be the percentiles of the table."""
    run = make_run()
    figure = drawn(latency_cdf.figure(run))

    marks = {t.name: list(t.x) for t in figure.data if t.meta == _style.MARKS}
    measured = run.info["summary"]["metrics"]
    assert [measured["ttft"][p] for p in ("p50", "p90", "p99")] == pytest.approx(marks["TTFT p50, p90, p99"])


def test_arrivals_count_every_request(make_run: MakeRun) -> None:
    """Requests would be missing from the rate over time."""
    run = make_run(500)
    planned = drawn(arrivals.figure(run)).data[0]

    width = float(planned.x[1] - planned.x[0])
    assert round(sum(planned.y[:-1]) * width) == 500


def test_timeline_keeps_the_extremes_of_many_steps(make_run: MakeRun) -> None:
    """The one step in which the blocks ran out would be lost among thirty thousand."""
    run = make_run(6000, 5)
    assert run.steps is not None
    figure = drawn(timeline.figure(run))

    traces = {t.name: t for t in figure.data}
    assert run.steps.num_rows > 5000
    assert max(run.steps.column("decode_seqs").to_pylist()) == max(traces["decoding, greatest"].y)
    assert min(run.steps.column("free_blocks").to_pylist()) == min(traces["free blocks, least"].y)


def test_no_trace_has_too_many_points(make_run: MakeRun) -> None:
    """The page would grow with the run."""
    run = make_run(8000, 5)
    for module in figures.modules().values():
        figure = drawn(module.figure(run))

        assert all(len(t.x) <= _reduce.MOST for t in figure.data)
        assert any(word in figures.caption(figure) for word in ("are drawn", "counts of")) or module is slo_scale


@pytest.mark.parametrize("n", [1, 7, 1999, 2001, 50_000])
def test_reductions_keep_ends_and_extremes(n: int) -> None:
    """A reduced figure would hide the worst request."""
    values = np.random.default_rng(n).pareto(1.5, n)
    for kept in (_reduce.extremes([values]), _reduce.sampled(values)):
        assert len(kept) <= _reduce.MOST
        assert {0, n - 1, int(np.argmax(values)), int(np.argmin(values))} <= set(kept.tolist())
    ranks = _reduce.ranks(n)
    assert len(ranks) <= _reduce.MOST
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
    hexes = {light: dark for light, dark in _style.DARK.items() if light.startswith("#")}

    assert all(_contrast(light, "#ffffff") >= 3 for light in hexes)
    assert all(_contrast(dark, "#15181c") >= 3 for dark in hexes.values())


def test_colour_is_never_alone(make_run: MakeRun) -> None:
    """Two lines of one panel would differ in their colour only."""
    for module in figures.modules().values():
        figure = drawn(module.figure(make_run()))
        looks = [
            (t.yaxis, t.mode, t.line.dash, t.line.width, t.fill, t.marker.symbol) for t in figure.data if t.meta is None
        ]

        assert len(set(looks)) == len(looks)


def test_figures_explain_missing_data(make_run: MakeRun) -> None:
    """An empty axis would be shown, or a traceback."""
    empty = make_run(0, failed=0, steps=False)

    for module in figures.modules().values():
        sentence = module.figure(empty)
        assert isinstance(sentence, str)
        assert sentence.endswith(".")


def test_goal_out_of_reach_is_said(make_run: MakeRun) -> None:
    """A run with many failures would seem to need only a wider SLO."""
    figure = drawn(slo_scale.figure(make_run(100, failed=20)))

    assert "no scale reaches 90%, because 20 requests of 100 failed." in figures.finding(figure)
