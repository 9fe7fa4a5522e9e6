"""Which run is compared with which: two runs of the same stored schedule, at the same point of a sweep, are a pair."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from harness import answers, results
from harness.compare import numbers, searched
from harness.conclude import completed
from harness.folder import Run

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True, eq=False)
class Numbers:
    """What is known of a side without its requests: what a command printed, or one seed of a capacity search.

    `info` tells of it what run.json tells of a run.
    """

    path: Path
    values: Mapping[str, float]
    info: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None


Source: TypeAlias = Run | Numbers
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
    """The pairs, in order, and the runs that found no partner."""

    pairs: tuple[Pair, ...]
    alone: tuple[Source, ...]


def opened(text: str | Path, goal: float | None = None) -> list[Source]:
    """The runs that a path names: a run, a folder of runs, a sweep, a file of another tool, or several with commas.

    A capacity search gives its seeds, for the goal that is asked for, else the first it answered. Raises UsageError.
    """
    path = Path(text)
    if not path.exists() and "," in str(text):
        return [run for part in str(text).split(",") if part.strip() for run in opened(part.strip(), goal)]
    found = answers.of(path) if path.exists() else None
    if found is not None and found["kind"] == "capacity":
        return [Numbers(path, values, found, seed) for seed, values in searched.by_seed(found, goal).items()]
    return _printed(path) or [completed(run) for run in results.open(path)]


def made(path: Path) -> list[Source]:
    """What one side of a pair left that was made for a comparison: as `opened`, but a search is one value."""
    found = answers.of(path) if path.exists() else None
    if found is not None and found["kind"] == "capacity":
        return [Numbers(path, searched.whole(found), found)]
    return _printed(path) or [completed(run) for run in results.open(path)]


def _printed(path: Path) -> list[Source]:
    values = numbers.read(path)
    return [] if values is None else [Numbers(path, values)]


def match(base: Sequence[Source], head: Sequence[Source], *, any_schedule: bool = False) -> Matched:
    """Pair the runs of two sides by their point and their schedule; several of one schedule in the order they stand.

    With `any_schedule` what is left at a point is paired in order. Where nothing fits, all are paired in order, so
    that it can be told in what they differ.
    """
    names = _varied(base) | _varied(head)
    pairs: list[Pair] = []
    alone: list[Source] = []
    for key, ours, theirs in _grouped(base, head, lambda run: _point(run, names)):
        left_base: list[Source] = []
        left_head: list[Source] = []
        for _, first, second in _grouped(ours, theirs, schedule_of):
            both = min(len(first), len(second))
            pairs += [Pair(a, b, dict(key)) for a, b in zip(first[:both], second[:both], strict=True)]
            left_base += first[both:]
            left_head += second[both:]
        if any_schedule:
            both = min(len(left_base), len(left_head))
            pairs += [Pair(a, b, dict(key)) for a, b in zip(left_base[:both], left_head[:both], strict=True)]
            left_base, left_head = left_base[both:], left_head[both:]
        alone += [*left_base, *left_head]
    if not pairs:
        pairs = [Pair(a, b) for a, b in zip(base, head, strict=False)]
        alone = [run for both in zip_longest(base[len(pairs) :], head[len(pairs) :]) for run in both if run is not None]
    return Matched(tuple(pairs), tuple(alone))


def schedule_of(run: Source) -> str | None:
    """What tells whether two runs sent the same: the hash of the schedule, or of the lengths where there is none."""
    if isinstance(run, Numbers):
        return None if run.seed is None else f"seed {run.seed}"
    stored = (run.info.get("schedule") or {}).get("sha256")
    if stored:
        return str(stored)
    return _lengths(run.requests) if len(run.requests) else None


def _lengths(table: pa.Table) -> str:
    ordered = table.select(["request_id", "prompt_tokens", "output_tokens_asked"]).sort_by("request_id")
    digest = hashlib.sha256()
    for name in ("prompt_tokens", "output_tokens_asked"):
        digest.update(ordered[name].fill_null(0).to_numpy().astype("<i8").tobytes())
    return f"lengths-{digest.hexdigest()}"


def _options(run: Source) -> dict[str, str]:
    return {name: str(value) for name, value in (run.info.get("spec") or {}).items() if name != "seed"}


def _varied(runs: Sequence[Source]) -> set[str]:
    """The options, but the seed, that are not the same in all runs of a side."""
    options = [_options(run) for run in runs]
    names = {name for each in options for name in each}
    return {name for name in names if len({each.get(name) for each in options}) > 1}


def _point(run: Source, names: Iterable[str]) -> tuple[tuple[str, str], ...]:
    options = _options(run)
    return tuple((name, options[name]) for name in sorted(names) if name in options)


def _grouped(
    base: Sequence[Source], head: Sequence[Source], key: Callable[[Source], Key]
) -> Iterator[tuple[Key, list[Source], list[Source]]]:
    """Each key, in the order in which it comes up, with the runs of both sides that have it."""
    found: dict[Key, tuple[list[Source], list[Source]]] = defaultdict(lambda: ([], []))
    for side, runs in enumerate((base, head)):
        for run in runs:
            found[key(run)][side].append(run)
    yield from ((name, *both) for name, both in found.items())
