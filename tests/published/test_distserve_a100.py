"""`distserve-a100`: constants from requests alone, what is calibrated on, and whether a known system is found again."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.errors import UsageError
from harness.experiments.validate import Pair
from harness.experiments.validate.simulated import Traffic
from published import distserve_a100, requests_fit
from published.form import times

TERMS = requests_fit.Terms(0.02, token_s=1e-4, seq_s=6e-4, context_s=4e-7)
OPTIONS = {"model": "opt-13b", "utilisation": 0.95}


def traffic(rate_rps: float, count: int = 60) -> Traffic:
    """Requests of many lengths."""
    rng = np.random.default_rng(7)
    return Traffic(
        np.cumsum(rng.exponential(1 / rate_rps, count)), rng.integers(50, 1500, count), rng.integers(20, 200, count)
    )


def seen(rate_rps: float, options: dict[str, object], count: int = 60) -> requests_fit.Seen:
    """A run of the simulator as if it had been measured."""
    sent = traffic(rate_rps, count)
    found = times(sent, OPTIONS | options)
    return requests_fit.Seen(sent, found.ttft_s, found.tpot_s)


def test_steps_follow_from_what_answers_lived_through(tmp_path: Path) -> None:
    """Constants would be fitted that no step of the system takes."""
    options = {"policy": "vllm-v0", "latency": requests_fit.mixed_file(tmp_path / "f.toml", TERMS)}
    found = requests_fit.mixed_terms([seen(rate, options) for rate in (1.0, 2.0)])
    step_s = (found.base_s + 30 * found.seq_s + 20_000 * found.context_s, 0.02 + 30 * 6e-4 + 20_000 * 4e-7)

    assert pytest.approx(step_s[1], rel=0.05) == step_s[0]
    assert pytest.approx(1e-4, rel=0.1) == found.token_s
    assert 0.03 > found.error


def test_prompts_on_an_idle_system_give_the_prefill(tmp_path: Path) -> None:
    """The waiting of one prompt behind another would be taken for its own work."""
    latency = requests_fit.mixed_file(tmp_path / "p.toml", requests_fit.Terms(0.03, token_s=1e-4, squared_s=5e-9))
    found = requests_fit.idle_prefill([seen(4.0, {"prefill": f"1:latency={latency}"})])

    assert pytest.approx((0.03, 1e-4, 5e-9), rel=1e-6) == (found.base_s, found.token_s, found.squared_s)


def test_memory_is_found_that_holds_as_much(tmp_path: Path) -> None:
    """A queue that memory made would be taken for slow steps."""
    latency = requests_fit.mixed_file(tmp_path / "f.toml", TERMS)
    options: dict[str, object] = {"policy": "vllm-v0", "latency": latency}
    crowded = seen(8.0, options | {"kv_blocks": 1500}, 120)

    assert pytest.approx(1500, rel=0.03) == distserve_a100._blocks(crowded, options)


def table(rows: list[tuple[str, str, float, requests_fit.Seen]]) -> pa.Table:
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
    """Scores on real runs would tell of the calibration, not of the simulator."""
    options = {"policy": "vllm-v0", "latency": requests_fit.mixed_file(tmp_path / "f.toml", TERMS)}
    apart = {"prefill": "1:tp=2,latency=linear:prefill_token_s=6e-5", "decode": "1:latency=linear:base_s=0.03"}
    runs = [(f"vllm-60-{rate}", "vllm", rate, seen(rate, options)) for rate in (1.0, 2.0, 3.0)]
    runs += [(f"distserve-300-{rate}", "distserve", rate, seen(rate, apart)) for rate in (1.0, 2.0)]
    (tmp_path / "profiles").mkdir()
    pq.write_table(table(runs), tmp_path / "profiles" / "distserve_a100_opt13b_sharegpt_requests.parquet")
    found = distserve_a100.validate(tmp_path)
    scored = [pair.setting for pair in found.pairs if pair.metric == "ttft_p50_s" and not pair.calibrated]

    assert sorted(name for name, *_ in runs) == sorted(scored)
    assert {"vllm", "distserve P(2,1) D(1,1)"} == {pair.curve for pair in found.pairs}
    assert all(target.holds for target in found.targets)
    assert 5.0 > max(target.obtained for target in found.targets)
    assert all("DistServe's own simulator on the same runs: " in target.published for target in found.targets)


def test_a_target_is_that_of_the_worse_half() -> None:
    """2.53 points of the half that was chosen first would hide 6.41 of the other."""
    name = distserve_a100._attainment(distserve_a100.BOUNDS[0])
    other = distserve_a100._attainment(distserve_a100.BOUNDS[1])
    halves = [[Pair(f"run-{error}", one, 50.0, 50.0 + error, curve="vllm") for one in (name, other)]
              for error in (2.0, 9.0)]  # fmt: skip
    peer = [Pair("run-9.0", one, 50.0, 53.0, curve="vllm") for one in (name, other)]
    found, notes = distserve_a100._targets(halves, peer, {"vllm": 0.1})

    assert [(9.0, 1), (9.0, 1)] == [(target.obtained, target.pairs) for target in found]
    assert [False, False] == [target.holds for target in found]
    assert "on the same runs: 3.00 points; 11.05 over other runs" in found[0].published
    assert (
        "2.00 and 9.00 points in the two halves; DistServe's own simulator on the same runs not simulated" in notes[0]
    )


@pytest.mark.parametrize(("name", "stages"), [("distserve-400-4", 2), ("distserve-450-4.5", 1), ("distserve-600-6", 1),
                                              ("distserve-800-8", 2), ("distserve-100-1", 1)])  # fmt: skip
def test_shapes_that_no_file_tells(name: str, stages: int) -> None:
    """Runs on four GPUs would be scored against a simulation of three."""
    run = table([(name, "distserve", 1.0, requests_fit.Seen(traffic(1.0, 2), np.ones(2), np.ones(2)))])

    assert (2, 1, 1, stages) == distserve_a100._shape(run, name, "distserve")


def test_one_rate_leaves_nothing_to_score(tmp_path: Path) -> None:
    """A calibration would be scored on itself."""
    run = distserve_a100.Run("vllm-2-1", "vllm", None, 1.0, requests_fit.Seen(traffic(1.0, 2), np.ones(2), np.ones(2)))

    with pytest.raises(UsageError, match="measured at one rate"):
        distserve_a100.calibration([run])
