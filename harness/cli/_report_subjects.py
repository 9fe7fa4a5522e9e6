"""What the RUNs of `bench report` are: a run, an answer that a command left behind, or several on one page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from harness import answers, compose, results
from harness.cli import _terminal
from harness.cli._report_files import Look
from harness.compare import nights
from harness.compare.trend import trend
from harness.compose import Content
from harness.conclude import completed
from harness.errors import UsageError
from harness.folder import Run
from harness.thin import load

SHARED = ("sweep", "capacity")
"""Answers that are curves over the rate, of which several go onto one page."""
APART = ("parquet", "perfetto")
"""Forms that are a file of one run."""
HERE = "bench-report"


class Subject(Protocol):
    """What is reported."""

    @property
    def whole(self) -> bool:
        """Whether it is all that was asked about, not one of several runs."""
        ...

    @property
    def default(self) -> Sequence[str]:
        """The forms where none is asked for; text is printed, html written."""
        ...

    def form(self, name: str, look: Look) -> Content:
        """Its report in a form."""
        ...

    def tell(self, form: str) -> None:
        """Print it in a form of text."""
        ...

    def beside(self, ending: str) -> Path:
        """Where its file of that ending stands."""
        ...

    def split(self, form: str) -> Sequence[Subject]:
        """What has a file of its own in that form."""
        ...


@dataclass(frozen=True, slots=True)
class OneRun:
    """A run, read where it is needed and not kept."""

    load: Callable[[], Run]
    whole: bool = True
    default: tuple[str, ...] = ("html",)

    def form(self, name: str, look: Look) -> Content:
        """A form that `reports` has for runs."""
        given = {"plotly_bundle": look.bundle, "plain": look.plain, "sections": look.sections}
        found: Content = compose.render_run(name, completed(self.load()), **given)
        return found

    def tell(self, form: str) -> None:
        """Print it, in colours where they can be seen."""
        _terminal.show(form, completed(self.load()))

    def beside(self, ending: str) -> Path:
        """In its folder, or beside the file of another tool."""
        return compose.report_path(self.load(), ending)

    def split(self, form: str) -> Sequence[Subject]:  # noqa: ARG002  # of one run it is always one file
        """Itself."""
        return [self]


@dataclass(frozen=True, slots=True)
class OneAnswer:
    """The answer of a sweep, a search, a comparison or a series, and the folder or file that holds it."""

    info: Mapping[str, Any]
    path: Path
    whole: bool = True
    default: tuple[str, ...] = ("text", "html")

    def form(self, name: str, look: Look) -> Content:
        """Its page, pictures of that page's figures, or a form of `harness.answers`."""
        if name not in ("html", "png"):
            return self._rendered(name)
        sheet = compose.answer_sheet(self.info, self.path)
        return compose.draw_sheet(sheet, name, self.beside("html").parent, look.folder, **look.drawn)

    def _rendered(self, form: str) -> str:
        try:
            return compose.render_answer(dict(self.info), form)
        except answers.WRONG as error:
            raise answers.damaged(self.info, self.path, error) from None

    def tell(self, form: str) -> None:
        """Print it, in colours where they can be seen. Raises UsageError for one that was damaged."""
        try:
            _terminal.tell(form, dict(self.info))
        except answers.WRONG as error:
            raise answers.damaged(self.info, self.path, error) from None

    def beside(self, ending: str) -> Path:
        """In its folder, or beside its file."""
        return compose.beside(self.path, ending)

    def split(self, form: str) -> Sequence[Subject]:  # noqa: ARG002  # of one answer it is always one file
        """Itself."""
        return [self]


@dataclass(frozen=True, slots=True)
class Several:
    """Runs and answers whose curves stand on one page; `home` is the folder or file that all of them came from."""

    answers: tuple[OneAnswer, ...]
    runs: tuple[OneRun, ...]
    home: Path | None
    whole: bool = True
    default: tuple[str, ...] = ("html",)

    def form(self, name: str, look: Look) -> Content:
        """The page of all, pictures of its figures, or the texts one after the other."""
        if name in ("html", "png"):
            found = [(answer.info, answer.path) for answer in self.answers]
            runs = (completed(run.load()) for run in self.runs)
            home = self.beside("html").parent
            sheet = compose.sheet_of_several(found, runs, home)
            return compose.draw_sheet(sheet, name, home, look.folder, **look.drawn)
        return _joined(name, [str(part.form(name, look)) for part in self._parts()])

    def tell(self, form: str) -> None:
        """Print all, one after the other; of tables the heads once."""
        if form.partition(":")[0] == "csv":
            _terminal.say(str(self.form(form, Look())).rstrip("\n"))
            return
        for part in self._parts():
            part.tell(form)

    def beside(self, ending: str) -> Path:
        """In the folder of all, or here."""
        return Path(f"{HERE}.{ending}") if self.home is None else compose.beside(self.home, ending)

    def split(self, form: str) -> Sequence[Subject]:
        """Itself; what a form has no common file for, one by one."""
        return self._parts() if form.partition(":")[0] in APART else [self]

    def _parts(self) -> list[Subject]:
        told = (replace(answer, whole=False) for answer in self.answers)
        return [*told, *(replace(run, whole=False) for run in self.runs)]


def of(paths: Sequence[str]) -> Subject:
    """What these RUNs are, each once. Raises UsageError where there is none, or where some cannot stand on one page."""
    paths = list({Path(path).resolve(): path for path in paths}.values())
    found = [part for path in paths for part in _parts(path, alone=len(paths) == 1)]
    if len(found) == 1:
        return found[0]
    told = tuple(part for part in found if isinstance(part, OneAnswer))
    for part in told:
        if part.info["kind"] not in SHARED:
            raise UsageError(
                f"'{part.path}' is an answer of {answers.command(part.info)}, a page of its own; report it alone."
            )
    runs = tuple(part for part in found if isinstance(part, OneRun))
    return Several(told, runs, Path(paths[0]) if len(paths) == 1 else None)


def _parts(path: str, *, alone: bool) -> list[OneAnswer | OneRun]:
    """The answer at a path, or its runs; of a folder of folders all of these, of nights `alone` their trend."""
    given = Path(path)
    if (answer := answers.of(given)) is not None:
        return [OneAnswer(answer, given)]
    if given.is_dir() and not (given / "run.json").exists():
        if alone and nights.is_series(given):
            return [OneAnswer(trend(given), given)]
        foreign = (OneRun(partial(_same, run)) for run in results.foreign_below(given))
        if inner := [*_below(given), *foreign]:
            return inner
    return [OneRun(partial(_same, run)) for run in results.open(given, thin=True)]


def _below(folder: Path) -> Iterator[OneAnswer | OneRun]:
    """The answers and run folders below a folder; nothing is looked for inside one of these."""
    inner = (each for each in folder.iterdir() if each.is_dir() and not each.name.startswith("."))
    for each in sorted(inner, key=lambda found: results.in_order(found.name)):
        if (each / "run.json").exists():
            yield OneRun(partial(load, each))
        elif (answer := answers.of(each)) is not None:
            yield OneAnswer(answer, each)
        else:
            yield from _below(each)


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
