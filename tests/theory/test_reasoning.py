"""What RLMServing finds in the traffic of reasoning models, counted by hand and beside chat."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from backends.systems.rlmserving import adaptivity, kv_swing, straggler_tail
from harness.cli import main
from harness.data.folder import load


def requests(*ends_s: float, requested: list[int] | None = None, status: list[str] | None = None) -> pa.Table:
    """Requests due at 0 that end then."""
    count = len(ends_s)
    return pa.table({
        "scheduled_s": np.zeros(count), "token_s": [[0.5, float(end_s)] for end_s in ends_s],
        "output_tokens_asked": requested or [2] * count, "status": status or ["ok"] * count,
    })  # fmt: skip


def test_memory_swings_within_each_whole_minute_of_each_replica() -> None:
    """Two replicas that take turns would seem steady, and half a minute would count as one."""
    rows = [(0, 0, 90), (0, 59, 70), (1, 59, 100), (0, 61, 60), (0, 119, 65), (0, 121, 100)]
    steps = pa.table(dict(zip(("replica", "start_s", "free_blocks"), zip(*rows, strict=True), strict=True)))

    assert [0.0, 0.05, 0.2] == sorted(kv_swing(steps, 100).tolist())
    assert [0.2] == kv_swing(steps.slice(0, 2), 100).tolist()  # the only minute is all there is


def test_stragglers_are_the_last_tenth() -> None:
    """The time of the longest answer would be lost in a percentile."""
    assert 0.5 == straggler_tail(requests(1, 2, 3, 4, 5, 6, 7, 8, 10, 20))
    assert 0.0 == straggler_tail(requests(*[4.0] * 16))
    assert 0.2 == straggler_tail(requests(1, 2, 3, 4, 5, *[4] * 5, 50, status=["ok"] * 10 + ["timeout"]))


@pytest.mark.parametrize(
    ("requested", "expected"),
    [([10, 20, 30, 40], 1.0), ([40, 30, 20, 10], -1.0), ([20, 10, 10, 20], 0.0), ([1, 2, 3, 3], 0.948683)],
)
def test_time_follows_difficulty(requested: list[int], expected: float) -> None:
    """A server that lets hard questions wait no longer than easy ones has none; equal lengths have equal ranks."""
    assert expected == pytest.approx(adaptivity(requests(1.0, 2.0, 4.0, 8.0, requested=requested)), abs=1e-6)


@pytest.mark.nightly
def test_reasoning_differs_from_chat_as_published(tmp_path: Path) -> None:
    """S55: traffic of the preset would not differ from chat as published; both have as many tokens a second."""
    values = []
    for workload, rate, count in (("reasoning", "0.5", "300"), ("chatbot", "1.48", "889")):
        words = ["--backend", "sim", "--model", "llama3.1-8b", "--latency", "roofline", "--arrivals", "gamma:cv=2",
                 "--workload", workload, "--rate", rate, "--requests", count]  # fmt: skip
        assert main(["run", *words, "--quiet", "--no-html", "--out", str(tmp_path / workload)]) in (0, 1)
        run = load(tmp_path / workload)
        swing = kv_swing(run.steps, run.info.backend["kv_blocks"]).mean()
        values.append((swing, straggler_tail(run.requests), adaptivity(run.requests)))

    assert all(reasoning > chat for reasoning, chat in zip(*values, strict=True))
