"""The page of traffic alone: what it shows of a trace, a schedule or a fit, and that it runs in a browser."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pyarrow as pa
import pytest

from harness.metrics.quantiles import spearman
from reports._format import clean
from reports.answers import trace
from reports.document import Document
from reports.figures import cdf
from reports.figures import traffic as pictures
from reports.figures.drawing import Drawing
from reports.figures.traffic import Stream


def poisson(rate_rps: float = 5.0, n: int = 3000, seed: int = 0) -> np.ndarray:
    found: np.ndarray = np.cumsum(np.random.default_rng(seed).exponential(1 / rate_rps, n))
    return found


def moving(seed: int = 0) -> np.ndarray:
    """A rate that is 2 or 8 requests per second, a new one every minute for an hour."""
    rng = np.random.default_rng(seed)
    minutes = [60 * k + np.sort(rng.uniform(0, 60, rng.poisson(60 * rng.choice([2, 8])))) for k in range(60)]
    return np.concatenate(minutes)


def everything(text: str = "plain") -> dict[str, Any]:
    """Facts with every key, in which all foreign texts are `text`."""
    rng = np.random.default_rng(1)
    times, widths = moving(), [1.0, 10.0, 60.0]
    return {
        "name": text, "times_s": times, "prompt_tokens": rng.integers(1, 4000, 500),
        "output_tokens": rng.integers(1, 900, 500).tolist(),
        "other": {"name": text, "times_s": poisson(), "prompt_tokens": rng.integers(1, 4000, 400),
                  "output_tokens": pa.array(rng.integers(1, 900, 400))},
        "curves": {"widths_s": widths, "found": [2.0, 8.0, 40.0], "band_low": [1.5, 6, 30], "band_high": [3, 10, 60],
                   "band": text},
    }  # fmt: skip


def titled(text: str) -> Document:
    """What a terminal would be shown of traffic."""
    return replace(trace.fitted([("quality", text)], text), title=clean(text))


def drawn(figure: Drawing | str) -> go.Figure:
    """As plotly has it, which raises for a property that there is not."""
    assert not isinstance(figure, str), figure
    return figure.plotly()


def keys(html: str) -> list[str]:
    return re.findall(r'data-figure="(\w+)"', html)


def test_page_has_a_picture_for_each_fact() -> None:
    """Something that was given would not be shown."""
    html = trace.page(titled("a trace"), everything())

    assert ["dispersion", "rate", "lengths"] == keys(html)
    assert "<h1><bdi>a trace</bdi></h1>" in html
    assert len(html) < 2_300_000


@pytest.mark.parametrize(
    ("facts", "shown"),
    [
        ({}, []),
        ({"times_s": []}, []),
        ({"times_s": [1.0]}, ["rate"]),
        ({"times_s": np.zeros(50)}, ["rate"]),
        ({"times_s": poisson()}, ["dispersion", "rate"]),
        ({"prompt_tokens": [3], "output_tokens": [4]}, ["lengths"]),
        ({"prompt_tokens": [0] * 20, "output_tokens": [4] * 20}, ["lengths"]),
        ({"times_s": poisson(), "grain_s": 3.0}, ["dispersion", "rate"]),
    ],
)
def test_page_of_little(facts: dict[str, Any], shown: list[str]) -> None:
    """A trace with one row, or without stamps, would have no page but a traceback."""
    html = trace.page(titled("little"), facts)

    assert shown == keys(html)
    assert "nan" not in re.sub(r"<script.*?</script>", "", html, flags=re.DOTALL).split()


def test_equal_facts_give_equal_bytes() -> None:
    """A page could not be compared with the one of yesterday."""
    assert trace.page(titled("x"), everything()) == trace.page(titled("x"), everything())


@pytest.mark.parametrize("text", ["</script><script>alert(1)</script>", "<b>%{x}</b>", "\u202egnp.exe\x1b[31m"])
def test_foreign_text_stays_text(text: str, content_of: Callable[[str], dict[str, Any]]) -> None:
    """A file could put markup into the page by its name."""
    html = trace.page(titled(text), everything(text))
    data = content_of(html)

    assert "<script>alert" not in html
    assert "\u202e" not in html
    assert "<" not in json.dumps(data["figures"]).replace("<br>", "")


def test_the_curve_tells_a_moving_rate_from_varying_gaps() -> None:
    """A reader would take a trace for Poisson, or blame its gaps for what its rate does."""
    gamma = np.cumsum(np.random.default_rng(0).gamma(0.25, 0.8, 4000))
    traffics = {"moving": moving(), "gamma": gamma, "poisson": poisson(), "even": np.arange(0, 500, 0.7)}
    found = {
        name: drawn(pictures.dispersion_of([Stream("it", times)], None, None)).layout.meta["finding"]
        for name, times in traffics.items()
    }

    assert {
        "moving": "Variance / mean of counts, it: 1.08 in 50 ms, 111 in 200 s.",
        "gamma": "Variance / mean of counts, it: 2.26 in 50 ms, 5.27 in 50 s.",
        "poisson": "Variance / mean of counts, it: 0.993 in 50 ms, 1.1 in 50 s.",
        "even": "Variance / mean of counts, it: 0.714 in 200 ms, 0.00887 in 20 s.",
    } == found


def test_chance_holds_nineteen_poisson_processes_of_twenty() -> None:
    """The grey band would accuse good Poisson processes, or let bad ones pass."""
    widths = np.array([1.0, 10.0, 50.0])
    low, high = pictures.chance(widths, 600.0)
    found = np.array([pictures.Curve.of(Stream("", poisson(seed=s)), widths, None).values for s in range(400)])

    inside = ((found > low) & (found < high)).mean(axis=0)
    assert np.all((inside > 0.92) & (inside < 0.98)), inside


def test_rates_count_every_arrival() -> None:
    """Arrivals would be missing from the rate over time."""
    stream = Stream("a", moving())
    [line] = drawn(pictures.rate([stream])).data

    assert round(float(np.sum(np.asarray(line.y)[:-1] * np.diff(line.x)))) == stream.arrivals


def test_rank_correlation_is_scipys() -> None:
    """The number beside the lengths would be another than what everybody computes."""
    from scipy.stats import spearmanr

    rng = np.random.default_rng(0)
    one, other = rng.integers(1, 20, 300).astype(float), rng.integers(1, 20, 300).astype(float)

    assert spearmanr(one, other).statistic == pytest.approx(spearman(one, other))


def test_zeros_of_lengths_are_shown() -> None:
    """Rows without a prompt cannot stand on a log axis, and would vanish without a word."""
    figure = drawn(cdf.lengths_of_traffic([Stream("a", prompt_tokens=np.array([0.0, 5, 7]), output_tokens=np.ones(3))]))

    assert "1 of 0 tokens" in figure.layout.meta["finding"]
