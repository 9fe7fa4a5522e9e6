"""The page of a placement: names and units as they are, and every placement that its sentences name."""

from pathlib import Path
from typing import Any

import pytest

from reports import answers
from reports.document import Table, text

NAME = "3 x P(1,1) + 1 x D(1,1)"


def _one(kind: str, name: str, rate: float, each: float) -> dict[str, Any]:
    return {
        "groups": [], "algorithm": {"pair": "low", "colocated": "vllm++"}.get(kind, "high"), "kind": kind, "name": name,
        "hardware": "a100-80g", "gpus": 2, "rate_rps": 2 * rate, "rate_per_gpu_rps": rate, "mean_per_gpu_rps": rate,
        "low_per_gpu_rps": rate - 1, "high_per_gpu_rps": rate + 1, "value": rate * each, "binding": None,
        "not_apart": [],
    }  # fmt: skip


def _info(objective: str, unit: str, each: float) -> dict[str, Any]:
    candidates = [_one("decode", "D(1,1)", 33.0, each), _one("prefill", "P(1,1)", 7.0, each),
                  _one("pair", "P(2,1) D(1,1)", 4.0, each), _one("colocated", "(1,2)", 3.0, each)]  # fmt: skip
    return {
        "kind": "place", "versions": {}, "asked": {"hardware": ["a100-80g"]}, "state": "finished",
        "objective": {"name": objective, "unit": unit}, "candidates": candidates,
        "best": [_one("pair", NAME, 5.0, each) | {"algorithm": "high"}], "skipped": [], "warnings": [],
        "cost": {"candidates": 4, "left": 0, "requests": 900, "wall_s": 1.0},
    }  # fmt: skip


@pytest.fixture
def by_rate() -> dict[str, Any]:
    return _info("gpu", "req/s per GPU", 1.0)


@pytest.fixture
def by_power() -> dict[str, Any]:
    return _info("power", "requests per kJ", 2.5)


@pytest.fixture
def at_rate() -> dict[str, Any]:
    info = _info("cost", "requests per unit of money", 1.0) | {"target_rps": 8.0}
    info["asked"] |= {"goal": 0.9}
    info["candidates"] = [
        _one("colocated", name, 1.0, 1.0)
        | {"attainment": share, "attainment_low": low, "attainment_high": high, "meets": meets}
        for name, share, low, high, meets in (
            ("2 x (1,1)", 0.81, None, None, False), ("3 x (1,1)", 0.92, 0.91, 0.93, True),
            ("(8,1)", 0.9, 0.88, 0.92, None),
        )
    ]  # fmt: skip
    taken = {"taken": 10.5, "per_million_tokens": 0.5, "command": "bench run --rate 8"}
    info["best"] = [info["candidates"][1] | taken | {"rate_rps": 8.0}]
    return info


def test_a_requested_rate_shows_shares_beside_the_goal(at_rate: dict[str, Any]) -> None:
    """All deployments are run at one rate: their rates per GPU would rank one that misses the goal first."""
    report = answers.document(at_rate, Path("place.json"))
    (finding,), sections = report.findings, {section.key: section for section in report.sections}
    (candidates,) = sections["candidates"].blocks

    assert isinstance(candidates, Table)
    assert [("2 x (TP=1 PP=1)", "81.0%", "-", "misses"), ("3 x (TP=1 PP=1)", "92.0%", "91.0% to 93.0%", "meets"),
            ("(TP=8 PP=1)", "90.0%", "88.0% to 92.0%", "not decided")] == [
        (row[0], *row[-3:]) for row in candidates.rows
    ]  # fmt: skip
    assert "$10.50 per hour, $0.5000 per million output tokens, 92.0% of requests" in finding.text


def test_the_finding_keeps_names_and_units(by_power: dict[str, Any]) -> None:
    """The report would show p(1,1), gpus and kj, which no reader can look up."""
    (finding,) = answers.document(by_power).findings

    named = NAME.replace("(1,1)", "(TP=1 PP=1)")

    assert f"Best: {named} on 2 x a100-80g, 5.000 req/s per GPU (95%: 4.00 to 6.00), 12.50 requests per kJ." == (
        finding.text
    )


def test_alternatives_stand_beside_the_best(by_rate: dict[str, Any]) -> None:
    """How much the best gains, and what its seeds do not tell apart, would be missing."""
    by_rate["best"][0]["not_apart"] = ["(2,1)"]
    by_rate["best"] += [_one("colocated", name, 2.5, 1.0) for name in ("(1,2)", "(2,1)")]
    (best,) = {section.key: section for section in answers.document(by_rate).sections}["best"].blocks

    assert ["", "0.5 times the value", "not distinguishable"] == [row[-1] for row in best.rows]  # type: ignore[union-attr]  # a table


@pytest.mark.parametrize(("holds", "finding"), [
    (True, "then 91.0% meet the SLO."),
    (False, "only 91.0% meet the SLO. (TP=4 PP=1) on 2 x a100-80g holds then (95.0%)."),
])  # fmt: skip
def test_the_answer_says_whether_it_holds_with_the_known_error_of_the_times(
    holds: bool, finding: str, at_rate: dict[str, Any]
) -> None:
    """20 GPUs would be bought where 24 are needed if TTFT is as much longer as it was on public results."""
    at_rate["best"][0] |= {"holds": holds, "with_error": 0.91, "ttft_error": 0.31, "tpot_error": 0.08}
    at_rate["best"].append(at_rate["candidates"][1] | {"name": "(4,1)", "holds": True, "with_error": 0.95})

    sentence = answers.document(at_rate).findings[1].text

    assert sentence.endswith(finding)
    assert "TTFT 31% and TPOT 8% longer, the median error of step times on the nearest measurements" in sentence


def test_what_was_left_out_stands_under_its_reason(by_rate: dict[str, Any]) -> None:
    """A reader would wonder where three GPUs are."""
    for name in ("tp 3", "tp 7"):
        by_rate["skipped"].append({"name": name, "hardware": "a100-80g", "reason": "it does not divide the heads"})

    assert "tp 3, tp 7  a100-80g  it does not divide the heads" in text.render(answers.document(by_rate))
