"""`bench fit --requests`: constants from arrivals, lengths, TTFT and TPOT alone, through the simulator."""

import json

import numpy as np
import pytest

from backends.sim import Sim
from harness.api import Request
from harness.cli import main
from harness.experiments.fit import requests
from harness.experiments.fit.requests import Measured, fit_with_kv
from harness.experiments.validate.measurements import sent_again
from harness.spec import parse

TRUE = {"base_s": 0.02, "prefill_token_s": 1.4e-4, "decode_seq_s": 3e-4, "context_token_s": 6e-7, "front_end_s": 9e-3}
LATENCY = "linear:" + ",".join(f"{name}={value}" for name, value in TRUE.items())
BACKEND = parse("sim:policy=vllm-v0")


def measured(
    rate_rps: float, count: int = 250, latency: str = LATENCY, users: int | None = None, **system: object
) -> Measured:
    """What a client would have seen of a server with these constants."""
    rng = np.random.default_rng(3)
    at_s = np.cumsum(rng.exponential(1 / rate_rps, count))
    prompt, output = rng.integers(20, 1200, count), rng.integers(2, 200, count)
    requests = [
        Request(i, *row) for i, row in enumerate(zip(at_s.tolist(), prompt.tolist(), output.tolist(), strict=True))
    ]
    simulator = Sim(latency=latency, policy="vllm-v0", **system)
    records = sorted(sent_again(simulator, requests, users), key=lambda r: r.request_id)
    at_s = np.array([r.scheduled_s for r in records])
    ttft_s = np.array([r.token_s[0] - r.scheduled_s for r in records])
    tpot_s = np.array([(r.token_s[-1] - r.token_s[0]) / (r.output_tokens - 1) for r in records])
    return Measured("made", at_s, prompt.astype(float), output.astype(float), ttft_s, tpot_s, users)


def written(path, run: Measured) -> str:
    columns = [run.arrival_s, run.prompt_tokens, run.output_tokens, run.ttft_s, run.tpot_s]
    names = "arrival_s,prompt_tokens,output_tokens,ttft_s,tpot_s"
    if run.users is not None:
        columns, names = [*columns, np.full(len(run), run.users)], f"{names},users"
    np.savetxt(path, np.stack(columns, axis=1), delimiter=",", header=names, comments="", fmt="%.17g")
    return str(path)


def test_times_of_requests_tell_the_constants_of_the_steps():
    """Who has only a client's results could not calibrate a simulator."""
    runs = [measured(1.0), measured(4.0)]
    every = [np.ones(len(run), bool) for run in runs]

    found, _ = requests.fit("linear", runs, every, BACKEND, {})

    assert TRUE == pytest.approx(found, rel=0.15)
    ttft, tpot = requests.scores(runs, every, "linear", found, BACKEND)
    assert abs(ttft.bias) < 0.05
    assert tpot.mean < 0.03


def test_another_rate_is_foretold(tmp_path, capsys):
    """A fit that holds only where it was made decides no capacity."""
    args = ["--requests", written(tmp_path / "a.csv", measured(2.0)), "--latency", "linear", "--backend", str(BACKEND)]

    assert main(["fit", *args, "--out", str(tmp_path / "x.toml"), "--format", "json"]) == 0
    info = json.loads(capsys.readouterr().out)

    assert (250, 200, 50) == (info["rows"], info["seen_rows"], info["unseen_rows"])
    other, found = measured(5.0), measured(5.0, latency=f"file:{tmp_path}/x.toml")
    assert np.mean(other.tpot_s) == pytest.approx(np.mean(found.tpot_s), rel=0.03)
    assert np.mean(other.ttft_s) == pytest.approx(np.mean(found.ttft_s), rel=0.10)


def test_a_closed_loop_is_simulated_as_one(tmp_path, capsys):
    """A faster model would find its requests waiting for arrivals that a slower server had delayed."""
    paths = [written(tmp_path / f"{users}.csv", measured(50.0, 120, users=users)) for users in (2, 12)]
    args = ["--latency", "linear", "--backend", str(BACKEND), "--out", str(tmp_path / "x.toml")]

    assert main(["fit", *(word for path in paths for word in ("--requests", path)), *args]) == 0
    other, found = (measured(50.0, 120, latency=one, users=24) for one in (LATENCY, f"file:{tmp_path}/x.toml"))
    assert np.mean(other.tpot_s) == pytest.approx(np.mean(found.tpot_s), rel=0.05)
    assert other.arrival_s[-1] == pytest.approx(found.arrival_s[-1], rel=0.05)
    capsys.readouterr()
    backend = f"{BACKEND},latency={LATENCY}"
    assert (
        main(["validate", "--against", paths[1], "--backend", backend.replace(LATENCY, f"file:{tmp_path}/x.toml")]) == 0
    )


def test_users_must_be_one_number_a_run(tmp_path, capsys):
    """Half a run with users would be simulated as what it was not."""
    lines = ["arrival_s,prompt_tokens,output_tokens,ttft_s,tpot_s,users", *["1,20,3,0.1,0.1,4"] * 12, "1,20,3,0.1,0.1,"]
    (tmp_path / "odd.csv").write_text("\n".join(lines) + "\n")

    assert main(["fit", "--requests", str(tmp_path / "odd.csv"), "--latency", "linear"]) == 2
    assert "users must be one whole number in all rows of a run, or empty in all" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("blocks", "count"), [(700, 200), *(pytest.param(blocks, 400, marks=pytest.mark.nightly) for blocks in (700, 1500))]
)
def test_waits_for_memory_tell_its_size(blocks, count):
    """A server that ran out of KV memory would be simulated as one that never does."""
    runs = [measured(rate, count, kv_blocks=blocks) for rate in (1.0, 20.0)]

    found, _, memory = fit_with_kv("linear", runs, [np.ones(len(run), bool) for run in runs], BACKEND, {})
    assert blocks * 16 == pytest.approx(memory.tokens, rel=0.15)
    assert TRUE["base_s"] == pytest.approx(found["base_s"], rel=0.2)


def test_memory_that_nothing_waited_for_is_unknown(tmp_path, capsys):
    """A size would be printed that another one explains as well."""
    args = ["--requests", written(tmp_path / "a.csv", measured(2.0)), "--latency", "linear", "--backend", str(BACKEND)]

    assert main(["fit", *args]) == 0
    assert "unknown: no request waited" in capsys.readouterr().out
    assert main(["fit", *args[:-1], f"{BACKEND},kv_blocks=5000"]) == 0
    assert "KV memory" not in capsys.readouterr().out


def test_a_constant_that_is_given_is_left_alone():
    """Who measured the front end apart should not have it guessed again."""
    run = measured(3.0)

    found, spread = requests.fit("linear", [run], [np.ones(250, bool)], BACKEND, {"front_end_s": 9e-3})

    assert 9e-3 == found["front_end_s"]
    assert "front_end_s" not in spread


def test_whole_runs_are_held_out_where_there_are_several():
    """The error at a rate that was seen says little of one that was not."""
    runs = [measured(1.0, 20), measured(2.0, 20), measured(3.0, 20)]

    masks = requests.split(runs, 0.3, 1)

    assert [0, 20, 20] == sorted(int(mask.sum()) for mask in masks)
    assert [16] == [int(mask.sum()) for mask in requests.split(runs[:1], 0.2, 1)]


def test_wrong_requests_are_one_sentence(tmp_path, refusals):
    """The way out should be in the message."""
    (tmp_path / "broken.csv").write_text("arrival_s,prompt_tokens,output_tokens\n1,2,3\n")
    (tmp_path / "few.csv").write_text("arrival_s,prompt_tokens,output_tokens,ttft_s,tpot_s\n1,2,3,0.1,0.1\n")
    refusals("wrong-requests.txt", "--requests", written(tmp_path / "a.csv", measured(3.0, 30)))
