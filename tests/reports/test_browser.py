"""The page in a real browser: every figure draws, nothing is fetched, nothing foreign runs."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.api import Outcome
from harness.data.folder import Run
from harness.metrics.objective import restored_slo
from harness.stats.arrivals import Law
from harness.validity.conclude import completed, conclude
from reports import figures
from reports.answers import trace
from reports.builtin import Html

MakeRun = Callable[..., Run]
Open = Callable[..., Any]
NIGHT = "rgb(230, 232, 235)"
HOSTILE = "</script><script>document.title='owned'</script><a href='https://evil.example/'>x</a><img src=x>"


@pytest.mark.nightly
def test_every_figure_draws_in_the_dark(make_run: MakeRun, opened: Open) -> None:
    """A figure would stay empty, or the browser's console would be full of errors."""
    seen = opened(Html().render(make_run(900)), dark=True)

    assert sorted(figures.of("run")) == sorted(seen.drawn())
    assert NIGHT in seen.page.content()
    seen.untroubled()


@pytest.mark.nightly
@pytest.mark.parametrize("width", [1200, 500])
def test_every_picture_of_traffic_draws(width: int, opened: Open) -> None:
    """The page of a trace would stay empty, in a wide window or in a narrow one."""
    rng = np.random.default_rng(0)
    times, lengths = np.cumsum(rng.exponential(0.2, 2000)), rng.integers(1, 900, (2, 2000))
    facts = {
        "name": HOSTILE, "times_s": times, "prompt_tokens": lengths[0], "output_tokens": lengths[1],
        "other": {"name": "drawn", "times_s": times**0.9},
        "curves": {"widths_s": [1, 10], "band_low": [0.8, 0.7], "band_high": [1.2, 1.4]},
    }  # fmt: skip
    seen = opened(trace.page(trace.fitted([("quality", HOSTILE)], HOSTILE), facts), width=width)

    assert ["dispersion", "rate", "lengths"] == seen.drawn()
    seen.untroubled()


@pytest.mark.parametrize("remote", [pytest.param(False, marks=pytest.mark.nightly), True])
def test_hostile_text_does_nothing(remote: bool, hostile_run: Callable[..., Run], opened: Open) -> None:
    """A server could run its script in the reader's browser, or make a link of a class of traffic."""
    run = completed(hostile_run(HOSTILE + " \u202e" + "A" * 10_000, remote=remote))
    seen = opened(Html().render(run), width=500, height=900, wait=False)
    seen.until("typeof Plotly !== 'undefined'")
    width = seen.page.evaluate("document.documentElement.scrollWidth")
    seen.page.evaluate("dispatchEvent(new Event('beforeprint'))")  # draws them all: such a page is very long
    seen.until("document.querySelectorAll('[data-figure]:not(:has(.main-svg))').length === 0")

    assert seen.page.title().startswith("</script><script>document.title")
    assert 500 == width
    seen.untroubled()


@pytest.mark.nightly
def test_the_keyboard_leads_to_the_result(make_run: MakeRun, opened: Open) -> None:
    """Who has no mouse would tab through all parts of the page before the result, and not see where he is."""
    seen = opened(Html().render(make_run(60)), wait=False)
    box = "document.activeElement.getBoundingClientRect()"
    seen.page.keyboard.press("Tab")

    assert "To the result" == seen.page.evaluate("document.activeElement.textContent")
    assert seen.page.evaluate(f"{box}.left >= 0 && {box}.width > 0")
    assert "solid" == seen.page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    seen.page.keyboard.press("Enter")
    assert "main" == seen.page.evaluate("document.activeElement.id")
    seen.page.keyboard.press("Tab")
    assert seen.page.evaluate(
        "document.activeElement.closest('main') !== null && document.activeElement.tabIndex === 0"
    )


def test_figures_are_drawn_without_scrolling_and_saved_as_svg(make_run: MakeRun, opened: Open) -> None:
    """A screenshot or a print of the page as it is loaded would have empty boxes; a figure could go into a paper or
    into slides only as a picture of the screen; in a window made narrower, figures would be wider than the page."""
    seen = opened(Html().render(make_run(60)), wait=False)

    assert sorted(figures.of("run")) == sorted(seen.drawn())
    assert 0 == seen.page.evaluate("scrollY")
    assert NIGHT not in seen.page.content()

    with seen.page.expect_download() as saved:
        seen.page.locator("[data-svg=latency_cdf]").click()
    text = Path(saved.value.path()).read_text(encoding="utf-8")

    assert "latency_cdf.svg" == saved.value.suggested_filename
    assert text.startswith("<svg") and "seconds (log scale)" in text
    seen.page.set_viewport_size({"width": 390, "height": 700})
    seen.until("document.documentElement.scrollWidth === 390")  # figures follow the window in a moment
    seen.untroubled()


@pytest.mark.nightly
def test_all_kinds_of_run_draw(make_run: MakeRun, opened: Open, put) -> None:
    """A killed run without steps would break the page."""
    run = make_run(60, failed=20, steps=False, complete=False)
    for key in ("summary", "verdict", "fidelity", "warnings"):
        put(run, **{key: None})
    seen = opened(Html().render(run))

    there = [key for key, row in figures.of("run").items() if not isinstance(row.draw(run), str)]
    assert sorted(there) == sorted(seen.drawn())
    seen.untroubled()


@pytest.mark.nightly
def test_a_remote_run_draws(remote_run: MakeRun, opened: Open) -> None:
    """The gauges of a remote endpoint would stay an empty box, or the page of its client would break."""
    run = remote_run(floor=None)
    info = conclude(run, restored_slo(run.info), Law(5.0, known=False), Outcome("finished", 60, 0, 0))
    seen = opened(Html().render(dataclasses.replace(run, info=info)))

    assert "timeline" in seen.drawn()
    seen.untroubled()


@pytest.mark.nightly
def test_printing_draws_everything_in_light(make_run: MakeRun, opened: Open) -> None:
    """Paper would show what had not been scrolled to as gaps, and the dark page as a black sheet."""
    seen = opened(Html().render(make_run()), dark=True, wait=False)
    seen.until("typeof Plotly !== 'undefined'")
    seen.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    seen.page.wait_for_timeout(300)

    assert sorted(figures.of("run")) == sorted(seen.drawn())
    assert seen.page.locator("figure details[open]").count() == len(figures.of("run"))
    assert NIGHT not in seen.page.content()
    seen.untroubled()


@pytest.mark.nightly
def test_a_link_into_a_folded_section_opens_and_draws_it(make_run: MakeRun, opened: Open) -> None:
    """The section would open before the library is unpacked, and its figures stay empty for good."""
    seen = opened(Html().render(make_run(60)), wait=False)
    seen.page.evaluate("location.hash = 't-arrivals'")
    seen.page.reload()
    seen.until("document.querySelector('[data-figure=arrivals] .main-svg')")

    assert seen.page.evaluate("document.getElementById('fidelity').open")
    assert [] == seen.console


@pytest.mark.nightly
def test_folded_figures_are_drawn_to_the_width_they_get_when_opened(make_run: MakeRun, opened: Open) -> None:
    """Where a browser gives folded boxes no width, figures would stay crumpled after printing or a change of theme."""
    seen = opened(Html().render(make_run(60)))
    seen.page.evaluate("document.styleSheets[0].insertRule('details:not([open]) > :not(summary) {display: none}')")
    seen.page.evaluate("['beforeprint', 'afterprint'].forEach((name) => dispatchEvent(new Event(name)))")
    folded = seen.page.locator("details.section:not([open]) [data-figure]").count()
    drawn = seen.page.locator("[data-drawn]").count()
    seen.page.evaluate("document.querySelectorAll('details.section').forEach((one) => one.open = true)")
    seen.until("[...document.querySelectorAll('[data-figure]')].every((box) => box.dataset.drawn)")
    narrowest = "Math.min(...[...document.querySelectorAll('[data-figure] .main-svg')].map((svg) => svg.clientWidth))"

    assert folded > 0
    assert len(figures.of("run")) == folded + drawn
    assert seen.page.evaluate(narrowest) > 400
    seen.untroubled()


@pytest.mark.nightly
def test_page_prints(make_run: MakeRun, opened: Open) -> None:
    """The report could not be handed out on paper."""
    assert opened(Html().render(make_run())).page.pdf().startswith(b"%PDF")


@pytest.mark.nightly
def test_old_browser_is_informed(make_run: MakeRun, opened: Open) -> None:
    """A browser that cannot unpack the library would show empty boxes without a word."""
    old = '"use strict"; const DecompressionStream = undefined;'
    seen = opened(Html().render(make_run()).replace('"use strict";', old), wait=False)

    info = seen.page.get_by_text("This browser cannot unpack the drawing library").first
    info.wait_for()

    assert info.is_visible()


@pytest.mark.nightly
def test_without_script_the_page_is_read_as_tables(make_run: MakeRun, opened: Open) -> None:
    """A reader whose browser runs no script would see empty boxes."""
    seen = opened(Html().render(make_run()), js=False)

    assert seen.page.locator("figure table").count() == len(figures.of("run"))
    assert not any(box.is_visible() for box in seen.page.locator("[data-figure]").all())
    assert seen.page.locator(".answer").inner_text()
    assert seen.page.locator("noscript p").bounding_box() is not None
