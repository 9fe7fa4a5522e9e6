"""The part of `bench compare` that makes runs of its own: its options, and the two sides they name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from harness.experiments.compare.pair_log import Command
    from harness.experiments.compare.runner import Judge, Made
    from harness.options import Given, RunSpec

Function = TypeVar("Function", bound=Callable[..., Any])

OPTIONS = ("base", "head", "run", "pairs", "seed", "pause", "out", "no-html", "trend")
"""Names of the options of `pair_options`, in the order in which help shows them."""

_ALL = (
    click.option("--base", metavar="SPEC", help="The backend of the baseline: runs are made, on both sides alike."),
    click.option("--head", metavar="SPEC", help="The backend of the candidate."),
    click.option(
        "--run",
        metavar="CMD",
        multiple=True,
        help="Twice, instead of --base and --head: the command of the baseline, then of the candidate; "
        "{seed} and {out} are filled in.",
    ),
    click.option(
        "--pairs",
        metavar="N",
        help="Pairs of runs, or auto: look after 3, 5, 7 and 10 (default; a simulator: 1).",
    ),
    click.option("--seed", metavar="N", help="Seed of the first pair (default 0); each pair has the next one."),
    click.option("--pause", metavar="TIME", help="Wait between runs (default 0)."),
    click.option("--out", metavar="DIR", help="Folder of the pairs; the same command again goes on there."),
    click.option("--no-html", is_flag=True, help="Write no report.html into the folder of the pairs."),
    click.option("--trend", metavar="DIR", help="Instead: the nights in DIR/<workload>/<backend>/<utc>-<sha>/."),
)


def pair_options(function: Function) -> Function:
    """Adds the options of pairs that run themselves, and of the trend, to a command."""
    for option in reversed(_ALL):
        function = option(function)
    return function


def made(
    options: Mapping[str, Any],
    asked: Given,
    file: Given | None,
    judge: Judge,
    say: Callable[[str], None],
    alpha: float,
) -> Made:
    """The pairs that --base and --head, or --run twice, ask for; made now, or gone on with in --out.

    `asked` and `file` are the options of a run that both sides share; all looks together keep `alpha`. Raises
    UsageError for what does not go together, and whatever `harness.experiments.compare.runner.run_pairs` raises.
    """
    from harness.experiments.compare.runner import run_pairs

    sides = _commands(options, asked, file) if options.get("run") else _backends(options, asked, file)
    wanted, seed, pause_s = (_wanted(options.get("pairs")), _seed(options.get("seed")), _pause_s(options.get("pause")))
    out = _out(options.get("out"))
    return run_pairs(sides, wanted, out, judge, say, first_seed=seed, pause_s=pause_s, alpha=alpha)


def _commands(options: Mapping[str, Any], asked: Given, file: Given | None) -> tuple[Command, Command]:
    from harness.errors import UsageError
    from harness.experiments.compare import pair_log

    given = options["run"]
    if options.get("base") or options.get("head"):
        raise UsageError("--run and --base/--head exclude each other: --run brings whole commands.")
    if len(given) != 2:
        raise UsageError(f"--run is given twice, first for the baseline and then for the candidate; got {len(given)}.")
    if asked.values or file is not None:
        option = next(iter(asked.values), "config")
        raise UsageError(f"--{option} belongs into the commands of --run, which stand for themselves.")
    base, head = (pair_log.parse(text) for text in given)
    return base, head


def _backends(options: Mapping[str, Any], asked: Given, file: Given | None) -> tuple[Command, Command]:
    from harness.experiments.compare import pair_log
    from harness.experiments.compare.runner import check_enough

    base, head = (_spec(options, side, asked, file) for side in ("base", "head"))
    check_enough(_wanted(options.get("pairs")), exact=_virtual(base, head))
    return pair_log.of_spec(base, str(options["base"])), pair_log.of_spec(head, str(options["head"]))


def _spec(options: Mapping[str, Any], side: str, asked: Given, file: Given | None) -> RunSpec:
    """The run of one side, checked as far as it can be before it begins."""
    from harness.errors import UsageError
    from harness.experiments.compare.pair_log import WARMUP
    from harness.options import Given, run_spec
    from harness.runner.plan import plan

    backend = options.get(side)
    if not backend:
        raise UsageError(f"--{side} is missing: pairs are made of --base SPEC and --head SPEC, or of --run twice.")
    try:
        spec = run_spec(Given({**asked.values, "backend": backend}), file)
        spec = replace(spec, seed=_seed(options.get("seed")), warmup=spec.warmup or WARMUP)
        plan(spec)
    except UsageError as error:
        raise UsageError(str(error).replace("--backend", f"--{side}")) from None
    return spec


def _virtual(base: RunSpec, head: RunSpec) -> bool:
    """Whether the clock of both is virtual. Raises NotValid where that of one is."""
    from harness.api import Simulator
    from harness.errors import NotValid
    from harness.runner.plan import make_backend

    one, other = (isinstance(make_backend(spec), Simulator) for spec in (base, head))
    if one != other:
        clocks = ("a virtual clock", "the wall's") if one else ("the wall's clock", "a virtual one")
        raise NotValid(f"base has {clocks[0]} and head {clocks[1]}, so their times cannot be compared.")
    return one


def _wanted(pairs: str | None) -> Any:
    from harness.errors import UsageError
    from harness.stats.paired import MOST_PAIRS

    if pairs is None or pairs == "auto":
        return pairs
    if not pairs.isdecimal() or not 1 <= int(pairs) <= MOST_PAIRS:
        raise UsageError(f"--pairs must be 'auto' or a whole number from 1 to {MOST_PAIRS}, got '{pairs}'.")
    return int(pairs)


def _seed(seed: str | int | None) -> int:
    from harness.options import CHECKS

    found = CHECKS["seed"](0 if seed is None else seed, "--seed")
    assert isinstance(found, int)
    return found


def _pause_s(pause: str | None) -> float:
    from harness.options import CHECKS

    found = CHECKS["drain"]("0s" if pause is None else pause, "--pause")  # the same kind: a time of 0 s or more
    assert isinstance(found, float)
    return found


def _out(out: str | None) -> Path:
    if out is not None:
        return Path(out)
    from datetime import UTC, datetime

    from harness.data.folder import new_folder
    from harness.runner.run import RUNS

    return new_folder(Path(RUNS) / f"compare-{datetime.now(UTC):%Y%m%dT%H%M%SZ}")


def same_sides(made: Made, gates: Sequence[Mapping[str, Any]]) -> list[str]:
    """What comparing a set-up with itself tells: its noise from run to run, by metric."""
    import statistics

    ratios = [gate for gate in gates if gate.get("scale") == "ratio" and len(gate.get("losses") or ()) > 1]
    if not made.same or not ratios:
        return []
    noises = [f"{100 * statistics.stdev(gate['losses']) / 2**0.5:.2g}% ({gate['label']})" for gate in ratios]
    return [f"base is compared with itself: the noise of a run is {', '.join(noises)}, from {len(made.folders)} pairs."]
