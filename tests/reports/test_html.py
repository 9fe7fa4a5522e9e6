"""The page: what it says, that it fetches nothing, that foreign text stays text, that it is stable and small."""

import json
import re
import time
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

from harness.data.folder import Run
from harness.validity.conclude import completed
from reports import _data, figures
from reports.builtin import Html
from reports.document.html import data_table
from reports.figures.style import MOST_ROWS

MakeRun = Callable[..., Run]
SCRIPT = "<script>alert(1)</script>"
HOSTILE = [
    SCRIPT,
    "</script><img src=x onerror=alert(1)> \"'><a href='https://evil.example/'>x</a> <!--{{ 7*7 }}{% raw %}",
    "A" * 10_000,
    "\u202egnp.exe\u2066 \u05e9\u05dc \x1b[31mred\x1b]8;;https://evil.example\x07x\x1b]8;;\x07\x00 %{x} <b>b</b>",
]
ALL_AT_ONCE = " ".join(HOSTILE)
TEXTS = [pytest.param(ALL_AT_ONCE, id="all"), *(pytest.param(t, marks=pytest.mark.nightly) for t in HOSTILE)]


class Page(HTMLParser):
    """Elements, attributes and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self._inside: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "br", "input"):
            self._inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._inside.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append((self._inside[-1] if self._inside else "", data))

    def names(self) -> list[str]:
        return [tag for tag, _ in self.tags]

    def words(self) -> str:
        return " ".join(text for tag, text in self.texts if tag not in ("script", "style"))


@pytest.fixture(scope="module")
def usual(make_run: MakeRun) -> str:
    """The page of a run in which everything is as it should be."""
    return Html().render(make_run())


def without_library(html: str) -> str:
    return re.sub(r'(<script type="text/plain" id="plotly">)[^<]*', r"\1", html)


def test_page_answers_first(usual: str, make_run: MakeRun) -> None:
    """A reader would have to search the page for the attainment, the SLO, the workload or the validity."""
    words = " ".join(Page(usual).words().split())

    assert re.search(r"\d+\.\d% of 240 requests met the SLO at 12 requests per second", words)
    for wanted in ("VALID", "TTFT <= 250 ms, TPOT <= 100 ms", "DistServe, table 1", "OPT", "engine",
                   "requested 12 req/s",
                   "seeded Llama, 25M parameters", "Example CPU", "The run is shorter than five minutes.",
                   "Give --duration 5min.", str(make_run().info.schedule.sha256)[:16],
                   "bench run --config bench-runs/demo/run.json",
                   "wall", "0.1.0", "dispersion 0.97"):  # fmt: skip
        assert wanted in words


def test_page_order_is_fixed(usual: str) -> None:
    """The verdict would no longer come before the tables, the tables before the figures, the first before warnings."""
    marks = ('class="verdict', 'id="percentiles"', 'id="figures"', 'id="warnings"', 'id="more"', 'id="fidelity"',
             'id="definitions"', 'id="repeat"')  # fmt: skip
    places = [usual.index(mark) for mark in marks]
    assert sorted(places) == places


def box_of(run: Run) -> str:
    """The HTML of the verdict."""
    html = Html().render(run)
    return html.partition('<section class="verdict')[2].partition("</section>")[0]


def test_verdict_is_for_those_who_decide(usual: str, make_run: MakeRun) -> None:
    """Who decides would have to read about tokenizers and block counts before the rate and the SLO."""
    names = re.findall(r"<dt>([^<]*)</dt>", box_of(make_run()))
    words = " ".join(Page(usual).words().split())

    assert ["within the SLO", "goodput", "TTFT p90", "TPOT p90"] == names[:4]
    assert ["SLO", "System", "Rate", "Throughput", "Requests", "Sending"] == names[4:]
    assert "kv blocks 512" in words.partition("Repeat it")[2]


@pytest.mark.parametrize(
    ("given", "mark", "color"),
    [
        ({}, "GOAL REACHED", "good"),
        ({"slo": "ttft=0.1"}, "GOAL MISSED", "bad"),
        ({"slo": "ttft=1,p99:e2e=1"}, "BOUND BROKEN", "bad"),
        ({"slo": ""}, "NO GOAL GIVEN", ""),
        ({"warnings": [{"code": "overload", "message": "overloaded: the queue grew"}]}, "OVERLOADED", "bad"),
        ({"verdict": {"valid": False, "reasons": ["tokens were lost"]}}, "NOTHING PROVEN", ""),
        ({"complete": False, "state": "running"}, "NOTHING PROVEN", ""),
    ],
)
def test_goal_and_validity_are_two_things(given: dict[str, Any], mark: str, color: str, make_run: MakeRun) -> None:
    """A green VALID would be read as 'passed' for a run that missed its goal or was overloaded."""
    box = box_of(make_run(**given))

    assert f'<p class="mark{" " + color if color else ""}">{mark}</p>' in box
    assert box.startswith(f'{" " + color if color else ""}" aria')
    assert not re.search(r'class="word [^"]*(good|bad)', box)


def test_figures_of_an_overloaded_run_say_so(usual: str, make_run: MakeRun) -> None:
    """The table would keep its latencies back, and the figures below it tell them as if they meant something."""
    grown = {"code": "overload", "message": "overloaded: the queue grew"}
    overloaded = Html().render(make_run(warnings=[grown]))

    assert "latencies and goodput in these figures depend on the length" not in usual
    assert "latencies and goodput in these figures depend on the length" in overloaded


def test_aggregates_are_not_advised_to_run_longer(make_run: MakeRun) -> None:
    """A reader of another tool's aggregates would send more requests, and again find no figure."""
    run = make_run(0, source={"tool": "vllm", "per_request": False})
    page = Html().render(run)

    assert 1 == page.count(_data.AGGREGATES)
    assert _data.EMPTY not in page


def test_page_fetches_nothing(usual: str) -> None:
    """Opening a report would tell another host about it, or would need the network."""
    page = Page(usual)

    assert "default-src 'none'" in usual
    assert re.findall(r"https?:|//\w", without_library(usual).split("<body>")[0]) == []
    for tag, attributes in page.tags:
        assert tag not in ("img", "iframe", "object", "embed", "form", "base", "video", "audio")
        assert "src" not in attributes
        assert all(not (v or "").startswith(("http", "//")) for v in attributes.values())
        assert tag != "link" or attributes["href"] == "data:,"
        assert not any(name.startswith("on") for name in attributes)
    assert "@import" not in usual.split("</style>")[0]
    assert "url(" not in usual.split("</style>")[0]


def test_only_scripts_with_the_nonce_may_run(usual: str) -> None:
    """The policy would allow a script that came in with foreign text."""
    [nonce] = set(re.findall(r"script-src 'nonce-([\w=-]+)'", usual))
    running = [a for tag, a in Page(usual).tags if tag == "script" and a.get("type") is None]

    assert "unsafe-eval" not in usual.split("<style>")[0]
    assert [nonce] == [a.get("nonce") for a in running]


@pytest.mark.parametrize("text", TEXTS)
def test_foreign_text_stays_text(text: str, hostile_run: Callable[[str], Run], make_run: MakeRun) -> None:
    """A server could put markup, scripts or links into the report by naming its model so."""
    run = hostile_run(text)
    html = Html().render(run)
    page, usual = Page(html), Page(Html().render(make_run(120, 20, tags=("a", "plain"))))

    assert set(usual.names()) >= set(page.names())
    assert usual.names().count("script") == page.names().count("script")
    assert [a for tag, a in page.tags if tag == "a" and not (a["href"] or "").startswith("#")] == []
    assert not re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\u202a-\u202e\u2066-\u2069]", html)
    if text in (SCRIPT, ALL_AT_ONCE):
        assert SCRIPT in page.words()
        assert SCRIPT not in html
    assert len(html) < 2_500_000


@pytest.mark.parametrize("text", [ALL_AT_ONCE, pytest.param(SCRIPT, marks=pytest.mark.nightly)], ids=range(2))
def test_text_of_a_server_stays_text(text: str, hostile_run: Callable[..., Run], remote_run: Callable[[], Run]) -> None:
    """A server could put a script into the report through its metrics, its headers or its answers."""
    html = Html().render(completed(hostile_run(text, remote=True)))
    page, usual = Page(html), Page(Html().render(completed(remote_run())))

    assert set(usual.names()) >= set(page.names())
    assert [a for tag, a in page.tags if tag == "a" and not (a["href"] or "").startswith("#")] == []
    assert SCRIPT not in html
    assert not re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\u202a-\u202e\u2066-\u2069]", html)
    assert len(html) < 2_500_000


@pytest.mark.parametrize("text", TEXTS)
def test_figures_get_no_markup_of_others(text: str, hostile_run: Callable[[str], Run]) -> None:
    """Plotly would draw a class of traffic called '<a href=...>' as a link."""
    run = hostile_run(text)
    for row in figures.of("run").values():
        figure = row.draw(run)
        if isinstance(figure, str):
            continue
        found = json.dumps([figure.data, figure.layout], default=np.ndarray.tolist).replace("<br>", "")
        assert "<" not in found
        assert "\\u202e" not in found


def test_equal_runs_give_equal_bytes(usual: str, make_run: MakeRun) -> None:
    """A report could not be compared with the one of yesterday, nor kept as a golden file."""
    assert usual == Html().render(make_run())


def test_data_tables_hold_the_points_of_the_figures(make_run: MakeRun) -> None:
    """A reader of the table would read other numbers than a viewer of the figure."""
    run = make_run(30, 10)
    for row in figures.of("run").values():
        figure = row.draw(run)
        assert not isinstance(figure, str)
        if any(t["type"] == "heatmap" for t in figure.data):
            continue  # bring a table of their own, or consist of chosen cells: tested by themselves
        table = data_table(figure, most=10**6)

        points = [v for t in figure.data if "meta" not in t for v in (*t["x"], *t["y"])]
        drawn = {v.replace("<br>", " ") if isinstance(v, str) else f"{float(v):.6g}" for v in points}
        shown = {cell for row in table.rows for cell in row[table.heads[0] == "series" :]}
        assert drawn == shown
        assert table.points == len(table.rows)


def test_data_tables_are_short(make_run: MakeRun) -> None:
    """The page would print on dozens of sheets; the rest stands in the Parquet files, and the caption says so."""
    run = make_run(3000, 8)
    tables = [data_table(f) for m in figures.of("run").values() if not isinstance(f := m.draw(run), str)]

    assert all(len(t.rows) <= MOST_ROWS for t in tables)


def test_every_figure_states_its_finding(usual: str) -> None:
    """A screen reader would say 'image' where others see a result."""
    images = [a for tag, a in Page(usual).tags if a.get("role") == "img"]
    assert len(figures.of("run")) == len(images)
    assert all(len(a["aria-label"] or "") > 30 and (a["aria-label"] or "").endswith(".") for a in images)


def test_headings_are_in_order(usual: str) -> None:
    """A screen reader's list of headings would have holes."""
    levels = [int(tag[1]) for tag in Page(usual).names() if re.fullmatch(r"h[1-6]", tag)]

    assert levels.count(1) == 1
    assert all(b - a <= 1 for a, b in zip(levels, levels[1:], strict=False))


def test_killed_run_says_so(make_run: MakeRun, put) -> None:
    """Numbers of a run that was killed would be taken for those of the whole run."""
    run = make_run(complete=False)
    for key in ("summary", "verdict", "fidelity", "warnings"):
        put(run, **{key: None})

    words = " ".join(Page(Html().render(run)).words().split())
    assert "NOT FINISHED: It was killed, or is still running: requests recorded: 240 of 240 planned" in words
    assert "of 240 requests recorded so far met the SLO" in words


def test_interrupted_run_says_so(make_run: MakeRun) -> None:
    """A run that Ctrl-C cut short would look like a good one."""
    html = Html().render(make_run(complete=False, state="interrupted"))
    words = Page(html).words()

    assert "INTERRUPTED" in words
    assert "VALID" not in words


@pytest.mark.nightly
@pytest.mark.parametrize("slo", ["ttft=0.25,tpot=0.1", "", "p99:tpot=0.1", "ttft@chat=0.2,ttft=0.4,itl_p99=0.1,e2e=3"])
@pytest.mark.parametrize(("n", "failed"), [(0, 0), (1, 0), (25, 25), (240, 3)])
def test_page_of_any_run(n: int, failed: int, slo: str, make_run: MakeRun) -> None:
    """A run that went wrong, the very one a user wants to understand, would have no report."""
    run = make_run(n, failed=failed, slo=slo, tags=("chat", None), steps=n > 1)
    words = " ".join(Page(Html().render(run)).words().split())

    assert ("No request was recorded." in words) == (n == 0)
    assert "nan" not in words.replace("finance", "").split()


def test_missing_data_are_named(make_run: MakeRun) -> None:
    """An empty axis would stand where the backend shows no steps."""
    html = Html().render(make_run(steps=False))

    assert "This backend does not show its steps; --backend engine or --backend sim records" in html
    assert 'data-figure="timeline"' not in html


@pytest.mark.nightly
def test_page_of_a_large_run_is_small(make_run: MakeRun) -> None:
    """A report of 10,000 requests with 200 tokens each would be too large for a mail or a CI artifact."""
    run = make_run(10_000, 200)
    began = time.process_time()
    html = Html().render(run)

    print(f"{len(html):,} bytes, {time.process_time() - began:.2f} CPU seconds")
    assert len(html.encode()) < 2_500_000
