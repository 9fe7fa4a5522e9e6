"""A run folder of the engine is all that the simulator needs to give its token times again, through the commands."""

import json

import pyarrow.parquet as pq
import pytest

from harness.cli import main

pytestmark = pytest.mark.usefixtures("late_is_valid")


def bench(*arguments: str) -> None:
    """Run the command line, in this process; the engine has one of its own."""
    assert main(arguments) == 0


@pytest.mark.parametrize(
    "traffic",
    [
        ("--workload", "fixed:prompt=64,output=20", "--sessions", "fixed:turns=3,think=100ms", "--rate", "20"),
        ("--workload", "fixed:prompt=64,output=20", "--sessions", "compound:stages=1/3/1,deadline=30s", "--rate", "20"),
        pytest.param(
            ("--workload", "fixed:prompt=64,output=20", "--arrivals", "closed:users=6,think=50ms"),
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            (
                "--workload",
                "fixed:prompt=64,output=20",
                "--arrivals",
                "burstgpt:service=api,mode=steady",
                "--rate",
                "40",
            ),
            marks=pytest.mark.nightly,
        ),
    ],
    ids=["sessions", "tasks", "closed loop", "bursts"],
)
def test_traffic_of_every_kind_runs_on_the_engine_and_is_repeated_by_the_simulator(traffic, tmp_path):
    """Turns, stages and users would follow other answers on the simulator than on a real system."""
    engine, sim = tmp_path / "engine", tmp_path / "sim"
    bench("run", *traffic, "--requests", "40", "--prefix-cache", "on", "--out", str(engine), "--quiet", "--no-html")
    bench("run", "--config", str(engine), "--backend", f"sim:latency=recorded:{engine}", "--prefix-cache", "on",
          "--out", str(sim), "--quiet", "--no-html")  # fmt: skip
    runs = [pq.read_table(run / "requests.parquet").sort_by("request_id") for run in (engine, sim)]

    assert 40 <= len(runs[0])
    assert {"ok"} == set(runs[0]["status"].to_pylist())
    for name in ("request_id", "token_s", "scheduled_s", "sent_s", "session", "turn", "cached_tokens"):
        assert runs[0][name].to_pylist() == runs[1][name].to_pylist(), name


def test_a_run_of_the_paced_engine_counts_its_late_steps_and_is_repeated(tmp_path):
    """Late steps that are counted in the engine's process alone would leave a run of a busy machine valid."""
    engine, sim = tmp_path / "engine", tmp_path / "sim"
    code = main(
        ["run", "--backend", "engine:executor=paced:latency=linear:base_s=4ms", "--model", "llama3-8b", "--hardware",
         "h100", "--policy", "vllm-v1", "--workload", "fixed:prompt=90,output=20", "--rate", "200", "--requests", "30",
         "--out", str(engine), "--quiet", "--no-html"]
    )  # fmt: skip
    bench("run", "--config", str(engine / "run.json"), "--backend",
          f"sim:latency=recorded:{engine},model=llama3-8b,hardware=h100,policy=vllm-v1", "--out", str(sim), "--quiet",
          "--no-html")  # fmt: skip
    info = json.loads((engine / "run.json").read_text())
    facts, (pace,) = info["backend"], [check for check in info["checks"] if check["check"] == "pace"]
    runs = [pq.read_table(run / "requests.parquet").sort_by("request_id") for run in (engine, sim)]

    assert ("llama3-8b", "h100", 1) == (facts["model"], facts["hardware"], facts["gpus"])
    assert len(pq.read_table(engine / "steps.parquet")) == facts["paced_steps"]
    late = facts["late_steps"] > 0.01 * facts["paced_steps"]
    assert ("failed" if late else "ok") == pace["state"]
    assert code == 4 or not late  # a client that is late on a busy machine is another reason for 4
    assert runs[0]["token_s"].to_pylist() == runs[1]["token_s"].to_pylist()
