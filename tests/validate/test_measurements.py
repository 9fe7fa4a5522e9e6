"""`bench validate --against FILE.toml`: measurements in tables, simulated and scored; what is wrong is one sentence."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from harness.cli import main
from harness.errors import UsageError
from harness.experiments.fit import requests
from harness.experiments.validate import measured_runs, measurements
from harness.experiments.validate.measurements import Traffic, times
from harness.registry import make

SLOW = "sim:latency=linear:base_s=0.02"
REQUESTS = """run,arrival_s,prompt_tokens,output_tokens,ttft_s,tpot_s
a,0.0,100,3,0.1,0.02
a,0.5,200,1,0.3,
b,0.0,100,5,,
b,1.0,100,5,0.2,0.04
"""
RUNS = """run,backend,calibrated,rate_rps,curve,ttft_mean_s,itl_mean_s,attainment_pct
a,slow,yes,1,vllm,0.2,0.02,50
b,sim:latency=linear:base_s=0.04,no,2,vllm,0.2,,100
"""
FILE = """title = "A server"
setting = ["Two runs."]
requests = "requests.csv"
runs = "runs.csv"
slo = "ttft=0.25,tpot=0.05"

[backends.slow]
latency = "linear:base_s=0.02"
policy = "vllm-v0:max_seqs=8,max_batched_tokens=4096"

[[targets]]
metric = "ttft_s"
how = "mean error in percent"
limit = 30
published = "another simulator: 40 %"
"""


def files(folder: Path, file: str = FILE, requests: str = REQUESTS, runs: str = RUNS) -> Path:
    """The three files of a deployment."""
    (folder / "requests.csv").write_text(requests)
    (folder / "runs.csv").write_text(runs)
    (folder / "server.toml").write_text(file)
    return folder / "server.toml"


def measured(folder: Path, rate_rps: float, file: str) -> Path:
    """Requests as a simulated server times them, in parquet."""
    rng = np.random.default_rng(3)
    sent = Traffic(np.cumsum(rng.exponential(1 / rate_rps, 30)), rng.integers(20, 400, 30), rng.integers(1, 40, 30))
    seen = times(sent, make("backends", SLOW))
    columns = {"run": "only", "arrival_s": sent.arrival_s, "prompt_tokens": sent.prompt_tokens,
               "output_tokens": sent.output_tokens, "ttft_s": seen.ttft_s, "tpot_s": seen.tpot_s}  # fmt: skip
    pd.DataFrame(columns).to_parquet(folder / "requests.parquet")
    (folder / "server.toml").write_text(file)
    return folder / "server.toml"


def test_the_same_system_gives_the_same_times(tmp_path: Path) -> None:
    """Requests, order or metrics would not be those that were measured."""
    wanted = ["ttft_mean_s", "tpot_p90_s", "itl_mean_s", "attainment_pct"]
    path = measured(tmp_path, 4, f'requests = "requests.parquet"\nslo = "tpot=0.05"\nmetrics = {wanted}\n')
    found = measured_runs.validate(path, SLOW)

    assert wanted == [pair.metric for pair in found.pairs]
    assert pytest.approx(0.0, abs=1e-10) == max(abs(pair.error) for pair in found.pairs)
    assert ("server", "server", 100.0) == (found.name, found.title, found.pairs[-1].measured)
    assert f"Simulated by {SLOW}." == found.setting[-1]


def test_runs_are_compared_by_their_own_backends(tmp_path: Path) -> None:
    """A run would be simulated on the system of another, or one that was calibrated on would be scored."""
    found = measured_runs.validate(files(tmp_path))
    pairs = {(pair.setting, pair.metric): pair for pair in found.pairs}
    (target,) = found.targets

    assert [("a", "ttft_mean_s"), ("a", "itl_mean_s"), ("a", "attainment_pct")] == list(pairs)[:3]
    assert [("b", "ttft_mean_s"), ("b", "attainment_pct")] == list(pairs)[3:]
    assert (True, 1.0, "vllm") == (pairs["a", "itl_mean_s"].calibrated, pairs["a", "itl_mean_s"].x, "vllm")
    assert pytest.approx(0.02) == pairs["a", "itl_mean_s"].simulated
    assert not pairs["b", "ttft_mean_s"].calibrated
    assert (1, abs(pairs["b", "ttft_mean_s"].error)) == (target.pairs, target.obtained)
    assert "another simulator: 40 %" == target.published


def test_a_backend_of_the_command_was_calibrated_on_nothing(tmp_path: Path) -> None:
    """Runs would be left out of the score of a model that never saw them."""
    found = measured_runs.validate(files(tmp_path), SLOW)

    assert not any(pair.calibrated for pair in found.pairs)


def test_bounds_of_the_command_score_the_requests_again(tmp_path: Path) -> None:
    """Attainment would be that of other bounds; a request without times would count as met."""
    path = files(tmp_path, 'requests = "requests.csv"\nbackend = "sim:latency=linear"\nslo = "ttft=9"\n')
    found = [measured_runs.validate(path, slo=slo) for slo in (None, "ttft=0.25,tpot=0.05")]
    shares = [[pair.measured for pair in one.pairs if pair.metric == "attainment_pct"] for one in found]

    assert [[100.0, 50.0], [50.0, 50.0]] == shares


def test_repeats_of_a_run_are_averaged(tmp_path: Path) -> None:
    """One draw of the arrivals would be taken for the run."""
    rows = [f"r,{at},100,2,{repeat}" for repeat, at in ((0, 0.0), (1, 0.0), (1, 0.001))]
    requests = "run,arrival_s,prompt_tokens,output_tokens,repeat\n" + "\n".join(rows) + "\n"
    runs = "run,requests,ttft_mean_s\nx,r,0.1\ny,r,0.1\n"
    latency = "linear:base_s=0.02,prefill_token_s=0.001"
    path = files(tmp_path, f'requests = "requests.csv"\nruns = "runs.csv"\n\n[backends.one]\nlatency = "{latency}"\n',
                 requests, runs.replace("ttft", "backend,ttft", 1).replace("r,", "r,one,"))  # fmt: skip

    def ttft_s(*arrivals_s: float) -> float:
        tokens = [np.full(len(arrivals_s), count) for count in (100, 2)]
        seen = times(Traffic(np.array(arrivals_s), *tokens), make("backends", "sim", latency=latency))
        return float(seen.ttft_s.mean())

    alone, both = ttft_s(0.0), ttft_s(0.0, 0.001)

    assert both > alone
    assert [(alone + both) / 2] * 2 == [pair.simulated for pair in measured_runs.validate(path).pairs]


def test_the_largest_factor_of_some_runs(tmp_path: Path) -> None:
    """A simulated queue of half the length would look as near as one of 1.5 times the length."""
    target = '\n[[targets]]\nmetric = "attainment_pct"\nhow = "largest factor, worse half"\nlimit = 2\nruns = ["b"]\n'
    found = measured_runs.validate(files(tmp_path, FILE + target))

    assert ("largest factor, worse half", 1, 1.0) == (
        found.targets[1].how,
        found.targets[1].pairs,
        found.targets[1].obtained,
    )


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"file": "title = "}, "cannot be read: it is not TOML"),
        ({"file": 'titel = "A"'}, "'titel'. Did you mean 'title'?"),
        ({"file": "title = 3"}, "got `int` - at `$.title`"),
        ({"file": 'title = "A"'}, "missing required field `requests`"),
        ({"file": 'requests = "requests.json"'}, "must name a .csv or .parquet file"),
        ({"file": 'requests = "none.csv"'}, "none.csv' cannot be read: No such file"),
        ({"file": FILE.replace("ttft=0.25", "e2e=1")}, "scored by ttft and tpot of a request, not by 'e2e=1'"),
        ({"file": FILE.replace('slo = "', 'metrics = ["ttft_mean"]\nslo = "')}, "'ttft_mean' is no metric"),
        ({"file": FILE.replace("mean error in percent", "average")}, "how of a target must be one of mean error"),
        ({"file": FILE.replace("limit = 30", "limits = 30")}, "unknown field `limits` - at `$.targets[0]`"),
        ({"file": FILE + 'runs = ["c"]\n'}, "No run of a target"),
        ({"file": FILE.replace("max_seqs", "max_seq")}, "run 'a': 'vllm-v0"),
        ({"requests": REQUESTS.replace("arrival_s", "arrival")}, "has no column arrival_s; its columns are run,"),
        ({"requests": REQUESTS.replace("tpot_s", "tpot")}, "'tpot'. Did you mean 'tpot_s'?"),
        ({"requests": REQUESTS.replace(",tpot_s", "").replace(",0.02", "").replace(",0.04", "").replace("0.3,", "0.3")
          .replace(",,", ",")}, "has one of ttft_s and tpot_s"),
        ({"requests": REQUESTS.replace("0.5,200", "soon,200")}, "row 2: arrival_s must be a number of at least 0"),
        ({"requests": REQUESTS.replace("100,3", "0,3")}, "prompt_tokens must be a number of at least 1, got '0'"),
        ({"requests": REQUESTS.splitlines()[0]}, "has no row"),
        ({"runs": RUNS.replace("ttft_mean_s", "ttft")}, "'ttft' is no metric of measurements; allowed are run,"),
        ({"runs": RUNS.replace("yes", "maybe")}, "row 1: calibrated must be yes or no, got 'maybe'"),
        ({"runs": RUNS.replace("b,sim", "c,sim")}, "No run with requests"),
        ({"runs": RUNS.replace("a,slow", "a,slw")}, "No backend named 'slw'. Did you mean 'slow'?"),
        ({"runs": RUNS.replace("a,slow", "a,")}, "run 'a' has no backend"),
        ({"runs": RUNS.replace("a,slow", "a,engine")}, "backend 'engine' runs in real time"),
        ({"runs": RUNS.replace("0.2,0.02,50", "0,0.02,50")}, "run 'a': ttft_mean_s must be above 0 s"),
        ({"runs": "run,backend\na,slow\n", "requests": "run,arrival_s,prompt_tokens,output_tokens\na,0,1,2\n",
          "file": FILE.partition("[[targets]]")[0]}, "nothing was measured"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_file_is_one_sentence(
    changed: dict[str, str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A mistyped column would end in a traceback, or in numbers of something else."""
    code = main(["validate", "--against", str(files(tmp_path, **changed))])
    output = capsys.readouterr()

    assert (2, "") == (code, output.out)
    assert words in output.err
    assert 1 == output.err.count("\n")


def test_bounds_of_the_command_need_measured_requests(tmp_path: Path) -> None:
    """The attainment of a run under other bounds would be compared with what was measured under the old ones."""
    requests = "run,arrival_s,prompt_tokens,output_tokens\na,0,1,2\nb,0,1,2\n"

    with pytest.raises(UsageError, match="--slo scores requests"):
        measured_runs.validate(files(tmp_path, requests=requests), slo="ttft=1")


def test_every_number_of_a_table_is_read_to_the_last_bit(tmp_path: Path) -> None:
    """Arrivals that were written by another program would be moved by a rounding."""
    requests = "run,arrival_s,prompt_tokens,output_tokens\na,0.1234567890123456789,1,2\na,1e-17,1,2\nb,2.675,1,2\n"
    (a, _) = measurements.read(files(tmp_path, requests=requests)).runs

    assert [0.1234567890123456789, 1e-17] == a.repeats[0].traffic.arrival_s.tolist()


def runs_of(folder: Path, name: str) -> Path:
    """Three runs of a server whose steps take 20 ms and 0.2 ms a prompt token, in one table."""
    rng, parts = np.random.default_rng(5), []
    for rate_rps in (1, 3, 5):
        sent = Traffic(np.cumsum(rng.exponential(1 / rate_rps, 80)), rng.integers(20, 400, 80), rng.integers(2, 40, 80))
        seen = times(sent, make("backends", "sim:policy=vllm-v0,latency=linear:base_s=0.02", log_steps=False))
        parts.append(pd.DataFrame({
            "run": f"at-{rate_rps}", "arrival_s": sent.arrival_s, "prompt_tokens": sent.prompt_tokens,
            "output_tokens": sent.output_tokens, "ttft_s": seen.ttft_s, "tpot_s": seen.tpot_s,
        }))  # fmt: skip
    pd.concat(parts).to_csv(folder / name, index=False)
    return folder / name


def test_a_table_that_a_fit_takes_is_validated_as_it_is(tmp_path: Path) -> None:
    """A user who has fitted to a table would have to write a TOML file to score it."""
    path = runs_of(tmp_path, "requests.csv")
    found = measured_runs.validate(path, "sim:policy=vllm-v0,latency=linear:base_s=0.02")

    assert {"at-1", "at-3", "at-5"} == {pair.setting for pair in found.pairs}
    assert max(abs(pair.error) for pair in found.pairs) < 1e-4


def test_each_run_is_scored_by_a_fit_to_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A model scored on its own data is optimistic."""
    path = runs_of(tmp_path, "requests.csv")
    assert main(["validate", "--against", str(path), "--backend", "sim:policy=vllm-v0", "--fit", "linear"]) == 0
    assert "Each run is simulated with a model 'linear' fitted on all others." in capsys.readouterr().out

    found = measured_runs.validate(path, "sim:policy=vllm-v0", latency="linear")
    assert not any(pair.calibrated for pair in found.pairs)
    assert max(abs(pair.error) for pair in found.pairs) < 20
    assert np.mean([abs(pair.error) for pair in found.pairs]) < 5


def test_measurements_of_a_toml_file_are_fitted_as_those_of_its_table(tmp_path: Path) -> None:
    """Of one data set two forms would give two fits."""
    table = runs_of(tmp_path, "requests.csv")
    (tmp_path / "server.toml").write_text('requests = "requests.csv"\nbackend = "sim"\n')
    ours, theirs = (requests.read([str(path)]) for path in (tmp_path / "server.toml", table))

    assert [one.name for one in ours] == [one.name for one in theirs] == ["at-1", "at-3", "at-5"]
    assert all(
        (a.ttft_s == b.ttft_s).all() and (a.arrival_s == b.arrival_s).all() for a, b in zip(ours, theirs, strict=True)
    )


def test_what_cannot_be_left_out_is_one_sentence(tmp_path: Path) -> None:
    """A single run has no others to fit on; runs of other systems tell nothing of this one."""
    path = measured(tmp_path, 4, 'requests = "requests.parquet"\nbackend = "sim"\n')
    with pytest.raises(UsageError, match="has one run; leaving one out needs two or more"):
        measured_runs.validate(path, latency="linear")
    runs_of(tmp_path, "requests.csv")
    (tmp_path / "runs.csv").write_text("run,backend\nat-1,sim\nat-3,sim:policy=vllm-v0\n")
    (tmp_path / "server.toml").write_text('requests = "requests.csv"\nruns = "runs.csv"\n')
    with pytest.raises(UsageError, match="no other run has its backend"):
        measured_runs.validate(tmp_path / "server.toml", latency="linear")
