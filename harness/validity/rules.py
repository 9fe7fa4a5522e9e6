"""Warnings and reasons as rows: each is reported where its rule applies, and together they are the verdict."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import NamedTuple

from harness.api import RunWarning

OVERLOAD, QUEUE_GREW = "overload", "queue-grew"
"""Codes of the warnings of a growing queue, where the SLO was not met (or there is none) and where it was."""


class Rule(NamedTuple):
    """A row: whether it applies, its code (of a reason the name of the check), the message, and the remedy."""

    applies: object
    code: str
    message: str
    remedy: str = ""


def applying(rules: Iterable[Rule]) -> Iterator[RunWarning]:
    """Yield the rows that apply."""
    return (RunWarning(rule.code, rule.message, rule.remedy) for rule in rules if rule.applies)


def digits(value: float, count: int = 3) -> str:
    """Return a number with so many significant digits and no exponent: '0.042', '1,000'."""
    return format(Decimal(f"{value:.{count}g}"), ",f")


def plural(count: float, one: str, many: str) -> str:
    """Return the word for one thing or for several."""
    return one if count == 1 else many


@dataclass(frozen=True, slots=True)
class Verdict:
    """Valid, or not and why, by check; and what a reader must know in either case."""

    valid: bool
    reasons: list[RunWarning] = field(default_factory=list)
    warnings: list[RunWarning] = field(default_factory=list)

    @property
    def overloaded(self) -> bool:
        """Whether the queue grew all through the run, and the SLO was not met."""
        return any(warning.code == OVERLOAD for warning in self.warnings)

    @property
    def queue_grew(self) -> bool:
        """Whether the queue grew all through the run, be the SLO met or not."""
        return any(warning.code in (OVERLOAD, QUEUE_GREW) for warning in self.warnings)

    @property
    def text(self) -> str:
        """The verdict as it is printed."""
        if not self.valid:
            return "not valid: " + " ".join(sentences(self.reasons))
        grown = next((warning.message for warning in self.warnings if warning.code == OVERLOAD), None)
        if grown is not None or not self.warnings:
            return grown or "valid"
        codes, count = dict.fromkeys(warning.code for warning in self.warnings), len(self.warnings)
        return f"valid, with {count} {plural(count, 'warning', 'warnings')} ({', '.join(codes)})"


def sentences(reasons: Iterable[RunWarning]) -> list[str]:
    """Reasons with their remedies, as sentences."""
    return [r.message + (f" Remedy: {r.remedy}." if r.remedy else "") for r in reasons]
