"""Every page can be read by keyboard, by ear, and in both themes: own checks of its markup and of its colours."""

import re
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

from harness.data.folder import Run
from reports import figures
from reports.answers import trace
from reports.builtin import Html
from reports.document import Cell, Document, Finding, Notice, Section, Table, html
from reports.figures import style

MakeRun = Callable[..., Run]
Attributes = dict[str, str | None]
CSS = Path(html.__file__).parents[1] / "templates" / "page.css"
TEXTS = ("ink", "soft", "link", "good", "bad")
LIGHT, DARK = "#ffffff", "#15181c"


class Marked(HTMLParser):
    """Elements of a page in order, with their attributes, and the text of each heading and link."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, Attributes]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def of(self, *names: str) -> list[Attributes]:
        return [attributes for tag, attributes in self.tags if tag in names]

    def with_(self, name: str, value: str) -> list[Attributes]:
        return [attributes for _, attributes in self.tags if value in (attributes.get(name) or "").split()]


def sheet_page(run: Run) -> str:
    """The page of an answer, with every kind of thing that it may hold."""
    drawn = tuple(html.part(key, m.title, m.draw(run)) for key, m in list(figures.of("run").items())[:2])
    cell = Cell("run", link="points/rate=1/report.html")
    table = Table("Points", ("rate (req/s)", "met (%)"), (("1", "99"), (cell, Cell("2", good=False))))
    section = Section("curve", "The curve", ("One text.", table, *drawn))
    facts = (("name", "value"),)
    return html.render(
        Document(
            "A sweep",
            "of a system",
            "FOUND",
            True,
            (Finding("It sustains 2 requests per second.", True, ("VALID",)),),
            facts,
            (Notice("A warning.", "A remedy."),),
            (section, Section("more", "More", ("A text.",), detail=True)),
            None,
            ("bench sweep --help",),
            facts,
        )
    )


def traffic_page(_: Run) -> str:
    """The page of a trace."""
    return trace.page(trace.fitted([], "a trace"), {"name": "a trace", "times_s": [float(i) for i in range(40)]})


PAGES = {"run": lambda run: Html().render(run), "answer": sheet_page, "traffic": traffic_page}


@pytest.fixture(params=PAGES)
def marked(request: pytest.FixtureRequest, make_run: MakeRun) -> Marked:
    """Each kind of page."""
    return Marked(PAGES[request.param](make_run(60, tags=("chat", "code"), failed=4)))


def test_a_keyboard_reaches_everything(marked: Marked) -> None:
    """Who has no mouse could not skip to the result, nor scroll a wide table."""
    ids = {attributes["id"] for _, attributes in marked.tags if attributes.get("id")}
    links = [attributes["href"] or "" for attributes in marked.of("a")]

    assert "#main" == links[0]
    assert [] == [link for link in links if link.startswith("#") and link[1:] not in ids]
    for region in marked.with_("class", "scroll"):
        assert ("region", "0") == (region.get("role"), region.get("tabindex"))
        assert region.get("aria-label")
    assert {None, "0", "-1"} >= {attributes.get("tabindex") for _, attributes in marked.tags}
    labelled = {label.get("for") for label in marked.of("label")}
    assert all(control.get("aria-label") or control.get("id") in labelled for control in marked.of("input"))


def test_a_screen_reader_finds_its_way(marked: Marked) -> None:
    """Parts of the page would have no name, or a figure would be 'image'."""
    levels = [int(tag[1]) for tag, _ in marked.tags if re.fullmatch(r"h[1-6]", tag)]
    ids = [attributes["id"] for _, attributes in marked.tags if attributes.get("id")]

    assert ["en"] == [attributes["lang"] for attributes in marked.of("html")]
    assert [1, 1] == [len(marked.of("main")), levels.count(1)]
    assert all(b - a <= 1 for a, b in zip(levels, levels[1:], strict=False))
    assert len(set(ids)) == len(ids)
    assert all((image.get("aria-label") or "").endswith(".") for image in marked.with_("role", "img"))
    assert all(attributes.get("scope") in ("col", "row") for attributes in marked.of("th"))
    for named in (attributes.get("aria-labelledby") for _, attributes in marked.tags):
        assert named is None or named in ids


def luminance(color: str) -> float:
    """Relative luminance of '#rrggbb' (WCAG 2.2)."""
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """Contrast ratio, 1 to 21 (WCAG 2.2)."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def themes() -> Iterator[dict[str, str]]:
    """The colours of the page: by day, at night, on paper."""
    for block in re.findall(r":root \{([^}]*)\}", CSS.read_text(encoding="utf-8")):
        yield dict(re.findall(r"--(\w+): (#\w{6})", block))


def test_text_stands_out() -> None:
    """Words would be too faint for many readers, by day, at night or on paper (WCAG 2.2: 4.5 to 1)."""
    found = [(name, ground, contrast(theme[name], theme[ground]))
             for theme in themes() for name in TEXTS for ground in ("paper", "card")]  # fmt: skip

    assert 3 * len(TEXTS) * 2 == len(found)
    assert [] == [(name, ground, round(ratio, 2)) for name, ground, ratio in found if ratio < 4.5]


def test_lines_stand_out() -> None:
    """A curve would be too faint on one of the two grounds (WCAG 2.2: 3 to 1)."""
    lines = {color: night for color, night in style.DARK.items() if color in (
        style.BLUE, style.VERMILLION, style.GREEN, style.PURPLE, style.GREY)}  # fmt: skip

    assert 5 == len(lines)
    assert [] == [color for color in lines if contrast(color, LIGHT) < 3]
    assert [] == [night for night in lines.values() if contrast(night, DARK) < 3]
