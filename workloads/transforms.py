"""Transformations of a recorded trace, each listed in its facts: filter, scale, jitter.

Load is scaled in two ways that are not the same. Time compression keeps the spread of the gaps and moves the
dispersion curve along the bin width; thinning and superposition keep time and change how many come.
"""

import dataclasses
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from harness.bounds import AtLeastTwo, Checked, Positive, PositiveShare
from harness.data.records import listed, places
from harness.errors import UsageError, no_such
from harness.spec import build, parse, seconds
from harness.stats import arrivals
from workloads.trace_rows import conversations, joined, reordered, rows_of, turned_copy, with_columns, with_small_ids
from workloads.traces import Trace

MOST_ROWS = 100_000_000
"""Rows that superposed copies may have together; they are held in memory."""

LEAST_STAMPS = 10
"""Different stamps that tell how coarse they are."""

RESOLUTIONS_S = (60.0, 1.0, 0.1, 0.01, 0.001)
"""What stamps are rounded to, coarsest first."""
_CONDITION = re.compile(r"\s*([A-Za-z_]+)\s*(<=|>=|==|!=|=|<|>)\s*([^<>=!\s].*?)\s*", re.DOTALL)
_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt, "=": operator.eq, "!=": operator.ne,
}  # fmt: skip
CONTEXT = "context_tokens"
"""Prompt and answer together, in conditions."""
_NUMBERS = ("prompt_tokens", "output_tokens", CONTEXT, "turn", "session", "images", "image_tokens", "n")
_SHORT = {"prompt": "prompt_tokens", "output": "output_tokens", "context": CONTEXT}


@dataclass(frozen=True, slots=True)
class Compress(Checked):
    """Time runs `factor` times as fast (below 1: slower); every request stays."""

    factor: Positive
    law: ClassVar[str] = "rate x factor; gap CV unchanged; dispersion at T is what it was at factor x T"

    def apply(self, trace: Trace, rng: np.random.Generator) -> Trace:  # noqa: ARG002  # nothing is random here
        """All stamps divided by the factor, and so are the times of agents."""
        times = [name for name in ("delay_s", "api_s") if name in trace.table.column_names]
        faster = {name: pc.divide(trace.table[name], self.factor) for name in times}
        return at_times(dataclasses.replace(trace, table=with_columns(trace.table, faster)), trace.at_s / self.factor)


@dataclass(frozen=True, slots=True)
class Thin(Checked):
    """Each request stays with probability `share`; a conversation stays or goes as a whole."""

    share: PositiveShare
    law: ClassVar[str] = "rate x share; dispersion - 1 is multiplied by share at every width (of conversations, if any)"

    def apply(self, trace: Trace, rng: np.random.Generator) -> Trace:
        """The rows that were drawn. Raises UsageError when none is left."""
        units, count = conversations(trace.table)
        # One number a conversation: with one a request, turns would lose the prompt that they go on from.
        drawn = (rng.random(count) < self.share)[units]
        if not drawn.any():
            raise UsageError(f"'thin:{self.share:g}' leaves none of {len(trace)} requests; keep a larger share.")
        return leaving_out(
            rows_of(trace, np.flatnonzero(drawn)), {f"thinned out (share {self.share:g})": int((~drawn).sum())}
        )


@dataclass(frozen=True, slots=True)
class Superpose(Checked):
    """`copies` of the trace at once: itself, and others turned by a random time (what passes the end comes first).

    With `shift_s` they are turned by different whole multiples of it: 1d keeps the hour of the day. A copy has
    conversations and prefixes of its own: it shares no block with the others. A conversation that passes the end of
    the trace goes on as another one.
    """

    copies: AtLeastTwo
    shift_s: Positive | None = None
    law: ClassVar[str] = "rate x copies; dispersion unchanged at widths well below the length of the trace"

    def apply(self, trace: Trace, rng: np.random.Generator) -> Trace:
        """All copies in order of time. Raises UsageError where the trace has too few multiples of `shift_s`."""
        if self.copies * len(trace) > MOST_ROWS:
            raise UsageError(
                f"'superpose:{self.copies}' of {len(trace):,} requests is more than {MOST_ROWS:,}; take fewer copies."
            )
        period_s, shifts_s = self._turns(trace.at_s, rng)
        table = with_small_ids(trace.table)
        turned = [turned_copy(table, i + 1, period_s, shift_s) for i, shift_s in enumerate(shifts_s)]
        merged = joined([table, *turned])
        order = np.argsort(np.asarray(merged["at_s"]), kind="stable")
        before = trace.facts.get("added")
        extra = {f"in {self.copies - 1} other copies": len(merged) - len(table)}
        scaled = dataclasses.replace(trace, table=reordered(merged, order))
        return with_facts(scaled, added={**(before if isinstance(before, dict) else {}), **extra})

    def _turns(self, at_s: np.ndarray, rng: np.random.Generator) -> tuple[float, list[float]]:
        """After how long (s) the trace starts over, and by how much each other copy is later."""
        mean_gap_s = float(at_s[-1] - at_s[0]) / (len(at_s) - 1) if len(at_s) > 1 else 1.0
        period_s = float(at_s[-1]) + mean_gap_s
        others = self.copies - 1
        if self.shift_s is None:
            return period_s, rng.uniform(0, period_s, others).tolist()
        multiples = math.ceil(period_s / self.shift_s)
        if multiples <= others:
            raise UsageError(
                f"'superpose:{self.copies},shift={self.shift_s:g}s': a trace of {period_s:.6g} s has room for "
                f"{multiples} copies that far apart; take fewer copies or a shorter shift."
            )
        chosen = 1 + rng.choice(multiples - 1, others, replace=False)
        return multiples * self.shift_s, (chosen * self.shift_s).tolist()


@dataclass(frozen=True, slots=True)
class Context(Checked):
    """No context (prompt and answer) is longer than `limit_tokens`: in a session with a longer one all prompts become
    shorter in one proportion, answers stay. A prompt shares the same part of its blocks with those before it.
    """

    limit_tokens: AtLeastTwo
    law: ClassVar[str] = (
        "prompts of a session with a longer context x one factor; shares of prefixes, times, answers unchanged"
    )

    def apply(self, trace: Trace, rng: np.random.Generator) -> Trace:  # noqa: ARG002  # nothing is random here
        """Shorter prompts, of whose blocks every n-th keeps its name. Raises UsageError where an answer is too long."""
        table = trace.table
        prompt, output = (np.asarray(table[name]) for name in ("prompt_tokens", "output_tokens"))
        if (longest := int(output.max())) >= self.limit_tokens:
            raise UsageError(
                f"'context:{self.limit_tokens}': an answer has {longest:,} tokens, and answers stay as they are; leave "
                f"it out (--where output_tokens<{self.limit_tokens}), or give a larger limit."
            )
        units, count = conversations(table)
        fits = np.ones(count)
        np.minimum.at(fits, units, (self.limit_tokens - output) / prompt)
        factor = fits[units]  # (N,)
        shorter = np.maximum(np.floor(prompt * factor + 1e-9).astype(np.int64), 1)
        columns: dict[str, pa.Array | np.ndarray] = {"prompt_tokens": shorter}
        if "common_tokens" in table.column_names:
            columns["common_tokens"] = np.floor(np.asarray(table["common_tokens"]) * factor).astype(np.int64)
        if "prefix_ids" in table.column_names:
            columns["prefix_ids"] = _every(
                table["prefix_ids"].combine_chunks(), prompt, shorter, factor, trace.block_tokens
            )
        scaled = with_facts(dataclasses.replace(trace, table=with_columns(table, columns)))
        return with_facts(scaled, context={"limit_tokens": self.limit_tokens, "sessions": int((fits < 1).sum()),
                                           "requests": int((factor < 1).sum())})  # fmt: skip


def _every(
    lists: pa.ListArray, prompt: np.ndarray, shorter: np.ndarray, factor: np.ndarray, block: int
) -> pa.ListArray:  # fmt: skip
    """Names of the blocks of shorter prompts: block j has that of block j / factor, whatever the prompt, so what began
    alike still does.
    """
    had = np.asarray(lists.value_lengths().fill_null(0))
    covers = had * block >= prompt  # the last block is cut short by the end of the prompt
    names = np.where(factor < 1, np.where(covers, -(-shorter // block), np.floor(had * factor).astype(np.int64)), had)
    source = np.minimum(np.floor(places(names) / np.repeat(factor, names)).astype(np.int64), np.repeat(had, names) - 1)
    source += np.repeat(np.cumsum(had) - had, names)
    return listed(names, lists.flatten().take(pa.array(source)), lists.type)


Step: TypeAlias = Compress | Thin | Superpose | Context
"""One way to scale the load of a trace; `law` says what it does."""


def scaling(text: str) -> tuple[Step, ...]:
    """The steps of 'compress:2', 'context:96000' or 'superpose:3+thin:0.5', in their order. Raises UsageError."""
    kinds: Mapping[str, type[Step]] = {kind.__name__.lower(): kind for kind in get_args(Step)}
    specs = [parse(part) for part in text.split("+")]
    for way in specs:
        if way.name not in kinds:
            raise no_such("way to scale", way.name, kinds, "Write compress:2, thin:0.5, superpose:3 or context:96000.")
    return tuple(build(kinds[way.name], way) for way in specs)


def scaled(trace: Trace, text: str, rng: np.random.Generator) -> Trace:
    """The trace after the steps of `scaling(text)`; its facts list each with its law and the rates."""
    done: list[dict[str, object]] = []
    for part, step in zip(text.split("+"), scaling(text), strict=True):
        before = trace
        trace = step.apply(trace, rng)
        done.append(
            {"step": part.strip(), "law": step.law, "requests": [len(before), len(trace)],
             "rate_rps": [before.mean_rate_rps, trace.mean_rate_rps]}
        )  # fmt: skip
    return with_facts(trace, scale=done)


@dataclass(frozen=True, slots=True)
class Condition:
    """`column` `sign` `value`, as a row must satisfy it; a row without a value fails."""

    column: str
    sign: str
    value: float | str

    def __str__(self) -> str:
        value = self.value if isinstance(self.value, str) else f"{self.value:g}"
        return f"{self.column}{self.sign}{value}"

    def holds(self, table: pa.Table) -> np.ndarray:
        """(N,) whether each row satisfies the condition."""
        if self.column == CONTEXT:
            column = pc.add(table["prompt_tokens"], table["output_tokens"])
        else:
            column = table[self.column]
        valid = np.asarray(column.is_valid())
        values = np.asarray(column.fill_null("" if isinstance(self.value, str) else 0))
        matches: np.ndarray = valid & _OPERATORS[self.sign](values, self.value)
        return matches


def conditions(text: str) -> tuple[Condition, ...]:
    """The conditions of a text, all of which must hold. Raises UsageError for what is none."""
    return tuple(_condition(part, text) for part in text.split(","))


def _condition(part: str, text: str) -> Condition:
    match = _CONDITION.fullmatch(part)
    if not match:
        raise UsageError(f"'{text}': '{part.strip()}' is not a condition; write prompt_tokens<=4096 or tag=api.")
    name, sign, value = match.groups()
    column, sign = _SHORT.get(name, name), "=" if sign == "==" else sign
    if column == "tag":
        if sign not in ("=", "!="):
            raise UsageError(f"'{text}': a tag is a word, so {sign} does not apply; write tag={value} or tag!={value}.")
        return Condition(column, sign, value)
    if column not in _NUMBERS:
        raise no_such("column to filter by", name, [*_NUMBERS, "tag"])
    try:
        return Condition(column, sign, float(value))
    except ValueError:
        raise UsageError(f"'{text}': {column} must be compared with a number, got '{value}'.") from None


def judge(table: pa.Table, wanted: Sequence[Condition], file: str) -> tuple[np.ndarray, dict[str, int]]:
    """(N,) rows to keep, and why the others are dropped: the first condition that each fails, counted.

    Raises UsageError for a column that this trace does not have.
    """
    matches = np.ones(table.num_rows, bool)
    dropped: dict[str, int] = {}
    for condition in wanted:
        names = (*table.column_names, CONTEXT)
        if condition.column not in names:
            columns = ", ".join(name for name in (*_NUMBERS, "tag") if name in names)
            raise UsageError(f"'{condition}': '{file}' has no column {condition.column}; it has {columns}.")
        holds = condition.holds(table)
        if failing := int((matches & ~holds).sum()):
            dropped[f"not {condition}"] = failing
        matches &= holds
    return matches, dropped


def filtered(trace: Trace, text: str) -> Trace:
    """The rows for which all conditions hold, and why each of the others is gone: rows in = rows out + named drops.

    Time 0 stays the start of the slice, or becomes the first row kept. Raises UsageError when no row is left.
    """
    matches, dropped = judge(trace.table, conditions(text), str(trace.facts.get("file", "the trace")))
    if not matches.any():
        raise UsageError(f"--where '{text}' leaves none of {len(trace)} requests; loosen it.")
    units, count = conversations(trace.table)
    rows_left, had = np.bincount(units[matches], minlength=count), np.bincount(units, minlength=count)
    trace = leaving_out(rows_of(trace, np.flatnonzero(matches)), dropped)
    if "session" in trace.table.column_names and dropped:
        some, none = (rows_left > 0) & (rows_left < had), rows_left == 0
        trace = with_facts(trace, cut_sessions={"in part": int(some.sum()), "as a whole": int(none.sum())})
    if trace.facts.get("start_s") is None:
        trace = at_times(trace, trace.at_s - trace.at_s[0])
    return with_facts(trace, where=text)


def first(trace: Trace, limit: int | None) -> Trace:
    """At most `limit` requests from the start; None: all."""
    if limit is None or len(trace) <= limit:
        return trace
    cut = dataclasses.replace(trace, table=trace.table.slice(0, limit))
    return with_facts(leaving_out(cut, {f"after the first {limit}": len(trace) - limit}), limit=limit)


def jittered(trace: Trace, text: str, rng: np.random.Generator) -> Trace:
    """Every stamp later by a random time, uniform below `text` (a duration, or 'grain': how coarse the stamps are).

    Requests keep their order: where two would change places their stamps do instead. Raises UsageError for 'grain'
    where the stamps are fine.
    """
    width_s = seconds(text, "--jitter ('grain', or a time)") if text != "grain" else grain_s(trace.at_s)
    if width_s is None and len(np.unique(trace.at_s)) < LEAST_STAMPS:
        raise UsageError(f"'grain': fewer than {LEAST_STAMPS} different stamps do not tell it; give a time such as 3s.")
    if width_s is None:
        raise UsageError("'grain': the stamps of this trace are finer than 1 ms; give a time such as 1s, or no jitter.")
    if width_s <= 0:
        raise UsageError(f"--jitter must be longer than 0 s, got '{text}'.")
    # Sorted stamps keep the order of rows, to which parents and turns refer; their law is the same.
    moved = np.sort(trace.at_s + rng.uniform(0, width_s, len(trace)))
    return with_facts(at_times(trace, moved), jitter=f"uniform in [0 s, {width_s:g} s), order kept")


def grain_s(at_s: np.ndarray) -> float | None:
    """How coarse the stamps are: the tick on which several sit at a time (3 s), or what they are rounded to (1 s).

    None for stamps finer than 1 ms, and for fewer than 10 different ones.
    """
    distinct = np.unique(at_s)
    if len(distinct) < LEAST_STAMPS:
        return None
    if tick := arrivals.tick_s(at_s):
        return tick
    from_first = distinct - distinct[0]
    return next((r for r in RESOLUTIONS_S if np.abs(from_first - r * np.round(from_first / r)).max() < 1e-6), None)


def with_facts(trace: Trace, **facts: object) -> Trace:
    """The trace with more facts, and the number of requests and the span (s) that it has now."""
    now = {"requests": len(trace), "span_s": float(trace.at_s[-1])}
    return dataclasses.replace(trace, facts={**trace.facts, **facts, **now})


def leaving_out(trace: Trace, reasons: Mapping[str, int]) -> Trace:
    """The trace with rows named as left out in its facts; `dropped` there are those that are no requests at all."""
    before = trace.facts.get("left_out")
    return with_facts(trace, left_out={**(before if isinstance(before, dict) else {}), **reasons})


def at_times(trace: Trace, at_s: np.ndarray) -> Trace:
    """The trace with other stamps."""
    return dataclasses.replace(trace, table=with_columns(trace.table, {"at_s": at_s}))
