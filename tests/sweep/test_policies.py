"""What `bench policy` says of the sweeps of engine and simulator; both are simulated here, with other step times."""

from pathlib import Path

import pytest

from harness.cli import main
from harness.experiments.policies import ENGINE, SIMULATOR, alike, by_policy, disagreements
from harness.experiments.sweep.axes import RATE, Axis
from harness.experiments.sweep.execute import run_sweep
from harness.experiments.sweep.plan import plan_sweep
from harness.experiments.sweep.sweep_json import SweepAnswer
from harness.options import Given

SAME = ["sarathi:budget=2048", "sarathi:budget=4096", "orca"]


def swept(out: Path, base_s: float, policies: list[str], rates: tuple[str, ...], seeds: int = 5) -> SweepAnswer:
    options = {
        "backend": "sim", "latency": f"linear:base_s={base_s},decode_seq_s=0.0006", "warmup": "none", "requests": "60",
        "workload": "uniform:prompt_max_tokens=256,output_max_tokens=64", "slo": "ttft=0.1,tpot=20ms",
    }  # fmt: skip
    axes = [Axis(RATE, rates), Axis("policy", tuple(policies))]
    return run_sweep(plan_sweep(Given(options), None, axes, seeds=str(seeds), refine="none"), out, workers=1)


def test_a_simulator_that_is_not_like_the_engine_is_a_warning(tmp_path: Path) -> None:
    """20% on the engine and 99% on the simulator would stand side by side without a word."""
    slow, quick, fast = (swept(tmp_path / f"{s:g}", s, ["sarathi"], ("1", "30")) for s in (0.011, 0.0021, 0.002))
    (found,) = disagreements({ENGINE: slow, SIMULATOR: fast})

    assert [] == list(disagreements({ENGINE: quick, SIMULATOR: fast}))
    assert found.startswith("Warning: engine and simulator disagree about sarathi at 30 req/s: 39% and 100% within ")
    assert " (+61 points, +" in found


def test_policies_that_form_the_same_batches_are_named(tmp_path: Path) -> None:
    """Two budgets that never bind would be compared by noise."""
    info = swept(tmp_path / "busy", 0.01, SAME, ("1", "60"), seeds=1)

    assert ["sarathi:budget=2048 and sarathi:budget=4096 form the same batches on the simulator at every rate."] == [
        text for text in alike(SAME, info, tmp_path / "busy") if "every" in text
    ]
    assert not any("60 req/s" in text for text in alike(SAME, info, tmp_path / "busy"))


def test_servers_are_named_by_their_policies(tmp_path: Path) -> None:
    """The rows of vLLM would have addresses, and none would stand beside its simulation."""
    servers = ("sim:latency=linear:base_s=0.002", "sim:latency=linear:base_s=0.02")
    options = {"workload": "fixed:prompt=64,output=8", "slo": "tpot=10ms", "requests": "20", "warmup": "none"}
    sweep = plan_sweep(Given(options), None, [Axis(RATE, ("1",)), Axis("backend", servers)], seeds="5", refine="none")
    info = run_sweep(sweep, tmp_path, workers=1)
    named = by_policy(info, dict(zip(servers, ("orca", "static"), strict=True)))
    (difference,) = named.differences

    assert [{"rate": 1, "policy": "orca"}, {"rate": 1, "policy": "static"}] == [point.values for point in named.points]
    assert ({"policy": "orca"}, {"policy": "static"}, -1.0) == (difference.base, difference.head, difference.difference)
    assert {"rate": 1} == difference.at


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["sarathi", "--rate", "fast"], "--rate must be"),
        (["sarathi", "sarathi"], "A policy is named twice"),
        (["sarathi", "--slo", "p99:ttft=0.1"], "bound them, as in --slo ttft=0.1"),
        (["sarathi", "--requests", "0"], "--requests must be"),
        (["sarathi", "orca", "--vllm", "http://127.0.0.1:9/v1"], "1 given for 2 policies"),
    ],
)
def test_wrong_usage_is_reported_before_anything_runs(
    options: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A user would wait for a calibration to learn of it."""
    monkeypatch.chdir(tmp_path)

    assert 2 == main(["policy", *options])
    assert says in " ".join(capsys.readouterr().err.split())
    assert [] == list(tmp_path.iterdir())
