"""Parts of a page as PNG files: one page of all figures, drawn by the browser of this machine."""

import base64
import re
from collections.abc import Sequence

from harness.errors import BenchError
from reports import _browser, _page
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
    document = _browser.finished(page)
    found = {key: base64.b64decode(picture) for key, picture in _PICTURE.findall(document)}
    missing = [part.key for part in wanted if part.key not in found]
    if missing:
        said = _ERROR.search(document)
        why = said[1][:300] if said else "it ended early"
        raise BenchError(f"The browser did not draw '{missing[0]}' ({why}); take --format html.")
    return found
