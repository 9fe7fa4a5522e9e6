"""The folder of a search: it belongs to one search at a time, made by one bench."""

import json

import pytest

from harness.errors import Interrupted
from harness.experiments.capacity import execute
from harness.experiments.capacity.conditions import Settings
from harness.experiments.capacity.execute import run_search, set_up
from harness.experiments.capacity.store import Store, search_options
from harness.options import RunSpec


@pytest.fixture(scope="module")
def setup():
    """A search of short runs."""
    spec = RunSpec(workload="chatbot", backend="sim", latency="abc:distserve", policy="vllm-v0")
    return set_up(spec, Settings(goals=(0.8,), tolerance=0.25, horizon_s=60.0))


@pytest.fixture
def interrupted_after(monkeypatch):
    """`interrupted_after(n)`: n runs are made, then Ctrl-C is pressed."""

    def factory(number):
        make, made = execute.simulated, []

        def simulated(task):
            if len(made) >= number:
                raise KeyboardInterrupt
            made.append(task)
            return make(task)

        monkeypatch.setattr(execute, "simulated", simulated)

    return factory


def test_kill_in_the_first_write_leaves_a_folder_that_can_be_used(setup, tmp_path):
    """The same command would be refused for a file that it wrote itself."""
    (tmp_path / "capacity.json.part").write_text("{")

    with Store(tmp_path).opened(setup):
        assert "running" == json.loads((tmp_path / "capacity.json").read_text())["state"]


def test_ctrl_c_is_not_called_a_spent_budget(setup, interrupted_after):
    """Who pressed Ctrl-C would look for a limit that was never set, and minutes of runs would be lost."""
    interrupted_after(9)
    info = run_search(setup, Store(None), workers=1)

    assert ("interrupted", 5) == (info.state, info.exit_code)
    assert info.cost.trials >= 3
    assert "the search was interrupted" in info.answers[0].why
    assert info.answers[0].needs is None


def test_ctrl_c_before_the_first_trial_has_no_answer(setup, interrupted_after):
    """An answer without a trial would stand in the folder."""
    interrupted_after(0)
    with pytest.raises(Interrupted, match="before the first trial"):
        run_search(setup, Store(None), workers=1)


def test_a_key_in_a_header_is_not_kept():
    """A reader of capacity.json, or of its page, could use the server of the sender."""
    spec = RunSpec(
        workload="chatbot", backend="openai:url=http://127.0.0.1:9/v1", requests=30, slo="ttft=0.5",
        header="Authorization: Bearer sk-very-secret-key-0123456789",
    )  # fmt: skip
    kept = json.dumps(search_options(set_up(spec, Settings())))

    assert "very-secret" not in kept
    assert "127.0.0.1" in kept
