"""Which run is compared with which: two runs of the same stored schedule, at the same point of a sweep, are a pair."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from harness import answers, results
from harness.compare import numbers, searched
from harness.conclude import completed
from harness.errors import UsageError
from harness.folder import Run


@dataclass(frozen=True, slots=True, eq=False)
class Numbers:
    """What is known of a side without its requests: what a command printed, or one seed of a capacity search.

    `info` tells of it what run.json tells of a run, `output_tokens` the mean of its answers.
    """

    path: Path
    values: Mapping[str, float]
    info: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None
    output_tokens: float | None = None


Source: TypeAlias = Run | Numbers
Point: TypeAlias = tuple[tuple[str, str], ...]
Key = TypeVar("Key")


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """A run of the base and one of the head. `point` is where in a sweep, `order` which went first ("AB", "BA").

    `repeated` tells that it was made again, because a run of the first attempt was not valid.
    """

    base: Source
    head: Source
    point: Mapping[str, str] = field(default_factory=dict)
    order: str | None = None
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class Matched:
    """The pairs, in the order of the base, and the runs of either side that found no partner."""

    pairs: tuple[Pair, ...]
    alone_base: tuple[Source, ...] = ()
    alone_head: tuple[Source, ...] = ()


def opened(text: str | Path, goal: float | None = None) -> list[Source]:
    """The runs that a path names: a run, a folder of runs, a sweep, a file of another tool, or several with commas.

    A capacity search gives its seeds, for the goal that is asked for, else the first it answered. Raises UsageError.
    """
    path = Path(text)
    if not str(text).strip(" ,"):
        raise UsageError(f"'{text}' names no run; name what 'bench run --out' wrote.")
    if not path.exists() and "," in str(text):
        return [run for part in str(text).split(",") if part.strip() for run in opened(part.strip(), goal)]
    found = answers.of(path) if path.exists() else None
    if found is not None and found["kind"] == "capacity":
        told = found.get("output_tokens") or {}
        return [
            Numbers(path, values, found, seed, told.get(str(seed)))
            for seed, values in searched.by_seed(found, goal).items()
        ]
    return _printed(path) or [completed(run) for run in results.open(path)]


def made(path: Path) -> list[Source]:
    """What one side of a pair left that was made for a comparison: as `opened`, but a search is one value."""
    found = answers.of(path) if path.exists() else None
    if found is not None and found["kind"] == "capacity":
        told = [*(found.get("output_tokens") or {}).values()]
        return [Numbers(path, searched.whole(found), found, None, math.fsum(told) / len(told) if told else None)]
    return _printed(path) or [completed(run) for run in results.open(path)]


def _printed(path: Path) -> list[Source]:
    values = numbers.read(path)
    return [] if values is None else [Numbers(path, values)]


def match(base: Sequence[Source], head: Sequence[Source], *, any_schedule: bool = False) -> Matched:
    """Pair the runs of two sides by their schedule; of several with one schedule, those with the most equal options.

    With `any_schedule` what is left is paired in the same way. Where nothing fits, all are paired in order, so that it
    can be told in what they differ.
    """
    base, head = _for_seeds(base, head), _for_seeds(head, base)
    pairs: list[Pair] = []
    left_base: list[Source] = []
    left_head: list[Source] = []
    for _, ours, theirs in _grouped(base, head, schedule_of):
        found, alone, others = _nearest(ours, theirs)
        pairs += found
        left_base += alone
        left_head += others
    if any_schedule:
        found, left_base, left_head = _nearest(left_base, left_head)
        pairs += found
    if not pairs:
        pairs = [Pair(ours, theirs) for ours, theirs in zip(base, head, strict=False)]
        return Matched(tuple(pairs), tuple(base[len(pairs) :]), tuple(head[len(pairs) :]))
    order = {id(run): place for place, run in enumerate(base)}
    pairs.sort(key=lambda pair: order[id(pair.base)])
    options = [_options(run) for run in base]
    varied = {name for each in options for name in each if len({one.get(name) for one in options}) > 1}
    return Matched(tuple(_named(pairs, varied)), tuple(left_base), tuple(left_head))


def _for_seeds(side: Sequence[Source], other: Sequence[Source]) -> Sequence[Source]:
    """A search that found no capacity at all has none for each seed that the other side searched."""
    only = side[0] if len(side) == 1 else None
    if isinstance(only, Numbers) and only.seed is None and only.info.get("kind") == "capacity":
        seeds = [each.seed for each in other if isinstance(each, Numbers) and each.seed is not None]
        return [replace(only, seed=seed) for seed in seeds] or side
    return side


def joined(matches: Iterable[Matched]) -> Matched:
    """Several matches as one."""
    every = [*matches]
    return Matched(
        tuple(pair for each in every for pair in each.pairs),
        tuple(run for each in every for run in each.alone_base),
        tuple(run for each in every for run in each.alone_head),
    )


def _nearest(base: Sequence[Source], head: Sequence[Source]) -> tuple[list[Pair], list[Source], list[Source]]:
    """Pairs of those who were told the most equal options, the nearest first; and what is left on both sides."""
    ours, theirs = [_options(run) for run in base], [_options(run) for run in head]
    near = sorted(
        (sum(one.get(name) != other.get(name) for name in {*one, *other}), i, j)
        for i, one in enumerate(ours)
        for j, other in enumerate(theirs)
    )
    partner: dict[int, int] = {}
    for _, i, j in near:
        if i not in partner and j not in partner.values():
            partner[i] = j
    pairs = [Pair(base[i], head[j]) for i, j in partner.items()]
    alone = [run for i, run in enumerate(base) if i not in partner]
    return pairs, alone, [run for j, run in enumerate(head) if j not in partner.values()]


def _named(pairs: Sequence[Pair], names: Iterable[str]) -> list[Pair]:
    """The pairs with their points, named by the folder where each has one, else by the fewest options of the base."""
    own = [_options(pair.base) for pair in pairs]
    points = [tuple((name, each[name]) for name in sorted(names) if name in each) for each in own]
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
    if isinstance(run, Numbers):
        return None if run.seed is None else f"seed {run.seed}"
    stored = (run.info.get("schedule") or {}).get("sha256")
    return None if stored is None else str(stored)


def _options(run: Source) -> dict[str, str]:
    return {name: str(value) for name, value in (run.info.get("spec") or {}).items() if name != "seed"}


def _grouped(
    base: Sequence[Source], head: Sequence[Source], key: Callable[[Source], Key]
) -> Iterator[tuple[Key, list[Source], list[Source]]]:
    """Each key, in the order in which it comes up, with the runs of both sides that have it."""
    found: dict[Key, tuple[list[Source], list[Source]]] = defaultdict(lambda: ([], []))
    for side, runs in enumerate((base, head)):
        for run in runs:
            found[key(run)][side].append(run)
    yield from ((name, *both) for name, both in found.items())
