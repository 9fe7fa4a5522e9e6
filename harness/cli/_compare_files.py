"""How `bench compare` reads its own options, and where its answer goes."""

import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import config, pages, slo, writable
from harness.api import Slo
from harness.cli import _terminal
from harness.compare import gates, refusals
from harness.compare.answer import Settings
from harness.errors import UsageError, no_such
from harness.stats.paired import ALPHA
from harness.warmup import checked as checked_warmup

PRINTED = ("text", "markdown", "json")
FORMS = ("github-smaller", "github-bigger", "bencher", "pytorch")


@dataclass(frozen=True, slots=True)
class Files:
    """The form that is printed, and (form, path) of what is written beside it."""

    printed: str
    forms: tuple[tuple[str, str], ...]


def settings(options: Mapping[str, Any], *, free: bool = False) -> Settings:
    """How to compare. `free` takes gates on numbers that bench does not know. Raises UsageError."""
    goal, asked, alpha = options.get("goal"), options.get("slo"), options.get("alpha")
    goal_share = Slo().goal if goal is None else float(str(config.CHECKS["goal"](goal, "--goal")))
    return Settings(
        gates=gates.parse(options["gate"], free=free) if options.get("gate") else (),
        alpha=ALPHA if alpha is None else _alpha(alpha),
        allowed=refusals.checked(options.get("allow_different") or ""),
        slo=None if asked is None else slo.parse(asked, goal=goal_share),
        goal=None if goal is None else goal_share,
        warmup=None if options.get("warmup") is None else checked_warmup(options["warmup"], "--warmup"),
    )


def _alpha(text: str) -> float:
    try:
        value = float(str(config.CHECKS["goal"](text, "--alpha")))
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
        forms.append((no_other(form, FORMS), path))
    if sum(path == "-" for _, path in forms) > 1:
        raise UsageError("Two forms cannot both go to standard output; write - once, and a file for the other.")
    for _, path in forms:
        if path != "-":
            writable.check(path)
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
        if form == "html":  # its links are relative to where it will stand
            page: Callable[..., str] = importlib.import_module("reports.pages").page
            rendered = page(info, Path() if path == "-" else Path(path))
        else:
            rendered = _render(form, info)
        if path == "-":
            _terminal.say(rendered.rstrip("\n"))
        else:
            pages.put(Path(path), rendered)


def _render(form: str, info: Mapping[str, Any]) -> str:
    if form == "json":
        return json.dumps(info, indent=2, allow_nan=False) + "\n"
    module = importlib.import_module("reports.answers.exports" if form in FORMS else f"reports.answers.{info['kind']}")
    if form == "junit":
        module = importlib.import_module("reports.answers.compare_junit")
    render: Callable[[Mapping[str, Any]], str] = getattr(module, form.replace("-", "_"))
    return render(info)
