"""The scripts of tests/perf, which no other test runs, still start and measure: each in its smallest setting."""

import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
FOLDER = TOP / "tests" / "perf"
SMALLEST = {
    "agents_intervals": "--systems 1 --searches 1 --horizon 30",
    "capacity_blocks": "--queues 1 --searches 1 --budget 300", "capacity_queues": "--queues 1 --searches 1",
    "chaos": "--cases 1", "client_accuracy": "--streams 5 --seconds 0.5",
    "client_validity": "--runs 1 --streams 20 --seconds 1",
    "command_speed": "--sizes 1000 --pages page --policies vllm-v1",
    "comparison_power": "--sessions 2 --run-s 10", "engine_throughput": "--threads 1",
    "false_alarms": "--comparisons 5 --seeds 2 --levels 3 --workers 1",
    "fitted_sessions": "{data}/traces/mooncake/conversation_trace.jsonl --splits 1", "interim_analyses": "--draws 100",
    "interval_coverage": "--systems 1 --runs 6", "kv_sizes": "--servers 1",
    "latency_beside_measurements": "{data}/profiles",
    "length_comparison": "--systems 1 --comparisons 8", "one_run_interval": "--seeds 5 --workers 1",
    "overload_random": "--systems 1 --seeds 1",
    "prompt_lengths": "builtin-4096 --requests 2",
    "random_systems": "--file x --systems 1 --searches 1 --truth 6000",
    "server_lateness": "--streams 5 --tokens 10",
    "session_intervals": "--cases 1 --runs 2", "session_rates": "slo-mix@2 --seeds 2 --minutes 4",
    "simulator_speed": "--requests 1000 --repeats 1",
    "sweep_intervals": "--seeds 12", "sweep_ratios": "--cases 1 --requests 50", "trace_reading": "--rows 1000",
    "trend_rule": "--series 5 --flat 5 --length 20",
}  # fmt: skip


@pytest.mark.nightly
@pytest.mark.parametrize("name", sorted(p.stem for p in FOLDER.glob("*.py") if not p.stem.startswith("_")))
def test_a_measuring_script_starts(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Four of them were broken for weeks: what they call had moved."""
    smallest = SMALLEST[name]
    data = request.getfixturevalue("shared_data") if "{data}" in smallest else None
    command = [sys.executable, str(FOLDER / f"{name}.py"), *smallest.format(data=data).split()]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert done.returncode in (0, 1), done.stderr  # 1: a target is missed, as with so few cases it may
    assert "Traceback" not in done.stderr, done.stderr
