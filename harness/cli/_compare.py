"""What `bench compare` does with its options: how to compare, the two sides of new pairs, where the answer goes."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.api import Simulator, Slo
from harness.cli import _terminal
from harness.data import files
from harness.data.folder import new_folder
from harness.errors import NotValid, UsageError, no_such
from harness.experiments.compare import gates, pair_log, refusals
from harness.experiments.compare.answer import Settings
from harness.experiments.compare.compare_json import CompareAnswer, GateRow, TrendAnswer
from harness.experiments.compare.pair_log import WARMUP, Command
from harness.experiments.compare.runner import Judge, Made, check_enough, run_pairs
from harness.metrics.objective import parse_slo
from harness.options import Given, RunSpec, run_spec
from harness.runner.plan import make_backend, plan
from harness.runner.remote.run import await_servers
from harness.runner.run import RUNS
from harness.stats.paired import ALPHA

EXPORTS = ("junit", "github-smaller", "github-bigger")
"""Forms that other tools read, of `reports.answers.exports`."""


@dataclass(frozen=True, slots=True)
class Files:
    """The form that is printed, and (form, path) of what is written beside it."""

    printed: str
    forms: tuple[tuple[str, str], ...]


def settings(options: Mapping[str, Any], *, free: bool = False) -> Settings:
    """How to compare. `free` takes gates on numbers that bench does not know. Raises UsageError."""
    goal, bounds = options["goal"], options["slo"]
    return Settings(
        gates=gates.parse(options["gate"], free=free) if options["gate"] else (),
        alpha=ALPHA if options["alpha"] is None else options["alpha"],
        allowed=refusals.checked(options["allow_different"] or ""),
        slo=None if bounds is None else parse_slo(bounds, goal=Slo().goal if goal is None else goal),
        goal=goal,
        warmup=options["warmup"],
    )


def checked(options: Mapping[str, Any]) -> Files:
    """Where to write. Raises UsageError, before anything is computed, for a form or a folder that is not there."""
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
    return Files(options["form"], tuple(forms))


def write(info: CompareAnswer | TrendAnswer, targets: Files) -> None:
    """Print the answer, and write it in every other form."""
    _terminal.show(targets.printed, info)
    for form, path in targets.forms:
        files.write(Path(path), _render(form, info, path))


def _render(form: str, info: CompareAnswer | TrendAnswer, path: str) -> str:
    """The answer in a form; the links of a page are relative to where it will stand."""
    from reports import answers
    from reports.answers import exports
    from reports.document import rendered

    if form == "html":
        return answers.page(info, Path(path))
    if form in EXPORTS:
        return str(getattr(exports, form.replace("-", "_"))(info))
    return rendered.render(info, form)


# Pairs of runs that are made now


def made(
    options: Mapping[str, Any],
    query: Given,
    file: Given | None,
    judge: Judge,
    say: Callable[[str], None],
    alpha: float,
) -> Made:
    """The pairs of --base and --head, or of --run twice, made now or resumed in --out.

    `query` and `file` are the options of a run that both sides share; all interim analyses together have the level
    `alpha`. Raises UsageError for what does not go together, and whatever
    `harness.experiments.compare.runner.run_pairs` raises.
    """
    sides = _commands(options, query, file) if options["run"] else _backends(options, query, file, say)
    if options["out"] is None:
        out = new_folder(Path(RUNS) / f"compare-{datetime.now(UTC):%Y%m%dT%H%M%SZ}")
    else:
        out = Path(options["out"])
    seed, pause_s = options["seed"] or 0, options["pause"] or 0.0
    return run_pairs(sides, options["pairs"], out, judge, say, first_seed=seed, pause_s=pause_s, alpha=alpha)


def _commands(options: Mapping[str, Any], query: Given, file: Given | None) -> tuple[Command, Command]:
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


def _backends(
    options: Mapping[str, Any], query: Given, file: Given | None, say: Callable[[str], None]
) -> tuple[Command, Command]:
    base, head = (_spec(options, side, query, file) for side in ("base", "head"))
    check_enough(options["pairs"], exact=_virtual(base, head))
    await_servers([base, head], options["wait"], say)
    return pair_log.of_spec(base, str(options["base"])), pair_log.of_spec(head, str(options["head"]))


def _spec(options: Mapping[str, Any], side: str, query: Given, file: Given | None) -> RunSpec:
    """The run of one side, checked as far as it can be before it begins."""
    backend = options.get(side)
    if not backend:
        raise UsageError(f"--{side} is missing: pairs are made of --base SPEC and --head SPEC, or of --run twice.")
    try:
        spec = run_spec(Given({**query.values, "backend": backend}), file)
        spec = replace(spec, seed=options["seed"] or 0, warmup=spec.warmup or WARMUP)
        plan(spec)
    except UsageError as error:
        raise UsageError(str(error).replace("--backend", f"--{side}")) from None
    return spec


def _virtual(base: RunSpec, head: RunSpec) -> bool:
    """Whether the clock of both is virtual. Raises NotValid where that of one is."""
    base_virtual, head_virtual = (isinstance(make_backend(spec), Simulator) for spec in (base, head))
    if base_virtual != head_virtual:
        clocks = ("a virtual clock", "the wall's") if base_virtual else ("the wall's clock", "a virtual one")
        raise NotValid(f"base has {clocks[0]} and head {clocks[1]}, so their times cannot be compared.")
    return base_virtual


def same_sides(made: Made, gates: Sequence[GateRow]) -> list[str]:
    """The noise from run to run, by metric, where a set-up is compared with itself."""
    losses = {gate.label: [loss for loss in gate.losses if loss is not None] for gate in gates if gate.scale == "ratio"}
    several = {label: sample for label, sample in losses.items() if len(sample) > 1}
    if not made.same or not several:
        return []
    noises = [f"{100 * statistics.stdev(sample) / 2**0.5:.2g}% ({label})" for label, sample in several.items()]
    return [f"base is compared with itself: the noise of a run is {', '.join(noises)}, from {len(made.folders)} pairs."]
