"""Foreign text made harmless: model names, tags, error texts, file names and options come from outside.

Cleaning happens once, when the view is built; each form (HTML, markdown, terminal, figures) escapes after it.
"""

import html
import re
import shlex

_ESCAPES = re.compile(
    r"(?:\x1b\]|\x9d)[^\x07\x1b\x9c]{0,4096}(?:\x07|\x1b\\|\x9c)?"  # OSC: titles, links, clipboard
    r"|(?:\x1b[PX^_]|[\x90\x98\x9e\x9f])[^\x1b\x9c]{0,4096}(?:\x1b\\|\x9c)?"  # DCS, SOS, PM, APC
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    r"|\x1b[ -/]*[0-~]"  # two-byte escapes
)
_SPACES = re.compile(r"[\s\u2028\u2029]+")
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
_MARKDOWN = re.compile(r"([\\`*_{}\[\]#|~$@])")


def clean(value: object, limit: int | None = 200) -> str:
    """One line of `value` without control characters, escape sequences and direction marks.

    Letters of every script stay. Text longer than `limit` is cut, and says so.
    """
    text = _SPACES.sub(" ", _ESCAPES.sub("", str(value)))
    text = _CONTROLS.sub("", text).strip()
    if limit is not None and len(text) > limit:
        return f"{text[: limit - 30].rstrip()}... ({len(text):,} characters)"
    return text


def sentence(value: object, limit: int) -> str:
    """The same as a sentence: with a capital and a full stop; empty for nothing."""
    text = clean(value or "", limit)
    return text[:1].upper() + text[1:] + ("" if not text or text.endswith((".", "!", "?", ".)")) else ".")


def quoted(path: object) -> str:
    """A path as a shell takes it."""
    return shlex.quote(clean(path, None))


def clean_line(value: object, limit: int = 400) -> str:
    """One line cleaned piece by piece, so that the spaces that align its columns stay."""
    return "".join(p if p.isspace() else clean(p, None) for p in re.split(r"( +)", str(value)[:limit])).rstrip()


def in_figure(value: object, limit: int = 60) -> str:
    """Text for a figure: plotly draws a pseudo-HTML (bold, links) and fills in `%{...}` of its own."""
    return html.escape(clean(value, limit), quote=False).replace("%{", "%&#123;")


def in_markdown(value: object, limit: int | None = 200) -> str:
    """Text for a markdown table: marks escaped, no markup, addresses do not become links."""
    text = html.escape(clean(value, limit), quote=False)
    text = text.replace("://", ":&#8203;//").replace("www.", "www&#8203;.")
    return _MARKDOWN.sub(r"\\\1", text).replace(r"&\#8203;", "&#8203;")
