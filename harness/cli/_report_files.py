"""What `bench report` was asked for, and the files that it writes."""

from __future__ import annotations

import webbrowser
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import answers, compose, registry, spec, writable
from harness.compose import Content
from harness.errors import UsageError, no_such
from harness.folder import OURS

if TYPE_CHECKING:
    from harness.cli._report_subjects import Subject

FILES = ("html", "parquet", "png", "perfetto")
"""Forms that are never printed."""
_DATA = {*OURS, *(f"{kind}.json" for kind in answers.KINDS)}
_SHORT = {"md": "markdown", "txt": "text", "xml": "junit"}
_ENDS = {"markdown": "md", "text": "txt", "junit": "xml", "perfetto": "perfetto.json"}


@dataclass(frozen=True, slots=True)
class Look:
    """How a page is made: which of its sections, with which plotly.js, compressed or `plain`; where --out puts it."""

    sections: tuple[str, ...] = ()
    bundle: str | None = None
    plain: bool = False
    folder: Path | None = None

    @property
    def drawn(self) -> dict[str, Any]:
        """What `compose.draw_sheet` is told of it."""
        return {"bundle": self.bundle, "plain": self.plain, "sections": self.sections}


@dataclass(frozen=True, slots=True)
class Asked:
    """The options, checked. Without `forms` it is up to what is reported."""

    forms: tuple[str, ...]
    out: str | None
    show: bool
    look: Look

    def prints(self, form: str) -> bool:
        """Whether a form goes to standard output: it is text, and no file is meant by naming one or several forms."""
        return _name(form) not in FILES and (not self.forms or (len(self.forms) == 1 and self.out is None))


def asked(
    given: Sequence[str], out: str | None, *, show: bool, sections: str | None, bundle: str | None, plain: bool
) -> Asked:
    """What was asked for. Raises UsageError for an unknown form, and for options that do not go together.

    Raises BenchError where pictures are wanted and no browser can draw them.
    """
    forms = _forms(given)
    if show and "html" not in (forms or ("html",)):
        raise UsageError(f"--open opens a report in the browser; it goes with --format html, not '{','.join(forms)}'.")
    paged = not forms or not {"html", "png"}.isdisjoint(forms)
    if not paged and (sections or bundle or plain):
        raise UsageError("--sections, --plotly-bundle and --plain are about the page; they go with --format html.")
    named = tuple(dict.fromkeys(name.strip() for name in (sections or "").split(",") if name.strip()))
    if any(_name(form) == "png" for form in forms):
        compose.find_browser()  # before anything is drawn for it
    if out is not None:
        _check(out, folder=_wants_folder(forms, out))
    folder = None if out is None else Path(out) if _wants_folder(forms, out) else Path(out).parent
    return Asked(forms, out, show, Look(named, bundle, plain, folder))


def _forms(given: Sequence[str]) -> tuple[str, ...]:
    """The forms by their names, each once; `perfetto:requests=5,window=1s` stays whole."""
    found: list[str] = []
    for piece in (piece.strip() for text in given for piece in text.split(",")):
        if "=" in piece and ":" not in piece and found:
            found[-1] = f"{found[-1]},{piece}"
        else:
            found.append(_known(piece))
    return tuple(dict.fromkeys(found))


def _known(form: str) -> str:
    """The form under its full name. Raises UsageError, with the nearest name, for one that nobody makes."""
    name, colon, options = form.partition(":")
    name = _SHORT.get(name.lower(), name)
    known = {*answers.FORMS, *registry.names("reports")}
    if name not in known:
        raise no_such("format", name, known)
    return f"{name}{colon}{options}"


def _name(form: str) -> str:
    return spec.parse(form).name


def _check(out: str, *, folder: bool) -> None:
    """Raise UsageError where nothing can be written there; a folder for several files is made."""
    if not out.strip():
        raise UsageError("--out is empty; name a file, or a folder.")
    if not folder:
        if Path(out).name in _DATA and Path(out).exists():
            raise UsageError(f"'{out}' holds what was measured, not a report; name another file.")
        writable.check(out)
        return
    try:
        Path(out).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out '{out}' is to be a folder and cannot be made: {error.strerror}.") from None


def _wants_folder(forms: Sequence[str], out: str) -> bool:
    """Whether --out names a folder: it is one, or several files are made."""
    return len(forms) > 1 or any(_name(form) == "png" for form in forms) or Path(out).is_dir() or out.endswith("/")


def write(content: Content, subject: Subject, form: str, asked: Asked) -> Iterator[Path]:
    """Write a form of a report; the files, of pictures one for each."""
    path = _place(subject, form, asked)
    if isinstance(content, Mapping):
        for name, picture in content.items():
            one = path.with_name(f"{path.stem}-{name}{path.suffix}")
            compose.put(one, picture)
            yield one
        return
    compose.put(path, content)
    yield path


def _place(subject: Subject, form: str, asked: Asked) -> Path:
    name = _name(form)
    ending = _ENDS.get(name, name)
    if asked.out is None:
        return subject.beside(ending)
    if not subject.whole:
        raise UsageError(f"--out names one place and '{name}' is made of each run; leave --out away, or name one RUN.")
    out = Path(asked.out)
    return out / f"report.{ending}" if _wants_folder(asked.forms, asked.out) else out


def show(path: Path) -> None:
    """Open a page in the browser."""
    webbrowser.open(path.resolve().as_uri())
