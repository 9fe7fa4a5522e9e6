"""Warnings and reasons as rows: each is reported where its rule applies."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from harness.api import RunWarning


class Rule(NamedTuple):
    """A row: whether it applies, its code (of a reason the name of the check), the message, and the remedy."""

    applies: object
    code: str
    message: str
    remedy: str = ""


def applying(rules: Iterable[Rule]) -> Iterator[RunWarning]:
    """Yield the rows that apply."""
    return (RunWarning(rule.code, rule.message, rule.remedy) for rule in rules if rule.applies)


def plural(count: float, one: str, many: str) -> str:
    """Return the word for one thing or for several."""
    return one if count == 1 else many
