"""`bench sweep` from the command line: what it runs, what it tells, what it refuses."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.cli import main
from harness.data.folder import load
from harness.errors import BackendError
from harness.experiments.sweep.axes import RATE, Axis
from harness.experiments.sweep.plan import plan_sweep
from harness.experiments.sweep.runs import Order, RunResult, execute_order
from harness.options import Given, run_spec
from harness.runner.run import execute

Sweep = Callable[..., dict[str, Any]]

QUICK = ("--backend", "sim", "--latency", "abc:distserve", "--policy", "vllm-v0", "--workers", "1", "--quiet",
         "--no-html")  # fmt: skip
TWO = ("--rate", "1,3", "--requests", "200")


def times(path: Path) -> list[tuple[float, float | None]]:
    """TTFT and TPOT of the measured requests of a stored run, in plain Python."""
    info = json.loads((path / "run.json").read_text())
    rows = load(path).requests.to_pylist()
    kept = [row for row in rows if row["scheduled_s"] >= info["warmup"]["at_s"]]
    return [
        (
            row["token_s"][0] - row["scheduled_s"],
            (row["token_s"][-1] - row["token_s"][0]) / (row["output_tokens"] - 1) if row["output_tokens"] > 1 else None,
        )
        for row in kept
    ]


def share(pairs: list[tuple[float, float | None]], ttft_s: float, tpot_s: float) -> float:
    met = [ttft <= ttft_s and (tpot is None or tpot <= tpot_s) for ttft, tpot in pairs]
    return sum(met) / len(met)


def test_requests_that_bring_their_own_limit_are_a_bound_without_one(sweep: Sweep, tmp_path: Path) -> None:
    """A sweep of traffic with deadlines would run all its points and end with a traceback."""
    traffic = ("--workload", "slo-mix", "--rate", "1", "--requests", "60", "--seeds", "2", "--warmup", "none")
    info = sweep(*traffic, "--model", "llama3-8b", "--hardware", "h100", "--latency", "operators")
    bounds = {bound["metric"]: bound for bound in info["points"][0]["bounds"]}

    assert bounds["task"]["limit_s"] is None
    assert bounds["ttft"]["limit_s"] == 2.0
    assert 0 < bounds["task"]["attainment"]["mean"] <= 1
    assert main(["report", str(tmp_path / "sweep")]) == 0


def test_curve_equals_a_computation_from_scratch(sweep: Sweep, tmp_path: Path) -> None:
    """The curve would tell of other requests than those in the stored tables."""
    info = sweep(*TWO, "--seeds", "2")

    for point in info["points"]:
        found = [times(tmp_path / "sweep" / run["folder"]) for run in point["runs"]]
        attainment = [share(pairs, 0.25, 0.1) for pairs in found]

        assert sum(map(len, found)) == point["requests"]
        assert attainment == [run["attainment"] for run in point["runs"]]
        assert pytest.approx(np.mean(attainment), rel=1e-12) == point["attainment"]["mean"]
        assert (
            pytest.approx(np.quantile([ttft for ttft, _ in found[0]], 0.9), rel=1e-12)
            == (point["runs"][0]["metrics"]["ttft"]["p90"])
        )


def test_slo_scale_equals_a_computation_from_scratch(
    sweep: Sweep, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Attainment against the SLO scale would not be that of the stored requests."""
    sweep(*TWO, "--seeds", "1")
    capsys.readouterr()
    assert 0 == main(["slo", str(tmp_path / "sweep"), "--scale", "0.5:2:0.25", "--format", "json"])
    scaled = [
        point for point in json.loads(capsys.readouterr().out)["scaled"]["points"] if point["values"]["rate"] == 3
    ]
    pairs = times(tmp_path / "sweep" / "points" / "rate=3" / "seed-0")

    assert 7 == len(scaled)
    for point in scaled:
        scale = point["values"]["slo-scale"]
        run = point["runs"][0]

        assert share(pairs, 0.25 * scale, 0.1 * scale) == run["attainment"]
        assert share(pairs, 0.25 * scale, float("inf")) == run["bounds"][0]["attainment"]
        assert pytest.approx(run["throughput_rps"] * run["attainment"]) == run["goodput_rps"]


def test_several_slos_share_their_runs(sweep: Sweep, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each SLO would cost runs of its own, although the traffic and the system are the same."""
    slos = ("ttft=0.25,tpot=0.1", "ttft=0.4,tpot=0.2")
    sweep(*TWO, "--seeds", "1")
    capsys.readouterr()
    assert 0 == main(["slo", str(tmp_path / "sweep"), "--slo", slos[0], "--slo", slos[1], "--format", "json"])
    points = [p for p in json.loads(capsys.readouterr().out)["curve"]["points"] if p["values"]["rate"] == 3]
    pairs = times(tmp_path / "sweep" / "points" / "rate=3" / "seed-0")

    assert [share(pairs, 0.25, 0.1), share(pairs, 0.4, 0.2)] == [p["attainment"]["mean"] for p in points]
    assert [*slos] == [p["slo"] for p in points]


def test_point_is_what_bench_run_measures(sweep: Sweep, tmp_path: Path) -> None:
    """A point of the curve could not be repeated alone."""
    point = sweep(*TWO, "--seeds", "3,4")["points"][1]
    spec = {"backend": "sim", "latency": "abc:distserve", "policy": "vllm-v0", "rate": 3, "requests": 200}

    alone = execute(run_spec(Given({**spec, "seed": 4, "warmup": "mser5"})), out=tmp_path / "alone")

    assert alone.run.info.summary.attainment == point["runs"][1]["attainment"]
    assert alone.run.info.schedule.sha256 == point["runs"][1]["schedule_sha256"]


def test_product_of_axes_in_the_order_given(sweep: Sweep) -> None:
    """Who reads the table row by row would read another system than is named."""
    info = sweep(*TWO, "--seeds", "1", "--over", "replicas=1,2", "--over", "backend.kv_blocks=90,100")
    first = info["points"][0]

    assert 8 == len(info["points"])
    assert {"rate": 1, "replicas": 1, "backend.kv-blocks": 90} == first["values"]
    assert {"rate": 1, "replicas": 1, "backend.kv-blocks": 100} == info["points"][1]["values"]
    assert "points/rate=1,replicas=1,backend.kv-blocks=90" == first["folder"]


def test_argument_of_a_spec_is_swept(sweep: Sweep, tmp_path: Path) -> None:
    """All points would run with the same burstiness, whatever their names say."""
    info = sweep("--rate", "2", "--requests", "100", "--seeds", "1", "--arrivals", "gamma", "--over", "arrivals.cv=1,4")
    folders = [tmp_path / "sweep" / point["runs"][0]["folder"] for point in info["points"]]
    arrivals = [json.loads((folder / "run.json").read_text())["workload"]["arrivals"] for folder in folders]

    assert ["gamma:rate_rps=2.0,cv=1.0", "gamma:rate_rps=2.0,cv=4.0"] == [
        f"gamma:rate_rps=2.0,cv={text.partition('cv=')[2].partition(',')[0] or '1.0'}" for text in arrivals
    ]


def test_rate_of_a_trace_compresses_it(sweep: Sweep, tmp_path: Path) -> None:
    """A recorded load could not be tried at other rates, or would be tried at the wrong ones."""
    trace = tmp_path / "trace.csv"
    rows = [f"{i * 0.5},{100 + i},{10}" for i in range(120)]
    trace.write_text("\n".join(["arrived_at,num_prefill_tokens,num_decode_tokens", *rows]) + "\n")

    info = sweep("--rate", "1,4", "--trace", str(trace), "--slo", "ttft=1", "--warmup", "none")

    assert [0] == info["seeds"]
    assert any("no seed moves" in warning for warning in info["warnings"])
    for point in info["points"]:
        schedule = load(tmp_path / "sweep" / point["runs"][0]["folder"]).schedule
        assert schedule is not None
        gap_s = np.diff(schedule["scheduled_s"].to_numpy())
        assert pytest.approx(1 / point["values"]["rate"], rel=1e-6) == gap_s.mean()


def test_what_a_sweep_prints_golden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, transcript: Callable[..., None]
) -> None:
    """A mean of two seeds would pass for the truth, a rate that is too high for one that is sustained."""
    monkeypatch.chdir(tmp_path)
    growing = "--rate 40 --requests 300 --seeds 1 --warmup none"
    lines = {
        "each workload has its SLO": "--rate 1 --requests 60 --seeds 1 --over workload=chatbot,summarization",
        "goals come from the same runs": "--rate 1:4:1 --requests 300 --seeds 1 --goal 80%,0.9",
        "an overloaded point loses its latencies, and fails a bound":
            "--rate 1,40 --requests 300 --seeds 1 --warmup none --fail-under 0.5",
        "two seeds have no interval": "--rate 1,3 --requests 200 --seeds 2",
        "axes in their order":
            "--rate 1,3 --requests 60 --seeds 1 --over replicas=1,2",
        "a broken percentile": "--rate 1,3 --requests 200 --seeds 2 --slo p99:ttft=0.01 --fail-under 0.9",
        "a grown queue leaves the curve open": f"{growing} --slo p75:e2e=900,ttft=16 --fail-under 0.1",
        "but is no overload where the SLO is met":
            f"{growing} --slo ttft=900 --fail-under 0.9",
        "percentiles alone have no attainment": f"{growing} --slo p99:ttft=1",
        "warnings of runs are shown once": "--rate 1,2 --requests 40 --seeds 1",
    }  # fmt: skip
    sweep = f"sweep {' '.join(QUICK)}"
    numbered = {reason: f"{sweep} {line} --out s{number}" for number, (reason, line) in enumerate(lines.items())}
    transcript("sweep.txt", numbered)


def test_lengths_alone_are_a_workload(sweep: Sweep) -> None:
    """Traffic without an end would be refused, although a simulated sweep knows how much of it to take."""
    info = sweep("--workload", "fixed:prompt=8,output=2", "--rate", "50", "--seeds", "1", "--slo", "ttft=1")

    assert 2200 == info["spec"]["requests"]


def test_percentile_without_a_value_is_no_part_of_a_mean(sweep: Sweep, tmp_path: Path) -> None:
    """One seed of which too many requests failed would leave the good mean of the others."""
    arguments = ("--rate", "1", "--requests", "100", "--seeds", "2", "--slo", "p99:ttft=9", "--fail-under", "0.9")
    sweep(*arguments)
    file = tmp_path / "sweep" / "points" / "rate=1" / "seed-1" / "run.json"
    info = json.loads(file.read_text())
    info["summary"]["bounds"][0] |= {"value_s": None, "passed": False}
    file.write_text(json.dumps(info))

    again = sweep(*arguments, code=1)

    assert again["points"][0]["bounds"][0]["value_s"] is None
    assert "too many failed > 9.00 s" in again["printed"]


def test_error_of_the_client_leaves_the_curve_open(sweep: Sweep, tmp_path: Path) -> None:
    """A bound within the client's own error would be called kept."""
    sweep(*TWO, "--seeds", "1", "--fail-under", "0.5")
    file = tmp_path / "sweep" / "points" / "rate=3" / "seed-0" / "run.json"
    info = json.loads(file.read_text())
    file.write_text(json.dumps(info | {"resolution": {"attainment": [0.4, 0.9], "kept": [True, True]}}))

    assert 5 == sweep(*TWO, "--seeds", "1", "--fail-under", "0.5", code=5)["exit_code"]


def test_run_that_is_not_valid_does_not_count(sweep: Sweep, tmp_path: Path) -> None:
    """A run that proves nothing would be averaged into the curve."""
    sweep(*TWO, "--seeds", "2")
    file = tmp_path / "sweep" / "points" / "rate=3" / "seed-1" / "run.json"
    info = json.loads(file.read_text())
    info["verdict"] |= {"valid": False, "reasons": ["The client was late."]}
    file.write_text(json.dumps(info))

    point = sweep(*TWO, "--seeds", "2", code=4)["points"][1]

    assert (1, 1) == (point["valid"], point["invalid"])
    assert point["runs"][0]["attainment"] == point["attainment"]["mean"]


def test_backend_that_fails_most_requests_ends_with_3(sweep: Sweep, tmp_path: Path) -> None:
    """A server that answers nothing would give a curve of zeros and exit code 0."""
    sweep(*TWO, "--seeds", "1")
    file = tmp_path / "sweep" / "points" / "rate=3" / "seed-0" / "run.json"
    info = json.loads(file.read_text())
    info["failures"] |= {"exceeded": True, "said": "199 of 200 requests failed."}
    file.write_text(json.dumps(info))

    assert "199 of 200 requests failed." in sweep(*TWO, "--seeds", "1", code=3)["printed"]


def test_csv_tells_the_requests_that_are_swept(sweep: Sweep) -> None:
    """The axis of a plot would be the number of measured requests instead of the requested one."""
    printed = sweep("--rate", "2", "--seeds", "1", "--over", "requests=60,120", "--format", "csv")["printed"]
    rows = list(csv.DictReader(io.StringIO(printed)))

    assert ["60", "120"] == [row["requests"] for row in rows]
    assert all(int(row["measured_requests"]) <= int(row["requests"]) for row in rows)


def test_report_of_a_killed_sweep_tells_what_is_there(
    sweep: Sweep, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Hours of runs would be lost to a machine that went down in the last one."""
    sweep(*TWO, "--seeds", "1")
    file = tmp_path / "sweep" / "sweep.json"
    info = json.loads(file.read_text())
    file.write_text(json.dumps({**info, "state": "running", "points": []}))
    (tmp_path / "sweep" / "points" / "rate=3" / "seed-0" / "run.json").unlink()

    assert 0 == main(["report", str(tmp_path / "sweep"), "--format", "json"])
    answer = json.loads(capsys.readouterr().out)
    assert [{"rate": 1}] == [point["values"] for point in answer["points"]]
    assert {"planned": 2, "done": 1} == answer["runs"]


def test_options_from_a_file_are_swept(sweep: Sweep, tmp_path: Path) -> None:
    """Who keeps a set-up in a file would have to write it all again."""
    file = tmp_path / "bench.toml"
    file.write_text('workload = "chatbot"\narrivals = "gamma:cv=2"\nrequests = 60\ngoal = 0.8\nseed = 7\n')

    info = sweep("--config", str(file), "--rate", "1,2", "--over", "arrivals.cv=1,3", "--seeds", "2")

    assert ([7, 8], [0.8], 60) == (info["seeds"], info["goals"], info["spec"]["requests"])
    assert 4 == len(info["points"])


def test_backend_that_fails_in_the_middle_leaves_an_answer(sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that dies at a high rate would take the curve below it along."""

    def failing(order: Order) -> RunResult:
        if order.task.spec.rate == 3:
            raise BackendError("The server is gone.")
        return execute_order(order)

    monkeypatch.setattr("harness.experiments.sweep.execute.execute_order", failing)
    info = sweep(*TWO, "--seeds", "1", code=3)

    assert ("failed", [{"rate": 1}]) == (info["state"], [point["values"] for point in info["points"]])
    assert "The server is gone." in info["printed"]
    assert "The server is gone." in info["message"]


def test_secret_header_is_not_stored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A key would lie in a folder that is handed on."""
    arguments = ("--backend", "openai:url=http://127.0.0.1:9/v1", "--header", "Authorization=Bearer sk-secret")

    assert 3 == main(["sweep", *arguments, "--rate", "1", "--requests", "5", "--out", str(tmp_path / "s")])
    assert "sk-secret" not in (tmp_path / "s" / "sweep.json").read_text() + capsys.readouterr().err


def test_wrong_usage_is_one_sentence(refusals: Callable[..., None]) -> None:
    """The user would meet a traceback, or hours of the wrong runs."""
    refusals("wrong-sweep.txt", "--backend", "sim", "--quiet", "--out", "sweep")


def test_a_short_sweep_is_drawn_at_its_rates_not_at_the_workloads_own() -> None:
    """`--rate 20,40 --duration 3s` would be refused: at 1 req/s nothing may be due in 3 s."""
    axes = [Axis(RATE, ("20", "40"))]
    options = {"backend": "sim", "workload": "uniform:prompt_max_tokens=256", "duration": "3s"}

    assert 2 == len(plan_sweep(Given(options), None, axes, seeds="1").tasks)


def test_engine_and_simulator_go_one_after_another_on_one_axis() -> None:
    """Runs in real time beside simulations on all cores would be measured late."""
    axes = [Axis("backend", ("null", "sim:latency=linear"))]
    sweep = plan_sweep(Given({"requests": "5"}), None, axes)

    assert not sweep.virtual
    assert [0, 0] == [task.spec.seed for task in sweep.tasks]
