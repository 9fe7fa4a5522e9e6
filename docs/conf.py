"""The site of these pages, for Sphinx: `make site`. Its navigation is the list of links in index.md."""

import re
from types import SimpleNamespace

project = html_title = "bench"
extensions = ["myst_parser"]
html_theme = "furo"  # fonts, styles and scripts are its own files
html_show_copyright = html_show_sphinx = html_copy_source = False
highlight_language = "none"  # what has no language is output
myst_heading_anchors = 4
FRONT = "```{include} ../README.md\n:relative-docs: docs/\n:relative-images:\n```\n"


def _contents(caption: str, pages: str) -> str:
    return f"\n```{{toctree}}\n:hidden:\n:glob:\n{caption}\n\n{pages}\n```\n"


def _with_navigation(_: object, name: str, source: list[str]) -> None:
    """README is the first page, the lists of index.md its navigation; decisions are below the page on architecture."""
    if name == "index":
        parts = re.findall(r"^## (.+)\n((?:.+\n)+)", source[0], re.MULTILINE)
        lists = {heading: re.sub(r".*?\[(.+?)\]\((\S+)\.md\)[^\[]*", r"\1 <\2>\n", text) for heading, text in parts}
        source[0] = FRONT + "".join(_contents(f":caption: {heading}", pages) for heading, pages in lists.items())
    elif name == "architecture":
        source[0] += _contents("", "design/*")


def setup(app: SimpleNamespace) -> None:
    """Called by Sphinx."""
    app.connect("source-read", _with_navigation)
