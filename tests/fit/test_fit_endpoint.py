"""`bench fit --url`: a short probing run turns what a client sees into constants of steps."""

import json

import pytest

from harness.cli import main

FILE = """latency = "linear"
[arguments]
base_s = 0.008
prefill_token_s = 9e-5
decode_seq_s = 5e-4
context_token_s = 1e-6
prefill_token_squared_s = 2e-8
front_end_s = 4e-3
"""


@pytest.fixture
def endpoint(tmp_path) -> str:
    (tmp_path / "true.toml").write_text(FILE)
    return f"sim:policy=vllm-v0,latency=file:{tmp_path}/true.toml"


def test_probing_finds_the_constants_of_a_server(endpoint, tmp_path, capsys):
    """What a client can see is enough to simulate the server: prompts alone, then answers side by side."""
    args = ["--url", endpoint, "--latency", "linear", "--users", "1,2,6", "--out", str(tmp_path / "x.toml")]

    assert main(["fit", *args, "--format", "json"]) == 0
    output = capsys.readouterr()
    found = {row["name"]: row["value"] for row in json.loads(output.out)["constants"]}

    assert "probing with 6 at a time" in output.err
    true = {"base_s": 0.008, "prefill_token_s": 9e-5, "decode_seq_s": 5e-4, "context_token_s": 1e-6,
            "prefill_token_squared_s": 2e-8, "front_end_s": 4e-3}  # fmt: skip
    assert true == pytest.approx(found, rel=0.05)


def test_a_front_end_that_is_known_is_not_guessed(endpoint, capsys):
    """A time measured apart stays what it is."""
    args = ["--url", endpoint, "--latency", "mixed", "--users", "1,4", "--fix", "front_end_s=0.004", "--format", "json"]

    assert main(["fit", *args]) == 0
    info = json.loads(capsys.readouterr().out)

    assert [0.004] == [row["value"] for row in info["constants"] if row["name"] == "front_end_s"]
    assert all(row["mean"] < 0.05 for row in info["unseen"])
