"""Stored runs simulated again: what was sent is sent again, and what decides is taken over."""

from pathlib import Path

import pytest

from harness.cli import main
from harness.errors import UsageError
from harness.experiments.validate import replay

SYSTEM = "sim:latency=linear:prefill_token_s=0.0002,policy=vllm-v0,kv_blocks=400"


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs at two rates, the second with a warm-up that is left out."""
    folder = tmp_path_factory.mktemp("runs")
    for rate, more in ((2, ()), (6, ("--warmup", "1"))):
        arguments = ["--backend", SYSTEM, "--workload", "chatbot", "--rate", str(rate), "--requests", "40",
                     "--slo", "ttft=0.2,tpot=0.02", "--no-html", "--out", str(folder / f"at-{rate}")]  # fmt: skip
        assert main(["run", *arguments, *more]) == 0
    return folder


def test_the_same_system_gives_the_same_times(stored: Path) -> None:
    """Requests, order, policy and memory of a run would not be those that were measured."""
    found = replay.validate([str(stored)], "sim:latency=linear:prefill_token_s=0.0002", None)

    assert {0.0} == {pair.error for pair in found.pairs}
    assert [2.0, 6.0] == list(dict.fromkeys(pair.x for pair in found.pairs))
    assert {0.0} == {target.obtained for target in found.targets}
    assert any("warm-up" in sentence for sentence in found.setting)


def test_prefill_and_decode_replicas_are_taken_over(tmp_path: Path) -> None:
    """Two replicas for prefill and one for decode would be taken for three replicas alike."""
    arguments = ["--backend", "sim:latency=abc:vllm,prefill=2,decode=1:policy=vllm-v1,handoff=push", "--rate", "8",
                 "--requests", "40", "--slo", "ttft=0.2,tpot=0.05"]  # fmt: skip
    main(["run", *arguments, "--no-html", "--out", str(tmp_path / "run")])
    found = replay.validate([str(tmp_path / "run")], "sim:latency=abc:vllm", None)

    assert {0.0} == {pair.error for pair in found.pairs}


@pytest.mark.parametrize(
    ("kv", "blocks"), [("virtual", 10), ("virtual:page_bytes=8192", 2500), ("virtual:page_bytes=262144,layers=4", 320)]
)
def test_pages_of_virtual_memory_are_as_large_as_those_of_the_run(kv: str, blocks: int, tmp_path: Path) -> None:
    """They follow from the model: as many of another model's pages were another memory, or held no token at all."""
    latency = "sim:latency=linear:base_s=0.01"
    memory = ["--backend", f"{latency},model=qwen2.5-7b,policy=vllm-v0,kv_blocks={blocks},kv=[{kv}]"]
    main(["run", *memory, "--rate", "20", "--requests", "40", "--no-html", "--quiet", "--out", str(tmp_path / "run")])
    found = replay.validate([str(tmp_path / "run")], latency, None)

    assert {0.0} == {pair.error for pair in found.pairs}


def test_another_latency_misses_the_two_points(stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A latency model that does not fit the engine would pass for a validated simulator."""
    code = main(["validate", "--against", str(stored), "--backend", "sim:latency=linear:base_s=0.05"])

    assert 1 == code
    assert "1 of 1 targets missed" in capsys.readouterr().out


def test_bounds_of_the_command_replace_those_of_the_run(stored: Path) -> None:
    """Attainment would be that of other bounds than the requested ones."""
    found = replay.validate([str(stored / "at-2")], "sim:latency=linear", "ttft=1h")

    assert {100.0} == {pair.measured for pair in found.pairs if pair.metric == "attainment_pct"}


def test_a_real_time_backend_cannot_repeat(stored: Path) -> None:
    """The engine would be run under the wall clock where a simulation was meant."""
    with pytest.raises(UsageError, match="name a simulator"):
        replay.validate([str(stored)], "engine", None)
