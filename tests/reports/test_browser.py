"""The page in a real browser: every figure draws, nothing is fetched, nothing foreign runs."""

from __future__ import annotations

import dataclasses
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from harness import slo
from harness.conclude import conclude
from harness.drive import Outcome
from harness.folder import Run
from harness.gap_law import Law
from reports import figures, traffic
from reports.html import Html

MakeRun = Callable[..., Run]
Look = Callable[..., tuple[str, str]]
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000", "--enable-logging=stderr", "--v=0",
    "--window-size=1200,9000", "--host-resolver-rules=MAP * ~NOTFOUND", "--no-first-run",
)  # fmt: skip
WATCH = """<script nonce="{nonce}">
const seen = document.documentElement.dataset;
const note = (what) => {{ seen.trouble = (seen.trouble || "") + what + ";"; }};
addEventListener("error", (e) => note(e.message));
addEventListener("unhandledrejection", (e) => note(String(e.reason)));
document.addEventListener("securitypolicyviolation", (e) => note(e.violatedDirective + " " + e.blockedURI));
addEventListener("load", () => setTimeout(() => {{
  const names = performance.getEntriesByType("resource").map((e) => e.name);
  seen.fetched = names.filter((n) => !n.startsWith("data:")).join();
  seen.links = document.querySelectorAll(".figure a[href], .figure image, img").length;
  {more}
}}, 9000));
</script>"""


@pytest.fixture
def look(tmp_path: Path) -> Look:
    """Opens a page and gives the drawn document and the browser's log; skips where there is no Chromium."""
    browser = next((found for name in NAMES if (found := shutil.which(name))), None)
    if browser is None:
        pytest.skip("no Chromium on this machine; with 'apt-get install chromium' the page is tried in a browser")

    def open_page(html: str, *flags: str, more: str = "", dump: bool = True) -> tuple[str, str]:
        [nonce] = set(re.findall(r"script-src 'nonce-([\w+/=]+)'", html))
        page = tmp_path / "page.html"
        page.write_text(html.replace("<style>", WATCH.format(nonce=nonce, more=more) + "<style>", 1), encoding="utf-8")
        last = ["--dump-dom"] if dump else []
        command = [browser, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", *flags, *last, page.as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        return done.stdout, done.stderr

    return open_page


def drawn(document: str) -> list[str]:
    """Keys of the figures that hold a drawing."""
    boxes = re.findall(r'data-figure="(\w+)"(.*?)(?=data-figure=|</main>)', document, re.DOTALL)
    return [key for key, inside in boxes if 'class="main-svg"' in inside]


def untroubled(document: str, log: str) -> None:
    assert 'data-fetched=""' in document
    assert 'data-links="0"' in document
    assert "data-trouble" not in document
    assert [line for line in log.splitlines() if "CONSOLE" in line] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_figure_draws(scheme: str, make_run: MakeRun, look: Look) -> None:
    """A figure would stay empty, or the browser's console would be full of errors."""
    dark = ["--blink-settings=preferredColorScheme=0"] if scheme == "dark" else []
    document, log = look(Html().render(make_run(900)), *dark)

    assert list(figures.modules()) == drawn(document)
    assert (scheme == "dark") == ("rgb(230, 232, 235)" in document)
    untroubled(document, log)


@pytest.mark.parametrize("width", ["1200", "500"])
def test_every_picture_of_traffic_draws(width: str, look: Look) -> None:
    """The page of a trace would stay empty, in a wide window or in a narrow one."""
    rng = np.random.default_rng(0)
    times, lengths = np.cumsum(rng.exponential(0.2, 2000)), rng.integers(1, 900, (2, 2000))
    hostile = "</script><img src=x><a href='https://evil.example/'>x</a>"
    facts = {
        "name": hostile, "times_s": times, "prompt_tokens": lengths[0], "output_tokens": lengths[1],
        "other": {"name": "drawn", "times_s": times**0.9}, "turns": [1, 1, 2, 5], "think_s": [1.0, 20.0, 300.0],
        "curves": {"widths_s": [1, 10], "band_low": [0.8, 0.7], "band_high": [1.2, 1.4], "toys": {hostile: [1, 1]}},
        "gap_law": {"name": hostile, "cdf": lambda gaps: 1 - np.exp(-5 * gaps)}, "texts": [hostile],
    }  # fmt: skip
    document, log = look(traffic.page(facts, hostile), f"--window-size={width},9000")

    assert ["dispersion", "rate", "gaps", "lengths", "joint", "turns", "think"] == drawn(document)
    untroubled(document, log)


def test_hostile_text_does_nothing(make_run: MakeRun, look: Look) -> None:
    """A server could run its script in the reader's browser, or make a link of a class of traffic."""
    text = "</script><script>document.title='owned'</script><a href='https://evil.example/'>x</a><img src=x>"
    run = make_run(tags=(text, "plain"), command=text, backend={"name": text, "model": text}, started="2026")
    run.info["slo"]["bounds"] = [{"metric": "ttft", "limit": 0.2, "tag": text, "percentile": None},
                                 {"metric": "tpot", "limit": 0.1, "tag": None, "percentile": None}]  # fmt: skip
    document, log = look(Html().render(run))

    assert list(figures.modules()) == drawn(document)
    assert "<title>chatbot on &lt;/script&gt;&lt;script&gt;document.title" in document
    untroubled(document, log)


def test_figures_wait_until_they_are_seen(make_run: MakeRun, look: Look) -> None:
    """A page of many figures would open slowly."""
    document, _ = look(Html().render(make_run()), "--window-size=1200,700")

    assert len(drawn(document)) < len(figures.modules())


def test_all_kinds_of_run_draw(make_run: MakeRun, look: Look) -> None:
    """A killed run without steps would break the page."""
    run = make_run(60, failed=20, steps=False, complete=False)
    for key in ("summary", "verdict", "fidelity", "warnings"):
        del run.info[key]
    document, log = look(Html().render(run))

    assert [key for key in figures.modules() if key != "timeline"] == drawn(document)
    untroubled(document, log)


def test_a_remote_run_draws(remote_run: MakeRun, look: Look) -> None:
    """The gauges of a server elsewhere would stay an empty box, or the page of its client would break."""
    run = remote_run(floor=None)
    told = conclude(run, slo.restored(run.info), Law(5.0, known=False), Outcome("finished", 60, 0, 0))
    document, log = look(Html().render(dataclasses.replace(run, info={**run.info, **told})))

    assert "timeline" in drawn(document)
    untroubled(document, log)


def test_printing_draws_everything_in_light(make_run: MakeRun, look: Look) -> None:
    """Paper would show what had not been scrolled to as gaps, and the dark page as a black sheet."""
    steps = "dispatchEvent(new Event('beforeprint')); seen.open = document.querySelectorAll('details[open]').length;"
    document, log = look(
        Html().render(make_run()), "--window-size=1200,700", "--blink-settings=preferredColorScheme=0", more=steps
    )

    assert list(figures.modules()) == drawn(document)
    assert f'data-open="{len(figures.modules())}"' in document
    assert "rgb(230, 232, 235)" not in document
    untroubled(document, log)


def test_page_prints(make_run: MakeRun, look: Look, tmp_path: Path) -> None:
    """The report could not be handed out on paper."""
    look(Html().render(make_run()), f"--print-to-pdf={tmp_path / 'page.pdf'}", dump=False)

    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")


def test_old_browser_is_told(make_run: MakeRun, look: Look) -> None:
    """A browser that cannot unpack the library would show empty boxes without a word."""
    html = Html().render(make_run())
    document, _ = look(
        html.replace("<style>", "<style>", 1).replace(
            '"use strict";', '"use strict"; const DecompressionStream = undefined;', 1
        )
    )

    assert document.count("This browser cannot unpack the drawing library") >= len(figures.modules())
