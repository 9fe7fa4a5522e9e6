"""Which rows of a trace to keep, told as conditions: `prompt_tokens<=4096,output_tokens>=1,tag=api`."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.errors import UsageError, no_such

if TYPE_CHECKING:
    import pyarrow as pa

_CONDITION = re.compile(r"\s*([A-Za-z_]+)\s*(<=|>=|==|!=|=|<|>)\s*([^<>=!\s].*?)\s*", re.DOTALL)
_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt, "=": operator.eq, "!=": operator.ne,
}  # fmt: skip
_NUMBERS = ("prompt_tokens", "output_tokens", "turn", "session")
_SHORT = {"prompt": "prompt_tokens", "output": "output_tokens"}


@dataclass(frozen=True, slots=True)
class Condition:
    """`column` `sign` `value`, as a row must satisfy it; a row that does not tell the column fails."""

    column: str
    sign: str
    value: float | str

    def __str__(self) -> str:
        value = self.value if isinstance(self.value, str) else f"{self.value:g}"
        return f"{self.column}{self.sign}{value}"

    def holds(self, table: pa.Table) -> np.ndarray:
        """(N,) whether each row satisfies the condition."""
        column = table[self.column]
        known = np.asarray(column.is_valid())
        values = np.asarray(column.fill_null("" if isinstance(self.value, str) else 0))
        kept: np.ndarray = known & _OPERATORS[self.sign](values, self.value)
        return kept


def conditions(text: str) -> tuple[Condition, ...]:
    """The conditions of a text, all of which must hold. Raises UsageError for what is none."""
    return tuple(_condition(part, text) for part in text.split(","))


def _condition(part: str, text: str) -> Condition:
    match = _CONDITION.fullmatch(part)
    if not match:
        raise UsageError(f"'{text}': '{part.strip()}' is no condition; write prompt_tokens<=4096 or tag=api.")
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
    kept = np.ones(table.num_rows, bool)
    dropped: dict[str, int] = {}
    for condition in wanted:
        if condition.column not in table.column_names:
            columns = ", ".join(name for name in (*_NUMBERS, "tag") if name in table.column_names)
            raise UsageError(f"'{condition}': '{file}' has no column {condition.column}; it has {columns}.")
        holds = condition.holds(table)
        if failing := int((kept & ~holds).sum()):
            dropped[f"not {condition}"] = failing
        kept &= holds
    return kept, dropped
