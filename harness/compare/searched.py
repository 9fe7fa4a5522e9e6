"""What a capacity search gives to a comparison: the capacity of each seed, which the other side searched too."""

import math
from collections.abc import Mapping
from typing import Any

from harness.errors import UsageError

NAME = "capacity_rps"


def by_seed(info: Mapping[str, Any], goal: float | None) -> dict[int | None, dict[str, float]]:
    """Seed -> capacity in req/s at a goal (the first that was answered unless given), and beside it at the others.

    A capacity of 0 is one of all seeds, and stands under None. Raises UsageError where the goal was not searched, or no
    seed has a capacity.
    """
    answers = _answers(info)
    chosen = next(iter(answers)) if goal is None else goal
    if chosen not in answers:
        known = ", ".join(f"{each:.4g}" for each in answers)
        raise UsageError(f"--goal {chosen:g}: the search was for other goals ({known}); name one of them.")
    knees = {each: answer.get("knees") or {} for each, answer in answers.items()}
    if not knees[chosen] and answers[chosen].get("capacity_rps") == 0:
        return {None: {NAME: 0.0}}
    if not knees[chosen]:
        why = answers[chosen].get("why") or "the search found none"
        raise UsageError(f"There is no capacity to compare at a goal of {chosen:.4g}: {str(why).rstrip('.')}.")
    return {
        int(seed): {_name(each, chosen): math.exp(knees[each][seed]) for each in answers if seed in knees[each]}
        for seed in knees[chosen]
    }


def whole(info: Mapping[str, Any]) -> dict[str, float]:
    """The capacity at each goal of a search, over all of its seeds."""
    found = {goal: answer["capacity_rps"] for goal, answer in _answers(info).items()}
    first = next(iter(found))
    return {_name(goal, first): float(value) for goal, value in found.items() if value is not None}


def _answers(info: Mapping[str, Any]) -> dict[float, Mapping[str, Any]]:
    """Goal -> answer. Raises UsageError where a search has none yet, or was damaged."""
    parts = [info.get(name) or {} for name in ("spec", "run", "backend", "slo")]
    answers = info.get("answers") or []
    parts += answers if isinstance(answers, list) else [answers]
    if not all(isinstance(part, Mapping) for part in parts) or not all(
        isinstance(answers, list) and isinstance(answer.get("goal"), float | int) for answer in answers
    ):
        raise UsageError("The file of the search is damaged: a part of it is not what bench capacity writes.")
    found = {float(answer["goal"]): answer for answer in answers}
    if not found:
        raise UsageError("The search has no answer yet: it goes on, or was killed; the same command goes on with it.")
    return found


def _name(goal: float, first: float) -> str:
    return NAME if goal == first else f"{NAME} at {100 * goal:.4g}%"
