"""Fields of foreign JSON as the types they should have; what is no number is None, never a guess."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.api import Bound, Slo

MISCOUNTED = 0.01
"""From this share on the tokens of a client's own tokenizer are called wrong: a special token a request is not."""


def number(value: object) -> float | None:
    """A finite number; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def count(value: object) -> int:
    """A number of tokens or requests; 0 where there is none."""
    found = number(value)
    return 0 if found is None or found < 0 else round(found)


def text(value: object) -> str | None:
    """A text with something in it."""
    return value if isinstance(value, str) and value.strip() else None


def part(of: object, *names: str) -> Mapping[str, Any]:
    """A nested object; empty where it is missing."""
    for name in names:
        of = of.get(name) if isinstance(of, Mapping) else None
    return of if isinstance(of, Mapping) else {}


def items(value: object) -> Sequence[Any]:
    """A list; empty where it is missing."""
    return value if isinstance(value, list) else []


def stamps(first_s: float, gaps_s: object) -> npt.NDArray[np.float64]:
    """Times of token events from the first one and the gaps after it. Raises TypeError for gaps that are no list."""
    if not isinstance(gaps_s, list):
        raise TypeError(f"the gaps between tokens must be a list, got {gaps_s!r:.40}")
    return first_s + np.concatenate([[0.0], np.cumsum(np.asarray(gaps_s, np.float64))])


def columns_of(value: Mapping[str, Any], needed: Sequence[str], optional: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Rows of lists that stand side by side, the needed before the optional ones; None stands for a missing list.

    Raises ValueError for lists of unequal lengths.
    """
    rows = len(items(value.get(needed[0])))
    lists = [items(value.get(name)) for name in needed] + [items(value.get(n)) or [None] * rows for n in optional]
    for name, found in zip((*needed, *optional), lists, strict=True):
        if len(found) != rows:
            raise ValueError(f"{name} has {len(found)} values where {needed[0]} has {rows}")
    return zip(*lists, strict=True)


def scaled(values: Mapping[str, Any], names: Mapping[str, str], scale: float = 1.0) -> dict[str, float]:
    """The numbers under our names, in seconds; `names` holds theirs by ours."""
    found = {ours: number(values.get(theirs)) for ours, theirs in names.items()}
    return {ours: value * scale for ours, value in found.items() if value is not None}


def last_line(words: object) -> str | None:
    """The last line of an error, which is what a Python traceback is about; None of no words."""
    lines = str(words or "").strip().splitlines()
    return lines[-1].strip()[:500] if lines else None


def spread(output_tokens: int, events: int) -> list[int]:
    """Tokens of each event where only their sum is told: as even as can be, the earlier ones more."""
    each, more = divmod(output_tokens, events) if events else (0, 0)
    return [each + (i < more) for i in range(events)]


def miscounted(tool: str, counts: Iterable[tuple[int, object]]) -> Iterator[str]:
    """The note that a tool and the server count differently; `counts` are pairs of output tokens, the tool's first."""
    both = [(ours, count(server)) for ours, server in counts if number(server) is not None]
    ours, server = sum(a for a, _ in both), sum(b for _, b in both)
    if server and abs(ours - server) > MISCOUNTED * server:
        yield (
            f"the tokenizer of {tool} counted {ours:,} output tokens where the server counted {server:,}, so TPOT and "
            f"token rates are off by a factor of {ours / server:.3g}"
        )


def objective(bounds: Mapping[str, Any], names: Mapping[str, str], scale: float = 1.0) -> Slo:
    """The SLO that a tool was given; `names` holds our metrics by theirs."""
    found = [(ours, number(bounds.get(theirs))) for theirs, ours in names.items()]
    return Slo(tuple(Bound(metric, limit * scale) for metric, limit in found if limit is not None))
