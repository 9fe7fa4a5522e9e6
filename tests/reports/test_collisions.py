"""No text of a figure is cut off, and none lies on another one, on a monitor or on a phone."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.data.folder import Run
from reports.builtin import Html

MakeRun = Callable[..., Run]
Open = Callable[..., Any]
WIDTHS = (1280, 390)
GALLERY = Path(__file__).parents[2] / "docs" / "examples" / "gallery.py"
FOUND = """
const found = [];
for (const box of document.querySelectorAll("[data-figure]")) {
  const home = box.getBoundingClientRect();
  const texts = [...box.querySelectorAll(".main-svg text")]
    .map((text) => [text.textContent, text.getBoundingClientRect()])
    .filter(([text, at]) => at.width > 0 && text.trim());
  texts.forEach(([text, at], i) => {
    const out = Math.max(home.left - at.left, at.right - home.right, home.top - at.top, at.bottom - home.bottom);
    if (out > 1) found.push(`${box.dataset.figure}: '${text}' is cut by ${out.toFixed()} pixels`);
    for (const [other, there] of texts.slice(i + 1)) {
      const across = Math.min(at.right, there.right) - Math.max(at.left, there.left);
      const down = Math.min(at.bottom, there.bottom) - Math.max(at.top, there.top);
      if (across > 2 && down > 2) found.push(`${box.dataset.figure}: '${text}' lies on '${other}'`);
    }
  });
  const panels = Object.values(box._fullLayout._plots).map(({ xaxis: x, yaxis: y }) => [home.left + x._offset,
    home.left + x._offset + x._length, home.top + y._offset, home.top + y._offset + y._length]);
  for (const title of box.querySelectorAll(".xtitle, .x2title, .x3title, .ytitle, .y2title, .y3title")) {
    const at = title.getBoundingClientRect();
    const over = ([left, right, top, bottom]) => Math.min(at.right, right) - Math.max(at.left, left) > 2 &&
      Math.min(at.bottom, bottom) - Math.max(at.top, top) > 2;
    if (panels.some(over)) found.push(`${box.dataset.figure}: '${title.textContent}' lies on a panel`);
  }
}
return [document.querySelectorAll("[data-figure] .main-svg text").length, found];
"""


def collisions(seen: Any) -> list[str]:
    """What is cut off or covered on a page with its sections unfolded and all figures drawn."""
    seen.unfold()
    texts, found = seen.page.evaluate(f"(() => {{ {FOUND} }})()")

    assert texts > 0
    assert isinstance(found, list)
    return found


@pytest.mark.parametrize("width", [pytest.param(1280, marks=pytest.mark.nightly), 390])
@pytest.mark.parametrize("slo", ["ttft=0.25,tpot=0.1", pytest.param("ttft=0.07,e2e=0.3", marks=pytest.mark.nightly)])
def test_texts_of_a_run_stand_apart(slo: str, width: int, make_run: MakeRun, opened: Open) -> None:
    """A bound could not be read beside its line, nor an axis on a phone."""
    seen = opened(Html().render(make_run(200, slo=slo, failed=9)), width=width)

    assert [] == collisions(seen)
    assert width == seen.page.evaluate("document.documentElement.scrollWidth")


def test_a_text_on_another_is_found(make_run: MakeRun, opened: Open) -> None:
    """The tests of this file could not fail."""
    seen = opened(Html().render(make_run(60)), width=390)
    clean = collisions(seen)
    seen.page.evaluate(
        """() => Plotly.relayout(document.querySelector("[data-figure]"), {annotations: [
          {text: "a note that is far longer than a telephone is wide, so that it has no ends", showarrow: false},
          {text: "another note", showarrow: false}]})"""
    )

    assert [] == clean
    assert {True} == {any(what in text for text in collisions(seen)) for what in ("is cut", "lies on")}


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of every kind."""
    spec = importlib.util.spec_from_file_location("gallery", GALLERY)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    folder = tmp_path_factory.mktemp("pages") / "gallery"
    module.make(folder)
    return folder


@pytest.mark.nightly
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("width", WIDTHS)
def test_texts_of_every_kind_of_page_stand_apart(width: int, gallery: Path, opened: Open) -> None:
    """The names of two sides, of systems or of the runs of a series would hide one another."""
    pages = sorted(page for page in gallery.rglob("*.html") if "data-figure=" in page.read_text(encoding="utf-8"))
    found = {}
    for page in pages:
        seen = opened(page, width=width, height=900)
        found[str(page.relative_to(gallery))] = collisions(seen)
        seen.page.close()  # each holds megabytes

    assert len(found) > 8
    assert {} == {page: bad for page, bad in found.items() if bad}
