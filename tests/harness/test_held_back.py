"""Answers that something between held back: what is not known of them is not printed, and what is stays."""

from collections.abc import Callable
from typing import Any

import pytest

from harness.api import Outcome
from harness.data.folder import Run
from harness.experiments.compare import gates
from harness.experiments.compare.pairing import Pair
from harness.metrics.objective import restored_slo
from harness.runner.run import exit_code, why
from harness.stats.arrivals import Law
from harness.validity.conclude import conclude

BLOCK: dict[str, Any] = {"held_events": 19, "held_s": 0.48}
"""All 20 events of an answer at once, after half a second of silence."""


def half(per_answer: dict[str, Any]) -> dict[str, Callable]:
    """The same of every third answer: the requests of `remote_run` are written one after the other in 200 ms."""
    return {
        name: lambda e, value=value: value if round(e.written_s / 0.2) % 3 == 0 else 0
        for name, value in per_answer.items()
    }


def ended(run: Run, fail_under: float | None = None) -> tuple[Any, int, str | None]:
    outcome = Outcome("finished", len(run.requests), 0, 0)
    info = conclude(run, restored_slo(run.info), Law(5.0, known=False), outcome)
    code = exit_code(info, outcome, fail_under)
    return info, code, why(code, info, outcome, fail_under)


@pytest.mark.parametrize("fail_under", [None, 0.9])
def test_a_buffered_stream_was_reported_as_a_tpot_of_nothing(remote_run: Callable, fail_under: float | None) -> None:
    """TTFT 497 ms and TPOT 0.01 ms, VALID, of a server with 100 and 10."""
    info, code, text = ended(remote_run(wire=BLOCK), fail_under)

    warning = info.warning("held-back")
    assert 5 == code
    assert "ttft=0.25 and tpot=0.1 are met is unknown" in str(text)
    assert "the tokens of the 60 answers came in few pieces, after 480 ms of silence" in warning.message
    assert "proxy_buffering off" in warning.remedy
    assert [None] * 3 == [info.summary.metrics[name].p50 for name in ("ttft", "tpot", "itl")]
    assert [None] * 3 == [info.summary.attainment, info.summary.goodput_rps, info.summary.passed]
    assert info.summary.metrics["e2e"].p50 > 0 and info.summary.output_tps > 0
    assert [0.0, 1.0] == [*info.resolution.attainment]
    assert info.warning("shared-reads") is info.warning("unresolved") is None
    assert info.verdict.valid


@pytest.mark.parametrize(("bounds", "code"), [("e2e=2", 0), ("p90:ttft=1", 5), ("p99:itl=1", 5), ("ttft=1,e2e=0.1", 1)])
def test_only_bounds_on_what_is_hidden_are_open(remote_run: Callable, bounds: str, code: int) -> None:
    """E2E is known all the same, and no bound on TTFT saves what missed it."""
    assert code == ended(remote_run(wire=BLOCK, slo=bounds), 0.9)[1]


def test_answers_that_came_freely_keep_their_numbers_beside_those_held_back(remote_run: Callable) -> None:
    """A third of the answers would have drawn the median towards 0, or cost all others."""
    info, code, _ = ended(remote_run(wire=half(BLOCK)), 0.9)

    assert 5 == code
    assert 40 == info.summary.metrics["tpot"].n
    assert 0.02 == pytest.approx(info.summary.metrics["tpot"].p50)
    assert (40 / 60, 1.0) == pytest.approx(tuple(info.resolution.attainment))
    assert "20 of 60 answers" in info.warning("held-back").message
    assert 0 == ended(remote_run(wire=half(BLOCK)), 0.6)[1]


FREE: dict[str, dict[str, Any]] = {
    "every event came by itself": {"wire": {"held_events": 0, "held_s": 0.0}},
    "two or three tokens of a step that drafts": {"wire": {"held_events": 12, "held_s": 0.4}},
    "a fast server": {"wire": {"held_events": 19, "held_s": 0.002}},
    "a client that was late for as long": {"wire": BLOCK, "sender": {"stall_p90_s": 0.3}},
    "answers of three tokens": {
        "wire": {"held_events": 2, "held_s": 0.3},
        "ask": {"token_s": lambda r: r.token_s[:3], "output_tokens": 3, "output_tokens_asked": 3},
    },
}


@pytest.mark.parametrize("name", FREE)
def test_a_stream_that_is_live_is_not_doubted(remote_run: Callable, name: str) -> None:
    """Who drafts, is fast, answers shortly or has a busy client would be advised to mend a proxy."""
    info, code, _ = ended(remote_run(**FREE[name]), 0.9)

    assert info.warning("held-back") is None
    assert info.summary.metrics["ttft"].n == 60
    assert 0 == code


@pytest.mark.parametrize(
    ("sender", "remedy"), [({"stall_p90_s": 0.001}, "several at once"), ({"stall_p90_s": 0.05}, "quiet the machine")]
)
def test_the_client_is_blamed_for_merged_events_only_where_it_was_late(
    remote_run: Callable, sender: dict[str, float], remedy: str
) -> None:
    """A server that writes two events at once would be called a busy machine."""
    run = remote_run(wire={"held_events": 10, "held_s": 0.4, "shared_events": 10}, sender=sender)

    assert remedy in ended(run)[0].warning("shared-reads").remedy


def test_a_side_that_is_not_known_is_no_better_or_worse(remote_run: Callable) -> None:
    """The side behind a proxy would have lost, or won, by infinity."""
    free, held = remote_run(), remote_run(wire=BLOCK)
    pair = Pair(free, held)

    base, head = gates.both(pair, None, 0.0)

    assert [None] * 6 == [side[name] for side in (base, head) for name in ("ttft", "p99:tpot", "attainment")]
    assert base["e2e"] == pytest.approx(head["e2e"])
    assert base["throughput_rps"] is not None
