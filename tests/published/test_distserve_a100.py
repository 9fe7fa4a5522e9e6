"""`distserve-a100`: what it takes from the file, and whether a known system is found again."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.experiments.validate.measurements import Traffic
from published import distserve_a100
from published.distserve_a100 import Seen
from published.form import times

STEPS = "mixed:constants=given,floor_s=0.02,token_s=0.0001,seq_s=0.0006,context_token_s=4e-07"
OPTIONS = {"model": "opt-13b", "utilisation": 0.95}


def traffic(rate_rps: float, count: int = 60) -> Traffic:
    """Requests of many lengths."""
    rng = np.random.default_rng(7)
    return Traffic(
        np.cumsum(rng.exponential(1 / rate_rps, count)), rng.integers(50, 1500, count), rng.integers(20, 200, count)
    )


def seen(rate_rps: float, options: dict[str, object], count: int = 60) -> Seen:
    """A run of the simulator as if it had been measured."""
    sent = traffic(rate_rps, count)
    found = times(sent, OPTIONS | options)
    return Seen(sent, found.ttft_s, found.tpot_s)


def table(rows: list[tuple[str, str, float, Seen]]) -> pa.Table:
    """A file of measurements: name, system, rate and times of each run; no shape is given."""
    parts = []
    for name, system, rate_rps, one in rows:
        count = len(one.ttft_s)
        shape = dict.fromkeys(("prefill_tp", "prefill_pp", "decode_tp", "decode_pp"), [-1] * count)
        columns = {"run": [name] * count, "system": [system] * count, "nominal_rate_rps": [rate_rps] * count,
                   "arrival_s": one.traffic.arrival_s, "prompt_len": one.traffic.prompt_tokens,
                   "output_len": one.traffic.output_tokens, "ttft_ms": 1000 * one.ttft_s,
                   "tpot_ms": 1000 * one.tpot_s}  # fmt: skip
        parts.append(pa.table(columns | shape))
    return pa.concat_tables(parts)


def test_a_known_system_is_found_again(tmp_path: Path) -> None:
    """Scores on real runs would tell of the fit, not of the simulator."""
    apart = {"prefill": "1:tp=2", "decode": "1", "latency": "linear:base_s=0.02,prefill_token_s=6e-5,decode_seq_s=5e-4"}
    runs = [
        (f"vllm-60-{rate}", "vllm", rate, seen(rate, {"policy": "vllm-v0", "latency": STEPS}))
        for rate in (1.0, 2.0, 3.0)
    ]
    runs += [(f"distserve-300-{rate}", "distserve", rate, seen(rate, apart)) for rate in (1.0, 2.0, 3.0)]
    (tmp_path / "profiles").mkdir()
    pq.write_table(table(runs), tmp_path / "profiles" / "distserve_a100_opt13b_sharegpt_requests.parquet")
    found = distserve_a100.validate(tmp_path)
    scored = [pair.setting for pair in found.pairs if pair.metric == "ttft_p50_s" and not pair.calibrated]

    assert sorted(name for name, *_ in runs) == sorted(scored)
    assert {"vllm", "distserve P(2,1) D(1,1)"} == {pair.curve for pair in found.pairs}
    assert all(target.holds for target in found.targets)
    assert any(line.startswith("DistServe's own simulator, the same runs: ") for line in found.setting)


@pytest.mark.parametrize(("name", "stages"), [("distserve-400-4", 2), ("distserve-450-4.5", 1), ("distserve-600-6", 1),
                                              ("distserve-800-8", 2), ("distserve-100-1", 1)])  # fmt: skip
def test_shapes_that_no_file_tells(name: str, stages: int) -> None:
    """Runs on four GPUs would be scored against a simulation of three."""
    run = table([(name, "distserve", 1.0, Seen(traffic(1.0, 2), np.ones(2), np.ones(2)))])

    assert (2, 1, 1, stages) == distserve_a100._shape(run, name, "distserve")
