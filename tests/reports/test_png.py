"""Figures as PNG, SVG and PDF files, where a Chromium can draw them."""

import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.data.folder import Run
from harness.errors import BenchError, UsageError
from reports import _pictures
from reports.answers.run import document
from reports.document import html

MakeRun = Callable[..., Run]
HOSTILE = "</script><script>throw 1</script><img src=x>"


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a browser onto the PATH that is this shell script, and nothing else."""

    def put(script: str) -> None:
        path = tmp_path / "chromium"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))

    return put


@pytest.mark.nightly
@pytest.mark.skipif(not any(map(shutil.which, _pictures.NAMES)), reason="no Chromium: apt-get install chromium")
def test_a_figure_becomes_a_picture(make_run: MakeRun) -> None:
    """A slide or a pull request would lack a figure, or have a blurred one."""
    picture = _pictures.drawn(html.figure(document(make_run(300, tags=(HOSTILE, "plain"))), "slo_scale"), "png")

    assert picture[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">I", picture[16:20])[0] == _pictures.WIDTH * _pictures.SCALE
    assert len(picture) > 5_000


@pytest.mark.nightly
@pytest.mark.skipif(not any(map(shutil.which, _pictures.NAMES)), reason="no Chromium: apt-get install chromium")
def test_a_pdf_is_one_page_of_the_size_of_its_figure(make_run: MakeRun) -> None:
    """A paper would show the upper left quarter of the figure."""
    part = html.figure(document(make_run(60, steps=False)), "slo_scale")
    svg, pdf = (_pictures.drawn(part, form) for form in ("svg", "pdf"))

    assert f'width="{_pictures.WIDTH}" height="{part.height}"'.encode() in svg[:500]
    assert 1 == len(re.findall(rb"/Type\s*/Page\b", pdf))


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo 'no display' >&2; exit 1", r"did not draw the page \(no display\)"),
        ("exit 0", r"did not draw the page \(it printed nothing\)"),
        ("echo '<p id=\"error\">no colour</p>'", r"did not draw 'slo_scale' \(no colour\)"),
        ("echo '<html></html>'", r"did not draw 'slo_scale' \(it ended early\)"),
    ],
)
def test_a_browser_that_does_not_draw_is_reported(
    script: str, message: str, make_run: MakeRun, program: Callable[[str], None]
) -> None:
    """The user would find no pictures, and no reason."""
    program(script)
    part = html.figure(document(make_run(20, steps=False)), "slo_scale")

    with pytest.raises(BenchError, match=message):
        _pictures.drawn(part, "png")


def test_a_browser_that_hangs_is_left(program: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """`bench report` would never come back."""
    program("exec /bin/sleep 60")
    monkeypatch.setattr(_pictures, "LIMIT_S", 0.1)

    with pytest.raises(BenchError, match="did not come back within"):
        _pictures.finished("<html></html>")


def test_nothing_to_draw_is_reported(make_run: MakeRun) -> None:
    """An empty folder or an empty figure would look like a success."""
    with pytest.raises(UsageError, match="Figure 'timeline' has no data: This backend does not show its steps"):
        html.figure(document(make_run(20, steps=False)), "timeline")
