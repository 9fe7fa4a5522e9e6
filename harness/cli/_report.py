"""The options of `bench report`, the files that it writes, and its subjects: a run, a stored answer, or several."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from harness import registry, spec
from harness.cli import _terminal
from harness.data import files
from harness.data.folder import OURS, Run
from harness.data.large import load
from harness.errors import UsageError, no_such
from harness.experiments import answers, imports
from harness.experiments.compare import history
from harness.experiments.compare.trend import trend
from harness.validity.conclude import completed

if TYPE_CHECKING:
    from reports.document import Document
    from reports.document.rendered import Content

PICTURES = ("svg", "pdf", "png")
"""Forms of one figure."""
FILES = ("html", "parquet", "perfetto", *PICTURES)
"""Forms that are never printed."""
_DATA = {*OURS, *(f"{kind}.json" for kind in answers.MODULES)}
_SHORT = {"md": "markdown", "txt": "text", "xml": "junit"}
_ENDS = {"markdown": "md", "text": "txt", "junit": "xml", "perfetto": "perfetto.json",
         **{form: f"{form}.json" for form in ("vllm", "llm-d")}}  # fmt: skip
SHARED = ("sweep", "capacity")
"""Answers that are curves over the rate, of which several go onto one page."""
APART = ("parquet", "perfetto", "vllm", "llm-d")
"""Forms that are a file of one run."""
HERE = "bench-report"


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """The options, checked. Without `forms` the subject decides; `folder` is where --out puts a page."""

    forms: tuple[str, ...] = ()
    out: str | None = None
    show: bool = False
    figure: str | None = None
    folder: Path | None = None

    def prints(self, form: str) -> bool:
        """Whether a form goes to standard output: it is text, and no file is meant by naming one or several forms."""
        return _name(form) not in FILES and (not self.forms or (len(self.forms) == 1 and self.out is None))


def report_options(given: Sequence[str], out: str | None, *, show: bool, figure: str | None = None) -> ReportOptions:
    """The options, checked. Raises UsageError for an unknown form, and for options that do not go together.

    Raises BenchError where pictures are wanted and no browser can draw them.
    """
    ending = _ending(out)
    forms = _forms(given) or ((_known(ending),) if ending else ())
    if figure is not None:
        forms = forms or PICTURES[:1]
        if other := [form for form in forms if form not in PICTURES]:
            raise UsageError(f"--figure draws one figure as {', '.join(PICTURES)}; there is no {other[0]} of it.")
    elif ending in PICTURES:
        raise UsageError(f"--out '{out}' is a picture of one figure; add --figure NAME, such as --figure latency_cdf.")
    elif other := [form for form in forms if form in PICTURES]:
        raise UsageError(f"--format {other[0]} is of one figure; add --figure NAME, such as --figure latency_cdf.")
    if ending in PICTURES and forms != (ending,):
        raise UsageError(
            f"--out '{out}' ends with .{ending}, and --format is {','.join(forms)}; name the same in both."
        )
    if show and "html" not in (forms or ("html",)):
        raise UsageError(f"--open opens a report in the browser; it goes with --format html, not '{','.join(forms)}'.")
    if figure is not None:
        from reports import _pictures

        _pictures.find()  # before anything is drawn for it
    folder = None
    if out is not None:
        several = _wants_folder(forms, out)
        _check(out, folder=several)
        folder = Path(out) if several else Path(out).parent
    return ReportOptions(forms, out, show, figure, folder)


def _forms(given: Sequence[str]) -> tuple[str, ...]:
    """The forms by their names, each once; `perfetto:requests=5,window=1s` stays whole."""
    forms: list[str] = []
    for piece in (piece.strip() for text in given for piece in text.split(",")):
        if "=" in piece and ":" not in piece and forms:
            forms[-1] = f"{forms[-1]},{piece}"
        else:
            forms.append(_known(piece))
    return tuple(dict.fromkeys(forms))


def _ending(out: str | None) -> str:
    """The form that the name of one file ends with, such as `svg`; none for a folder, and for html, the default."""
    ending = "" if not out or out.endswith("/") or Path(out).is_dir() else Path(out).suffix.lower().removeprefix(".")
    form = _SHORT.get(ending, ending)
    return "" if form in ("html", "htm") or form.isdigit() else form


def _known(form: str) -> str:
    """The form under its full name. Raises UsageError, with the nearest name, for an unknown one."""
    name, colon, options = form.partition(":")
    name = _SHORT.get(name.lower(), name)
    forms = {*answers.FORMS, *registry.names("reports"), *PICTURES}
    if name not in forms:
        raise no_such("format", name, forms)
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
        files.check(out)
        return
    try:
        Path(out).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out '{out}' is to be a folder and cannot be made: {error.strerror}.") from None


def _wants_folder(forms: Sequence[str], out: str) -> bool:
    """Whether --out names a folder: it is one, or several files are made."""
    return len(forms) > 1 or Path(out).is_dir() or out.endswith("/")


def place(subject: Subject, form: str, options: ReportOptions) -> Path:
    """Where a form of a report is written."""
    name = _name(form)
    ending = _ENDS.get(name, name)
    file = f"{options.figure or 'report'}.{ending}"
    if options.out is None:
        return subject.beside(ending) if options.figure is None else Path(file)
    if not subject.whole:
        raise UsageError(f"--out names one place and '{name}' is made of each run; leave --out away, or name one RUN.")
    out = Path(options.out)
    return out / file if _wants_folder(options.forms, options.out) else out


@dataclass(frozen=True, slots=True)
class OneRun:
    """A run, read where it is needed and not kept."""

    load: Callable[[], Run]
    whole: bool = True
    default: tuple[str, ...] = ("html",)

    def form(self, name: str, options: ReportOptions) -> Content:
        """A form that `reports` has for runs, or one of its figures."""
        from reports.answers import run
        from reports.document import rendered

        if options.figure is not None:
            return rendered.picture(run.document(completed(self.load())), name, options.figure)
        content: Content = rendered.render_run(name, completed(self.load()))
        return content

    def show(self, form: str) -> None:
        """Print it, in colours where they can be seen."""
        _terminal.show(form, completed(self.load()))

    def beside(self, ending: str) -> Path:
        """In its folder, or beside the file of another tool."""
        from reports.document import rendered

        return rendered.run_path(self.load(), ending)


@dataclass(frozen=True, slots=True)
class OneAnswer:
    """The answer of a sweep, a search, a comparison or a series, and the folder or file that holds it."""

    info: answers.Answer
    path: Path
    whole: bool = True
    default: tuple[str, ...] = ("text", "html")

    def form(self, name: str, options: ReportOptions) -> Content:
        """Its page, pictures of that page's figures, or a form of `harness.experiments.answers`."""
        from reports import answers as reported
        from reports.document import rendered

        if name not in ("html", *PICTURES):
            try:
                return rendered.render(self.info, name)
            except answers.WRONG as error:
                raise answers.damaged(self.info, self.path, error) from None
        document = reported.document(self.info, self.path)
        return _drawn(document, name, self.beside("html").parent, options)

    def show(self, form: str) -> None:
        """Print it, in colours where they can be seen. Raises UsageError for one that was damaged."""
        try:
            _terminal.show(form, self.info)
        except answers.WRONG as error:
            raise answers.damaged(self.info, self.path, error) from None

    def beside(self, ending: str) -> Path:
        """In its folder, or beside its file."""
        from reports.document import rendered

        return rendered.answer_path(self.path, ending)


@dataclass(frozen=True, slots=True)
class Several:
    """Runs and answers whose curves stand on one page; `home` is the folder or file that all of them came from."""

    answers: tuple[OneAnswer, ...]
    runs: tuple[OneRun, ...]
    home: Path | None
    whole: bool = True
    default: tuple[str, ...] = ("html",)

    def form(self, name: str, options: ReportOptions) -> Content:
        """The page of all, pictures of its figures, or the texts one after the other."""
        from reports import answers as reported

        if name in ("html", *PICTURES):
            stored = [(answer.info, answer.path) for answer in self.answers]
            runs = (completed(run.load()) for run in self.runs)
            home = self.beside("html").parent
            document = reported.together(stored, runs, home)
            return _drawn(document, name, home, options)
        return _joined(name, [str(part.form(name, options)) for part in self.parts()])

    def show(self, form: str) -> None:
        """Print all, one after the other; of tables the heads once."""
        if form.partition(":")[0] == "csv":
            _terminal.say(str(self.form(form, ReportOptions())).rstrip("\n"))
            return
        for part in self.parts():
            part.show(form)

    def beside(self, ending: str) -> Path:
        """In the folder of all, or here."""
        from reports.document import rendered

        return Path(f"{HERE}.{ending}") if self.home is None else rendered.answer_path(self.home, ending)

    def parts(self) -> list[Subject]:
        """Each by itself."""
        return [
            *(replace(answer, whole=False) for answer in self.answers),
            *(replace(run, whole=False) for run in self.runs),
        ]


Subject: TypeAlias = OneRun | OneAnswer | Several
"""What is reported. `whole`: it is the only subject, not one of several; `default`: its forms without --format."""


def split(subject: Subject, form: str) -> list[Subject]:
    """The subject itself; several for which a form has no common file one by one."""
    return subject.parts() if isinstance(subject, Several) and form.partition(":")[0] in APART else [subject]


def of(paths: Sequence[str]) -> Subject:
    """What these RUNs are, each once. Raises UsageError where there is none, or where some cannot stand on one page."""
    paths = list({Path(path).resolve(): path for path in paths}.values())
    parts = [part for path in paths for part in _parts(path, alone=len(paths) == 1)]
    if len(parts) == 1:
        return parts[0]
    several = tuple(part for part in parts if isinstance(part, OneAnswer))
    for part in several:
        if answers.kind_of(part.info) not in SHARED:
            raise UsageError(
                f"'{part.path}' is an answer of {answers.command(part.info)}, a page of its own; report it alone."
            )
    runs = tuple(part for part in parts if isinstance(part, OneRun))
    return Several(several, runs, Path(paths[0]) if len(paths) == 1 else None)


def _parts(path: str, *, alone: bool) -> list[OneAnswer | OneRun]:
    """The answer at a path, or its runs; of a folder of folders all of these, of nightly runs `alone` a trend."""
    source = Path(path)
    if (answer := answers.of(source)) is not None:
        return [OneAnswer(answer, source)]
    if source.is_dir() and not (source / "run.json").exists():
        if alone and history.is_series(source):
            return [OneAnswer(trend(source), source)]
        foreign = (OneRun(partial(_same, run)) for run in imports.foreign_below(source))
        if inner := [*_below(source), *foreign]:
            return inner
    return [OneRun(partial(_same, run)) for run in imports.open(source, thin=True)]


def _below(folder: Path) -> Iterator[OneAnswer | OneRun]:
    """The answers and run folders below a folder; nothing is looked for inside one of these."""
    inner = (child for child in folder.iterdir() if child.is_dir() and not child.name.startswith("."))
    for child in sorted(inner, key=lambda found: imports.in_order(found.name)):
        if (child / "run.json").exists():
            yield OneRun(partial(load, child))
        elif (answer := answers.of(child)) is not None:
            yield OneAnswer(answer, child)
        else:
            yield from _below(child)


def _drawn(document: Document, form: str, home: Path, options: ReportOptions) -> Content:
    """The page of what stands in `home`, or its one figure."""
    from reports.document import html, rendered

    if options.figure is not None:
        return rendered.picture(document, form, options.figure)
    return html.render(document if options.folder is None else html.moved(document, home, options.folder))


def _same(run: Run) -> Run:
    return run


def _joined(form: str, texts: Sequence[str]) -> str:
    """Texts one below the other; of CSV tables the heads once."""
    if form.partition(":")[0] != "csv":
        return "\n".join(text.rstrip("\n") + "\n" for text in texts)
    tables = [text.partition("\n") for text in texts]
    if len({heads for heads, _, _ in tables}) > 1:
        raise UsageError(
            "Their tables have different columns and cannot stand in one CSV file; name one RUN at a time."
        )
    return "\n".join([tables[0][0], *(rows.rstrip("\n") for _, _, rows in tables if rows)]) + "\n"
