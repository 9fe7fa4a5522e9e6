"""Which run is compared with which: two runs of the same stored schedule, at the same point of a sweep, are a pair.

What a capacity search gives to a comparison: the capacity of each seed, which the other side searched too.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import TypeAlias

from harness.data.codec import encode
from harness.data.folder import Run
from harness.data.run_json import RunInfo
from harness.errors import NotValid, UsageError
from harness.experiments import answers, imports
from harness.experiments.capacity.capacity_json import CapacityAnswer, GoalCapacity
from harness.options import NO_SETTINGS
from harness.validity.conclude import completed

_ALIKE = ("spec", "versions", "host", "backend", "slo", "clock")
"""Keys of a search that mean the same in run.json."""
Point: TypeAlias = tuple[tuple[str, str], ...]
NAME = "capacity_rps"

Source: TypeAlias = "Run | Searched"


@dataclass(frozen=True, slots=True, eq=False)
class Searched:
    """What a side without requests tells: a capacity search, or one seed of it.

    `output_tokens` is the mean of the answers of the search.
    """

    path: Path
    values: Mapping[str, float]
    search: CapacityAnswer
    seed: int | None = None
    output_tokens: float | None = None

    @property
    def info(self) -> RunInfo:
        """The search as a run.json."""
        return as_run(self.search)


def as_run(search: CapacityAnswer) -> RunInfo:
    """A search as a run.json that holds what is alike in both."""
    return RunInfo.of({key: encode(search).get(key) for key in _ALIKE})


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """A run of the base and one of the head; `point` is where in a sweep."""

    base: Source
    head: Source
    point: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Matched:
    """The pairs, in the order of the base, and the runs of either side that found no partner."""

    pairs: tuple[Pair, ...]
    alone_base: tuple[Source, ...] = ()
    alone_head: tuple[Source, ...] = ()


def opened(text: str | Path, goal: float | None = None) -> list[Source]:
    """The runs that a path names: a run, a folder of runs, a sweep, a file of another tool, or several with commas.

    A capacity search gives its seeds, for the given goal, else the first it answered. Raises UsageError, and NotValid
    where it has no capacity.
    """
    path = Path(text)
    if not str(text).strip(" ,"):
        raise UsageError(f"'{text}' names no run; name what 'bench run' wrote.")
    if not path.exists() and "," in str(text):
        return [run for part in str(text).split(",") if part.strip() for run in opened(part.strip(), goal)]
    search = _search(path)
    if search is not None:
        tokens = search.output_tokens or {}
        return [
            Searched(path, values, search, seed, tokens.get(str(seed)))
            for seed, values in by_seed(path, search, goal).items()
        ]
    return _runs(path)


def stored(base: str, head: str, goal: float | None = None, *, any_schedule: bool = False) -> Matched:
    """The pairs of what two paths name, as `opened` and `match` have them. Raises NotValid for paths of two kinds."""
    sides = opened(base, goal), opened(head, goal)
    if isinstance(sides[0][0], Searched) != isinstance(sides[1][0], Searched):
        raise NotValid(f"'{base}' and '{head}' are not of a kind: one holds runs, the other a search.")
    return match(*sides, any_schedule=any_schedule)


def made(path: Path) -> list[Source]:
    """What one side of a pair left that was made for a comparison: as `opened`, but a search is one value."""
    search = _search(path)
    if search is not None:
        tokens = [*(search.output_tokens or {}).values()]
        return [Searched(path, whole(search), search, None, math.fsum(tokens) / len(tokens) if tokens else None)]
    return _runs(path)


def _runs(path: Path) -> list[Source]:
    return [completed(run) for run in imports.open(path)]


def _search(path: Path) -> CapacityAnswer | None:
    answer = answers.of(path) if path.exists() else None
    return answer if isinstance(answer, CapacityAnswer) else None


def match(base: Sequence[Source], head: Sequence[Source], *, any_schedule: bool = False) -> Matched:
    """Pair the runs of two sides by their schedule; of several with one schedule, those with the most equal options.

    With `any_schedule` what is left is paired in the same way. Where nothing fits, all are paired in order, to
    report their differences.
    """
    base, head = _for_seeds(base, head), _for_seeds(head, base)
    pairs: list[Pair] = []
    left_base: list[Source] = []
    left_head: list[Source] = []
    by_schedule: dict[str | None, tuple[list[Source], list[Source]]] = defaultdict(lambda: ([], []))
    for side, runs in enumerate((base, head)):
        for run in runs:
            by_schedule[schedule_of(run)][side].append(run)
    for sides in by_schedule.values():
        nearest, rest_base, rest_head = _nearest(*sides)
        pairs += nearest
        left_base += rest_base
        left_head += rest_head
    if any_schedule:
        nearest, left_base, left_head = _nearest(left_base, left_head)
        pairs += nearest
    if not pairs:
        pairs = [Pair(of_base, of_head) for of_base, of_head in zip(base, head, strict=False)]
        return Matched(tuple(pairs), tuple(base[len(pairs) :]), tuple(head[len(pairs) :]))
    order = {id(run): place for place, run in enumerate(base)}
    pairs.sort(key=lambda pair: order[id(pair.base)])
    options = [_options(run) for run in base]
    varied = {name for opts in options for name in opts if len({other.get(name) for other in options}) > 1}
    return Matched(tuple(_named(pairs, varied)), tuple(left_base), tuple(left_head))


def _for_seeds(side: Sequence[Source], other: Sequence[Source]) -> Sequence[Source]:
    """A search that found no capacity at all has none for each seed that the other side searched."""
    only = side[0] if len(side) == 1 else None
    if isinstance(only, Searched) and only.seed is None:
        seeds = [run.seed for run in other if isinstance(run, Searched) and run.seed is not None]
        return [replace(only, seed=seed) for seed in seeds] or side
    return side


def joined(matches: Iterable[Matched]) -> Matched:
    matched = [*matches]
    return Matched(
        tuple(pair for part in matched for pair in part.pairs),
        tuple(run for part in matched for run in part.alone_base),
        tuple(run for part in matched for run in part.alone_head),
    )


def _nearest(base: Sequence[Source], head: Sequence[Source]) -> tuple[list[Pair], list[Source], list[Source]]:
    """Pairs of those with the most equal options, the nearest first; and what is left on both sides."""
    base_options, head_options = [_options(run) for run in base], [_options(run) for run in head]
    distances = sorted(
        (sum(opts.get(name) != other.get(name) for name in {*opts, *other}), i, j)
        for i, opts in enumerate(base_options)
        for j, other in enumerate(head_options)
    )
    partner: dict[int, int] = {}
    for _, i, j in distances:
        if i not in partner and j not in partner.values():
            partner[i] = j
    pairs = [Pair(base[i], head[j]) for i, j in partner.items()]
    left_base = [run for i, run in enumerate(base) if i not in partner]
    return pairs, left_base, [run for j, run in enumerate(head) if j not in partner.values()]


def _named(pairs: Sequence[Pair], names: Iterable[str]) -> list[Pair]:
    """The pairs with their points, named by the folder where each has one, else by the fewest options of the base."""
    base_options = [_options(pair.base) for pair in pairs]
    points = [tuple((name, opts[name]) for name in sorted(names) if name in opts) for opts in base_options]
    different = list(dict.fromkeys(points))
    if len(different) == 1:
        return [*pairs]
    folders = [pair.base.path.name for pair in pairs if pair.base.path.name == pair.head.path.name]
    if len(different) == len(pairs) == len(set(folders)):
        return [replace(pair, point={"run": name}) for pair, name in zip(pairs, folders, strict=True)]
    options = _telling(different)
    return [
        replace(pair, point={name: dict(point).get(name, "default") for name in options})
        for pair, point in zip(pairs, points, strict=True)
    ]


def _telling(points: Sequence[Point]) -> tuple[str, ...]:
    """The fewest options that tell points apart."""
    names = list(dict.fromkeys(name for point in points for name, _ in point))
    for count in range(1, len(names)):
        for chosen in combinations(names, count):
            if len({tuple(dict(point).get(name) for name in chosen) for point in points}) == len(points):
                return chosen
    return tuple(names)


def schedule_of(run: Source) -> str | None:
    """What tells whether two runs sent the same: the hash of what was to be sent; None where it is not known."""
    if isinstance(run, Searched):
        return None if run.seed is None else f"seed {run.seed}"
    return run.info.schedule.sha256


def _options(run: Source) -> dict[str, str]:
    """The options that tell points apart: a seed draws other traffic of the same point."""
    return {name: str(value) for name, value in run.info.spec.items() if name not in ("seed", *NO_SETTINGS)}


def by_seed(path: Path | str, search: CapacityAnswer, goal: float | None) -> dict[int | None, dict[str, float]]:
    """Seed -> capacity in req/s at a goal (the first that was answered by default), and beside it at the others.

    A capacity of 0 is one of all seeds, and stands under None. Raises UsageError where the goal was not searched, and
    NotValid where no seed has a capacity.
    """
    by_goal = _by_goal(search)
    chosen = next(iter(by_goal)) if goal is None else goal
    if chosen not in by_goal:
        goals = ", ".join(f"{searched:.4g}" for searched in by_goal)
        raise UsageError(f"--goal {chosen:g}: the search was for other goals ({goals}); name one of them.")
    answer = by_goal[chosen]
    if not answer.knees and answer.capacity_rps == 0:
        return {None: {NAME: 0.0}}
    if not answer.knees:
        why = (answer.why or "it found none").rstrip(".")
        raise NotValid(f"The search in '{path}' has no capacity at a goal of {chosen:.4g} to compare: {why}.")
    return {
        int(seed): {
            _name(goal, chosen): math.exp(other.knees[seed]) for goal, other in by_goal.items() if seed in other.knees
        }
        for seed in answer.knees
    }


def whole(search: CapacityAnswer) -> dict[str, float]:
    """The capacity at each goal of a search, over all of its seeds."""
    capacities = {goal: answer.capacity_rps for goal, answer in _by_goal(search).items()}
    first = next(iter(capacities))
    return {_name(goal, first): float(value) for goal, value in capacities.items() if value is not None}


def _by_goal(search: CapacityAnswer) -> dict[float, GoalCapacity]:
    """Goal -> answer. Raises UsageError where a search has none yet."""
    if not search.answers:
        raise UsageError("The search has no answer yet: it is running or was killed; rerun its command to resume.")
    return {float(answer.goal): answer for answer in search.answers}


def _name(goal: float, first: float) -> str:
    return NAME if goal == first else f"{NAME} at {100 * goal:.4g}%"
