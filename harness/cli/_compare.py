"""How `bench compare` reads its own options, and where its answer goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import compose
from harness import options as harness_options
from harness.api import Slo
from harness.cli import _terminal
from harness.data import files
from harness.errors import UsageError, no_such
from harness.experiments.compare import gates, refusals
from harness.experiments.compare.answer import Settings
from harness.metrics import slo
from harness.stats.paired import ALPHA

if TYPE_CHECKING:
    pass


PRINTED = ("text", "markdown", "json")


@dataclass(frozen=True, slots=True)
class Files:
    """The form that is printed, and (form, path) of what is written beside it."""

    printed: str
    forms: tuple[tuple[str, str], ...]


def settings(options: Mapping[str, Any], *, free: bool = False) -> Settings:
    """How to compare. `free` takes gates on numbers that bench does not know. Raises UsageError."""
    goal, asked, alpha = options.get("goal"), options.get("slo"), options.get("alpha")
    goal_share = Slo().goal if goal is None else float(str(harness_options.CHECKS["goal"](goal, "--goal")))
    return Settings(
        gates=gates.parse(options["gate"], free=free) if options.get("gate") else (),
        alpha=ALPHA if alpha is None else _alpha(alpha),
        allowed=refusals.checked(options.get("allow_different") or ""),
        slo=None if asked is None else slo.parse(asked, goal=goal_share),
        goal=None if goal is None else goal_share,
        warmup=None if options.get("warmup") is None else harness_options.warmup_rule(options["warmup"], "--warmup"),
    )


def _alpha(text: str) -> float:
    try:
        value = float(str(harness_options.CHECKS["goal"](text, "--alpha")))
    except UsageError:
        value = 1.0
    if not value < 0.5:
        raise UsageError(f"--alpha must be a share above 0 and below 50%, such as 1%, got '{text}'.")
    return value


def checked(options: Mapping[str, Any]) -> Files:
    """Where to write. Raises UsageError, before anything is computed, for a form or a folder that is not there."""
    forms = [
        (form, options[key])
        for form, key in (("markdown", "markdown"), ("junit", "junit"), ("json", "as_json"), ("html", "html"))
        if options.get(key)
    ]
    for text in options.get("export") or ():
        form, equals, path = text.partition("=")
        if not equals or not path:
            raise UsageError(f"--export '{text}': write FORM=FILE, such as bencher=bench.json.")
        forms.append((no_other(form, compose.EXPORTS), path))
    if sum(path == "-" for _, path in forms) > 1:
        raise UsageError("Two forms cannot both go to standard output; write - once, and a file for the other.")
    for _, path in forms:
        if path != "-":
            files.check(path)
    return Files(no_other(options.get("form") or "text", PRINTED), tuple(forms))


def no_other(form: str, known: Sequence[str]) -> str:
    """The form itself. Raises UsageError for one that is not known."""
    if form == "html":
        raise UsageError("--format says what is printed; --html FILE writes the page.")
    if form not in known:
        raise no_such("form", form, known)
    return form


def write(info: Mapping[str, Any], files: Files) -> None:
    """Print the answer, and write it in every form that was asked for."""
    if not any(path == "-" for _, path in files.forms):
        if files.printed == "text":
            _terminal.tell("text", dict(info))
        else:
            _terminal.say(_render(files.printed, info).rstrip("\n"))
    for form, path in files.forms:
        rendered = _render(form, info, path)
        if path == "-":
            _terminal.say(rendered.rstrip("\n"))
        else:
            compose.put(Path(path), rendered)


def _render(form: str, info: Mapping[str, Any], path: str = "-") -> str:
    """The answer in a form; the links of a page are relative to where it will stand."""
    if form == "html":
        return compose.answer_page(info, Path() if path == "-" else Path(path))
    if form in ("junit", *compose.EXPORTS):
        return compose.export_comparison(info, form)
    return compose.render_answer(info, form)
