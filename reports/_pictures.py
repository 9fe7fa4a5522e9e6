"""Figures as PNG, SVG or PDF files, drawn by the Chromium or Chrome of this machine without a window or a network."""

from __future__ import annotations

import base64
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

from harness.errors import BenchError

if TYPE_CHECKING:
    from reports.document.html import Part

WIDTH, SCALE = 1000, 2.0
"""CSS pixels of a picture, and dots for each of them."""

_PICTURE = re.compile(r'<p data-key="[a-z0-9_-]+">data:image/(?:png;base64|svg\+xml),([^<]+)</p>')
_ERROR = re.compile(r'<p id="error">([^<]*)</p>')
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "headless_shell")
MAC = "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"
LIMIT_S = 120.0
_OPTIONS = (
    "--headless", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-extensions",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--mute-audio",
    "--host-resolver-rules=MAP * ~NOTFOUND",
)  # fmt: skip


def drawn(part: Part, form: str) -> bytes:
    """A file of a figure, in the light look. `form` is png, svg or pdf.

    Raises BenchError where no browser is found, or it does not draw it.
    """
    kind = "png" if form == "png" else "svg"
    scale = SCALE if kind == "png" else 1.0  # an SVG file is as large as it says, and so is a page of PDF
    from reports.document import html  # heavy

    page = html.fill("pictures.html.j2", [part], plain=True, width=WIDTH, scale=scale, form=kind)
    document = finished(page)
    picture = _PICTURE.search(document)
    if picture is None:
        reported = _ERROR.search(document)
        why = reported[1][:300] if reported else "it ended early"
        raise BenchError(f"The browser did not draw '{part.key}' ({why}); take --format html.")
    content = base64.b64decode(picture[1]) if kind == "png" else unquote_to_bytes(picture[1])
    return _printed(content.decode(), part.height) if form == "pdf" else content


def found() -> str | None:
    """The program; None where there is none."""
    return next((path for name in (*NAMES, MAC) if (path := shutil.which(name))), None)


def find() -> str:
    """The program. Raises BenchError, with what to install, where there is none."""
    program = found()
    if program is None:
        raise BenchError(
            "Chromium or Chrome draws the figures, and neither is on the PATH: install one (apt-get install chromium), "
            "or use --format html and save figures in a browser."
        )
    return program


def finished(html: str, budget_s: float = 60.0) -> str:
    """The document of a page after its scripts have run, for at most `budget_s` of the page's own time.

    Raises BenchError where there is no browser, or it does not come back with the page.
    """
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder:
        return _browse(html, folder, f"--virtual-time-budget={1000 * budget_s:.0f}", "--dump-dom")


def _printed(svg: str, height: int) -> bytes:
    """A PDF file of one page, as large as the picture."""
    style = f"@page {{ size: {WIDTH}px {height}px; margin: 0 }} body {{ margin: 0 }} svg {{ display: block }}"
    html = f"<!DOCTYPE html><meta charset=utf-8><style>{style}</style>{svg}"
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder:
        _browse(html, folder, f"--print-to-pdf={folder}/picture.pdf", "--no-pdf-header-footer")
        return (Path(folder) / "picture.pdf").read_bytes()


def _browse(html: str, folder: str, *options: str) -> str:
    """What the browser writes to standard output for a page that is put into `folder`."""
    page = Path(folder) / "page.html"
    page.write_text(html, encoding="utf-8")
    sandbox = ["--no-sandbox"] if os.name == "posix" and os.geteuid() == 0 else []  # as root it starts only so
    return _output([find(), *_OPTIONS, *sandbox, f"--user-data-dir={folder}/profile", *options, page.as_uri()])


def _output(command: list[str]) -> str:
    try:
        done = subprocess.run(  # noqa: S603  # a browser of this machine, our own page
            command, capture_output=True, encoding="utf-8", errors="replace", timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise BenchError(f"'{command[0]}' did not come back within {LIMIT_S:.0f} s; take --format html.") from None
    except OSError as error:
        raise BenchError(f"'{command[0]}' cannot be started: {error.strerror}; take --format html.") from None
    if done.returncode or not (done.stdout or "--dump-dom" not in command):
        last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1][:300]
        raise BenchError(f"'{command[0]}' did not draw the page ({last}); take --format html.")
    return done.stdout
