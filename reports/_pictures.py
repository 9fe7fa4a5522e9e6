"""Parts of a page as PNG files: one page of all figures, drawn by the browser of this machine.

The Chromium or Chrome of this machine, run without a window and without a network.
"""

import base64
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from harness.errors import BenchError
from reports import _page
from reports._page import Part

WIDTH, SCALE = 1000, 2.0
"""CSS pixels of a picture, and dots for each of them."""

_PICTURE = re.compile(r'<p data-key="([a-z0-9_-]+)">data:image/png;base64,([^<]+)</p>')
_ERROR = re.compile(r'<p id="error">([^<]*)</p>')


def drawn(
    parts: Sequence[Part], *, bundle: str | None = None, width: int = WIDTH, scale: float = SCALE
) -> dict[str, bytes]:
    """A PNG file of each part that is a figure, by its key, in the light look.

    Raises BenchError where no browser is found, or it does not draw them all.
    """
    wanted = [part for part in parts if part.table is not None]
    if not wanted:
        raise BenchError("Nothing here has a figure, so there is no picture of it; take --format html, which says why.")
    page = _page.render("pictures.html.j2", wanted, bundle=bundle, plain=True, width=width, scale=scale)
    document = finished(page)
    found = {key: base64.b64decode(picture) for key, picture in _PICTURE.findall(document)}
    missing = [part.key for part in wanted if part.key not in found]
    if missing:
        said = _ERROR.search(document)
        why = said[1][:300] if said else "it ended early"
        raise BenchError(f"The browser did not draw '{missing[0]}' ({why}); take --format html.")
    return found


NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "headless_shell")
MAC = "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"
LIMIT_S = 120.0
_OPTIONS = (
    "--headless", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-extensions",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--mute-audio",
    "--host-resolver-rules=MAP * ~NOTFOUND",
)  # fmt: skip


def found() -> str | None:
    """The program; None where there is none."""
    return next((path for name in (*NAMES, MAC) if (path := shutil.which(name))), None)


def find() -> str:
    """The program. Raises BenchError, saying what to install, where there is none."""
    program = found()
    if program is None:
        raise BenchError(
            "No Chromium and no Chrome is on this machine's PATH, and pictures are drawn by one: install it "
            "(apt-get install chromium), or take --format html, whose figures any browser saves."
        )
    return program


def finished(html: str, budget_s: float = 60.0) -> str:
    """The document of a page after its scripts have run, for at most `budget_s` of the page's own time.

    Raises BenchError where there is no browser, or it does not come back with the page.
    """
    program = find()
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder:
        page = Path(folder) / "page.html"
        page.write_text(html, encoding="utf-8")
        alone = ["--no-sandbox"] if os.name == "posix" and os.geteuid() == 0 else []  # as root it starts only so
        command = [
            program, *_OPTIONS, *alone, f"--user-data-dir={folder}/profile",
            f"--virtual-time-budget={1000 * budget_s:.0f}", "--dump-dom", page.as_uri(),
        ]  # fmt: skip
        return _output(command)


def _output(command: list[str]) -> str:
    try:
        done = subprocess.run(  # noqa: S603  # a browser of this machine, our own page
            command, capture_output=True, encoding="utf-8", errors="replace", timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise BenchError(f"'{command[0]}' did not come back within {LIMIT_S:.0f} s; take --format html.") from None
    except OSError as error:
        raise BenchError(f"'{command[0]}' cannot be started: {error.strerror}; take --format html.") from None
    if done.returncode or not done.stdout:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1][:300]
        raise BenchError(f"'{command[0]}' did not draw the page ({last}); take --format html.")
    return done.stdout
