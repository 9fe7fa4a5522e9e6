"""One `bench validate --against`: every comparison that was asked for, as one answer."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from harness.host import versions
from harness.validate import Pair, Validation
from harness.validate.scoring import errors, in_points, metrics, percent, scored


def answer(found: Sequence[Validation], command: str) -> dict[str, Any]:
    """The answer that `reports.answers.validate` tells; exit code 1 where a target is missed."""
    missed = any(not target.holds for one in found for target in one.targets)
    return {
        "schema": 1,
        "kind": "validate",
        "versions": versions(),
        "exit_code": int(missed),
        "command": command,
        "validations": [_told(one) for one in found],
    }


def _told(one: Validation) -> dict[str, Any]:
    return {
        "name": one.name,
        "title": one.title,
        "setting": list(one.setting),
        "targets": [dataclasses.asdict(target) | {"holds": target.holds} for target in one.targets],
        "errors": list(_errors(one.pairs)),
        "pairs": [dataclasses.asdict(pair) | {"error": percent(pair)} for pair in one.pairs],
    }


def _errors(pairs: Sequence[Pair]) -> Iterable[dict[str, Any]]:
    """The errors of each metric of which something is scored."""
    for metric in metrics(pairs):
        if scored(pairs, metric):
            row = dataclasses.asdict(errors(pairs, metric))
            yield row | {"worst": row["worst"]["setting"], "unit": "points" if in_points(metric) else "%"}
