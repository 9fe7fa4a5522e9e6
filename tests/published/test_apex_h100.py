"""`apex-h100`: whether constants that are known are found on the runs of other parallel degrees."""

import csv
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.errors import UsageError
from harness.experiments.validate.measurements import Traffic
from published import apex_h100

TRUE = {"overhead_s": 5e-3, "front_s": 0.02}
NAMES = ("a_05_validation_8TP", "a_05_validation_2TP", "a_025_validation_8TP", "b_05_validation_4DP2TP_0",
         "b_05_validation_4DP2TP_1", "c_05_validation_8TP", "b_025_validation_4DP2TP_0")  # fmt: skip


def made(name: str) -> apex_h100.Run:
    """A run whose means are those of `operators` with the true constants; prompts of trace b are long."""
    match = apex_h100._RUN.fullmatch(name)
    rng = np.random.default_rng(len(name))
    prompts = rng.integers(2000, 4000, 12) if match["trace"] == "b" else rng.integers(20, 400, 12)
    rate = {"05": 1.0, "025": 0.5}[match["rate"]]  # no queues, in which overheads add up
    traffic = Traffic(np.cumsum(rng.exponential(1 / rate, 12)), prompts, rng.integers(10, 80, 12))
    shard = None if match["shard"] is None else int(match["shard"])
    run = apex_h100.Run(name, "llama3-70b", match["trace"], match["rate"], int(match["tp"]), shard, 1, 1, traffic)
    times = apex_h100.simulate(run, TRUE)
    ttft_s = float(times.ttft_s.mean())
    return apex_h100.Run(name, "llama3-70b", run.trace, run.rate, run.tp, shard, ttft_s, times.itl_s, traffic)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files as the public ones are, of runs with known constants, one of an unknown model."""
    data = tmp_path_factory.mktemp("data")
    profiles = data / "profiles"
    profiles.mkdir()
    runs = [made(f"llama_{name}") for name in NAMES]
    with (profiles / "apex_h100_measured_means.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["engine", "run", "mean_ttft_s", "mean_tpot_s"])
        rows.writerow(["vllm", "mystery_a_05_validation_8TP", 1.0, 1.0])
        rows.writerow(["vllm", "llama_a_05_validation_4TP", "", ""])
        rows.writerows(["vllm", run.name, run.ttft_s, run.itl_s] for run in runs)
    columns = {
        "run": [run.name for run in runs for _ in run.traffic.arrival_s],
        "arrival_s": np.concatenate([run.traffic.arrival_s for run in runs]),
        "prompt_tokens": np.concatenate([run.traffic.prompt_tokens for run in runs]),
        "output_tokens": np.concatenate([run.traffic.output_tokens for run in runs]),
    }
    pq.write_table(pa.table(columns), profiles / "apex_h100_requests.parquet")
    return data


def test_constants_of_the_other_degrees_are_found(folder: Path) -> None:
    """S58: an error of the calibration would be taken for an error of the simulator."""
    found = apex_h100.left_out(list(apex_h100._runs(folder / "profiles")))

    assert {2, 8} == set(found)
    for constants in found.values():
        assert TRUE["overhead_s"] == pytest.approx(constants["overhead_s"], rel=0.1)
        assert TRUE["front_s"] == pytest.approx(constants["front_s"], rel=0.1)


def test_one_degree_alone_leaves_nothing_to_calibrate_on() -> None:
    """Constants from no run would be those of the run itself."""
    with pytest.raises(UsageError, match="one parallel degree"):
        apex_h100.left_out([made(f"llama_{NAMES[0]}")])
