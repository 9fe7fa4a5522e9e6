"""What `bench run` says of a simulated cluster."""

import pytest

from harness.cli import main

SMALL = ["--workload", "fixed:prompt=300,output=100", "--requests", "60", "--rate", "40", "--backend", "sim"]


@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        (["--pp", "2"], "of busy stages"),
        (
            ["--prefill", "2", "--decode", "1", "--backend", "sim:handoff=push,kv=paged:blocks=80"],
            "hand-offs without room",
        ),
    ],
    ids=["pipeline", "push"],
)
def test_the_losses_of_a_cluster_are_reported(tmp_path, capsys, cluster, message):
    """Bubbles and pushed KV that finds no room would be known to run.json alone."""
    assert 0 == main(["run", *SMALL, *cluster, "--out", str(tmp_path / "run"), "--no-html"])
    assert message in " ".join(capsys.readouterr().out.split())
