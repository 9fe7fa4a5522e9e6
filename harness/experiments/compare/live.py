"""A comparison of runs that are made now, in pairs: its two sides, and the answer that stands in their folder."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from harness.api import Simulator
from harness.data.codec import encode
from harness.data.folder import new_folder
from harness.data.storage import write_json
from harness.errors import NotValid, UsageError, first_of
from harness.experiments.compare import answer, pair_log, pairing
from harness.experiments.compare.answer import Settings
from harness.experiments.compare.compare_json import CompareAnswer, GateRow
from harness.experiments.compare.pair_log import WARMUP, Command
from harness.experiments.compare.runner import Judge, Judgement, Made, Wanted, check_enough, run_pairs
from harness.experiments.compare.verdict import unusual
from harness.options import Given, RunSpec, run_spec
from harness.runner.plan import make_backend, plan
from harness.runner.remote.run import await_servers
from harness.runner.run import RUNS

Say = Callable[[str], None]


def backends(
    base: str | None, head: str | None, shared: Given, file: Given | None, wanted: Wanted, *,
    seed: int | None, wait_s: float | None, say: Say,
) -> tuple[Command, Command]:  # fmt: skip
    """Two backends under the traffic that `shared` and a configuration `file` describe, once they answer.

    Raises UsageError for what does not go together, NotValid for clocks of two kinds and for too few pairs.
    """
    specs = [_spec(name, text, shared, file, seed) for name, text in (("base", base), ("head", head))]
    check_enough(wanted, exact=_virtual(*specs))
    await_servers(specs, wait_s, say)
    return pair_log.of_spec(specs[0], str(base)), pair_log.of_spec(specs[1], str(head))


def compare(
    sides: tuple[Command, Command], wanted: Wanted, out: str | Path | None, settings: Settings, say: Say, *,
    first_seed: int = 0, names: tuple[str, str] | None = None,
) -> tuple[CompareAnswer, Path]:  # fmt: skip
    """Make the pairs that are missing in `out`, and return the answer and the folder, which now holds it.

    All interim analyses together have the level of `settings`. The sides are called by `names`, or by their backends.
    Raises what `harness.experiments.compare.runner.run_pairs` raises.
    """
    folder = new_folder(Path(RUNS) / f"compare-{datetime.now(UTC):%Y%m%dT%H%M%SZ}") if out is None else Path(out)
    pairs = run_pairs(sides, wanted, folder, _judge(settings), say, first_seed=first_seed, alpha=settings.alpha)
    stored = (str(pairing.made(folder)[0].info.spec.get("backend")) for folder in pairs.folders[0])
    base, head = names or stored  # without secrets
    compared = _answered(pairs.folders, replace(settings, alpha=pairs.alpha))
    info = compared(base=base, head=head, attempts=pairs.attempts, interim=pairs.interim, notes=pairs.notes)
    info = info.change(
        notes=[*info.notes, *same_sides(pairs, info.gates)],
        exit_code=first_of(pairs.exit_code or 0, info.exit_code),
    )
    write_json(pairs.out / "compare.json", encode(info))
    return info, pairs.out


def same_sides(made: Made, gates: Sequence[GateRow]) -> list[str]:
    """The noise from run to run, by metric, where a set-up is compared with itself."""
    losses = {gate.label: [loss for loss in gate.losses if loss is not None] for gate in gates if gate.scale == "ratio"}
    several = {label: sample for label, sample in losses.items() if len(sample) > 1}
    if not made.same or not several:
        return []
    noises = [f"{100 * statistics.stdev(sample) / 2**0.5:.2g}% ({label})" for label, sample in several.items()]
    return [f"base is compared with itself: the noise of a run is {', '.join(noises)}, from {len(made.folders)} pairs."]


def _spec(name: str, backend: str | None, shared: Given, file: Given | None, seed: int | None) -> RunSpec:
    """The run of one side, checked as far as it can be before it begins."""
    if not backend:
        raise UsageError(f"--{name} is missing: pairs are made of --base SPEC and --head SPEC, or of --run twice.")
    try:
        spec = run_spec(Given({**shared.values, "backend": backend}), file)
        spec = replace(spec, seed=seed or 0, warmup=spec.warmup or WARMUP)
        plan(spec)
    except UsageError as error:
        raise UsageError(str(error).replace("--backend", f"--{name}")) from None
    return spec


def _virtual(base: RunSpec, head: RunSpec) -> bool:
    """Whether the clock of both is virtual. Raises NotValid where that of one is."""
    base_virtual, head_virtual = (isinstance(make_backend(spec), Simulator) for spec in (base, head))
    if base_virtual != head_virtual:
        clocks = ("a virtual clock", "the wall's") if base_virtual else ("the wall's clock", "a virtual one")
        raise NotValid(f"base has {clocks[0]} and head {clocks[1]}, so their times cannot be compared.")
    return base_virtual


def _judge(settings: Settings) -> Judge:
    """A function that returns the verdict on the pairs so far, and which are unlike the others."""

    def judge(folders: Sequence[tuple[Path, Path]], alpha: float) -> Judgement:
        info = _answered(folders, replace(settings, alpha=alpha))()
        return Judgement(info.verdict, unusual(info.gates), all(pair.valid for pair in info.pairs))

    return judge


def _answered(folders: Sequence[tuple[Path, Path]], settings: Settings) -> Callable[..., CompareAnswer]:
    """What compares the two sides that each pair of folders holds."""
    matches = [pairing.match(pairing.made(base), pairing.made(head)) for base, head in folders]
    return partial(answer.compare, pairing.joined(matches), settings)
