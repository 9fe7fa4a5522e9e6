"""Configurations that come with bench, and what is refused before anything runs."""

import pytest

from harness import configs
from harness.configs import read
from harness.errors import UsageError
from harness.options import Given, run_spec
from harness.runner.plan import plan


@pytest.mark.parametrize("name", [name for name in configs.names() if name != "agentx-mvp"])  # is for a trace
def test_a_named_configuration_runs(name: str) -> None:
    """A published experiment that bench offers by name could not be started."""
    spec = run_spec(Given({"requests": "3", "rate": "1"}), read(name).given)

    assert configs.about(name).endswith((".", "second"))
    assert plan(spec).virtual


@pytest.mark.parametrize("backend", ["engine:executor=paced", "engine:executor=paced:tp=1"])
def test_the_paced_engine_takes_the_parts_of_a_simulated_system(backend: str) -> None:
    """It ran another model, on another GPU, under another policy than the configuration names."""
    simulated = run_spec(Given({}), read("jitserve").given)
    paced = run_spec(Given({"backend": backend}), read("jitserve").given)

    assert simulated.parts() == paced.parts()
    assert paced.backend == f"{backend},kv=paged:blocks=8192"
    assert simulated.parts() == run_spec(Given({"backend": "sim"}), Given(paced.options())).parts()


def test_an_engine_that_computes_takes_no_parts_of_a_simulated_system() -> None:
    """The simulated model would be looked for as a folder of weights."""
    assert run_spec(Given({"backend": "engine"}), read("jitserve").given).parts() == {}
    assert (
        "engine" == run_spec(Given({"backend": "engine"}), Given({"backend": "engine:executor=paced,kv=paged"})).backend
    )


def test_a_file_wins_over_a_named_configuration(tmp_path, monkeypatch) -> None:
    """A user's own file of that name would be ignored."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sarathi-table4").write_text('backend = "null"', encoding="utf-8")

    assert {"backend": "null"} == read("sarathi-table4").given.values


def test_a_wrong_name_tells_the_nearest_one() -> None:
    """A typo would be answered with a file that is missing."""
    with pytest.raises(UsageError, match=r"Did you mean 'sarathi-table4'.*'bench init' writes one of your own"):
        read("sarathi-tabel4")
