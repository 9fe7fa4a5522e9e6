"""What `bench compare` does with its options: how to compare, the two sides of new pairs, where the answer goes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from harness.data import files
from harness.errors import UsageError, no_such
from harness.experiments.compare import answer, pair_log
from harness.experiments.compare.answer import Settings
from harness.experiments.compare.compare_json import CompareAnswer, TrendAnswer
from harness.experiments.compare.pair_log import Command
from harness.options import Given

EXPORTS = ("junit", "github-smaller", "github-bigger")
"""Forms that other tools read, of `reports.answers.exports`."""


def settings(options: Mapping[str, Any]) -> Settings:
    """How to compare. Raises UsageError."""
    names = ("gate", "alpha", "allow_different", "slo", "goal", "warmup")
    return answer.settings(*(options[name] for name in names))


def checked(options: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(form, path) of what is written. Raises UsageError, before anything is computed, for one that is not there."""
    forms = [("html", options["html"])] if options["html"] else []
    for text in options["export"]:
        form, equals, path = text.partition("=")
        if not equals or not path:
            raise UsageError(f"--export '{text}': write FORM=FILE, such as junit=bench.xml.")
        if form not in ("markdown", "json", *EXPORTS):
            raise no_such("export format", form, ("markdown", "json", *EXPORTS))
        forms.append((form, path))
    for _, path in forms:
        files.check(path)
    return forms


def write(info: CompareAnswer | TrendAnswer, forms: Iterable[tuple[str, str]]) -> None:
    """Write the answer in each of these forms."""
    for form, path in forms:
        files.write(Path(path), _render(form, info, path))


def _render(form: str, info: CompareAnswer | TrendAnswer, path: str) -> str:
    """The answer in a form; the links of a page are relative to where it will stand."""
    from reports.answers import exports
    from reports.document import rendered

    if form in EXPORTS:
        return str(getattr(exports, form.replace("-", "_"))(info))
    return rendered.render(info, form, path=Path(path))


def commands(options: Mapping[str, Any], query: Given, file: Given | None) -> tuple[Command, Command]:
    """The two sides of --run, which are whole commands. Raises UsageError for what does not go with them."""
    texts = options["run"]
    if options.get("base") or options.get("head"):
        raise UsageError("--run and --base/--head exclude each other: --run brings whole commands.")
    if len(texts) != 2:
        raise UsageError(f"--run is given twice, first for the baseline and then for the candidate; got {len(texts)}.")
    if query.values or file is not None or options["wait"] is not None:
        option = next(iter(query.values), "wait" if file is None else "config")
        raise UsageError(f"--{option} belongs into the commands of --run, which stand for themselves.")
    base, head = (pair_log.parse(text) for text in texts)
    return base, head
